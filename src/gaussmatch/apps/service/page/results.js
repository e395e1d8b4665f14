// What was found: a sentence that says it, the cards that match, and below a line those that hardly do.

import { $, el, quoted } from "./dom.js";
import { fitting, likelihood } from "./likelihood.js";
import { shownIn, thumbnail } from "./picture.js";

const CHUNK = 48; // cards that are made at a time
let listing = { shown: [], made: 0, matches: 0, open: () => {} };

/** How the results are to be read: the headline, a line below it, and how many stand above the divider. */
export function reading({ query, results, only }) {
  const { kind, sentence, reason } = results.verdict;
  const unknown = results.unknown.length ? `I don’t know ${quoted(results.unknown)}. ` : "";
  if (query.like || query.file) {
    return { headline: query.text ? `Like this picture, and “${query.text}”` : "Pictures like this one", subline: `${unknown}The most alike come first.`, matches: Infinity };
  }
  if (!results.hits.length) return { headline: sentence, subline: "Remove a filter, or search for something else.", matches: 0 };
  if (kind === "unfamiliar") return { headline: sentence, subline: reason, matches: Infinity };
  if (kind === "absent") return { headline: sentence, subline: unknown, matches: 0, nothing: true };
  return { headline: sentence, subline: unknown + (sentence === "Best first" ? reason : ""), matches: only ? Infinity : fitting(results) };
}

export function waiting() {
  $("found").hidden = false;
  $("headline").textContent = "Searching …";
  $("subline").textContent = "";
  $("sharpen").hidden = true;
  $("results").setAttribute("aria-busy", "true");
  const there = $("results").childElementCount || $("others").childElementCount;
  if (there) $("grid").classList.add("stale");
  else $("results").replaceChildren(...Array.from({ length: 12 }, () => el("li", { className: "ghost" })));
}

/** Show an answer from the start. `sort` orders what matches, never what is below the line. */
export function show(answer, sort, open) {
  const { headline, subline, matches, nothing } = reading(answer);
  const { hits } = answer.results;
  $("headline").textContent = headline;
  $("subline").textContent = subline;
  $("subline").hidden = !subline;
  $("divider").textContent = nothing ? "Nearest pictures" : "Less likely below";
  listing = { shown: [...inOrder(hits.slice(0, matches), sort), ...hits.slice(matches)], made: 0, matches, open };
  const focused = document.activeElement?.closest?.(".card")?.dataset.id;
  $("grid").classList.remove("stale");
  $("results").removeAttribute("aria-busy");
  $("results").replaceChildren();
  $("others").replaceChildren();
  grow();
  if (focused) [...document.querySelectorAll(".card")].find((card) => card.dataset.id === focused)?.focus();
  return { shown: listing.shown, matches };
}

/** More results of the same query, which stand below all others. */
export function append(hits) {
  listing.shown.push(...hits);
  grow();
}

/** Make the next cards; whether there are any left to make. */
export function grow() {
  const upto = Math.min(listing.shown.length, listing.made + CHUNK);
  for (; listing.made < upto; listing.made += 1) {
    const list = listing.made < listing.matches ? $("results") : $("others");
    list.append(card(listing.shown[listing.made], listing.made));
  }
  $("results").hidden = !$("results").childElementCount;
  $("rest").hidden = !$("others").childElementCount;
  return listing.made < listing.shown.length;
}

function inOrder(hits, sort) {
  if (sort === "best") return hits;
  const sign = sort === "newest" ? -1 : 1;
  const dated = (hit) => hit.meta?.taken ?? null;
  return [...hits].sort((a, b) => {
    if (dated(a) === null || dated(b) === null) return (dated(a) === null) - (dated(b) === null);
    return sign * dated(a).localeCompare(dated(b));
  });
}

function card(hit, place) {
  const sure = likelihood(hit);
  const label = [shownIn(hit), sure?.word.toLowerCase(), sure?.exact].filter(Boolean).join(", ");
  const button = el("button", {
    type: "button", className: "card", tabIndex: place === 0 ? 0 : -1, "aria-label": label,
    onclick: () => listing.open(hit, listing.shown), onfocus: () => rove(button),
  }, thumbnail(hit), sure && el("span", { className: `sure ${sure.level}`, title: sure.exact },
    el("span", { className: "word" }, sure.word), el("span", { className: "exact" }, sure.exact)));
  button.dataset.id = hit.id;
  return el("li", {}, button);
}

/** Exactly one card can be reached with Tab; the arrows move between them. */
function rove(chosen) {
  for (const other of document.querySelectorAll('.card[tabindex="0"]')) other.tabIndex = -1;
  chosen.tabIndex = 0;
}

/** Arrow keys in the grid: the next card in that direction. */
export function arrow(key) {
  const cards = [...document.querySelectorAll(".card")];
  const at = cards.indexOf(document.activeElement);
  if (at < 0) return false;
  const columns = cards.filter((card) => card.offsetTop === cards[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: cards.length - 1 - at }[key];
  if (step === undefined) return false;
  if (key === "ArrowUp" && at + step < 0) { $("q").focus(); return true; }
  cards[Math.min(cards.length - 1, Math.max(0, at + step))].focus();
  return true;
}
