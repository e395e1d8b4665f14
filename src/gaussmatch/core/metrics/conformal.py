"""Split conformal prediction: sets that hold the match with at least the requested probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.core.metrics.evidence import evidence, fit_temperature
from gaussmatch.core.metrics.ranking import ScoreRows

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
    n = len(held_out)
    rank = min(n, math.floor(round((n + 1) * (1 - coverage), 9)))
    return -math.inf if rank == 0 else float(held_out.sort().values[rank - 1])


@dataclass(frozen=True)
class Guarantee:
    """Split conformal prediction on held-out pairs, within each tertile of query uncertainty
    (Mondrian), so that vague queries are not undercovered at the expense of specific ones.

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

    def p_value(self, evidence: np.ndarray, uncertainty: np.ndarray) -> np.ndarray:
        """(n, k), the conformal p-value of "this is the match" for each result: (1 + the number of
        held-out matches whose evidence is no greater) / (1 + their number), in the tertile of the
        query. The results above 1 − coverage are the set that ``threshold`` cuts off.

        >>> g = Guarantee((), ((0.0, 1.0, 2.0),))
        >>> g.p_value(np.array([[5.0, 1.0, -1.0]]), np.zeros(1))
        array([[1.  , 0.75, 0.25]])
        """
        found = np.ones_like(evidence)
        group = _group(uncertainty, self.bounds)
        for g, part in enumerate(self._held_out):
            below = np.searchsorted(part, evidence[group == g], "right")
            found[group == g] = (1 + below) / (1 + len(part))
        return found

    @cached_property
    def _held_out(self) -> list[np.ndarray]:
        return [np.asarray(part) for part in self.held_out]


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


def learn_guarantee(
    match: Float[Tensor, "n"], reference: Float[Tensor, "n r"], uncertainty: Float[Tensor, "n"]
) -> tuple[float, float, Guarantee]:
    """Temperature and weight of the evidence and the tertiles, from every third of the held-out
    queries; the thresholds from the others, which nothing else was fitted on.

    Args:
        match: the score of the best match of each query.
        reference: the scores of each query with the reference items.
        uncertainty: of each query; one group instead of tertiles where it is constant.
    """
    first = torch.arange(len(match)) % 3 == 0
    temperature, weight = fit_evidence(match[first], reference[first])
    own = evidence(match[:, None], reference, temperature, weight)[:, 0]
    constant = bool((uncertainty == uncertainty[:1]).all())
    bounds = () if constant else tertiles(uncertainty[first])
    return temperature, weight, Guarantee.fit(own[~first], uncertainty[~first], bounds)


def tertiles(uncertainty: Tensor) -> tuple[float, ...]:
    """The values that part a sample into ``GROUPS`` groups of one size."""
    shares = torch.arange(1, GROUPS, dtype=torch.float64) / GROUPS
    return tuple(uncertainty.double().quantile(shares).tolist())


def _group(uncertainty: np.ndarray, bounds: Sequence[float]) -> np.ndarray:
    return np.searchsorted(np.asarray(bounds), uncertainty, "right")


def coverage_over_splits(
    score_rows: ScoreRows,
    match: Float[Tensor, "n"],
    reference: Float[Tensor, "n r"],
    uncertainty: Float[Tensor, "n"],
    coverage: float = 0.9,
    splits: int = 20,
    seed: int = 0,
) -> dict[str, Any]:
    """What the guarantee delivers: over random halvings of the queries, one half calibrates
    (``learn_guarantee``) and the other is judged.

    Args:
        score_rows: (start, stop) → the scores of these queries with the whole gallery.
        match: the score of the best match of each query.
        reference: the scores of each query with the reference items of its evidence.
        uncertainty: of each query; constant where there is none.

    Returns:
        Means over the splits of the ``coverage`` and of the set ``size``, each with its standard
        deviation and by tertile (from sure to vague; ``None`` where empty); and ``fixed_size``, of
        the sets that one threshold on the bare score, calibrated on the same queries, gives at
        the same coverage.
    """
    queries, generator = len(match), torch.Generator().manual_seed(seed)
    match, reference, unsure = match.double(), reference.double(), uncertainty.double()
    ours, fixed = torch.full((2, queries, splits), torch.nan, dtype=torch.float64)
    group = torch.zeros(queries, splits, dtype=torch.long)
    for k in range(splits):
        fit, judged = torch.randperm(queries, generator=generator).tensor_split(2)
        temperature, weight, guarantee = learn_guarantee(match[fit], reference[fit], unsure[fit])
        needed = torch.from_numpy(guarantee.threshold(unsure[judged].numpy(), coverage))
        zero = evidence(torch.zeros(len(judged), 1), reference[judged], temperature, weight)[:, 0]
        ours[judged, k] = (needed - zero) * temperature
        covered = float((match[judged] >= ours[judged, k]).double().mean())
        fixed[judged, k] = conformal_threshold(match[fit], min(max(covered, 0.01), 0.99))
        group[:, k] = torch.from_numpy(_group(unsure.numpy(), guarantee.bounds))
    size, fixed_size = _set_sizes(score_rows, torch.cat([ours, fixed], 1)).tensor_split(2, 1)
    inside = torch.where(ours.isnan(), torch.nan, (match[:, None] >= ours).double())

    def figures(values: Tensor) -> dict[str, Any]:
        by = [values.where(group == g, torch.nan).nanmean(0).nanmean() for g in range(GROUPS)]
        each = values.nanmean(0)
        return {
            "mean": float(each.mean()),
            "std": float(each.std(unbiased=False)),
            "by_tertile": [None if v.isnan() else float(v) for v in by],
        }

    held, sets = figures(inside), figures(size)
    return {
        "requested": coverage,
        "splits": splits,
        "coverage": held["mean"],
        "coverage_std": held["std"],
        "coverage_by_tertile": held["by_tertile"],
        "size": sets["mean"],
        "size_std": sets["std"],
        "size_by_tertile": sets["by_tertile"],
        "fixed_size": figures(fixed_size)["mean"],
    }


def _set_sizes(score_rows: ScoreRows, least: Tensor, block: int = 256) -> Tensor:
    """(n, k), how many items of the gallery reach each of k least scores of a query; NaN stays."""
    parts = []
    for start in range(0, len(least), block):
        some = least[start : start + block]
        rows = score_rows(start, start + len(some)).contiguous().numpy(force=True)
        scores = torch.from_numpy(np.sort(rows, axis=1)).double()  # a quarter of torch's time
        reached = scores.shape[1] - torch.searchsorted(scores, some.nan_to_num(0.0)).double()
        parts.append(torch.where(some.isnan(), torch.nan, reached))
    return torch.cat(parts)
