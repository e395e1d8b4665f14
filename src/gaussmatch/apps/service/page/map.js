// All pictures on a plane, drawn on a canvas: alike ones are near each other.

import { get, image } from "./api.js";
import { el, number, plural } from "./dom.js";
import { kept, nameOf, shownIn, thumbnail, thumbnailOf } from "./picture.js";

const MARGIN = 40; // pixels around the pictures
const MOST_ZOOM = 60;
const CLUSTER = 60; // pictures that "zoom in here" shows
const LOADED = 500; // thumbnails that are kept
const AROUND = 160; // pixels beyond the edges that are drawn ahead
const VISIBLY = 1.5; // how much larger the large ellipses must be than the small ones

export class PictureMap {
  /** `parts`: legend, picked, ellipses (a button); `actions`: open(item), like(item). */
  constructor(host, parts, actions) {
    Object.assign(this, { host, parts, actions, data: null, scale: 1, x: 0, y: 0, hits: [], query: null, asEllipses: false, pending: 0, images: new Map(), sprites: new Map() });
    this.canvas = el("canvas", { tabIndex: 0, role: "application",
      "aria-label": "Map of the pictures. Arrows move, plus and minus zoom, N goes to the next result, Enter picks the picture in the center." });
    host.replaceChildren(this.canvas);
    new ResizeObserver(() => this.fit()).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.sprites.clear(); this.layer = null; this.redraw(); });
    this.listen();
  }

  /** The pictures that meet the conditions. */
  async load(where) {
    const wanted = Object.keys(where).length ? JSON.stringify(where) : null;
    if (this.data && this.where === wanted) return;
    const data = await get("api/map", { where: wanted });
    this.where = wanted;
    data.at = new Map(data.ids.map((id, row) => [id, row]));
    const axes = data.a?.map((a, row) => Math.sqrt(a * data.b[row])).sort((p, q) => p - q) ?? [];
    const [small, typical, large] = [0.1, 0.5, 0.9].map((share) => axes[Math.floor(share * (axes.length - 1))]);
    this.typical = typical;
    this.parts.ellipses.hidden = !(large > VISIBLY * small);
    this.data = data;
    this.fit();
  }

  /** An answer and those of its results that are shown. */
  show({ results, map }, shown) {
    const place = new Map(results.hits.map((hit, row) => [hit.id, map?.hits[row]]));
    this.hits = shown.map((hit) => ({ hit, row: this.data.at.get(hit.id), place: place.get(hit.id) }))
      .filter(({ row, place: there }) => row !== undefined || there);
    this.found = new Set(this.hits.map(({ row }) => row));
    this.query = map && this.inside(map.query) ? map.query : null;
    this.next = -1;
    this.choose();
    this.explain();
    this.pick(null);
  }

  // ---- places ----

  /** The canvas takes the size of its host; the pictures fill it. */
  fit() {
    const width = this.host.clientWidth;
    if (!width || !this.data) return;
    const height = Math.round(Math.min(width * (width < 560 ? 1.1 : 0.62), 0.75 * innerHeight));
    const ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    this.canvas.style.height = `${height}px`;
    Object.assign(this, { width, height, ratio, layer: null, side: width < 560 ? 44 : 56 });
    const [left, right] = span(this.data.x);
    const [low, high] = span(this.data.y);
    this.unit = Math.min((width - 2 * MARGIN) / (right - left || 1), (height - 2 * MARGIN) / (high - low || 1));
    this.center = [(left + right) / 2, (low + high) / 2];
    this.choose();
  }

  /** Pixels of a place on the plane. */
  at(x, y) {
    const unit = this.unit * this.scale;
    return [this.width / 2 + this.x + (x - this.center[0]) * unit, this.height / 2 + this.y - (y - this.center[1]) * unit];
  }

  /** Whether a place is among the pictures: words often are not, as no two axes show everything. */
  inside({ x, y }) {
    const [left, right] = span(this.data.x);
    const [low, high] = span(this.data.y);
    return left <= x && x <= right && low <= y && y <= high;
  }

  /** The pictures that can be shown without covering each other at this zoom, results first. They stay the same
   *  while the map is moved. */
  choose() {
    if (!this.data || !this.unit) return;
    const cell = (this.side + 6) / (this.unit * this.scale);
    const taken = new Map();
    const free = (x, y) => {
      const [i, j] = [Math.floor(x / cell), Math.floor(y / cell)];
      for (let u = i - 1; u <= i + 1; u += 1) {
        for (let v = j - 1; v <= j + 1; v += 1) {
          const other = taken.get(`${u} ${v}`);
          if (other && Math.abs(other[0] - x) < cell && Math.abs(other[1] - y) < cell) return false;
        }
      }
      taken.set(`${i} ${j}`, [x, y]);
      return true;
    };
    this.chosen = [];
    if (kept.thumbnails) {
      for (const { row } of this.hits) if (row !== undefined && free(this.data.x[row], this.data.y[row])) this.chosen.push(row);
      const some = this.data.ids.length / Math.max(1, this.scale ** 2) < 400 || this.data.ids.length <= 400;
      if (some) {
        for (let row = 0; row < this.data.ids.length; row += 1) {
          if (!this.found?.has(row) && free(this.data.x[row], this.data.y[row])) this.chosen.push(row);
        }
      }
    }
    this.redraw();
  }

  // ---- drawing ----

  /** Draw before the next frame, once, however often it is called. */
  redraw() {
    this.pending ||= requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  draw() {
    if (!this.data || !this.width || this.host.closest("[hidden]")) return;
    const { data } = this;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const dots = this.dots();
    pen.drawImage(dots.canvas, this.x - dots.x - AROUND, this.y - dots.y - AROUND, this.width + 2 * AROUND, this.height + 2 * AROUND);
    if (this.asEllipses) this.drawEllipses(pen);
    for (const { row, place } of this.hits) {
      const [x, y] = row === undefined ? this.at(place.x, place.y) : this.at(data.x[row], data.y[row]);
      const { canvas, half } = this.sprite("near", row === undefined ? 3 : this.size(row));
      pen.drawImage(canvas, x - half, y - half, 2 * half, 2 * half);
    }
    if (!this.asEllipses) for (let at = this.chosen.length - 1; at >= 0; at -= 1) this.drawThumbnail(pen, this.chosen[at]);
    if (this.query) this.drawCross(pen);
    if (this.pickedRow !== undefined && this.pickedRow !== null) this.drawRing(pen, this.pickedRow);
  }

  /** All pictures as dots, somewhat beyond the edges: while the map is dragged, this is only copied. */
  dots() {
    const old = this.layer;
    if (old && old.scale === this.scale && Math.abs(this.x - old.x) <= AROUND && Math.abs(this.y - old.y) <= AROUND) return old;
    const { data, ratio, scale, x: dx, y: dy } = this;
    const [width, height] = [this.width + 2 * AROUND, this.height + 2 * AROUND];
    const canvas = old?.canvas ?? el("canvas");
    Object.assign(canvas, { width: width * ratio, height: height * ratio }); // empties it
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const unit = this.unit * scale;
    const [left, top] = [width / 2 + dx - this.center[0] * unit, height / 2 + dy + this.center[1] * unit];
    const sprites = [0, 1, 2, 3, 4].map((size) => this.sprite("far", size));
    for (let row = 0; row < data.ids.length; row += 1) {
      const x = left + data.x[row] * unit;
      const y = top - data.y[row] * unit;
      if (x < 0 || y < 0 || x > width || y > height) continue;
      const { canvas: dot, half } = sprites[this.size(row)];
      pen.drawImage(dot, x - half, y - half, 2 * half, 2 * half);
    }
    this.layer = { canvas, scale, x: dx, y: dy };
    return this.layer;
  }

  /** 0 (sure) … 4 (could be many things); all alike where that is not known. */
  size(row) {
    return this.data.percentile ? Math.min(4, Math.floor(this.data.percentile[row] / 20)) : 1;
  }

  /** A dot is painted once for each kind and size, and then copied. */
  sprite(kind, size) {
    const key = `${kind}${size}`;
    if (!this.sprites.has(key)) {
      const radius = (kind === "near" ? 3.5 : 2) + 0.8 * size;
      const half = Math.ceil(radius) + 1;
      const canvas = el("canvas", { width: 2 * half * this.ratio, height: 2 * half * this.ratio });
      const brush = canvas.getContext("2d");
      brush.scale(this.ratio, this.ratio);
      brush.fillStyle = this.color(kind === "near" ? "--match" : "--soft");
      brush.globalAlpha = kind === "near" ? 0.95 : 0.4;
      brush.beginPath();
      brush.arc(half, half, radius, 0, 2 * Math.PI);
      brush.fill();
      this.sprites.set(key, { canvas, half });
    }
    return this.sprites.get(key);
  }

  drawThumbnail(pen, row) {
    const [x, y] = this.at(this.data.x[row], this.data.y[row]);
    const { side } = this;
    if (x < -side || y < -side || x > this.width + side || y > this.height + side) return;
    const picture = this.picture(row);
    if (!picture.complete || !picture.naturalWidth) return;
    const near = this.found.has(row);
    const short = Math.min(picture.naturalWidth, picture.naturalHeight);
    pen.globalAlpha = near || !this.hits.length ? 1 : 0.45;
    pen.drawImage(picture, (picture.naturalWidth - short) / 2, (picture.naturalHeight - short) / 2, short, short, x - side / 2, y - side / 2, side, side);
    pen.globalAlpha = 1;
    pen.lineWidth = near ? 3 : 1;
    pen.strokeStyle = this.color(near ? "--match" : "--line");
    pen.strokeRect(x - side / 2, y - side / 2, side, side);
  }

  picture(row) {
    const id = this.data.ids[row];
    if (!this.images.has(id)) {
      const picture = new Image();
      picture.addEventListener("load", () => this.redraw(), { once: true });
      image(picture, thumbnailOf(id));
      this.images.set(id, picture);
      if (this.images.size > LOADED) this.images.delete(this.images.keys().next().value);
    }
    return this.images.get(id);
  }

  drawEllipses(pen) {
    const { data } = this;
    const unit = (this.unit * this.scale * 18) / (this.typical * this.unit); // the typical one is 18 pixels wide
    const draw = (x, y, a, b, angle) => {
      pen.beginPath();
      pen.ellipse(x, y, a * unit, b * unit, -angle, 0, 2 * Math.PI);
      pen.stroke();
    };
    pen.lineWidth = 1.2;
    for (const { row } of this.hits) {
      if (row === undefined) continue;
      pen.strokeStyle = this.color("--match");
      draw(...this.at(data.x[row], data.y[row]), data.a[row], data.b[row], data.angle[row]);
    }
    if (this.query?.a) {
      pen.strokeStyle = this.color("--unsure");
      pen.lineWidth = 2;
      draw(...this.at(this.query.x, this.query.y), this.query.a, this.query.b, this.query.angle);
    }
  }

  drawCross(pen) {
    const [x, y] = this.at(this.query.x, this.query.y);
    pen.strokeStyle = this.color("--unsure");
    pen.lineWidth = 4;
    pen.beginPath();
    pen.moveTo(x - 9, y);
    pen.lineTo(x + 9, y);
    pen.moveTo(x, y - 9);
    pen.lineTo(x, y + 9);
    pen.stroke();
  }

  drawRing(pen, row) {
    const [x, y] = this.at(this.data.x[row], this.data.y[row]);
    pen.strokeStyle = this.color("--ink");
    pen.lineWidth = 3;
    pen.beginPath();
    pen.arc(x, y, 10, 0, 2 * Math.PI);
    pen.stroke();
  }

  color(name) {
    return getComputedStyle(this.host).getPropertyValue(name).trim();
  }

  /** What is to be seen, for anybody. */
  explain() {
    const { ids, total, percentile } = this.data;
    const some = ids.length < total ? `${number(ids.length)} of ${plural(total, "picture", "pictures")}` : plural(total, "picture", "pictures");
    const key = (kind, text) => el("span", { className: "key" }, el("span", { className: `mark ${kind}`, "aria-hidden": "true" }), text);
    this.parts.legend.replaceChildren(
      el("span", {}, `${some}. Near each other means alike.`),
      key("near", "found"), key("far", "other pictures"),
      ...(this.query ? [key("cross", "your search")] : []),
      ...(percentile ? [key("big", "big dot: could be many things")] : []),
    );
  }

  toggleEllipses() {
    this.asEllipses = !this.asEllipses;
    this.parts.ellipses.setAttribute("aria-pressed", String(this.asEllipses));
    this.redraw();
  }

  // ---- one picture ----

  /** The picture at a point of the canvas, or nearest to it. */
  nearest(x, y) {
    let best = [Infinity, null];
    this.data.ids.forEach((id, row) => {
      const [u, v] = this.at(this.data.x[row], this.data.y[row]);
      const far = (u - x) ** 2 + (v - y) ** 2;
      if (far < best[0]) best = [far, row];
    });
    const on = this.chosen.find((row) => {
      const [u, v] = this.at(this.data.x[row], this.data.y[row]);
      return Math.max(Math.abs(u - x), Math.abs(v - y)) <= this.side / 2;
    });
    return on ?? best[1];
  }

  /** Show what one can do with a picture; null: with none. */
  pick(row) {
    this.pickedRow = row;
    const { picked } = this.parts;
    picked.hidden = row === null;
    picked.replaceChildren();
    this.redraw();
    if (row === null) return;
    const item = this.hits.find((hit) => hit.row === row)?.hit ?? { id: this.data.ids[row] };
    const button = (text, onclick) => el("button", { type: "button", className: "pill", onclick }, text);
    picked.append(thumbnail(item, "mini"), el("span", { className: "name" }, item.meta ? shownIn(item) : nameOf(item)),
      button("Open", () => this.actions.open(item, this.hits.map(({ hit }) => hit))), button("Search here", () => this.actions.like(item)), button("Zoom in here", () => this.zoomTo(row)));
  }

  // ---- moving ----

  /** Zoom so that a picture and those nearest to it fill the map. */
  zoomTo(row) {
    const { x, y } = this.data;
    const far = x.map((u, other) => Math.hypot(u - x[row], y[other] - y[row])).sort((a, b) => a - b);
    const reach = far[Math.min(far.length - 1, CLUSTER)] || 1;
    this.scale = Math.min(MOST_ZOOM, Math.max(1, (Math.min(this.width, this.height) / 2 - MARGIN) / (reach * this.unit)));
    const unit = this.unit * this.scale;
    this.x = -(x[row] - this.center[0]) * unit;
    this.y = (y[row] - this.center[1]) * unit;
    this.moved();
    this.choose();
  }

  /** Zoom about a point of the canvas, its center if none is given. */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const next = Math.min(MOST_ZOOM, Math.max(1, this.scale * factor));
    const grown = next / this.scale;
    const [dx, dy] = [x - this.width / 2, y - this.height / 2];
    this.x = dx - (dx - this.x) * grown;
    this.y = dy - (dy - this.y) * grown;
    this.scale = next;
    this.moved();
    this.choose();
  }

  whole() {
    Object.assign(this, { scale: 1, x: 0, y: 0 });
    this.moved();
    this.choose();
  }

  move(x, y) {
    this.x += x;
    this.y += y;
    this.moved();
    this.redraw();
  }

  moved() {
    const most = [this.width, this.height].map((side) => (this.scale * side) / 2);
    this.x = Math.min(most[0], Math.max(-most[0], this.x));
    this.y = Math.min(most[1], Math.max(-most[1], this.y));
    this.host.classList.toggle("zoomed", this.scale > 1);
  }

  listen() {
    let from = null;
    let dragged = false;
    const inside = (event) => { const box = this.canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    this.canvas.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; dragged = false; });
    window.addEventListener("pointerup", () => { from = null; });
    window.addEventListener("pointermove", (event) => {
      if (!from || (event.pointerType === "touch" && this.scale === 1)) return;
      const [x, y] = [event.clientX - from[0], event.clientY - from[1]];
      if (!dragged && Math.hypot(x, y) < 5) return;
      dragged = true;
      from = [event.clientX, event.clientY];
      this.move(x, y);
    });
    this.canvas.addEventListener("click", (event) => { if (!dragged && this.data) this.pick(this.nearest(...inside(event))); });
    this.canvas.addEventListener("dblclick", (event) => this.zoom(2.5, ...inside(event)));
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, ...inside(event));
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
      if (step) this.move(...step);
      else if (event.key === "+" || event.key === "=") this.zoom(1.5);
      else if (event.key === "-") this.zoom(1 / 1.5);
      else if (event.key === "0") this.whole();
      else if (event.key === "Enter") this.pick(this.nearest(this.width / 2, this.height / 2));
      else if (event.key === "n" || event.key === "N") this.step();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  /** The next result, as the arrows of the grid would reach it. */
  step() {
    const there = this.hits.filter(({ row }) => row !== undefined);
    if (!there.length) return;
    this.next = (this.next + 1) % there.length;
    this.pick(there[this.next].row);
  }
}

function span(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) { least = Math.min(least, value); most = Math.max(most, value); }
  return [least, most];
}
