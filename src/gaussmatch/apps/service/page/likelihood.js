// How well a result fits, in words. The service decides; here it is shown.

import { percent } from "./dom.js";

const WORDS = { likely: "Likely", maybe: "Maybe", unlikely: "Unlikely" };

/** Level, word and number of a result; null where nothing is known. */
export const likelihood = (hit) => (hit.fit === null || hit.fit === undefined ? null
  : { level: hit.fit, word: WORDS[hit.fit], exact: `${percent(hit.probability)} likely to fit` });

/** How many results stand above the line: those that may fit; all where nothing is known of them. */
export const fitting = (results) => (results.hits.some((hit) => hit.fit !== null)
  ? results.hits.filter((hit) => hit.fit !== "unlikely").length : Infinity);
