// What is searched for: words, a picture (of the index or one's own), or both; and how it is shown.

import { get, post } from "./api.js";
import { $, chip, el } from "./dom.js";
import { thumbnail } from "./picture.js";

export const isEmpty = (query) => !query.text && !query.like && !query.file;

/** The service's answer to a query. */
export function request(query, options, signal) {
  const text = query.text || null;
  if (query.file) return post("api/search/image", { text, ...options }, query.file, signal);
  if (query.like) return get("api/similar", { id: query.like, text, ...options }, signal);
  return get("api/search", { text, ...options }, signal);
}

/** The picture of a query stands in the search field, so that words can be put beside it. */
export function showQuery(query, onremove) {
  $("q").value = query.text;
  $("with").hidden = !query.like && !query.file;
  $("with").replaceChildren();
  $("q").placeholder = $("with").hidden ? "Describe a picture" : "Add words";
  if ($("with").hidden) return;
  const picture = query.file ? el("img", { src: query.url, alt: "your picture" })
    : Object.assign(thumbnail({ id: query.like }, "mini"), { alt: "the picture it starts from" });
  $("with").append(picture, el("button", { type: "button", className: "remove", "aria-label": "Search without this picture", onclick: onremove }, "×"));
}

/** Captions that say the same more precisely, where it could mean many things. */
export async function suggest(text, signal, onchoose) {
  const { suggestions } = await get("api/suggest", { text, k: 5 }, signal);
  if (!suggestions.length) return;
  $("sharpenlabel").textContent = "This could mean many pictures. More precisely:";
  $("suggestions").replaceChildren(...suggestions.map((s) => chip(s.text, onchoose)));
  $("sharpen").hidden = false;
}
