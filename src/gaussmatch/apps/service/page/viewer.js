// One picture, as large as the screen allows: what is known of it, the one before and the one after.

import { blob, get, image } from "./api.js";
import { $, el, percent } from "./dom.js";
import { day, folderName, kept, nameOf, originalOf, shownIn, thumbnailOf } from "./picture.js";

let open = { list: [], at: 0, turn: 0, actions: null };

/** Show a hit; `list` is what the arrows go through. `actions`: sure(hit), like, unlike, hide, search, captions. */
export function view(hit, list, actions) {
  const at = list.findIndex((other) => other.id === hit.id);
  open = { ...open, list: at < 0 ? [hit] : list, at: Math.max(0, at), actions };
  draw();
  if (!$("viewer").open) $("viewer").showModal();
  $("viewer").querySelector(".stage").focus();
}

export function listen() {
  const viewer = $("viewer");
  viewer.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    turn(step);
  });
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
  let from = null;
  viewer.addEventListener("touchstart", (event) => { from = event.touches.length === 1 ? event.touches[0].clientX : null; }, { passive: true });
  viewer.addEventListener("touchend", (event) => {
    const moved = from === null ? 0 : event.changedTouches[0].clientX - from;
    if (Math.abs(moved) > 50) turn(moved > 0 ? -1 : 1);
    from = null;
  }, { passive: true });
  viewer.addEventListener("close", () => { // back to the card that is shown now
    const id = open.list[open.at]?.id;
    [...document.querySelectorAll(".card, .tile")].find((card) => card.dataset.id === id)?.focus();
  });
}

function turn(step) {
  const at = open.at + step;
  if (at < 0 || at >= open.list.length) return;
  open.at = at;
  draw();
  $("viewer").querySelector(".stage").focus();
}

function draw() {
  const { list, at, actions } = open;
  const hit = list[at];
  const sure = actions.sure(hit);
  const facts = el("dl", { className: "details" });
  const captions = el("ol", { className: "captions" });
  const leave = (action) => () => { $("viewer").close(); action(hit); };
  const step = (by, text, name) => el("button", { type: "button", className: `step ${name}`, "aria-label": text,
    disabled: at + by < 0 || at + by >= list.length, onclick: () => turn(by) }, by < 0 ? "‹" : "›");
  $("viewer").replaceChildren(
    el("form", { method: "dialog" }, el("button", { className: "close", "aria-label": "Close" }, "×")),
    el("div", { className: "stage", tabIndex: -1 }, full(hit), step(-1, "Previous picture", "before"), step(1, "Next picture", "after")),
    el("div", { className: "facts" },
      el("h2", { id: "viewername" }, shownIn(hit)),
      sure && el("p", { className: `sure ${sure.level}` }, el("span", { className: "word" }, sure.word), ` ${sure.exact}`),
      el("p", { className: "when" }, [day(hit.meta?.taken ?? ""), hit.meta?.place].filter(Boolean).join(" · ")),
      el("div", { className: "actions" },
        el("button", { type: "button", className: "go", id: "like", onclick: leave(actions.like) }, "More like this"),
        actions.unlike && el("button", { type: "button", className: "pill", id: "unlike", onclick: leave(actions.unlike) }, "Not like this"),
        el("button", { type: "button", className: "pill", id: "hide", onclick: leave(actions.hide) }, "Hide"),
        el("button", { type: "button", className: "pill", id: "download", onclick: () => download(hit) }, "Download")),
      el("p", { className: "note" }, "After “More like this” you can add words: “but at night”."),
      captions, facts),
  );
  details(hit, facts, captions);
}

/** The small picture at once, the large one as soon as it is here. */
function full(hit) {
  const img = el("img", { className: "portrait", alt: shownIn(hit), draggable: false });
  if (kept.thumbnails) image(img, thumbnailOf(hit.id));
  if (kept.originals) {
    const large = el("img", { className: "portrait", alt: shownIn(hit), draggable: false,
      onload: () => { if (img.isConnected) img.replaceWith(large); } });
    image(large, originalOf(hit.id));
  }
  return img;
}

/** The file itself where the service has it, else the small picture. */
async function download(hit) {
  const name = String(hit.meta?.file ?? `${hit.id}.jpg`).split("/").at(-1);
  const large = kept.originals ? await blob(originalOf(hit.id)).catch(() => null) : null;
  const href = URL.createObjectURL(large ?? await blob(thumbnailOf(hit.id)));
  el("a", { download: name, href }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

async function details(hit, facts, captions) {
  const turn = ++open.turn;
  const fill = (meta) => {
    facts.replaceChildren();
    for (const [name, value] of Object.entries(meta ?? {})) {
      if (value === null || typeof value === "object" || name === "caption") continue;
      const shown = { taken: (text) => text.replace("T", " "), folder: folderName }[name]?.(String(value)) ?? String(value);
      facts.append(el("dt", {}, name), el("dd", {}, shown));
    }
  };
  fill(hit.meta);
  try {
    const [item, near] = await Promise.all([
      hit.meta ? hit : get("api/item", { id: hit.id }),
      open.actions.captions ? get("api/captions", { id: hit.id, k: 5 }) : { results: { hits: [] } },
    ]);
    if (turn !== open.turn) return;
    fill(item.meta);
    if (!hit.meta) { hit.meta = item.meta; $("viewername").textContent = shownIn(item); }
    if (near.results.hits.length) {
      captions.before(el("h3", {}, "Nearest captions"));
      captions.append(...near.results.hits.map((caption) => el("li", {}, el("button", { type: "button", className: "caption", title: "Search for this",
        onclick: () => { $("viewer").close(); open.actions.search(nameOf(caption)); } },
      el("span", {}, nameOf(caption)),
      caption.probability === null ? null : el("span", { className: "figure" }, percent(caption.probability))))));
    }
  } catch (error) {
    if (turn === open.turn) captions.before(el("p", { className: "note", role: "status" }, error.message));
  }
}
