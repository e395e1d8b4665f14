// The grid of results: cards with how likely a match is and how ambiguous the picture is itself.

import { picture } from "./api.js";
import { $, bar, el, percent, plural, rank } from "./dom.js";

/** What a picture is called: its title, its file, or its id. */
export const nameOf = (hit) => hit.meta?.caption ?? hit.meta?.title ?? hit.meta?.file ?? hit.id;

/** What it shows, for those who do not see it: the first caption that was stored with it. */
export const shownIn = (hit) => hit.meta?.captions?.[0] ?? nameOf(hit);

/** Whether the index keeps small pictures. */
export const thumbnails = { kept: true };

export const addressOf = (hit) => `api/thumbnail?${new URLSearchParams({ id: hit.id })}`;

/** A picture, or its name where the index keeps none. */
export function thumbnail(hit, className = "thumb") {
  const blank = () => el("span", { className: `${className} blank` }, nameOf(hit));
  if (!thumbnails.kept) return blank();
  const img = el("img", { className, alt: "", loading: "lazy", decoding: "async", draggable: false,
    onerror: () => img.replaceWith(blank()) });
  picture(img, addressOf(hit));
  return img;
}

export function ambiguity(hit) {
  return hit.percentile === null ? null : `more ambiguous than ${rank(hit.percentile)}\u00a0% of pictures`;
}

function card(hit, place, onopen) {
  const sure = hit.probability === null ? null : percent(hit.probability);
  const label = [shownIn(hit), sure && `match ${sure}`, ambiguity(hit)].filter(Boolean).join(", ");
  const lines = el("span", { className: "lines" });
  if (sure !== null) {
    lines.append(el("span", { className: "line" },
      el("span", { className: "what" }, "match"), bar("match", hit.probability, `match ${sure}`),
      el("span", { className: "figure" }, sure)));
  }
  if (hit.percentile !== null) {
    lines.append(el("span", { className: "line", title: ambiguity(hit) },
      el("span", { className: "what" }, "unsure"), bar("unsure", hit.percentile / 100, ambiguity(hit))));
  }
  const button = el("button", {
    type: "button", className: "card", tabIndex: place === 0 ? 0 : -1, "aria-label": label,
    onclick: () => onopen(hit), onfocus: () => rove(button),
  }, thumbnail(hit), lines.childElementCount ? lines : null);
  button.dataset.id = hit.id;
  return el("li", {}, button);
}

/** Exactly one card can be reached with Tab; the arrows move between them. */
function rove(chosen) {
  for (const other of document.querySelectorAll(".card")) other.tabIndex = other === chosen ? 0 : -1;
}

export function waiting(cards = 12) {
  $("found").hidden = false;
  $("results").setAttribute("aria-busy", "true");
  $("count").textContent = "Searching …";
  if ($("results").childElementCount) $("results").classList.add("stale");
  else $("results").replaceChildren(...Array.from({ length: cards }, () => el("li", { className: "ghost" })));
}

/** Show the hits that are likely enough, and say how many are not. Returns those shown. */
export function show(hits, total, sure, onopen) {
  const kept = hits.filter((hit) => hit.probability === null || hit.probability >= sure / 100);
  const list = $("results");
  const focused = document.activeElement?.closest?.(".card")?.dataset.id;
  list.classList.remove("stale");
  list.removeAttribute("aria-busy");
  list.replaceChildren(...kept.map((hit, place) => card(hit, place, onopen)));
  if (focused) [...list.querySelectorAll(".card")].find((c) => c.dataset.id === focused)?.focus();
  const hidden = hits.length - kept.length;
  const best = kept.length === total ? "All" : "Best";
  $("count").textContent = (kept.length ? `${best} ${kept.length.toLocaleString("en")} of ` : "None of ")
    + plural(total, "picture", "pictures") + (hidden ? `, ${hidden.toLocaleString("en")} less likely hidden` : "");
  $("none").hidden = kept.length > 0;
  $("none").textContent = hits.length
    ? `None of the best ${hits.length} is at least ${sure} % likely to match. Move the slider to the left, or ask differently.`
    : "Nothing was found.";
  return kept;
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
