// The embedding on a plane: every picture at its mean, its Gaussian as an ellipse around it.

import { get, picture } from "./api.js";
import { percent, plural, svg } from "./dom.js";
import { addressOf, shownIn, thumbnails } from "./results.js";

const SIZE = 1000; // of the drawing, in its own units
const MARGIN = 44;

export class EmbeddingMap {
  constructor(host, note, onopen) {
    Object.assign(this, { host, note, onopen, view: "pictures", scale: 1, x: 0, y: 0, hits: [], query: null, data: null });
    const narrow = host.clientWidth < 560; // a phone: higher than wide, and larger pictures
    this.height = SIZE * (narrow ? 1.15 : 0.66);
    this.thumbnail = narrow ? 112 : 58;
    this.typical = narrow ? 44 : 26; // half-axis of the median Gaussian as it is drawn
    this.root = svg("svg", { viewBox: `0 0 ${SIZE} ${this.height}`, role: "group", tabindex: "0",
      "aria-label": "Map of the pictures. Plus and minus zoom, arrows move; Tab visits the results." });
    this.layer = svg("g");
    this.root.append(this.layer);
    host.replaceChildren(this.root);
    this.listen();
  }

  async load() {
    if (this.data) return;
    this.data = await get("api/map");
    this.data.items.forEach((item, row) => { item.place = this.data.places[row]; });
    const all = this.data.places;
    const [left, right] = span(all.map((place) => place.x));
    const [low, high] = span(all.map((place) => place.y));
    const fit = Math.min((SIZE - 2 * MARGIN) / (right - left || 1), (this.height - 2 * MARGIN) / (high - low || 1));
    const center = [(left + right) / 2, (low + high) / 2];
    this.place = ({ x, y }) => [SIZE / 2 + fit * (x - center[0]), this.height / 2 - fit * (y - center[1])];
    const axes = all.filter((place) => place.a !== null).map((place) => Math.sqrt(place.a * place.b)).sort((a, b) => a - b);
    this.shrink = axes.length ? this.typical / (fit * axes[axes.length >> 1]) : 0;
    this.fit = fit;
  }

  /** The results that are shown of an answer, which says where all of them are. */
  show({ results, map }, shown) {
    const at = new Map(results.hits.map((hit, row) => [hit.id, map?.hits[row]]));
    this.hits = shown.map((hit) => ({ ...hit, place: at.get(hit.id) }));
    this.query = map?.query ?? null;
    this.draw();
  }

  mode(view) {
    this.view = view;
    this.draw();
  }

  // ---- drawing ----

  draw() {
    if (!this.data) return;
    const found = new Set(this.hits.map((hit) => hit.id));
    const hits = this.hits.filter((hit) => hit.place);
    const rest = this.data.items.filter((item) => !found.has(item.id));
    this.layer.replaceChildren();
    if (this.view === "pictures") this.pictures(hits, rest);
    else this.ellipses(hits, rest);
    if (this.query) this.mark(this.query);
    this.report(rest.length + hits.length);
  }

  ellipses(hits, rest) {
    for (const item of rest) this.layer.append(this.ellipse(item.place, "far", item));
    for (const hit of [...hits].reverse()) this.layer.append(this.ellipse(hit.place, "near", hit));
  }

  /** As many pictures as fit without covering each other, the results first; the rest as dots. */
  pictures(hits, rest) {
    const taken = [];
    const side = this.thumbnail;
    const free = ([x, y]) => taken.every(([u, v]) => Math.abs(x - u) > side + 4 || Math.abs(y - v) > side + 4);
    const drawn = [];
    for (const [place, item, near] of [...hits.map((h) => [h.place, h, true]), ...rest.map((r) => [r.place, r, false])]) {
      const at = this.at(place);
      const inside = at[0] > -side && at[0] < SIZE + side && at[1] > -side && at[1] < this.height + side;
      if (!inside) continue;
      if (thumbnails.kept && free(at)) {
        taken.push(at);
        drawn.push(this.thumb(at, item, near));
      } else {
        this.layer.append(this.button(svg("circle", { cx: at[0], cy: at[1], r: (near ? 0.09 : 0.06) * side, class: near ? "dot near" : "dot" }), item, near));
      }
    }
    this.layer.append(...drawn.reverse());
  }

  thumb([x, y], item, near) {
    const side = this.thumbnail;
    const box = { x: x - side / 2, y: y - side / 2, width: side, height: side };
    const image = svg("image", { ...box, preserveAspectRatio: "xMidYMid slice" });
    picture(image, addressOf(item));
    const [back, frame] = ["back", "frame"].map((name) => svg("rect", { ...box, rx: side / 10, class: name }));
    return this.button(svg("g", { class: near ? "pin near" : "pin" }, back, image, frame), item, near);
  }

  ellipse(place, view, item) {
    const [x, y] = this.at(place);
    if (place.a === null) return this.button(svg("circle", { cx: x, cy: y, r: 4, class: `dot ${view}` }), item, view === "near");
    const zoom = this.fit * this.shrink * this.scale;
    const node = svg("ellipse", { cx: 0, cy: 0, rx: place.a * zoom, ry: place.b * zoom, class: `gaussian ${view}`,
      transform: `translate(${x} ${y}) rotate(${(-place.angle * 180) / Math.PI})` });
    node.style.setProperty("--unsureness", String(item.percentile ?? 0));
    return this.button(node, item, view === "near");
  }

  mark(place) {
    const [x, y] = this.at(place);
    if (place.a !== null) {
      const zoom = this.fit * this.shrink * this.scale;
      this.layer.append(svg("ellipse", { rx: place.a * zoom, ry: place.b * zoom, class: "gaussian question",
        transform: `translate(${x} ${y}) rotate(${(-place.angle * 180) / Math.PI})` }));
    }
    this.layer.append(svg("path", { d: `M${x - 9} ${y}h18M${x} ${y - 9}v18`, class: "cross" }));
  }

  button(node, item, near) {
    const name = shownIn(item);
    node.append(svg("title"));
    node.lastChild.textContent = name;
    node.classList.add("there");
    node.dataset.id = item.id;
    node.addEventListener("click", () => { if (!this.dragged) this.onopen(full(item)); });
    if (near) {
      node.setAttribute("tabindex", "0");
      node.setAttribute("role", "button");
      node.setAttribute("aria-label", name);
      node.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.onopen(full(item)); }
      });
    }
    return node;
  }

  report(count) {
    const { explained, total } = this.data;
    const some = count < total ? `${count.toLocaleString("en")} of ${plural(total, "picture", "pictures")}` : plural(total, "picture", "pictures");
    const size = this.shrink ? ` Ellipses are one σ wide at ${this.shrink < 0.995 ? `1/${Math.round(1 / this.shrink)} of` : ""} their size, the more coloured the less sure.` : "";
    this.note.textContent = `${some} on two of many dimensions (${percent(explained)} of the spread); near is not always similar. The cross is your question.`
      + (this.view === "ellipses" ? size : "");
  }

  // ---- moving ----

  at(place) {
    const [x, y] = this.place(place);
    return [(x - SIZE / 2) * this.scale + SIZE / 2 + this.x, (y - this.height / 2) * this.scale + this.height / 2 + this.y];
  }

  zoom(factor) {
    const next = Math.min(12, Math.max(1, this.scale * factor));
    this.x *= next / this.scale;
    this.y *= next / this.scale;
    this.scale = next;
    this.bound();
    this.draw();
  }

  whole() {
    Object.assign(this, { scale: 1, x: 0, y: 0 });
    this.bound();
    this.draw();
  }

  move(x, y) {
    this.x += x;
    this.y += y;
    this.bound();
    this.draw();
  }

  bound() {
    const most = [SIZE, this.height].map((side) => ((this.scale - 1) * side) / 2 + side * 0.1);
    this.x = Math.min(most[0], Math.max(-most[0], this.x));
    this.y = Math.min(most[1], Math.max(-most[1], this.y));
    this.host.classList.toggle("zoomed", this.scale > 1);
  }

  listen() {
    let from = null;
    this.dragged = false;
    this.root.addEventListener("pointerdown", (event) => { from = [event.clientX, event.clientY]; this.dragged = false; });
    window.addEventListener("pointerup", () => { from = null; });
    window.addEventListener("pointermove", (event) => {
      if (!from || (event.pointerType === "touch" && this.scale === 1)) return;
      const unit = SIZE / this.root.getBoundingClientRect().width;
      const [x, y] = [(event.clientX - from[0]) * unit, (event.clientY - from[1]) * unit];
      if (!this.dragged && Math.hypot(x, y) < 6) return;
      this.dragged = true;
      from = [event.clientX, event.clientY];
      this.move(x, y);
    });
    this.root.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2);
    }, { passive: false });
    this.root.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
      if (step) this.move(...step);
      else if (event.key === "+" || event.key === "=") this.zoom(1.5);
      else if (event.key === "-") this.zoom(1 / 1.5);
      else if (event.key === "0") this.whole();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }
}

/** An item of the map as the dialog wants it: it has no score for the question. */
const full = (item) => ({ probability: null, ...item });

function span(values) {
  return [Math.min(...values), Math.max(...values)];
}
