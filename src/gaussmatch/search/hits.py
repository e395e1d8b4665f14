"""What a search returns: ranked hits, and how sure one may be of each and of the query.

The library returns these types, ``gaussmatch search --json`` prints them, the service sends them,
and its OpenAPI schema is generated from them. A new field is added here, and nowhere else. They
are not frozen, as Python takes twice as long to make a frozen one: a twentieth of a whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

from gaussmatch.checks import SCHEMA
from gaussmatch.data.asked import NOT_ENGLISH, Asked, read_query
from gaussmatch.data.language import language_of, mostly_known
from gaussmatch.search.manifest import Gallery
from gaussmatch.search.trust.calibration import Promise
from gaussmatch.search.trust.verdict import Fit, FitCount, SearchVerdict, decide, fit_of

Level = Literal["vague", "ordinary", "specific"]
TRUNCATED = "the query is longer than the model reads: only its beginning counts"


@dataclass(slots=True)
class Hit:
    """One result of a search.

    >>> Hit("dog.jpg", score=0.8, probability=0.93, uncertainty=None, percentile=None).probability
    0.93
    """

    __pydantic_config__ = SCHEMA

    id: str
    score: float
    """The model's similarity to the query; higher is better."""
    probability: float | None
    """P(fits): the probability that the item fits the query; null if no calibration was learned
    for such queries, or if the model does not know them."""
    uncertainty: float | None
    """log det Σ of the item; null for a point model."""
    percentile: float | None
    """The share (0–100) of the model's training items of its side that are surer."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What was stored with the item."""
    fit: Fit | None = field(init=False, default=None)
    """The probability in a word: likely from 0.5, maybe from 0.2."""

    def __post_init__(self) -> None:
        self.fit = fit_of(self.probability)

    def __repr__(self) -> str:
        """One line, without the metadata.

        >>> Hit("dog.jpg", 0.8, 0.93, uncertainty=-3.2, percentile=40.0, meta={"year": 2024})
        Hit('dog.jpg', score=0.800, fits 93 %, less certain than 40 % of training items)
        """
        match = "" if self.probability is None else f", fits {100 * self.probability:.0f} %"
        sure = "" if self.percentile is None else f", less certain than {self.percentile:.0f} %"
        text = f"Hit({self.id!r}, score={self.score:.3f}{match}{sure}"
        return text + (" of training items)" if sure else ")")


@dataclass(slots=True)
class Hits:
    """The results of one query, best first."""

    __pydantic_config__ = SCHEMA

    hits: Sequence[Hit]
    gallery: Gallery
    """What was searched."""
    side: Gallery
    """What the query is: an image or a caption."""
    uncertainty: float | None = None
    """log det Σ of the query; null for a point model."""
    percentile: float | None = None
    """The share (0–100) of the model's training items of its side that are surer than the
    query; null where the model's uncertainty has not passed its probe, or where it does not know
    such queries."""
    familiar: float | None = None
    """p-value: the share of validation queries that are at least as unlike the training data. Below
    0.01 the model does not know such queries, and no result has a probability."""
    absent: float | None = None
    """p-value of "nothing here fits": the share of queries of the same kind without a fitting item
    that look as promising. Small where something fits."""
    nothing: bool = False
    """Whether only two in a hundred queries that have a fitting item look as bad."""
    count: FitCount | None = None
    """How many of the items searched fit, as an 80 % interval."""
    guarantee: float | None = None
    """If requested, what the results are promised to hold (``promise``): of queries like those that
    were judged."""
    promise: Promise = "recall"
    """recall: at least this share of all that fits, in the mean; one: the item that is meant, with
    at least this probability, if it is among those searched."""
    total: int | None = None
    """How many results there are, of which these may be a part: all items that the conditions
    allow, or the guaranteed set."""
    unknown: Sequence[str] = ()
    """Words of a caption that the model has never seen."""
    meant: str | None = None
    """The caption with known words for misspelled ones: did you mean this?"""
    notes: Sequence[str] = ()
    """What to know before trusting the numbers."""
    level: Level | None = field(init=False, default=None)
    """vague from the 75th percentile, specific up to the 25th."""
    phrase: str = field(init=False, default="")
    """The percentile in words."""
    text: str | None = None
    """The query, if it is words."""
    asked: Asked | None = None
    """The query as it was read, if it is words: what to look for, what must not be there, dates."""
    remarks: Sequence[str] = ()
    """Sentences about how the query was read, and what of it was not understood; to be shown."""
    known: bool = True
    """Whether the model knows most of what the query names."""
    calibrated: bool = True
    """Whether the index has a calibration: without one nothing is known of what fits."""
    verdict: SearchVerdict = field(init=False, default_factory=SearchVerdict)
    """What may be believed of the results, and the sentence to show."""

    def __post_init__(self) -> None:
        self.level, self.phrase = level(self.percentile), phrase(self.percentile, self.side)
        self.verdict = decide(
            gallery=self.gallery,
            results=len(self.hits),
            total=self.total,
            judged=len(self.hits) > 0 and self.hits[0].probability is not None,
            calibrated=self.calibrated,
            vague=self.level == "vague",
            familiar=self.familiar,
            unknown=self.unknown,
            known=self.known,
            text=self.text,
            absent=self.absent,
            nothing=self.nothing,
            best=self.hits[0].probability if self.hits else None,
            count=self.count,
            guarantee=self.guarantee,
            promise=self.promise,
            listed=self.asked is not None and not (self.asked.words or self.asked.without),
        )

    def __repr__(self) -> str:
        best = f", best {self.hits[0]!r}" if len(self) else ""
        return f"Hits({len(self)} {self.gallery}, {self.verdict.sentence!r}{best})"

    def _repr_html_(self) -> str:
        """A table, for notebooks."""
        rows = "".join(
            f"<tr><td>{rank}</td><td>{escape(hit.id)}</td><td>{hit.score:.3f}</td>"
            f"<td>{'' if hit.probability is None else f'{hit.probability:.0%}'}</td></tr>"
            for rank, hit in enumerate(self.hits, start=1)
        )
        heads = "".join(f"<th>{word}</th>" for word in ("", "id", "score", "fits"))
        return f"<p>{escape(self.verdict.sentence)}</p><table><tr>{heads}</tr>{rows}</table>"

    def part(self, start: int, count: int) -> Hits:
        """Some of the results."""
        some = self.hits[start : start + count]
        return self if len(some) == len(self.hits) else replace(self, hits=some)

    def sorted(self, name: str, *, descending: bool = False) -> Hits:
        """The same results in the order of a field of their metadata: numbers, then texts, then
        those without the field.

        >>> dated = {"b": "2023-05-17", "a": "2021-01-01", "c": None}
        >>> hits = [Hit(id, 0.5, None, None, None, {"taken": day}) for id, day in dated.items()]
        >>> Hits(hits, "images", "captions").sorted("taken").ids
        ['a', 'b', 'c']
        """
        numbers: list[Hit] = []
        texts: list[Hit] = []
        others: list[Hit] = []
        for hit in self.hits:
            value = hit.meta.get(name)
            of_type = {str: texts, int: numbers, float: numbers}.get(type(value), others)
            of_type.append(hit)
        for same in (numbers, texts):
            same.sort(key=lambda hit: hit.meta[name], reverse=descending)
        return replace(self, hits=[*numbers, *texts, *others])

    def remarked(self, remarks: Sequence[str]) -> Hits:
        """The same with more remarks."""
        return replace(self, remarks=[*self.remarks, *remarks]) if remarks else self

    def for_text(
        self,
        asked: Asked | str,
        unknown: Sequence[str],
        meant: Mapping[str, str],
        truncated: bool = False,
    ) -> Hits:
        """The same for a query in words, of which the model does not know some or has read only the
        first. If it does not know most of what the query names, or the query names nothing, no
        result has a probability; and what is not known is not called vague.

        Args:
            meant: known words for misspelled ones.
        """
        asked = read_query(asked) if isinstance(asked, str) else asked
        notes, text = [*self.notes], asked.words
        remarks = [*self.remarks, *asked.notes]
        remarks += [f"“{part.said}” is searched for as “{part.means}”" for part in asked.emoji]
        if truncated:
            notes.append(TRUNCATED)
        language = language_of(asked.text) if unknown else None
        if language not in (None, "English"):
            said = NOT_ENGLISH.format(language)
            remarks += [] if said in remarks else [said]
            meant = {}
        instead = respelled(asked.text, meant)
        if instead is not None:
            notes.append(f"did you mean {instead!r}?")
        read = replace(
            self,
            text=text,
            unknown=unknown,
            meant=instead,
            notes=notes,
            asked=asked,
            remarks=remarks,
        )
        if mostly_known(text, unknown):
            return read
        share = None if unknown else self.percentile
        return replace(read.unjudged(), percentile=share, familiar=0.0, known=False)

    def unjudged(self) -> Hits:
        """The same for a query that no calibration has seen the like of: no probability, no
        percentile, and it is neither familiar nor not."""
        return replace(
            self,
            hits=[replace(hit, probability=None) for hit in self.hits],
            percentile=None,
            familiar=None,
            absent=None,
            nothing=False,
            count=None,
        )

    @property
    def ids(self) -> list[str]:
        return [hit.id for hit in self.hits]

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, rank: int) -> Hit:
        return self.hits[rank]


def respelled(text: str, meant: Mapping[str, str]) -> str | None:
    """A text with other words for some of its words; ``None`` without any.

    >>> respelled("A dgo in the snwo", {"dgo": "dog", "snwo": "snow"})
    'A dog in the snow'
    """
    if not meant:
        return None
    found = re.compile(r"\b(?:" + "|".join(map(re.escape, meant)) + r")\b", re.IGNORECASE)
    lower = {word.lower(): other for word, other in meant.items()}
    return found.sub(lambda match: lower[match.group().lower()], text)


def level(percentile: float | None) -> Level | None:
    """How vague something is, by its percentile.

    >>> level(93.4), level(50), level(7), level(None)
    ('vague', 'ordinary', 'specific', None)
    """
    if percentile is None:
        return None
    return "vague" if percentile >= 75 else "specific" if percentile <= 25 else "ordinary"


def phrase(percentile: float | None, side: Gallery) -> str:
    """A percentile in words, with what it is a share of. A query of a few words is more general
    than nearly all whole captions, and that is all that is said.

    >>> phrase(93.4, "captions")
    'vague: more general than 93 % of whole captions'
    >>> phrase(7, "captions"), phrase(None, "images")
    ('specific: less general than 93 % of whole captions', 'unknown: no uncertainty to compare')
    >>> phrase(99.2, "images")
    'ambiguous: more ambiguous than nearly all images'
    """
    if percentile is None:
        return "unknown: no uncertainty to compare"
    word = {"captions": "general", "images": "ambiguous"}[side]
    high, low = {"captions": ("vague", "specific"), "images": ("ambiguous", "clear")}[side]
    among = "whole captions" if side == "captions" else side
    if level(percentile) == "specific":
        return f"{low}: less {word} than {_share(100 - percentile)} {among}"
    rank = high if level(percentile) == "vague" else "ordinary"
    return f"{rank}: more {word} than {_share(percentile)} {among}"


def _share(percentile: float) -> str:
    return "nearly all" if percentile >= 99 else f"{int(percentile)} % of"
