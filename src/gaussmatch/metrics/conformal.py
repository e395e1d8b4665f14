"""Split conformal prediction: sets that hold the match with at least the probability asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.metrics.evidence import evidence, fit_temperature

GROUPS = 3
"""Tertiles of query uncertainty, each with a threshold of its own."""


def conformal_threshold(held_out: Float[Tensor, "n"], coverage: float) -> float:
    """The threshold t such that a further exchangeable value v has P(v ≥ t) ≥ ``coverage``.

    With the n held-out values in ascending order, t is the value at rank ⌊(n + 1)(1 − coverage)⌋;
    at rank 0, where n is too small to exclude anything, t = −∞.

    Args:
        held_out: conformity of truths that nothing was fitted on: higher conforms better.
        coverage: in (0, 1).

    >>> conformal_threshold(torch.arange(99.0), 0.9)
    9.0
    >>> conformal_threshold(torch.arange(5.0), 0.9)
    -inf
    """
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must lie in (0, 1), got {coverage}")
    if held_out.isnan().any():
        raise ValueError(f"held-out value {int(held_out.isnan().nonzero()[0])} is NaN")
    rank = math.floor(round((len(held_out) + 1) * (1 - coverage), 9))
    return -math.inf if rank == 0 else float(held_out.sort().values[rank - 1])


@dataclass(frozen=True)
class Guarantee:
    """Split conformal prediction on held-out pairs, within each tertile of query uncertainty
    (Mondrian), so that vague queries are not paid for by specific ones.

    A result belongs to the set if its evidence (``evidence``) reaches the threshold of
    its query's tertile. Evidence does not depend on the gallery, so neither does the guarantee; it
    assumes that queries are like the held-out ones and that the match is in the gallery.

    Args:
        bounds: the uncertainties that part the tertiles.
        held_out: of each tertile the evidence of held-out matches, ascending.
    """

    bounds: tuple[float, ...]
    held_out: tuple[tuple[float, ...], ...]

    @staticmethod
    def fit(
        match: Float[Tensor, "n"], uncertainty: Float[Tensor, "n"], bounds: Sequence[float]
    ) -> Guarantee:
        """From held-out queries.

        Args:
            match: (n), the evidence of the best match of each held-out query.
            uncertainty: (n), of these queries.
            bounds: from other queries than these.
        """
        group = _group(uncertainty.numpy(), bounds)
        parts = [match[torch.from_numpy(group == g)].sort().values for g in range(len(bounds) + 1)]
        return Guarantee(tuple(bounds), tuple(tuple(part.tolist()) for part in parts))

    def threshold(
        self, uncertainty: np.ndarray, coverage: float, missed: float = 0.0
    ) -> np.ndarray:
        """(n), the least evidence of a result in the set of each query.

        Args:
            missed: the share of matches that an approximate index fails to find; what it loses
                is added to the coverage that the threshold must reach.
        """
        wanted = coverage + missed
        if not 0 < coverage < 1:
            raise ValueError(f"a guarantee must lie between 0 and 1, got {coverage}")
        if wanted >= 1:
            raise ValueError(
                f"a guarantee of {coverage:.3g} cannot be given: this index misses {missed:.1%} of "
                "what an exact search finds; ask for less, or use a flat index"
            )
        each = [conformal_threshold(torch.tensor(part), wanted) for part in self.held_out]
        thresholds: np.ndarray = np.asarray(each)[_group(uncertainty, self.bounds)]
        return thresholds


def fit_evidence(
    match: Float[Tensor, "n"], reference: Float[Tensor, "n r"], coverage: float = 0.9
) -> tuple[float, float]:
    """The temperature and the weight of ``evidence`` whose sets are smallest: the weight that, at
    this coverage of the matches, lets the fewest reference items in."""
    temperature = fit_temperature(match, reference)
    joined = torch.cat([match[:, None], reference], 1)

    def size(weight: float) -> float:
        e = evidence(joined, reference, temperature, weight)
        return float((e[:, 1:] >= conformal_threshold(e[:, 0], coverage)).double().mean())

    return temperature, min((1.0, 0.75, 0.5, 0.25, 0.0), key=size)


def tertiles(uncertainty: Tensor) -> tuple[float, ...]:
    """The values that part a sample into ``GROUPS`` groups of one size."""
    shares = torch.arange(1, GROUPS, dtype=torch.float64) / GROUPS
    return tuple(uncertainty.double().quantile(shares).tolist())


def _group(uncertainty: np.ndarray, bounds: Sequence[float]) -> np.ndarray:
    return np.searchsorted(np.asarray(bounds), uncertainty, "right")


def coverage_over_splits(
    scores: Float[Tensor, "n m"],
    match: Float[Tensor, "n"],
    uncertainty: Float[Tensor, "n"],
    coverage: float = 0.9,
    splits: int = 20,
    seed: int = 0,
) -> dict[str, float | list[float]]:
    """What the guarantee delivers: over random splits of the queries, the temperature is fitted on
    a third, thresholds on a third, and the rest is judged.

    Args:
        scores: of every query with the whole gallery.
        match: the score of the best match of each query.
        uncertainty: of each query; constant where there is none.

    Returns:
        Mean over the splits of ``coverage`` and of the set ``size``, both also by tertile, and
        ``fixed_size``: the mean size of the sets that one threshold on the bare score, fitted on
        the same queries, gives at the same coverage.
    """
    rows, generator = len(scores), torch.Generator().manual_seed(seed)
    found: list[list[float]] = []
    for _ in range(splits):
        first, second, judged = torch.randperm(rows, generator=generator).tensor_split(3)
        fit = fit_evidence(match[first], scores[first])
        e = evidence(torch.cat([match[:, None], scores], 1), scores, *fit)
        own, others = e[:, 0], e[:, 1:]
        bounds = tertiles(uncertainty[first])
        guarantee = Guarantee.fit(own[second], uncertainty[second], bounds)
        needed = torch.from_numpy(guarantee.threshold(uncertainty[judged].numpy(), coverage))
        inside = (own[judged] >= needed).double()
        size = (others[judged] >= needed[:, None]).sum(1).double()
        fixed = conformal_threshold(match[second], float(inside.mean().clamp(0.01, 0.99)))
        group = torch.from_numpy(_group(uncertainty[judged].numpy(), bounds))
        by = [group == g for g in range(GROUPS)]
        found.append(
            [
                float(inside.mean()),
                float(size.mean()),
                float((scores[judged] >= fixed).sum(1).double().mean()),
                *(float(inside[g].mean()) for g in by),
                *(float(size[g].mean()) for g in by),
            ]
        )
    mean = torch.tensor(found, dtype=torch.float64).nanmean(0).tolist()
    return {
        "asked": coverage,
        "coverage": mean[0],
        "size": mean[1],
        "fixed_size": mean[2],
        "coverage_by_tertile": mean[3 : 3 + GROUPS],
        "size_by_tertile": mean[3 + GROUPS :],
    }
