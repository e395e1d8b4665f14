"""Is an input like those the model was trained on? Distance to training embeddings, calibrated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core.gaussian import Gaussian

RIDGE = 1e-3
"""Share of the mean variance that is added to every direction."""
CLEARLY = 0.01
"""Below this p-value an input counts as unfamiliar: one held-out item in a hundred does."""


@dataclass(frozen=True, eq=False)
class Familiarity:
    """The Mahalanobis distance of a mean from the training means, against that of held-out items.

    d² = (μ − m)ᵀ C⁻¹ (μ − m) with the mean m and the covariance C of training means: what lies in
    directions that training hardly used is strange, also where it is near the centre. Nearest
    neighbours and the Laplace variance of the projection were worse (docs/trust.md).

    Args:
        centre: m, (D).
        whitening: W with W Wᵀ = C⁻¹, (D, D), lower triangular.
        held_out: the distances of items that were held out, ascending.
    """

    centre: Tensor
    whitening: Tensor
    held_out: Tensor

    @staticmethod
    def fit(seen: Gaussian, held_out: Gaussian) -> Familiarity:
        x = _flat(seen)
        centre = x.mean(0)
        cov = (x - centre).T @ (x - centre) / len(x)
        ridge = RIDGE * cov.diagonal().mean().clamp_min(1e-12) * torch.eye(len(cov))
        whitening = torch.linalg.cholesky(torch.linalg.inv(cov + ridge))
        scale = _scale(whitening)
        stored = (whitening / scale).half().float() * scale  # lower triangular, kept in float16
        fitted = Familiarity(centre.float(), stored, torch.zeros(0))
        far = fitted.distance(held_out).sort().values
        return Familiarity(fitted.centre, fitted.whitening, far.float())

    def distance(self, g: Gaussian) -> Tensor:
        """(n), the Mahalanobis distance from training, over √D: about 1 for a typical item."""
        apart = (_flat(g) - self.centre) @ self._whitening
        return apart.norm(dim=1) / len(self.centre) ** 0.5

    def p_value(self, distance: Tensor) -> np.ndarray:
        """(n), the share of held-out items that lie at least as far out; near 0 is unlike all."""
        below = np.searchsorted(self._held_out, distance.float().numpy(), "left")
        return (1 + len(self._held_out) - below) / (1 + len(self._held_out))

    def tensors(self) -> dict[str, Tensor]:
        """What is stored: of the whitening only the lower triangle, in float16."""
        rows, columns = torch.tril_indices(len(self.centre), len(self.centre))
        scale = _scale(self.whitening)
        triangle = (self.whitening[rows, columns] / scale).half()
        stored = {"centre": self.centre, "triangle": triangle, "held_out": self.held_out}
        return stored if scale == 1 else {**stored, "scale": torch.tensor(scale)}

    @staticmethod
    def from_tensors(stored: Mapping[str, Tensor]) -> Familiarity:
        """Read what ``tensors`` gives."""
        centre = stored["centre"]
        whitening = torch.zeros(len(centre), len(centre))
        rows, columns = torch.tril_indices(len(centre), len(centre))
        whitening[rows, columns] = stored["triangle"].float()
        whitening *= stored.get("scale", 1.0)
        return Familiarity(centre, whitening, stored["held_out"])

    @cached_property
    def _whitening(self) -> Tensor:
        return self.whitening.double()

    @cached_property
    def _held_out(self) -> np.ndarray:
        return self.held_out.numpy()


def _scale(whitening: Tensor) -> float:
    """What a whitening is divided by to fit into float16: that of a model whose means are nearly
    all alike does not. A power of two, so that nothing is rounded twice."""
    over = float(whitening.abs().max()) / torch.finfo(torch.float16).max
    return 2.0 ** max(0, math.ceil(math.log2(over))) if over > 0 else 1.0


def _flat(g: Gaussian) -> Tensor:
    """Means as one vector for each item, also where an item has several."""
    return g.mean.double().flatten(1)
