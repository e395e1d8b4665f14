// The page: one query at a time, its answer, and the address that leads back to it.

import { get } from "./api.js";
import { $, chip, el, number, press, plural } from "./dom.js";
import { ORDERS, count, prepare } from "./filters.js";
import { listen } from "./keys.js";
import { likelihood } from "./likelihood.js";
import { PictureMap } from "./map.js";
import { kept, shownIn, thumbnail } from "./picture.js";
import { isEmpty, request, showQuery, suggest } from "./query.js";
import { append, grow, show, waiting } from "./results.js";
import { listen as listenViewer, view } from "./viewer.js";

const GUARANTEE = 0.9; // 9 of 10 times
const AHEAD = 600; // pixels below the screen for which there should be cards
const PAGE = 200; // results that are requested at a time; fewer cards are made
const MARKED = 48; // results that the map marks where it is not known which match
const NOTHING = { text: "", like: null, file: null, url: null };
const START = { query: NOTHING, exclude: [], only: false, where: {}, sort: "best", view: "grid" };
const state = { ...START, answer: null };
let about = null;
let map = null;
let running = null;

// ---- searching ----

/** Search for what the state says; `change` is what is new. */
async function search(change, { remember = true } = {}) {
  running?.abort();
  const turn = running = new AbortController();
  if (change.query && state.query.url && state.query.url !== change.query.url) URL.revokeObjectURL(state.query.url);
  if (change.query) change = { exclude: [], ...change };
  Object.assign(state, change);
  const { query } = state;
  showQuery(query, () => search({ query: { ...NOTHING, text: $("q").value.trim() } }));
  if (isEmpty(query)) { welcome(remember); return; }
  if (remember) history.pushState(null, "", address());
  document.title = query.text ? `${query.text} – gaussmatch` : "gaussmatch";
  for (const id of ["welcome", "trouble", "help", "undo"]) $(id).hidden = true;
  if (change.query) scrollTo(0, 0);
  waiting();
  try {
    const answer = await call(turn.signal);
    if (turn !== running) return;
    state.answer = answer;
    render();
    if (answer.results.level === "vague" && answer.results.verdict.kind !== "unfamiliar" && about.captions && query.text && !query.like && !query.file) {
      await suggest(query.text, turn.signal, (text) => search({ query: { ...NOTHING, text } }));
    }
  } catch (error) {
    if (error.name !== "AbortError" && turn === running) failed(error);
  }
}

/** One page of the answer. Where nothing is guaranteed to match, the nearest are requested instead. */
async function call(signal, offset = 0) {
  const { query, only, where, exclude, view } = state;
  const options = {
    k: Math.min(PAGE, about.limits.max_results), offset: offset || null, map: view === "map" ? true : null,
    where: Object.keys(where).length ? JSON.stringify(where) : null,
    exclude: exclude.length ? JSON.stringify(exclude.map((item) => item.id)) : null,
  };
  const guaranteed = only && !query.like && !query.file;
  const answer = await request(query, { ...options, guarantee: guaranteed ? GUARANTEE : null, promise: guaranteed ? "recall" : null }, signal);
  if (guaranteed && !answer.results.total) return { query, only: false, ...await request(query, options, signal) };
  return { query, only: guaranteed, ...answer };
}

let loading = false;

/** Near the end of the page: more cards, or more results. */
async function more() {
  const { answer } = state;
  if (!answer || loading) return;
  if (grow()) { again(); return; }
  const had = answer.results.hits.length;
  if (had >= (answer.results.total ?? had)) { $("more").hidden = true; return; }
  loading = true;
  try {
    const { results } = await call(running.signal, had);
    if (answer !== state.answer) return;
    answer.results.hits.push(...results.hits);
    append(results.hits);
    if (!results.hits.length) $("more").hidden = true;
    again();
  } catch (error) {
    if (error.name !== "AbortError") trouble(error.message);
  } finally {
    loading = false;
  }
}

/** Once more, if the end of the page is still near. */
function again() {
  requestAnimationFrame(() => { if ($("more").checkVisibility() && $("more").getBoundingClientRect().top < innerHeight + AHEAD) more(); });
}

function searchPicture(file) {
  if (!file) return;
  if (file.type && !file.type.startsWith("image/")) {
    trouble("That is not a picture. Choose a JPEG, PNG, WebP, GIF or BMP file.");
  } else if (file.size > about.limits.max_body) {
    trouble(`That picture has ${megabytes(file.size)} and at most ${megabytes(about.limits.max_body)} are taken.`);
  } else {
    search({ query: { ...NOTHING, file, url: URL.createObjectURL(file) } });
  }
}

const megabytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MB`;

// ---- showing ----

function render() {
  const { answer, view: shownAs, sort } = state;
  $("found").hidden = false;
  const { shown, matches } = show(answer, sort, open);
  $("more").hidden = !shown.length;
  $("onlybox").hidden = !answer.only && (!matches || matches === Infinity);
  $("only").checked = answer.only;
  const set = count(state);
  $("tofilters").textContent = set ? `Filters (${set})` : "Filters";
  press([$("asgrid"), $("asmap")], shownAs === "grid" ? $("asgrid") : $("asmap"));
  $("grid").hidden = shownAs !== "grid";
  $("map").hidden = shownAs !== "map";
  if (shownAs === "map") drawMap(shown.slice(0, matches === Infinity ? MARKED : matches));
}

async function drawMap(found) {
  try {
    map ??= new PictureMap($("plane"), { legend: $("legend"), picked: $("picked"), ellipses: $("toellipses") }, { open, like });
    await map.load();
    map.show(state.answer, found);
  } catch (error) {
    trouble(error.message);
  }
}

function open(hit, list) {
  view(hit, list, {
    sure: likelihood,
    like,
    exclude,
    search: (text) => search({ query: { ...NOTHING, text } }),
    captions: about.captions > 0,
  });
}

const like = (item) => search({ query: { ...NOTHING, like: item.id } });

/** Not this one: it is left out of this search, until that is undone. */
async function exclude(item) {
  if (!state.answer) return;
  await search({ exclude: [...state.exclude, item] });
  $("undo").replaceChildren(`Left out: ${shownIn(item)}. `, el("button", { type: "button", className: "link",
    onclick: () => search({ exclude: state.exclude.filter((other) => other.id !== item.id) }) }, "Undo"));
  $("undo").hidden = false;
}

/** Words that the model cannot read are no fault of whoever typed them: say so, and help. */
function failed(error) {
  if (error.code !== "unknown_words") { trouble(error.message); return; }
  $("found").hidden = true;
  $("helptitle").textContent = `I don’t know “${state.query.text}”`;
  $("helptext").textContent = "I know the words that stand in captions of pictures. Is it spelt right? Or try one of these:";
  $("help").hidden = false;
}

function trouble(message) {
  $("trouble").textContent = message;
  $("trouble").hidden = false;
  $("found").hidden = true;
}

function welcome(remember) {
  Object.assign(state, START, { answer: null });
  if (remember) history.pushState(null, "", location.pathname);
  for (const id of ["found", "trouble", "help", "undo"]) $(id).hidden = true;
  $("welcome").hidden = false;
  document.title = "gaussmatch";
  wall();
}

/** Some pictures to look at before anything was searched for. */
async function wall() {
  if ($("wall").childElementCount) return;
  try {
    const { items } = await get("api/sample", { k: 24 });
    $("wall").replaceChildren(...items.map((item) => el("li", {}, el("button", { type: "button", className: "tile", "aria-label": shownIn(item), onclick: () => open(item, items) }, thumbnail(item)))));
  } catch { /* the page works without */ }
}

// ---- the address ----

function address() {
  const { query, only, where, sort, exclude: not, view: shownAs } = state;
  const params = new URLSearchParams();
  if (query.text) params.set("q", query.text);
  if (query.like) params.set("like", query.like);
  if (not.length) params.set("not", JSON.stringify(not.map((item) => item.id)));
  if (only) params.set("only", "1");
  if (Object.keys(where).length) params.set("where", JSON.stringify(where));
  if (sort !== "best") params.set("sort", sort);
  if (shownAs !== "grid") params.set("view", shownAs);
  return params.size ? `?${params}` : location.pathname;
}

function follow() {
  const params = new URLSearchParams(location.search);
  const json = (name, otherwise) => { try { return JSON.parse(params.get(name)) ?? otherwise; } catch { return otherwise; } };
  const left = json("not", []);
  const change = {
    query: { ...NOTHING, text: params.get("q") ?? "", like: params.get("like") },
    exclude: Array.isArray(left) ? left.map((id) => ({ id: String(id) })) : [],
    only: params.get("only") === "1",
    where: json("where", {}),
    sort: params.get("sort") in ORDERS ? params.get("sort") : "best",
    view: params.get("view") === "map" ? "map" : "grid",
  };
  if (!$("filters").hidden) prepare(change, narrow);
  search(change, { remember: false });
}

/** Another look at the same answer. */
function look(change) {
  Object.assign(state, change);
  history.replaceState(null, "", address());
  if (state.answer) render();
}

/** Filters: another answer to the same query, unless only the order is another. */
function narrow(change) {
  if (JSON.stringify(change.where) === JSON.stringify(state.where)) look(change);
  else search(change);
}

// ---- wiring ----

async function toggleFilters() {
  const opened = $("filters").hidden;
  if (opened) await prepare(state, narrow);
  $("filters").hidden = !opened;
  $("tofilters").setAttribute("aria-expanded", String(opened));
}

function aboutFacts() {
  const rows = [["Pictures", number(about.images)], ["Captions", number(about.captions)], ["Model", about.model],
    ["Compared by", about.similarity], ["Dimensions", number(about.dimension)], ["gaussmatch", about.version]];
  if (!about.probabilistic) rows.push(["Note", "This is a point model: it ranks, but it cannot say how broad a search is."]);
  $("aboutfacts").replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

async function start() {
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search({ query: { ...state.query, text: $("q").value.trim() } });
  });
  $("file").addEventListener("change", () => { searchPicture($("file").files[0]); $("file").value = ""; });
  $("tofilters").addEventListener("click", toggleFilters);
  $("asgrid").addEventListener("click", () => look({ view: "grid" }));
  $("asmap").addEventListener("click", () => search({ view: "map" })); // once more, as places are wanted too
  $("only").addEventListener("change", () => search({ only: $("only").checked }));
  $("more").addEventListener("click", more);
  new IntersectionObserver((entries) => { if (entries[0].isIntersecting) more(); }, { rootMargin: `${AHEAD}px` }).observe($("more"));
  $("zoomin").addEventListener("click", () => map?.zoom(1.5));
  $("zoomout").addEventListener("click", () => map?.zoom(1 / 1.5));
  $("zoomreset").addEventListener("click", () => map?.whole());
  $("toellipses").addEventListener("click", () => map?.toggleEllipses());
  $("toabout").addEventListener("click", () => $("about").showModal());
  window.addEventListener("popstate", follow);
  try {
    about = await get("api/about");
  } catch (error) {
    trouble(error.message);
    return;
  }
  Object.assign(kept, { thumbnails: about.thumbnails || !about.images, originals: about.originals });
  $("toreview").hidden = !about.review;
  $("q").maxLength = about.limits.max_text;
  $("hint").prepend(`${plural(about.images, "picture", "pictures")}. `);
  for (const list of ["examples", "helpexamples"]) {
    $(list).replaceChildren(...about.examples.map((text) => chip(text, (t) => search({ query: { ...NOTHING, text: t } }))));
    $(list).hidden = !about.examples.length;
  }
  aboutFacts();
  listen(searchPicture);
  listenViewer();
  follow();
  document.documentElement.dataset.ready = "true";
}

start();
