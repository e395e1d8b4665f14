// One picture: what it shows, in the captions nearest to it, and the way to more like it.

import { get } from "./api.js";
import { $, bar, el, percent } from "./dom.js";
import { ambiguity, nameOf, shownIn, thumbnail } from "./results.js";

let opened = 0;

export async function openItem(hit, about, { onlike, ontext }) {
  const turn = ++opened;
  const dialog = $("item");
  const facts = el("p", { className: "facts" });
  const parts = [
    hit.probability === null || hit.probability === undefined ? null : `${percent(hit.probability)} likely to match`,
    ambiguity(hit),
  ].filter(Boolean).join("; ");
  if (parts) facts.append(parts.charAt(0).toUpperCase() + parts.slice(1));
  const captions = el("ol", { className: "captions" });
  const status = el("p", { className: "note", role: "status" }, "Looking for its captions …");
  const details = el("dl", { className: "details" });
  $("itembody").replaceChildren(
    Object.assign(thumbnail(hit, "portrait"), { alt: shownIn(hit) }),
    el("div", { className: "details" },
      el("h2", { id: "itemname" }, nameOf(hit)), facts,
      el("button", { type: "button", className: "go", id: "like", onclick: () => { dialog.close(); onlike(hit); } }, "More like this"),
      about.captions ? el("h3", {}, "Nearest captions") : null, about.captions ? captions : null, status, details),
  );
  if (!dialog.open) dialog.showModal();
  $("like").focus();
  try {
    const [item, near] = await Promise.all([
      get("api/item", { id: hit.id }),
      about.captions ? get("api/captions", { id: hit.id, k: 6 }) : { results: { hits: [] } },
    ]);
    if (turn !== opened) return;
    status.hidden = true;
    captions.append(...near.results.hits.map((caption) => row(caption, (text) => { dialog.close(); ontext(text); })));
    for (const [name, value] of Object.entries(item.meta)) {
      if (value === null || typeof value === "object") continue;
      details.append(el("dt", {}, name), el("dd", {}, String(value)));
    }
  } catch (error) {
    if (turn === opened) status.textContent = error.message;
  }
}

function row(caption, ontext) {
  const sure = caption.probability === null ? null : percent(caption.probability);
  return el("li", {},
    el("button", { type: "button", className: "caption", title: "Search for this", onclick: () => ontext(nameOf(caption)) },
      el("span", {}, nameOf(caption)),
      sure === null ? null : bar("match", caption.probability, `match ${sure}`),
      sure === null ? null : el("span", { className: "figure" }, sure)));
}
