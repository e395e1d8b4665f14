// All pictures by month, newest first. Only those near the screen exist as elements, which move along with it,
// and only pages of ids around them are requested: 100,000 pictures cost no more than 1,000. During a jump, months
// and plain areas are shown alone; pictures come when it is over.

import { get } from "./api.js";
import { el, number, plural } from "./dom.js";
import { day, thumbnail } from "./picture.js";

const PAGE = 200; // ids that are requested at a time
const PAGES = 30; // pages that are kept
const AROUND = 500; // pixels beyond the screen for which there are tiles
const HEAD = 52; // pixels of a month's name
const GAP = 6;
const CALM = 90; // milliseconds without scrolling before pictures are requested

const inWords = new Intl.DateTimeFormat("en-GB", { month: "long", year: "numeric", timeZone: "UTC" });
export const monthName = (month) => (month ? inWords.format(new Date(`${month}-01T00:00:00Z`)) : "Without a date");

export class Timeline {
  /** `open(item, list)` shows one; `hidden(id)` says whether it was hidden by the user. */
  constructor(host, { open, hidden }) {
    Object.assign(this, { host, open, hidden, tiles: new Map(), heads: new Map(), pages: new Map(), months: [], total: 0, at: 0, pending: 0, calm: 0 });
    addEventListener("scroll", () => { this.soon(); clearTimeout(this.calm); this.calm = setTimeout(() => this.fill(), CALM); }, { passive: true });
    new ResizeObserver(() => this.lay()).observe(host);
    host.addEventListener("keydown", (event) => this.key(event));
    host.addEventListener("click", (event) => { const tile = event.target.closest(".tile"); if (tile) this.show(tile.at); });
    host.addEventListener("focusin", (event) => { if (event.target.matches(".tile")) this.rove(event.target.at); });
  }

  /** Show the pictures of `place`: {folder} or {box}, or all. */
  async load(place) {
    this.place = place;
    const { months, total, mark } = await get("api/timeline", place);
    if (place !== this.place) return null;
    Object.assign(this, { months, total, mark, at: 0 });
    this.clear();
    this.lay();
    return { months, total };
  }

  clear() {
    this.pages.clear();
    this.bare();
  }

  bare() {
    this.host.replaceChildren();
    this.tiles.clear();
    this.heads.clear();
  }

  /** Where each month begins, in pixels and in pictures. */
  lay() {
    const width = this.host.clientWidth;
    if (!width) return;
    this.columns = Math.max(3, Math.floor((width + GAP) / (150 + GAP)));
    this.side = (width + GAP) / this.columns - GAP;
    let [top, first] = [0, 0];
    this.sections = this.months.map(({ month, count }) => {
      const section = { month, count, top, first };
      top += HEAD + Math.ceil(count / this.columns) * (this.side + GAP);
      first += count;
      return section;
    });
    this.host.style.height = `${top}px`;
    this.bare();
    this.fill();
  }

  soon() {
    this.pending ||= requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  /** The place of a picture: its section, and its corner in pixels. */
  corner(at) {
    const section = this.sections.findLast((one) => one.first <= at);
    const row = Math.floor((at - section.first) / this.columns);
    return { x: ((at - section.first) % this.columns) * (this.side + GAP), y: section.top + HEAD + row * (this.side + GAP) };
  }

  /** The pictures near the screen, as [from, to), and the months they are of. */
  near() {
    const above = this.host.getBoundingClientRect().top;
    const [low, high] = [-above - AROUND, -above + innerHeight + AROUND];
    const step = this.side + GAP;
    const shown = this.sections.filter((one, n) => one.top < high && (this.sections[n + 1]?.top ?? Infinity) > low);
    if (!shown.length) return { shown, from: 0, to: 0 };
    const [first, last] = [shown[0], shown.at(-1)];
    const from = first.first + Math.max(0, Math.floor((low - first.top - HEAD) / step)) * this.columns;
    const to = Math.min(last.first + last.count, last.first + Math.max(0, Math.ceil((high - last.top - HEAD) / step)) * this.columns);
    return { shown, from: Math.min(from, first.first + first.count), to };
  }

  /** `all`: tiles too, even if none of those that exist is near. */
  draw(all = false) {
    if (!this.sections || this.host.closest("[hidden]")) return;
    const { shown, from, to } = this.near();
    const months = new Set(shown.map((one) => one.month));
    for (const [month, nodes] of this.heads) if (!months.has(month)) { for (const node of nodes) node.remove(); this.heads.delete(month); }
    let next = this.host.querySelector(".tile"); // what stands behind a month
    for (const section of shown.toReversed()) {
      if (!this.heads.has(section.month)) this.heads.set(section.month, this.head(section, next));
      [next] = this.heads.get(section.month);
    }
    const jumping = !all && !this.tiles.has(from) && !this.tiles.has(to - 1);
    this.host.classList.toggle("jumping", jumping);
    if (jumping) return;
    const [free, fresh] = [[], []];
    for (const [at, node] of this.tiles) {
      if (at >= from && at < to) continue;
      this.tiles.delete(at);
      if (node === document.activeElement) node.remove(); else free.push(node); // what has the focus never becomes another
    }
    for (let at = from; at < to; at += 1) {
      if (this.tiles.has(at)) continue;
      const tile = free.pop() ?? fresh[fresh.push(el("button", { type: "button", className: "tile" })) - 1];
      this.tiles.set(at, this.put(tile, at));
    }
    for (const node of free) node.remove();
    this.host.append(...fresh);
    if (!this.tiles.has(this.at) && this.tiles.size) { const [first] = this.tiles.keys(); this.tiles.get(first).tabIndex = 0; }
  }

  /** The name of a month, and the area of its pictures: whole rows, and the rest. One color is painted quickly. */
  head({ month, count, top }, next) {
    const step = this.side + GAP;
    const rows = Math.floor(count / this.columns);
    const name = el("h2", { className: "month" }, monthName(month), el("span", {}, number(count)));
    name.style.transform = `translateY(${top}px)`;
    const nodes = [name, ...[[this.columns, rows, 0], [count % this.columns, 1, rows]].filter(([across, down]) => across * down).map(([across, down, above]) => {
      const places = el("div", { className: "places-for" });
      places.style.cssText = `width: ${across * step - GAP}px; height: ${down * step - GAP}px; transform: translateY(${top + HEAD + above * step}px)`;
      return places;
    })];
    for (const node of nodes) this.host.insertBefore(node, next);
    return nodes;
  }

  /** A tile for another picture, which `fill` puts into it. */
  put(tile, at) {
    const { x, y } = this.corner(at);
    if (tile.firstChild) { tile.replaceChildren(); tile.classList.remove("put-away"); delete tile.dataset.id; }
    Object.assign(tile, { at, tabIndex: at === this.at ? 0 : -1, ariaLabel: `Picture ${number(at + 1)}` });
    tile.style.cssText = `width: ${this.side}px; height: ${this.side}px; transform: translate(${x}px, ${y}px)`;
    return tile;
  }

  item(at) {
    const page = this.pages.get(Math.floor(at / PAGE));
    const id = page?.ids?.[at % PAGE];
    return id === undefined ? null : { id, taken: page.taken[at % PAGE] };
  }

  /** Request what the tiles near the screen need, and put pictures into them. */
  fill() {
    if (!this.sections || this.host.closest("[hidden]")) return;
    this.draw(true);
    const { from, to } = this.near();
    for (let n = Math.floor(from / PAGE); n * PAGE < to; n += 1) {
      const page = this.pages.get(n);
      if (!page) { this.request(n); continue; }
      this.pages.delete(n); // those that are seen are forgotten last
      this.pages.set(n, page);
    }
    for (const [at, tile] of this.tiles) {
      const item = tile.childElementCount ? null : this.item(at);
      if (!item) continue;
      tile.setAttribute("aria-label", `Picture ${number(at + 1)}${item.taken ? `, ${day(item.taken)}` : ""}`);
      tile.classList.toggle("put-away", this.hidden(item.id));
      tile.dataset.id = item.id;
      tile.append(thumbnail(item));
    }
  }

  async request(n) {
    const { place } = this;
    this.pages.set(n, {});
    if (this.pages.size > PAGES) this.pages.delete(this.pages.keys().next().value);
    try {
      const page = await get("api/browse", { offset: n * PAGE, k: PAGE, ...place });
      if (place !== this.place) return;
      this.pages.set(n, page);
      this.fill();
    } catch { this.pages.delete(n); } // the next scroll asks again
  }

  show(at) {
    const list = [];
    let [low, high] = [at, at];
    while (low > 0 && this.item(low - 1)) low -= 1;
    while (this.item(high + 1)) high += 1;
    for (let other = low; other <= high; other += 1) list.push({ id: this.item(other)?.id });
    const item = this.item(at);
    if (item) this.open(list[at - low], list);
  }

  rove(at) {
    for (const tile of this.tiles.values()) tile.tabIndex = -1;
    this.at = at;
    const tile = this.tiles.get(at);
    if (tile) tile.tabIndex = 0;
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, Home: -this.total, End: this.total }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.focus(Math.min(this.total - 1, Math.max(0, this.at + step)));
  }

  focus(at) {
    const top = this.host.getBoundingClientRect().top + scrollY + this.corner(at).y;
    if (top < scrollY + 10 || top + this.side > scrollY + innerHeight) scrollTo({ top: top - innerHeight / 3 });
    this.at = at;
    this.draw(true);
    this.tiles.get(at)?.focus({ preventScroll: true });
  }

  /** To the first picture of a month. */
  jump(month) {
    const section = this.sections.find((one) => one.month === month);
    if (section) scrollTo({ top: this.host.getBoundingClientRect().top + scrollY + section.top - 8 });
  }

  /** Whether the index has changed since. */
  async stale() {
    const { mark } = await get("api/timeline", this.place);
    return mark !== this.mark;
  }

  says() { return plural(this.total, "picture", "pictures"); }
}
