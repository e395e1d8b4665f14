// Small helpers: elements without markup strings, so nothing from outside is ever parsed as HTML.

export const $ = (id) => document.getElementById(id);

/** An element with properties, attributes (names with a dash), handlers and children. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "role" || name.includes("-")) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** With a space that does not break. */
export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

/** 93.4 → "93", 100 only if it really is. */
export const rank = (percentile) => String(Math.min(99, Math.max(0, Math.round(percentile))));

export const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** A thin bar from 0 to 1 with its meaning in words. */
export function bar(name, share, label) {
  const fill = el("span", { className: "fill" });
  fill.style.setProperty("--share", String(Math.min(1, Math.max(0, share))));
  return el("span", { className: `meter ${name}`, role: "img", "aria-label": label }, fill);
}

export function press(buttons, chosen) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
}
