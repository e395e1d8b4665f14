"""Similarities between images and captions, by name. Higher is better everywhere."""

from __future__ import annotations

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
from gaussmatch.core.similarities.pairwise import MIL, MatchProb

SIMILARITIES: dict[str, type[Similarity]] = {
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
        MIL,
        MatchProb,
    )
}


def similarity(name: str, **settings: Any) -> Similarity:
    """The similarity called ``name``, with its settings if it has any (match_prob: ``samples``).

    >>> similarity("kl")
    similarity('kl')
    >>> similarity("kull")
    Traceback (most recent call last):
    ValueError: unknown similarity 'kull'; choose cosine, kl, reverse_kl, min_kl, query_kl, ...
    """
    if name not in SIMILARITIES:
        raise ValueError(f"unknown similarity {name!r}; choose {', '.join(SIMILARITIES)}")
    return SIMILARITIES[name](**settings)
