"""Conformal risk control: sets that hold at least the requested share of what they should; and
quantiles that depend on features of a query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

STEPS = 200
"""Thresholds of a stored curve."""
LINE_RIDGE = 3.0


@dataclass(frozen=True)
class RiskControl:
    """From held-out queries, the threshold λ on conformity that keeps, in expectation over further
    exchangeable queries, at least a share ``level`` of what they should find:

        λ = the largest threshold with (n · (1 − held(λ)) + 1) / (n + 1) ≤ 1 − level

    where held(λ) is the mean over n queries of the share of their items with a conformity of at
    least λ (Angelopoulos et al., Conformal Risk Control, 2024). With one item a query this is split
    conformal prediction: the set holds it with a probability of at least ``level``.

    Args:
        thresholds: ascending.
        held: the mean share that each keeps, never increasing.
        queries: n.

    >>> one = RiskControl.fit([np.array([v]) for v in range(99)])
    >>> one.threshold(0.9)
    9.0
    >>> RiskControl.fit([np.array([v]) for v in range(5)]).threshold(0.9)
    -inf
    """

    thresholds: tuple[float, ...]
    held: tuple[float, ...]
    queries: int

    @staticmethod
    def fit(conformity: Sequence[np.ndarray]) -> RiskControl:
        """From the conformity of what each held-out query should find; those of queries that
        should find nothing are left out."""
        each = [np.sort(values) for values in conformity if len(values)]
        if not each:
            return RiskControl((), (), 0)
        every = np.concatenate(each)
        if np.isnan(every).any():
            raise ValueError("the conformity of a held-out item is NaN")
        weight = np.concatenate([np.full(len(values), 1 / len(values)) for values in each])
        order = np.argsort(every)
        share = np.cumsum(weight[order]) / len(each)  # lost just above each value
        lost = np.r_[0.0, share[:-1]]  # lost at each value: what lies below it
        at = np.unique(every[order], return_index=True)[1]
        if len(at) > STEPS:
            at = at[np.linspace(0, len(at) - 1, STEPS).round().astype(int)]
        kept = [round(float(v), 6) for v in 1 - lost[at]]
        values = [math.floor(1e6 * v) / 1e6 for v in every[order][at].tolist()]
        return RiskControl(tuple(values), tuple(kept), len(each))

    def threshold(self, level: float, missed: float = 0.0) -> float:
        """λ; −∞ where too few queries were held out to exclude anything.

        Args:
            missed: the share that an approximate index fails to find, which the set must make up.
        """
        wanted = level + missed
        if not 0 < level < 1:
            raise ValueError(f"a guarantee must lie between 0 and 1, got {level}")
        if wanted >= 1:
            raise ValueError(
                f"a guarantee of {level:.3g} cannot be given: this index misses {missed:.1%} of "
                "what an exact search finds; ask for less, or use a flat index"
            )
        risk = (self.queries * (1 - self._held) + 1) / (self.queries + 1)
        good = np.flatnonzero(risk <= 1 - wanted + 1e-9)
        return self.thresholds[good[-1]] if len(good) else -math.inf

    @cached_property
    def _held(self) -> np.ndarray:
        return np.asarray(self.held)


@dataclass(frozen=True)
class QuantileLine:
    """A quantile of a number, linear in (standardized) features: Σ_f weight_f x_f + bias.

    >>> x = np.linspace(-1, 1, 400)[:, None]
    >>> noise = np.tile([-1.0, 0.0, 0.0, 0.0, 1.0], 80)
    >>> line = QuantileLine.fit(x, 3 * x[:, 0] + noise, 0.5)
    >>> np.allclose([*line.weights, line.bias], [3, 0], atol=0.05)
    True
    """

    weights: tuple[float, ...]
    bias: float

    @staticmethod
    def fit(
        x: np.ndarray, y: np.ndarray, level: float, weight: np.ndarray | None = None
    ) -> QuantileLine:
        """Least Σ weight · ρ(y − line), ρ(r) = r (level − [r < 0]), by majorization (Hunter and
        Lange, 2000); a weak ridge keeps a few queries from bending it.

        Args:
            x: (n, f); ``y``, ``weight``: (n).
        """
        design = np.c_[x, np.ones(len(x))]
        counted = np.ones(len(x)) if weight is None else weight * (len(x) / weight.sum())
        penalty = LINE_RIDGE * np.eye(design.shape[1])
        penalty[-1, -1] = 1e-9
        found = np.r_[np.zeros(x.shape[1]), np.quantile(y, level)]
        small = max(1e-3 * float(np.std(y)), 1e-6)
        for _ in range(100):
            near = counted / (small + np.abs(y - design @ found))
            pull = design.T @ (near * y + (2 * level - 1) * counted)
            found = np.linalg.solve((design * near[:, None]).T @ design + penalty, pull)
        *weights, bias = found.tolist()
        return QuantileLine(tuple(weights), bias)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x @ np.asarray(self.weights) + self.bias)

    def moved(self, by: float) -> QuantileLine:
        return QuantileLine(self.weights, self.bias + by)

    def at(self, values: Sequence[float]) -> QuantileLine:
        """The same if the last features have these values and are no longer given."""
        n = len(self.weights) - len(values)
        bias = self.bias + sum(w * x for w, x in zip(self.weights[n:], values, strict=True))
        return QuantileLine(self.weights[:n], bias)
