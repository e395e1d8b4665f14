// What the service makes of the question: how precise it is, and how to say it better.

import { get } from "./api.js";
import { $, el, rank } from "./dom.js";

/** Queries less familiar than this share of validation queries are unknown to the model, not vague. */
const UNFAMILIAR = 0.01;
const NOT_KNOWN = "Unfamiliar: unlike anything the model was trained on. These pictures are only the nearest.";

export function showQuery(request, query, about) {
  $("query").hidden = false;
  $("query").dataset.level = query.level ?? "";
  $("request").replaceChildren();
  if (request.type === "picture") {
    $("request").append(el("img", { src: request.url, alt: "your picture" }), el("span", {}, "Pictures like yours"));
  } else if (request.type === "like") {
    $("request").append(el("span", {}, `More like ${request.name ?? request.id}`));
  }
  $("request").hidden = !$("request").childElementCount;
  const strange = request.type === "text" && query.familiar !== null && query.familiar < UNFAMILIAR;
  const known = query.percentile !== null && request.type !== "like" && !strange;
  $("gauge").hidden = !known && !strange;
  $("scale").hidden = !known;
  $("verdict").textContent = strange ? NOT_KNOWN : known ? sentence(query.phrase) : "";
  if (known) $("needle").style.setProperty("--at", String(query.percentile / 100));
  $("unknown").hidden = !query.unknown.length;
  $("unknown").textContent = query.unknown.length
    ? `The model has never seen ${list(query.unknown)}; the rest of the question is what counts.` : "";
  $("pointnote").hidden = about.probabilistic;
  $("pointnote").textContent = about.probabilistic ? ""
    : "This index was made with a point model: it ranks, but it cannot say how vague anything is.";
  if (!known && !strange && query.unknown.length === 0 && about.probabilistic && $("request").hidden) $("query").hidden = true;
  $("sharpen").hidden = true;
}

/** Captions that say the same, only more precisely. */
export async function suggest(text, signal, onchoose) {
  const { suggestions } = await get("api/suggest", { text, k: 4 }, signal);
  $("sharpen").hidden = !suggestions.length;
  $("suggestions").replaceChildren(...suggestions.map((s) => chip(s.text, onchoose,
    s.percentile === null ? null : `more general than ${rank(s.percentile)}\u00a0% of captions`)));
}

export function chip(text, onchoose, title = null) {
  return el("li", {}, el("button", { type: "button", className: "chip", title, onclick: () => onchoose(text) }, text));
}

const sentence = (phrase) => (phrase.charAt(0).toUpperCase() + phrase.slice(1)).replace(" %", "\u00a0%");

function list(words) {
  const quoted = words.map((word) => `“${word}”`);
  return quoted.length < 2 ? quoted[0] : `${quoted.slice(0, -1).join(", ")} and ${quoted.at(-1)}`;
}

