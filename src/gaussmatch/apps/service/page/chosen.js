// Pictures that were chosen, to do something with all of them; and those that were hidden from results.

import { send } from "./api.js";
import { $, el, plural } from "./dom.js";

const HIDDEN = "gaussmatch-hidden";
const RECENT = "gaussmatch-recent";
const KEPT = 8; // recent searches

function stored(name) {
  try { const found = JSON.parse(localStorage.getItem(name)); return Array.isArray(found) ? found : []; } catch { return []; }
}
function store(name, list) {
  try { localStorage.setItem(name, JSON.stringify(list)); } catch { /* full, or forbidden: it is not kept */ }
}

// ---- hidden from results, in this browser ----

let away = new Set(stored(HIDDEN));
export const isHidden = (id) => away.has(id);
export const hiddenCount = () => away.size;
export function hide(ids, hidden = true) {
  for (const id of ids) { if (hidden) away.add(id); else away.delete(id); }
  store(HIDDEN, [...away]);
}
export function showAll() { away = new Set(); store(HIDDEN, []); }

// ---- recent searches, in this browser ----

export const recent = () => stored(RECENT).filter((text) => typeof text === "string");
export function remember(text) { if (text) store(RECENT, [text, ...recent().filter((other) => other !== text)].slice(0, KEPT)); }
export function forget() { store(RECENT, []); }

// ---- chosen ----

const chosen = new Map();
let choosing = false;
let changed = () => {};

export const isChoosing = () => choosing;
export const isChosen = (id) => chosen.has(id);

export function toggle(item) {
  if (chosen.has(item.id)) chosen.delete(item.id); else chosen.set(item.id, item);
  update();
}

/** Begin or end choosing. */
export function choose(on) {
  choosing = on;
  if (!on) chosen.clear();
  update();
}

function update() {
  $("tochoose").setAttribute("aria-pressed", String(choosing));
  $("chosen").hidden = !choosing;
  $("chosencount").textContent = chosen.size ? `${plural(chosen.size, "picture", "pictures")} chosen` : "Choose pictures";
  for (const button of $("chosen").querySelectorAll("[data-some]")) button.disabled = !chosen.size;
  changed();
}

/** `actions`: changed(), hide(items), like(items), unlike(items), say(text). */
export function listen(actions) {
  changed = actions.changed;
  const items = () => [...chosen.values()];
  const done = (action) => () => { const all = items(); choose(false); action(all); };
  const button = (text, onclick) => { const node = el("button", { type: "button", className: "pill", onclick }, text); node.dataset.some = "1"; return node; };
  $("chosenactions").replaceChildren(
    button("Download", async () => { try { await zip(items()); } catch (error) { actions.say(error.message); } }),
    button("Copy paths", async () => { await copy(items()); actions.say("The paths are copied."); }),
    button("More like these", done(actions.like)), button("Not like these", done(actions.unlike)), button("Hide", done(actions.hide)),
    el("button", { type: "button", className: "link", onclick: () => choose(false) }, "Done"));
  $("tochoose").addEventListener("click", () => choose(!choosing));
}

async function zip(items) {
  const body = JSON.stringify({ ids: items.map((item) => item.id) });
  const response = await send("api/zip", { method: "POST", body, headers: { "Content-Type": "application/json" } });
  const href = URL.createObjectURL(await response.blob());
  el("a", { download: "pictures.zip", href }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

async function copy(items) {
  const text = items.map((item) => item.meta?.file ?? item.id).join("\n");
  if (navigator.clipboard) { await navigator.clipboard.writeText(text); return; }
  const field = el("textarea", { value: text }); // an address that is not secure has no clipboard
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
