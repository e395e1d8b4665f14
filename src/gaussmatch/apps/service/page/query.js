// What is searched for: words, pictures (of the index or one's own), or both; and how it is shown.

import { get, post } from "./api.js";
import { $, chip, el, number, plural } from "./dom.js";
import { folderName, thumbnail } from "./picture.js";

export const NOTHING = { text: "", like: [], unlike: [], file: null, url: null };
export const isEmpty = (query) => !query.text && !query.like.length && !query.file;
export const hasPicture = (query) => query.like.length > 0 || query.file !== null;

const list = (ids) => (ids.length ? JSON.stringify(ids) : null);

/** The service's answer to a query. */
export function request({ text, like, unlike, file }, options, signal) {
  const common = { text: text || null, unlike: list(unlike), ...options };
  if (file) return post("api/search/image", { ...common, like: list(like) }, file, signal);
  if (like.length) return get("api/similar", { ...common, id: like[0], like: list(like.slice(1)) }, signal);
  return get("api/search", common, signal);
}

/** The pictures of a query stand in the search field, so that words can be put beside them. `change` gets the query
 *  without one of them. */
export function showQuery(query, change) {
  $("q").value = query.text;
  const small = (id, alt) => Object.assign(thumbnail({ id }, "mini"), { alt });
  const one = (picture, label, without) => el("span", { className: "one" }, picture,
    el("button", { type: "button", className: "remove", "aria-label": label, onclick: () => change({ ...query, ...without, text: $("q").value.trim() }) }, "×"));
  const not = (id) => { const node = one(small(id, "a picture that results must not be like"), "Allow pictures like this", { unlike: query.unlike.filter((other) => other !== id) }); node.classList.add("not"); return node; };
  const pictures = [
    ...(query.file ? [one(el("img", { src: query.url, alt: "your picture" }), "Search without this picture", { file: null, url: null })] : []),
    ...query.like.map((id) => one(small(id, "the picture it starts from"), "Search without this picture", { like: query.like.filter((other) => other !== id) })),
    ...query.unlike.map(not),
  ];
  $("with").hidden = !pictures.length;
  $("with").replaceChildren(...pictures);
  $("q").placeholder = pictures.length ? "Add words" : "Describe a picture, a time, a name";
}

/** Captions that say the same more precisely, where it could mean many things. */
export async function suggest(text, signal, onchoose) {
  const { suggestions } = await get("api/suggest", { text, k: 5 }, signal);
  if (!suggestions.length) return;
  $("sharpenlabel").textContent = "This could mean many pictures. More precisely:";
  $("suggestions").replaceChildren(...suggestions.map((s) => chip(s.text, onchoose)));
  $("sharpen").hidden = false;
}

/** How the words were read: dates and what is left out, each can be removed; and another spelling. */
export function showReading({ asked, meant }, text, change) {
  const without = (said) => change(text.replace(said, " ").replace(/\s+/g, " ").trim());
  const part = (label, said) => el("li", {}, el("button", { type: "button", className: "chip part", "aria-label": `${label}: remove`, onclick: () => without(said) }, label, el("span", { "aria-hidden": "true" }, " ×")));
  const parts = [...(asked?.dates ?? []).map(({ said }) => part(`Taken: ${said}`, said)), ...(asked?.without ?? []).map(({ said, means }) => part(`Without: ${means}`, said))];
  $("parts").replaceChildren(...parts);
  $("parts").hidden = !parts.length;
  $("meant").hidden = !meant;
  $("tomeant").textContent = meant ?? "";
  $("tomeant").onclick = () => change(meant);
}

/** Pictures whose names hold the words; and which names: folders, files or captions. */
export async function showNamed(text, signal, { open, folder }) {
  $("named").hidden = true;
  const { results, metas } = await get("api/names", { text, k: 12 }, signal);
  if (!results.total) return;
  const kinds = ["folder", "file", "caption"].filter((kind) => results.hits.some((hit) => hit.named.includes(kind)));
  $("namedtitle").textContent = `${plural(results.total, "picture matches", "pictures match")} by ${kinds.map((kind) => (kind === "caption" ? kind : `${kind} name`)).join(", ").replace(/, ([^,]*)$/, " or $1")}`;
  $("named").classList.toggle("by-caption", kinds.join() === "caption"); // on a phone results come first
  $("namedfolders").hidden = !results.folders.length;
  $("namedfolders").replaceChildren(...results.folders.map((album) => chip(`${folderName(album.folder)} (${number(album.count)})`, () => folder(album.folder))));
  const items = results.hits.map((hit, at) => ({ id: hit.id, meta: metas[at], named: hit.named }));
  $("namedhits").replaceChildren(...items.map((item) => el("li", {}, el("button", { type: "button", className: "tile", title: item.meta.file ?? item.id, "aria-label": `${item.meta.file ?? item.id}, by ${item.named.join(", ")}`, onclick: () => open(item, items) }, thumbnail(item)))));
  $("named").hidden = false;
}
