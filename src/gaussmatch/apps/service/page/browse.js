// Looking around before anything was searched for: a timeline, folders as albums, places.

import { get } from "./api.js";
import { $, el, number, plural, press } from "./dom.js";
import { folderName, thumbnail } from "./picture.js";
import { Places } from "./places.js";
import { Timeline, monthName } from "./timeline.js";

const AGAIN = 15_000; // milliseconds between two looks whether there are new pictures
const WAYS = { time: "bytime", folders: "byfolder", places: "byplace" };
let timeline = null;
let places = null;
let albums = null;
let shown = null;

export const NOWHERE = { by: "time", folder: null, box: null };

/** What an address says of it, and the other way round. */
export const placeOf = (params) => ({ by: params.get("by") in WAYS ? params.get("by") : "time", folder: params.get("folder"), box: params.get("box") });
export const paramsOf = ({ by, folder, box }) => Object.entries({ by: by === "time" ? null : by, folder, box }).filter(([, value]) => value !== null);

/** `go(place)` changes the address too; `actions`: open, hidden. */
export function listen(go, actions) {
  for (const [by, id] of Object.entries(WAYS)) $(id).addEventListener("click", () => go({ ...NOWHERE, by }));
  $("all").addEventListener("click", () => go(NOWHERE));
  $("month").addEventListener("change", () => timeline.jump($("month").value));
  timeline = new Timeline($("timeline"), actions);
  places = new Places($("places"), (box) => go({ ...NOWHERE, box }));
  setInterval(refresh, AGAIN);
  browse.go = go;
}

export async function browse(place) {
  shown = place;
  press(Object.values(WAYS).map($), $(WAYS[place.by]));
  const timed = place.by === "time";
  $("timed").hidden = !timed;
  $("albums").hidden = place.by !== "folders";
  $("places").hidden = place.by !== "places";
  if (timed) await showTimeline(place);
  else if (place.by === "folders") await showAlbums();
  else await places.load();
}

async function showTimeline({ folder, box }) {
  const found = await timeline.load({ folder, box });
  if (!found) return;
  $("where").hidden = folder === null && box === null;
  $("wherename").textContent = `${folder === null ? "This place" : folderName(folder)}: ${timeline.says()}`;
  $("month").replaceChildren(el("option", { value: "" }, "Jump to a month"),
    ...found.months.map(({ month, count }) => el("option", { value: month }, `${monthName(month)} (${number(count)})`)));
  $("jump").hidden = found.months.length < 2;
}

async function showAlbums() {
  if (albums) return;
  ({ albums } = await get("api/albums"));
  $("albums").replaceChildren(...albums.map((album) => el("li", {}, el("button", { type: "button", className: "card album", onclick: () => browse.go({ ...NOWHERE, folder: album.folder }) },
    thumbnail({ id: album.cover }), el("span", { className: "named" }, el("span", {}, folderName(album.folder)), el("span", { className: "count" }, plural(album.count, "picture", "pictures")))))));
}

/** New pictures: only while nobody is in the middle of something. */
async function refresh() {
  if (document.hidden || $("welcome").hidden || shown?.by !== "time" || scrollY > innerHeight) return;
  try {
    if (await timeline.stale()) { albums = null; await showTimeline(shown); }
  } catch { /* the next look may succeed */ }
}
