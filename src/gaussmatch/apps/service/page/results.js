// What was found: a sentence that says it, the cards that match, and below a line those that hardly do.

import { isChoosing, isChosen, isHidden, toggle } from "./chosen.js";
import { $, el, quoted } from "./dom.js";
import { fitting, likelihood } from "./likelihood.js";
import { shownIn, thumbnail } from "./picture.js";
import { hasPicture } from "./query.js";

const CHUNK = 48; // cards that are made at a time
let listing = { shown: [], made: 0, matches: 0, open: () => {} };

/** How the results are to be read: the headline, a line below it, and how many stand above the divider. */
export function reading({ query, results, only }, shown) {
  const { kind, sentence, reason } = results.verdict;
  const unknown = results.unknown.length ? `I don’t know ${quoted(results.unknown)}.` : "";
  const line = (...said) => [...said, ...results.remarks.map(ended)].filter(Boolean).join(" ");
  if (hasPicture(query)) {
    const pictures = query.like.length > 1 ? "these pictures" : "this picture";
    const headline = query.text ? `Like ${pictures}, and “${shortened(query.text)}”` : query.like.length > 1 ? "Pictures like these" : "Pictures like this one";
    return { headline, subline: line(unknown, "The most alike come first."), matches: Infinity };
  }
  if (!results.hits.length) return { headline: sentence, subline: line("Remove a filter, or search for something else."), matches: 0 };
  if (kind === "unfamiliar") return { headline: shortened(sentence), subline: line(reason), matches: Infinity };
  if (kind === "absent") return { headline: sentence, subline: line(unknown), matches: 0 };
  const why = only || sentence === "Best first" || sentence === "Newest first" ? reason : "";
  return { headline: sentence, subline: line(unknown, why), matches: only ? Infinity : fitting({ hits: shown }) };
}

const ended = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
const shortened = (text) => (text.length > 90 ? `${text.slice(0, 80).trimEnd()} …${text.endsWith("”") ? "”" : ""}` : text);

/** Results without those that were hidden, each with those that show nearly the same behind it. */
function stacked(hits, groups) {
  const leads = new Map();
  hits.forEach((hit, at) => {
    if (isHidden(hit.id)) return;
    const lead = leads.get(groups?.[at] ?? at);
    if (lead) lead.behind.push(hit); else leads.set(groups?.[at] ?? at, Object.assign(hit, { behind: [] }));
  });
  return [...leads.values()];
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
  const hits = stacked(answer.results.hits, answer.groups);
  const { headline, subline, matches } = reading(answer, hits);
  $("headline").textContent = headline;
  $("headline").title = answer.query.text;
  $("subline").textContent = subline;
  $("subline").hidden = !subline;
  $("divider").textContent = !matches ? "Nearest pictures" : "Less likely below";
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
export function append(hits, groups) {
  listing.shown.push(...stacked(hits, groups));
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
  mark();
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
    onclick: () => (isChoosing() ? toggle(hit) : listing.open(hit, listing.shown)), onfocus: () => rove(button),
  }, thumbnail(hit), sure && el("span", { className: `sure ${sure.level}`, title: sure.exact },
    el("span", { className: "word" }, sure.word), el("span", { className: "exact" }, sure.exact)));
  button.dataset.id = hit.id;
  const item = el("li", {}, button);
  if (hit.behind?.length) item.append(stack(hit, item));
  return item;
}

/** What shows nearly the same, to be laid out beside it. */
function stack(hit, item) {
  const text = `+ ${hit.behind.length} similar`;
  const button = el("button", { type: "button", className: "stack", "aria-label": `Show ${hit.behind.length} similar to ${shownIn(hit)}`, onclick: () => {
    item.after(...hit.behind.map((other) => card(other, -1)));
    listing.shown.splice(listing.shown.indexOf(hit) + 1, 0, ...hit.behind);
    listing.made += hit.behind.length;
    listing.matches += listing.shown.indexOf(hit) < listing.matches ? hit.behind.length : 0;
    hit.behind = [];
    button.remove();
    item.querySelector(".card").focus();
  } }, text);
  return button;
}

/** Which cards are chosen. */
export function mark() {
  document.body.classList.toggle("choosing", isChoosing());
  for (const one of document.querySelectorAll(".card[data-id]")) {
    if (isChoosing()) one.setAttribute("aria-pressed", String(isChosen(one.dataset.id))); else one.removeAttribute("aria-pressed");
  }
}

/** Exactly one card can be reached with Tab; the arrows move between them. */
function rove(chosen) {
  for (const other of document.querySelectorAll('.card[tabindex="0"]')) other.tabIndex = -1;
  chosen.tabIndex = 0;
}

/** Arrow keys in the grid: the next card in that direction. */
export function arrow(key) {
  const cards = [...document.querySelectorAll("#grid .card")];
  const at = cards.indexOf(document.activeElement);
  if (at < 0) return false;
  const columns = cards.filter((card) => card.offsetTop === cards[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: cards.length - 1 - at }[key];
  if (step === undefined) return false;
  if (key === "ArrowUp" && at + step < 0) { $("q").focus(); return true; }
  cards[Math.min(cards.length - 1, Math.max(0, at + step))].focus();
  return true;
}
