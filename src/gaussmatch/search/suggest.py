"""From a vague query to precise ones: captions that say the same more exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data.language import EVERYDAY, INDEFINITE, content_words, meant_by
from gaussmatch.search.hits import SCHEMA

if TYPE_CHECKING:
    from gaussmatch.search.index import Index

NEAREST = 200  #: captions near the query that are considered
PICTURES = 12  #: best pictures whose captions are considered too
EACH = 25  #: captions of each of them
MARGIN = 15  #: percentiles that a suggestion must be below the query
SHORT = 50  #: characters up to which a caption is read at a glance
PLAIN = ("a dog", "a group of people", "water", "snow", "food", "a child", "a car", "mountains")
"""Searches that a few photos answer too, which have nothing of ``EVERYDAY``."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A caption that says the same more precisely."""

    __pydantic_config__ = SCHEMA

    text: str
    percentile: float | None


def suggest(index: Index, query: str, g: Gaussian, k: int) -> list[Suggestion]:
    """Captions near the query that are surer and keep its meaning: all its words, or words for
    kinds of what it names. Short ones first, all different.

    They come from two places: the captions nearest to the query, and those of the pictures it
    finds, because each of these is one of the things that may be meant.
    """
    if g.is_point:
        return []
    pictures = index.search(g, PICTURES, gallery="images", side="captions")[0]
    found = list(index.search(g, NEAREST, gallery="captions", side="captions")[0].hits)
    if pictures.ids:
        meant = Gaussian.cat([index.gaussian(id) for id in pictures.ids])
        for hits in index.search(meant, EACH, gallery="captions", side="images"):
            found += hits.hits
    unsure = float(g.uncertainty()[0])
    share = index.calibration.percentile("captions", np.array([unsure]))
    most = None if share is None else float(share[0]) - MARGIN
    wanted, seen = set(content_words(query)) - INDEFINITE, set[str]()
    ranked: list[tuple[bool, int, Suggestion]] = []
    for place, hit in enumerate(found):
        text = hit.meta.get("caption")
        if not isinstance(text, str) or text.lower() in seen or hit.uncertainty is None:
            continue
        seen.add(text.lower())
        surer = hit.uncertainty < unsure
        if most is not None and hit.percentile is not None:
            surer = hit.percentile <= most
        if surer and set(content_words(text)) != wanted and wanted <= meant_by(text):
            ranked.append((len(text) > SHORT, place, Suggestion(text, hit.percentile)))
    return different((s for *_, s in sorted(ranked, key=lambda entry: entry[:2])), k)


def examples(index: Index, most: int = 5) -> list[str]:
    """Short captions of the index to try, from vague to precise; or everyday searches that find
    something in it, if it has no captions. None where the model reads no words."""
    if not index.model.reads_text:
        return []
    if not index.size("captions"):
        return _answered(index, (*EVERYDAY, *PLAIN))[:most] if index.size("images") else []
    records, g = index.some(1000, "captions")
    texts = [r.meta.get("caption") for r in records]
    known = [(i, t) for i, t in enumerate(texts) if isinstance(t, str) and 3 <= len(t) <= 70]
    if g is None or not known:
        return []
    if not g.is_point:
        unsure = g.uncertainty().tolist()
        known.sort(key=lambda entry: -unsure[entry[0]])
    chosen = np.linspace(0.03, 0.97, most) * (len(known) - 1)
    picked = [Suggestion(known[int(at)][1], None) for at in chosen]
    return [s.text for s in different(picked, most)]


def _answered(index: Index, queries: Sequence[str]) -> list[str]:
    """Those of some queries that the model knows and that have a match."""
    read = index.model.read(list(queries))
    unknown = index.calibration.unknown_words
    known = [q for q, r in zip(queries, read, strict=True) if not unknown(r)]
    best = [hits.hits[0].fit for hits in index.search_text(known, 1)] if known else []
    return [q for q, fit in zip(known, best, strict=True) if fit in ("likely", "maybe")]


def different(found: Iterable[Suggestion], k: int) -> list[Suggestion]:
    """The first k that do not share most of their words.

    >>> texts = ["a red dog", "a red dog!", "a blue cat"]
    >>> [s.text for s in different((Suggestion(t, None) for t in texts), 2)]
    ['a red dog', 'a blue cat']
    """
    kept: list[Suggestion] = []
    for s in found:
        if len(kept) == k:
            break
        own, *others = (set(content_words(each.text)) for each in (s, *kept))
        if not any(len(own & other) >= 0.7 * len(own | other) for other in others):
            kept.append(s)
    return kept
