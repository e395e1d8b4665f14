"""What a search answers: ranked hits, and how sure one may be of each and of the question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from gaussmatch.index.layout import Gallery


class Hit(NamedTuple):
    """One result.

    Args:
        score: of the model's similarity; higher is better.
        probability: that it is a match, see ``Calibration``; ``None`` where nothing was fitted.
        uncertainty: log det Σ of the item; ``None`` for a point model.
        percentile: the share (0–100) of the model's training items of this kind that are surer.
        meta: what was stored with it.
    """

    id: str
    score: float
    probability: float | None
    uncertainty: float | None
    percentile: float | None
    meta: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Hits:
    """The results of one query, best first.

    Args:
        gallery: what was searched; ``kind``: what the query is, an image or a caption.
        uncertainty, percentile: of the query, as in ``Hit``.
        unknown: words of a caption that the model has never seen.
        notes: what a user should know before trusting the numbers.
    """

    hits: Sequence[Hit]
    gallery: Gallery
    kind: Gallery
    uncertainty: float | None = None
    percentile: float | None = None
    unknown: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def ids(self) -> list[str]:
        return [hit.id for hit in self.hits]

    @property
    def phrase(self) -> str:
        """How vague the query is, in words."""
        return phrase(self.percentile, self.kind)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, rank: int) -> Hit:
        return self.hits[rank]


def phrase(percentile: float | None, kind: Gallery) -> str:
    """A percentile in words.

    >>> phrase(93.4, "captions"), phrase(7, "captions")
    ('vague: more general than 93 % of captions', 'specific: less general than 93 % of captions')
    >>> phrase(55, "images"), phrase(None, "images")
    ('ordinary: more ambiguous than 55 % of images', 'unknown: no uncertainty to compare')
    """
    if percentile is None:
        return "unknown: no uncertainty to compare"
    word = {"captions": "general", "images": "ambiguous"}[kind]
    high, low = {"captions": ("vague", "specific"), "images": ("ambiguous", "clear")}[kind]
    if percentile <= 25:
        return f"{low}: less {word} than {_under_100(100 - percentile)} % of {kind}"
    rank = high if percentile >= 75 else "ordinary"
    return f"{rank}: more {word} than {_under_100(percentile)} % of {kind}"


def _under_100(percentile: float) -> int:
    return min(99, int(percentile))
