"""What is said of a search as a whole, decided here and nowhere else: page, command line and API
show the sentence as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gaussmatch.core.similarities.base import Side
from gaussmatch.search.trust.calibration import DOUBT, FACTOR, LIKELY, SURE, Promise
from gaussmatch.search.trust.familiarity import CLEARLY, HARDLY

VerdictKind = Literal["specific", "vague", "absent", "unfamiliar", "unjudged"]
Fit = Literal["likely", "maybe", "unlikely"]
MAYBE = 0.2
"""P(fits) from which on a result may fit."""

UNCALIBRATED = (
    "Not calibrated: I can’t say whether they fit. “gaussmatch calibrate RUN” learns it from "
    "photos with captions."
)


@dataclass(frozen=True, slots=True)
class FitCount:
    """How many items of those searched fit: an 80 % interval, and its middle.

    >>> FitCount(190, 231, 280).narrow, FitCount(0, 3, 40).narrow
    (True, False)
    """

    low: int
    about: int
    high: int

    @property
    def narrow(self) -> bool:
        """Whether it is narrower than a factor of ``FACTOR``, so that a number may be said."""
        return self.about > 0 and self.high + 0.5 < FACTOR * (self.low + 0.5)

    def __str__(self) -> str:
        """
        >>> str(FitCount(1190, 1231, 1280)), str(FitCount(3, 3, 3))
        ('1,190–1,280', '3')
        """
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,}–{self.high:,}"


@dataclass(frozen=True, slots=True)
class SearchVerdict:
    """What may be believed of the results of one query.

    Args:
        kind: ``absent``: nothing fits. ``unfamiliar``: the model does not know what is meant.
            ``unjudged``: nothing was learned about such searches. Otherwise something may fit, and
            the query is ``vague``, it could mean many things, or ``specific``.
        sentence: to be shown.
        reason: what it rests on.
        count: how many fit; ``None`` if it cannot be said.
    """

    kind: VerdictKind = "unjudged"
    sentence: str = ""
    reason: str = ""
    count: FitCount | None = None


def fit_of(probability: float | None) -> Fit | None:
    """P(fits) in a word.

    >>> [fit_of(p) for p in (0.7, 0.3, 0.1, None)]
    ['likely', 'maybe', 'unlikely', None]
    """
    if probability is None:
        return None
    return "likely" if probability >= LIKELY else "maybe" if probability >= MAYBE else "unlikely"


def decide(
    *,
    gallery: Side,
    results: int,
    total: int | None,
    judged: bool,
    calibrated: bool,
    vague: bool,
    familiar: float | None,
    unknown: Sequence[str],
    known: bool,
    text: str | None,
    absent: float | None,
    nothing: bool,
    best: float | None,
    count: FitCount | None,
    guarantee: float | None,
    promise: Promise,
    listed: bool = False,
) -> SearchVerdict:
    """The verdict on a search.

    Args:
        results: how many are returned, of ``total`` that were searched (or are in the set).
        judged: whether the results have probabilities.
        calibrated: whether any searches of the index could have.
        vague: whether the query could mean many things, by its uncertainty.
        familiar, unknown, known: see ``Hits``; ``known`` is false if the model does not know
            most of what the query names, and ``text`` is the query in words.
        listed: whether the query names nothing to look for, only a time.
        absent, nothing, count: see ``Judgment``; ``best`` is P(fits) of the first result.
    """
    what = "pictures" if gallery == "images" else "captions"
    if not results and guarantee is None:
        return SearchVerdict("unjudged", f"No {what} are left", "Nothing fulfills the conditions.")
    if listed:
        return SearchVerdict("unjudged", "Newest first", f"All {what} of that time.")
    if not known or (familiar is not None and familiar < CLEARLY):
        names = quoted(unknown or ([text] if text else []))
        said = f"I don’t know {names}" if names else "I don’t know such queries"
        return SearchVerdict(
            "unfamiliar", said, "These come nearest; I can’t say whether they fit."
        )
    if not judged and (results or guarantee is None):
        reason = "Nothing was learned about such searches." if calibrated else UNCALIBRATED
        return SearchVerdict("unjudged", "Best first", reason)
    kind: VerdictKind = "vague" if vague else "specific"
    doubtful = absent is not None and absent >= DOUBT and (best is None or best < SURE)
    doubtful |= fit_of(best) == "unlikely"
    if guarantee is not None:
        share = f"{100 * guarantee:.3g} %"
        if not results:
            return SearchVerdict(
                "absent", "Nothing here seems to fit", f"No result reaches {share}."
            )
        size = results if total is None else total  # of which these may be a page
        these = f"among these {size:,}" if size > 1 else "this one"
        held = {
            "recall": f"At least {share} of what fits is {these}",
            "one": f"The one you mean is {these}: {share} sure",
        }[promise]
        average = "This holds on average, over searches like those of the calibration."
        reason = f"Perhaps nothing here fits. {average}" if doubtful else average
        return SearchVerdict(kind, held, reason, count)
    unsure = best is None or best < LIKELY  # else the first result speaks against it
    if nothing and unsure:
        reason = "Only two in a hundred searches with something to find look this bad."
        return SearchVerdict("absent", "Nothing here seems to fit", reason, count)
    if doubtful:
        return SearchVerdict(kind, "Best first", "Perhaps nothing here fits.", count)
    if familiar is not None and familiar < HARDLY:
        return SearchVerdict(kind, "Best first", "I know little about such queries.", count)
    if count is None or not count.narrow:
        return SearchVerdict(kind, "Best first", "I can’t say how many fit.", count)
    of = f" of {total:,}" if total is not None else ""
    return SearchVerdict(
        kind,
        f"About {count}{of} {what} fit",
        "The true number is in this range in four of five such searches.",
        count,
    )


def quoted(words: Sequence[str]) -> str:
    """
    >>> quoted(["a", "b", "c"]), quoted(["a"]), quoted([])
    ('“a”, “b” and “c”', '“a”', '')
    """
    each = [f"“{word}”" for word in words]
    return " and ".join(filter(None, [", ".join(each[:-1]), *each[-1:]]))
