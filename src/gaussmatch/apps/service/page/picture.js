// A picture of the index: what it is called, what it shows, and its image in two sizes.

import { image } from "./api.js";
import { el } from "./dom.js";

/** What the index has: small pictures, and the files themselves. Set once the service has said so. */
export const kept = { thumbnails: true, originals: false };

/** What a picture is called: its title, its file, or its id. */
export const nameOf = (item) => item.meta?.caption ?? item.meta?.title ?? item.meta?.file ?? item.id;

/** What it shows, for those who do not see it: the first caption that was stored with it. */
export const shownIn = (item) => item.meta?.captions?.[0] ?? nameOf(item);

/** The name of a folder; "." and "" are the one that was indexed. */
export const folderName = (folder) => (folder === "." || folder === "" ? "(top folder)" : folder);

export const thumbnailOf = (id) => `api/thumbnail?${new URLSearchParams({ id })}`;
export const originalOf = (id) => `api/picture?${new URLSearchParams({ id })}`;

/** A small picture, or its name where the index keeps none. */
export function thumbnail(item, className = "thumb") {
  const blank = () => el("span", { className: `${className} blank` }, nameOf(item));
  if (!kept.thumbnails) return blank();
  const img = el("img", { className, alt: "", loading: "lazy", decoding: "async", draggable: false,
    onerror: () => img.replaceWith(blank()) });
  image(img, thumbnailOf(item.id));
  return img;
}

/** "17 May 2023" of "2023-05-17T10:22:31", as it stands there: no time zone is known. */
export function day(taken) {
  const date = new Date(`${String(taken).slice(0, 10)}T00:00:00Z`);
  return Number.isNaN(date.valueOf()) ? null
    : date.toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric", timeZone: "UTC" });
}
