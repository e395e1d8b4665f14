// How likely a result is to match, in words; and how many of the results do.

import { percent } from "./dom.js";

const LEVELS = { very: "Very likely", maybe: "Maybe", unlikely: "Unlikely" };

/** From where on a result is very likely, and from where on maybe. A calibration that knew every true match
 *  gives the probability of one. One that knew only the picture each caption was written for would give the
 *  chance of being that very picture, small for every dog when you look for a dog; there a result goes by
 *  how many true matches look no better, and above a tenth it is in the set that holds the right one
 *  nine times out of ten. */
const FROM = { probability: { very: 0.6, maybe: 0.2 }, p_value: { very: 0.25, maybe: 0.1 } };
const measure = (results) => (results.exhaustive ? "probability" : "p_value");

/** Whether the service can say anything about matches: it cannot about words it does not know. */
export const known = (results) => results.hits.length > 0 && !results.unknown.length
  && results.hits.every((hit) => hit[measure(results)] !== null);

/** Level, word and number of a result; null where nothing is known. */
export function likelihood(hit, results) {
  const name = measure(results);
  const share = hit[name];
  if (share === null || share === undefined || results.unknown.length) return null;
  const level = share > FROM[name].very ? "very" : share > FROM[name].maybe ? "maybe" : "unlikely";
  const exact = name === "probability" ? `${percent(share)} likely to match` : `looks better than ${percent(share)} of true matches`;
  return { level, word: LEVELS[level], exact, share };
}

/** How many of the results match: the expected number of matches, where all true ones were known; else the
 *  size of the set that holds the right one nine times out of ten. */
export function matching(results) {
  const name = measure(results);
  const shares = results.hits.map((hit) => hit[name]);
  const possible = shares.filter((share) => share > FROM[name].maybe).length;
  if (name === "p_value") return possible;
  const expected = shares.reduce((sum, share) => sum + share, 0);
  return Math.min(possible, Math.round(expected));
}
