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

/** With a space that does not break. */
export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

const figures = new Intl.NumberFormat("en");
export const number = (n) => figures.format(n);

export const plural = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;

/** “dog” and “beach”. */
export function quoted(words) {
  const all = words.map((word) => `“${word}”`);
  return all.length < 2 ? all.join("") : `${all.slice(0, -1).join(", ")} and ${all.at(-1)}`;
}

export function press(buttons, chosen) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button === chosen));
}

export function chip(text, onchoose, title = null) {
  return el("li", {}, el("button", { type: "button", className: "chip", title, onclick: () => onchoose(text) }, text));
}
