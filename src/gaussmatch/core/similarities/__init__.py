"""Similarities between images and captions, by name. Higher is better everywhere."""

from __future__ import annotations

from functools import cache
from typing import Any

from gaussmatch.core.gaussian import Side
from gaussmatch.core.similarities.base import Lifted, Similarity
from gaussmatch.core.similarities.lifted import (
    CSD,
    KL,
    Cosine,
    ExpectedDot,
    MinKL,
    QueryKL,
    ReverseKL,
    Wasserstein,
    WassersteinLiteral,
)

LIFTED: dict[str, type[Similarity]] = {
    s.name: s
    for s in (
        Cosine,
        KL,
        ReverseKL,
        MinKL,
        QueryKL,
        Wasserstein,
        WassersteinLiteral,
        CSD,
        ExpectedDot,
    )
}
"""Those that are a product or a distance of vectors."""
SIMILARITIES: dict[str, type[Similarity]]
"""Every similarity by name; the others are networks, and wait for torch until one is asked for."""


@cache
def _every() -> dict[str, type[Similarity]]:
    from gaussmatch.core.similarities.pairwise import MIL, MatchProb

    return {**LIFTED, MIL.name: MIL, MatchProb.name: MatchProb}


def __getattr__(name: str) -> Any:
    if name != "SIMILARITIES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _every()


def similarity(name: str, **settings: Any) -> Similarity:
    """The similarity called ``name``, with its settings if it has any (match_prob: ``samples``).

    >>> similarity("kl")
    similarity('kl')
    >>> similarity("kull")
    Traceback (most recent call last):
    ValueError: unknown similarity 'kull'; choose cosine, kl, reverse_kl, min_kl, query_kl, ...
    """
    known = LIFTED if name in LIFTED else _every()
    if name not in known:
        raise ValueError(f"unknown similarity {name!r}; choose {', '.join(known)}")
    return known[name](**settings)
