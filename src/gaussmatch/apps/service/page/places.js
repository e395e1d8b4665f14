// Where pictures were taken: points on a map of coasts. No tiles, so nothing is requested elsewhere.

import { get } from "./api.js";
import { COASTS } from "./coasts.js";
import { el, number, plural } from "./dom.js";
import { thumbnail } from "./picture.js";

const STEPS = [60, 30, 10, 5, 1, 0.5, 0.1, 0.05, 0.01];
const LISTED = 30; // places beside the map
const MOST_ZOOM = 4000; // pixels of a degree
const CONTEXT = 40; // degrees that are shown at first, at least: coasts tell where one is

export const degrees = ({ latitude, longitude }) =>
  `${Math.abs(latitude).toFixed(2)}° ${latitude < 0 ? "S" : "N"}, ${Math.abs(longitude).toFixed(2)}° ${longitude < 0 ? "W" : "E"}`;

export class Places {
  /** `choose(box, label)` shows the pictures of a place. */
  constructor(host, choose) {
    Object.assign(this, { host, choose, spots: null, scale: 1, x: 0, y: 0 });
    this.canvas = el("canvas", { tabIndex: 0, role: "application", "aria-label": "Map of places. Arrows move, plus and minus zoom; the places are listed below." });
    this.picked = el("div", { className: "picked", "aria-live": "polite" });
    this.list = el("ul", { className: "chips spots", "aria-label": "Places with most pictures" });
    const button = (text, label, onclick) => el("button", { type: "button", "aria-label": label, onclick }, text);
    host.replaceChildren(el("div", { className: "plane" }, this.canvas),
      el("div", { className: "views", role: "group", "aria-label": "Zoom" }, button("−", "Zoom out", () => this.zoom(1 / 2)), button("Whole", "Show all places", () => this.fit()), button("+", "Zoom in", () => this.zoom(2))),
      this.picked, this.list);
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.drag();
    new ResizeObserver(() => this.size()).observe(host);
  }

  async load() {
    if (this.spots) return;
    ({ spots: this.spots } = await get("api/places"));
    if (!this.spots.length) {
      this.host.replaceChildren(el("p", { className: "note" }, "None of these pictures says where it was taken."));
      return;
    }
    this.list.append(...this.spots.slice(0, LISTED).map((spot) => el("li", {}, el("button", { type: "button", className: "chip", onclick: () => this.show(spot, 0.02) },
      degrees(spot), el("span", { className: "count" }, number(spot.count))))));
    this.size();
    this.fit(CONTEXT);
  }

  size() {
    const { width } = this.canvas.parentElement.getBoundingClientRect();
    if (!width || !this.spots?.length) return;
    const height = Math.round(Math.min(width * (width < 560 ? 0.75 : 0.55), 0.7 * innerHeight));
    const ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.canvas.style.height = `${height}px`;
    Object.assign(this, { width, height, ratio });
    this.draw();
  }

  /** Show all places, and at least this many degrees. */
  fit(least = 0.02) {
    const xs = this.spots.map((s) => s.longitude);
    const ys = this.spots.map((s) => s.latitude);
    const [west, east, south, north] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    this.x = (west + east) / 2;
    this.y = (south + north) / 2;
    this.scale = Math.min(MOST_ZOOM, 0.85 * Math.min(this.width / Math.max(least, east - west), this.height / Math.max(least / 2, north - south)));
    this.draw();
  }

  zoom(factor) {
    this.scale = Math.min(MOST_ZOOM, Math.max(this.width / 400, this.scale * factor));
    this.draw();
  }

  at({ latitude, longitude }) {
    return [this.width / 2 + (longitude - this.x) * this.scale, this.height / 2 - (latitude - this.y) * this.scale];
  }

  draw() {
    if (!this.width || !this.spots?.length) return;
    const pen = this.canvas.getContext("2d");
    const color = (name) => getComputedStyle(this.host).getPropertyValue(name).trim();
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    this.drawLand(pen, color);
    const step = STEPS.find((s) => s * this.scale < 160) ?? STEPS.at(-1);
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    pen.strokeStyle = color("--line");
    pen.fillStyle = color("--soft");
    pen.font = "12px system-ui";
    pen.beginPath();
    const marks = (center, size, most) => { // from one edge to the other, and not beyond the pole
      const half = size / 2 / this.scale;
      const first = Math.ceil(Math.max(-most, center - half) / step);
      return Array.from({ length: Math.max(0, Math.floor(Math.min(most, center + half) / step) - first + 1) }, (_, n) => (first + n) * step);
    };
    const label = (v, after, before) => `${Math.abs(v).toFixed(digits)}°${v > 0 ? after : v < 0 ? before : ""}`;
    for (const v of marks(this.x, this.width, 180)) {
      const [x] = this.at({ latitude: 0, longitude: v });
      pen.moveTo(x, 0); pen.lineTo(x, this.height);
      pen.fillText(label(v, " E", " W"), x + 4, this.height - 6);
    }
    for (const v of marks(this.y, this.height, 90)) {
      const [, y] = this.at({ latitude: v, longitude: 0 });
      pen.moveTo(0, y); pen.lineTo(this.width, y);
      pen.fillText(label(v, " N", " S"), 4, y - 4);
    }
    pen.stroke();
    pen.fillStyle = color("--match");
    pen.globalAlpha = 0.7;
    for (const spot of this.spots) {
      const [x, y] = this.at(spot);
      if (x < -30 || y < -30 || x > this.width + 30 || y > this.height + 30) continue;
      pen.beginPath();
      pen.arc(x, y, Math.min(24, 4 + Math.sqrt(spot.count)), 0, 2 * Math.PI);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  drawLand(pen, color) {
    const scale = this.scale / 10; // the path is in tenths of a degree
    pen.save();
    pen.translate(...this.at({ latitude: 0, longitude: 0 }));
    pen.scale(scale, -scale);
    pen.lineWidth = 1 / scale;
    pen.fillStyle = color("--sunk");
    pen.strokeStyle = color("--line");
    this.land ??= new Path2D(COASTS);
    pen.fill(this.land, "evenodd");
    pen.stroke(this.land);
    pen.restore();
  }

  click(event) {
    if (this.dragged) return;
    const box = this.canvas.getBoundingClientRect();
    const far = (spot) => { const [x, y] = this.at(spot); return Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top); };
    const nearest = this.spots.reduce((best, spot) => (far(spot) < far(best) ? spot : best));
    if (far(nearest) < 40) this.show(nearest, Math.max(0.02, 24 / this.scale));
  }

  show(spot, reach) {
    const text = plural(spot.count, "picture", "pictures");
    const { latitude: y, longitude: x } = spot;
    const box = [y - reach, x - reach, y + reach, x + reach].map((v) => v.toFixed(5)).join(",");
    this.picked.replaceChildren(thumbnail({ id: spot.cover }, "mini"), el("span", { className: "name" }, `${text} near ${degrees(spot)}`),
      el("button", { type: "button", className: "pill", onclick: () => this.choose(box, degrees(spot)) }, "Show them"));
  }

  key(event) {
    const by = 60 / this.scale;
    const step = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, by], ArrowDown: [0, -by] }[event.key];
    if (step) { this.x += step[0]; this.y += step[1]; this.draw(); } else if (event.key === "+" || event.key === "=") this.zoom(2);
    else if (event.key === "-") this.zoom(1 / 2);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  drag() {
    let from = null;
    this.canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; this.dragged = false; });
    addEventListener("pointerup", () => { from = null; });
    addEventListener("pointermove", (event) => {
      if (!from || Math.hypot(event.clientX - from[0], event.clientY - from[1]) < 4) return;
      this.dragged = true;
      this.x -= (event.clientX - from[0]) / this.scale;
      this.y += (event.clientY - from[1]) / this.scale;
      from = [event.clientX, event.clientY];
      this.draw();
    });
  }
}
