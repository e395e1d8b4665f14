"""From a vague query to precise ones: captions that say the same more exactly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index import Index
from gaussmatch.service.responses import Suggestion

NEAREST = 200  #: captions near the query that are considered
PICTURES = 12  #: best pictures whose captions are considered too
EACH = 25  #: captions of each of them
MARGIN = 15  #: percentiles that a suggestion must be below the query
SHORT = 50  #: characters up to which a caption is read at a glance
EMPTY = frozenset(
    re.findall(
        r"\w+",
        "a an and any are as at be by for from has have here in is it its look looks of on only "
        "or some something somewhere somebody that the there thing things this to with",
    )
)


def words(text: str) -> set[str]:
    """The words that carry meaning, without their plural.

    >>> sorted(words("A dog and some Dogs in the snow"))
    ['dog', 'snow']
    """
    found = re.findall(r"\w+", text.lower())
    return {word.removesuffix("s") for word in found if word not in EMPTY} - {""}


def suggest(index: Index, query: str, g: Gaussian, k: int) -> list[Suggestion]:
    """Captions near the query that are surer, those with its words first, all different.

    They come from two places: the captions nearest to the query, and those of the pictures it
    finds, because each of these is one of the things that may be meant.
    """
    if g.is_point or not index.size("captions"):
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
    wanted, seen = words(query), set[str]()
    ranked: list[tuple[float, bool, int, Suggestion]] = []
    for place, hit in enumerate(found):
        text = hit.meta.get("caption")
        if not isinstance(text, str) or text.lower() in seen or hit.uncertainty is None:
            continue
        seen.add(text.lower())
        surer = hit.uncertainty < unsure
        if most is not None and hit.percentile is not None:
            surer = hit.percentile <= most
        if surer and words(text) != wanted:
            kept = len(words(text) & wanted) / len(wanted) if wanted else 1.0
            ranked.append((-kept, len(text) > SHORT, place, Suggestion(text, hit.percentile)))
    return different((s for *_, s in sorted(ranked, key=lambda entry: entry[:3])), k)


def examples(index: Index, most: int = 5) -> list[str]:
    """Short captions of the index to try, from vague to precise."""
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
        if not any(_alike(words(s.text), words(other.text)) for other in kept):
            kept.append(s)
    return kept


def _alike(one: set[str], other: set[str], share: float = 0.7) -> bool:
    both: Sequence[str] = list(one | other)
    return not both or len(one & other) / len(both) >= share
