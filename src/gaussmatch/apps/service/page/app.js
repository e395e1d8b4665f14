// The page: one query at a time, its answer, and the address that leads back to it.

import { get } from "./api.js";
import { NOWHERE, browse, listen as listenBrowse, paramsOf, placeOf } from "./browse.js";
import { choose, forget, hiddenCount, hide, isChoosing, isHidden, listen as listenChosen, recent, remember as rememberSearch, showAll } from "./chosen.js";
import { $, chip, el, number, press, plural } from "./dom.js";
import { ORDERS, count, prepare } from "./filters.js";
import { listen } from "./keys.js";
import { likelihood } from "./likelihood.js";
import { PictureMap } from "./map.js";
import { kept, shownIn } from "./picture.js";
import { NOTHING, hasPicture, isEmpty, request, showNamed, showQuery, showReading, suggest } from "./query.js";
import { append, grow, mark, show, waiting } from "./results.js";
import { listen as listenViewer, view } from "./viewer.js";

const GUARANTEE = 0.9; // 9 of 10 times
const AHEAD = 600; // pixels below the screen for which there should be cards
const PAGE = 200; // results that are requested at a time; fewer cards are made
const MOST_PICTURES = 16; // that a search may start from
const MARKED = 48; // results that the map marks where it is not known which match
const START = { query: NOTHING, place: NOWHERE, only: false, where: {}, sort: "best", view: "grid" };
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
  Object.assign(state, change);
  const { query } = state;
  showQuery(query, (other) => search({ query: other }));
  if (isEmpty(query)) { welcome(remember); return; }
  if (change.query) { rememberSearch(query.text); choose(false); }
  if (remember) history.pushState(null, "", address());
  document.title = query.text ? `${query.text} – gaussmatch` : "gaussmatch";
  for (const id of ["welcome", "trouble", "help", "undo"]) $(id).hidden = true;
  if (change.query) scrollTo(0, 0);
  waiting();
  if (change.query) named(query, turn.signal);
  try {
    const answer = await call(turn.signal);
    if (turn !== running) return;
    state.answer = answer;
    render();
    if (answer.results.level === "vague" && answer.results.verdict.kind !== "unfamiliar" && about.captions && query.text && !hasPicture(query)) {
      await suggest(query.text, turn.signal, searchText);
    }
  } catch (error) {
    if (error.name !== "AbortError" && turn === running) failed(error);
  }
}

const searchText = (text) => search({ query: { ...NOTHING, text } });

/** Names hold the words too: what they say is found beside the pictures, and said which. */
function named(query, signal) {
  $("named").hidden = true;
  if (!query.text || hasPicture(query)) return;
  showNamed(query.text, signal, { open, folder: (folder) => go({ ...NOWHERE, folder }) }).catch(() => { /* pictures are found without */ });
}

/** One page of the answer. If no set can be guaranteed, the best results come instead, with a remark. */
async function call(signal, offset = 0) {
  const { query, only, where, view } = state;
  const options = {
    k: Math.min(PAGE, about.limits.max_results), offset: offset || null, map: view === "map" ? true : null, groups: true,
    where: Object.keys(where).length ? JSON.stringify(where) : null,
  };
  const guaranteed = only && !hasPicture(query) && !query.unlike.length;
  const promised = guaranteed ? { guarantee: GUARANTEE, promise: "recall" } : {};
  const answer = await request(query, { ...options, ...promised }, signal).catch((error) => {
    if (error.code !== "no_guarantee") throw error;
    return { results: { total: 0 } };
  });
  if (!guaranteed || answer.results.total) return { query, only: guaranteed, ...answer };
  const all = await request(query, options, signal);
  all.results.remarks = ["no set of results holds 90 % of what fits: these are the best", ...all.results.remarks];
  return { query, only: false, ...all };
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
    const { results, groups } = await call(running.signal, had);
    if (answer !== state.answer) return;
    answer.results.hits.push(...results.hits);
    append(results.hits, groups);
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
    trouble(`That picture has ${megabytes(file.size)}; the limit is ${megabytes(about.limits.max_body)}.`);
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
  showReading(answer.results, answer.query.text, (text) => search({ query: { ...state.query, text } }));
  $("more").hidden = !answer.results.hits.length;
  const promised = !answer.results.asked?.without.length && !answer.query.unlike.length && matches && matches !== Infinity;
  $("onlybox").hidden = !answer.only && !promised;
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
    await map.load(state.where);
    map.show(state.answer, found);
  } catch (error) {
    trouble(error.message);
  }
}

function open(hit, list) {
  view(hit, list, {
    sure: likelihood,
    like,
    unlike: state.answer && ((item) => unlike([item])),
    hide: (item) => putAway([item]),
    search: searchText,
    captions: about.captions > 0,
  });
}

const like = (item) => search({ query: { ...NOTHING, like: [item.id] } });
const ids = (items) => items.map((item) => item.id).slice(0, MOST_PICTURES);
const unlike = (items) => search({ query: { ...state.query, unlike: [...new Set([...state.query.unlike, ...ids(items)])] } });

/** Hide pictures from all results in this browser, until that is undone. */
function putAway(items) {
  hide(ids(items));
  again();
  say(`Hidden from results: ${items.length === 1 ? shownIn(items[0]) : plural(items.length, "picture", "pictures")}. `, () => { hide(ids(items), false); again(); });

  function again() { if (state.answer) render(); else welcome(false); }
}

/** A line at the bottom, with what takes it back. */
function say(text, undo = null) {
  $("undo").replaceChildren(text, ...(undo ? [el("button", { type: "button", className: "link", onclick: () => { $("undo").hidden = true; undo(); } }, "Undo")] : []));
  $("undo").hidden = false;
}

/** Words that the model cannot read: say so, and offer others. */
function failed(error) {
  if (error.code !== "unknown_words") { trouble(error.message); return; }
  $("found").hidden = true;
  $("helptitle").textContent = `I don’t know “${state.query.text}”`;
  $("helptext").textContent = "I know words that people use in captions. Check the spelling, or try one of these:";
  $("help").hidden = false;
}

function trouble(message) {
  $("trouble").textContent = message;
  $("trouble").hidden = false;
  $("found").hidden = true;
}

/** All pictures, before anything is searched for. */
function welcome(remember) {
  const { place } = state;
  Object.assign(state, START, { answer: null, place });
  if (remember) history.pushState(null, "", address());
  for (const id of ["found", "trouble", "help", "undo", "named"]) $(id).hidden = true;
  choose(false);
  $("welcome").hidden = false;
  document.title = "gaussmatch";
  $("recent").replaceChildren(...recent().map((text) => chip(text, searchText)));
  $("recentbox").hidden = !recent().length;
  $("hiddennote").hidden = !hiddenCount();
  $("hiddencount").textContent = `${plural(hiddenCount(), "picture is", "pictures are")} hidden from results.`;
  browse(place).catch((error) => trouble(error.message));
}

/** Another folder or place, or another way to look around. */
function go(place) {
  scrollTo(0, 0);
  search({ query: NOTHING, place });
}

// ---- the address ----

function address() {
  const { query, place, only, where, sort, view: shownAs } = state;
  const params = new URLSearchParams(isEmpty(query) ? paramsOf(place) : []);
  if (query.text) params.set("q", query.text);
  for (const name of ["like", "unlike"]) for (const id of query[name]) params.append(name, id);
  if (only) params.set("only", "1");
  if (Object.keys(where).length) params.set("where", JSON.stringify(where));
  if (sort !== "best") params.set("sort", sort);
  if (shownAs !== "grid") params.set("view", shownAs);
  return params.size ? `?${params}` : location.pathname;
}

function follow() {
  const params = new URLSearchParams(location.search);
  const json = (name, otherwise) => { try { return JSON.parse(params.get(name)) ?? otherwise; } catch { return otherwise; } };
  const change = {
    query: { ...NOTHING, text: params.get("q") ?? "", like: params.getAll("like"), unlike: params.getAll("unlike") },
    place: placeOf(params),
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
  const rows = [["Pictures", number(about.images)], ["Captions", number(about.captions)], ["Version", about.version]];
  if (!about.probabilistic) rows.push(["Note", "Results are put in order only: this model does not know how broad a search is."]);
  $("aboutfacts").replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

/** Close what is open; whether anything was. */
function escape() {
  if (isChoosing()) choose(false);
  else if (!$("filters").hidden) toggleFilters();
  else if (!$("picked").hidden && !$("map").hidden) map.pick(null);
  else if (!$("undo").hidden) $("undo").hidden = true;
  else return false;
  return true;
}

async function start() {
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search({ query: { ...state.query, text: $("q").value.trim() } });
  });
  $("forget").addEventListener("click", () => { forget(); $("recentbox").hidden = true; });
  $("showhidden").addEventListener("click", () => { showAll(); welcome(false); });
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
    $(list).replaceChildren(...about.examples.map((text) => chip(text, searchText)));
    $(list).hidden = !about.examples.length;
  }
  aboutFacts();
  listen(searchPicture, escape);
  listenViewer();
  listenBrowse(go, { open, hidden: isHidden });
  listenChosen({ changed: mark, hide: putAway, like: (items) => search({ query: { ...NOTHING, like: ids(items) } }), unlike, say });
  follow();
  document.documentElement.dataset.ready = "true";
}

start();
