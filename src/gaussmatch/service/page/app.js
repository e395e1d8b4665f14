// The page: one question at a time, its answer, and the address that leads back to it.

import { get, post } from "./api.js";
import { $, el, plural, press } from "./dom.js";
import { openItem } from "./item.js";
import { listen } from "./keys.js";
import { EmbeddingMap } from "./map.js";
import { chip, showQuery, suggest } from "./query.js";
import { show, shownIn, thumbnail, thumbnails, waiting } from "./results.js";

const PAGE = 24;
const state = { request: null, answer: null, sure: 0, view: "grid", k: PAGE };
let about = null;
let map = null;
let running = null;

// ---- asking ----

async function ask(request, { remember = true, k = PAGE } = {}) {
  running?.abort();
  const turn = running = new AbortController();
  if (state.request?.url && state.request !== request) URL.revokeObjectURL(state.request.url);
  Object.assign(state, { request, k });
  if (request.type !== "text") $("q").value = "";
  else $("q").value = request.text;
  if (remember) history.pushState(null, "", address());
  document.title = request.type === "text" ? `${request.text} – gaussmatch` : "gaussmatch";
  $("welcome").hidden = true;
  $("trouble").hidden = true;
  waiting();
  try {
    const answer = await call(request, { k, map: true }, turn.signal);
    if (turn !== running) return;
    state.answer = answer;
    showQuery(request, answer.results, about);
    render();
    if (request.type === "text" && answer.results.level === "vague" && about.captions) {
      await suggest(request.text, turn.signal, (text) => ask({ type: "text", text }));
    }
  } catch (error) {
    if (error.name !== "AbortError" && turn === running) trouble(error);
  }
}

function call(request, options, signal) {
  if (request.type === "picture") return post("api/search/image", options, request.file, signal);
  if (request.type === "like") return get("api/similar", { id: request.id, ...options }, signal);
  return get("api/search", { text: request.text, ...options }, signal);
}

function askPicture(file) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) {
    trouble(new Error("That is not a picture. Choose a JPEG, PNG, WebP, GIF or BMP file."));
    return;
  }
  if (file.size > about.limits.max_body) {
    trouble(new Error(`That picture has ${megabytes(file.size)} and at most ${megabytes(about.limits.max_body)} are taken.`));
    return;
  }
  ask({ type: "picture", file, url: URL.createObjectURL(file) });
}

const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MB`;

// ---- showing ----

function render() {
  const { sure, view, k } = state;
  const { hits } = state.answer.results;
  $("found").hidden = false;
  $("surebox").hidden = !hits.some((hit) => hit.probability !== null);
  const kept = show(hits, about.images, sure, open);
  $("sureout").textContent = sure ? `${sure} %` : "any";
  $("more").hidden = view !== "grid" || hits.length < k || k >= about.limits.max_results || !kept.length;
  press([$("asgrid"), $("asmap")], view === "grid" ? $("asgrid") : $("asmap"));
  $("results").hidden = view !== "grid";
  $("map").hidden = view !== "map";
  if (view === "map") drawMap(kept);
}

async function drawMap(kept) {
  try {
    map ??= new EmbeddingMap($("plane"), $("mapnote"), open);
    await map.load();
    map.show(state.answer, kept);
  } catch (error) {
    trouble(error);
  }
}

function open(hit) {
  openItem(hit, about, {
    onlike: (item) => ask({ type: "like", id: item.id }),
    ontext: (text) => ask({ type: "text", text }),
  });
}

function trouble(error) {
  $("trouble").textContent = error.message;
  $("trouble").hidden = false;
  $("results").replaceChildren();
  $("results").removeAttribute("aria-busy");
  $("found").hidden = true;
  $("query").hidden = true;
}

function welcome() {
  Object.assign(state, { request: null, answer: null });
  for (const id of ["query", "found", "trouble"]) $(id).hidden = true;
  $("welcome").hidden = false;
  wall();
  $("q").value = "";
  document.title = "gaussmatch";
}

/** Some pictures to look at before the first search. */
async function wall() {
  if ($("wall").childElementCount) return;
  try {
    const { items } = await get("api/sample", { k: 18 });
    $("wall").replaceChildren(...items.map((item) => {
      const hit = { probability: null, ...item };
      return el("li", {}, el("button", { type: "button", className: "tile", "aria-label": shownIn(hit), onclick: () => open(hit) }, thumbnail(hit)));
    }));
  } catch { /* the page works without */ }
}

// ---- the address ----

function address() {
  const { request, sure, view } = state;
  const params = new URLSearchParams();
  if (request?.type === "text") params.set("q", request.text);
  if (request?.type === "like") params.set("like", request.id);
  if (sure) params.set("sure", sure);
  if (view !== "grid") params.set("view", view);
  return params.size ? `?${params}` : location.pathname;
}

function follow() {
  const params = new URLSearchParams(location.search);
  state.sure = Math.min(95, Math.max(0, Number(params.get("sure")) || 0));
  state.view = params.get("view") === "map" ? "map" : "grid";
  $("sure").value = state.sure;
  if (params.get("q")) ask({ type: "text", text: params.get("q") }, { remember: false });
  else if (params.get("like")) ask({ type: "like", id: params.get("like") }, { remember: false });
  else welcome();
}

function look(change) {
  Object.assign(state, change);
  history.replaceState(null, "", address());
  if (state.answer) render();
}

// ---- wiring ----

async function start() {
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = $("q").value.trim();
    if (text) ask({ type: "text", text });
  });
  $("file").addEventListener("change", () => { askPicture($("file").files[0]); $("file").value = ""; });
  $("sure").addEventListener("input", () => look({ sure: Number($("sure").value) }));
  $("asgrid").addEventListener("click", () => look({ view: "grid" }));
  $("asmap").addEventListener("click", () => look({ view: "map" }));
  $("more").addEventListener("click", () => ask(state.request, { remember: false, k: Math.min(about.limits.max_results, state.k + PAGE) }));
  $("mappictures").addEventListener("click", () => mode("pictures"));
  $("mapellipses").addEventListener("click", () => mode("ellipses"));
  $("zoomin").addEventListener("click", () => map?.zoom(1.5));
  $("zoomout").addEventListener("click", () => map?.zoom(1 / 1.5));
  $("zoomreset").addEventListener("click", () => map?.whole());
  window.addEventListener("popstate", follow);
  try {
    about = await get("api/about");
  } catch (error) {
    trouble(error);
    return;
  }
  $("about").textContent = [plural(about.images, "picture", "pictures"),
    about.captions ? plural(about.captions, "caption", "captions") : null, about.model].filter(Boolean).join(" · ");
  thumbnails.kept = about.thumbnails || !about.images;
  $("q").maxLength = about.limits.max_text;
  $("examples").replaceChildren(...about.examples.map((text) => chip(text, (t) => ask({ type: "text", text: t }))));
  $("trybox").hidden = !about.examples.length;
  listen(askPicture);
  follow();
  document.documentElement.dataset.ready = "true";
}

function mode(name) {
  press([$("mappictures"), $("mapellipses")], name === "pictures" ? $("mappictures") : $("mapellipses"));
  map?.mode(name);
}

start();
