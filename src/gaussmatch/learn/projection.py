"""The joint space on a plane: the principal axes of the means, and Gaussians projected onto it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.checks import SCHEMA
from gaussmatch.core.gaussian import Gaussian


@dataclass(frozen=True, slots=True)
class Place:
    """A Gaussian on the plane: its mean, and an ellipse one standard deviation wide."""

    __pydantic_config__ = SCHEMA

    x: float
    y: float
    a: float | None
    """The semi-major axis; null for a point model."""
    b: float | None
    """The semi-minor axis; null for a point model."""
    angle: float | None
    """Of the major axis against x, in radians; null for a point model."""


@dataclass(frozen=True, eq=False)
class PlaneProjection:
    """A linear map from the joint space to the plane: x ↦ Aᵀ(x − center), A orthonormal (D, 2).

    A Gaussian N(μ, Σ) becomes N(Aᵀ(μ − center), AᵀΣA): its mean a point, its covariance an ellipse.
    """

    center: Float[Tensor, "d"]
    axes: Float[Tensor, "d 2"]
    explained: float  #: share of the variance of the means that the plane shows

    @staticmethod
    def fit(means: Float[Tensor, "n d"]) -> PlaneProjection:
        """The principal plane of some means.

        >>> means = torch.tensor([[0.0, 0, 1], [4, 0, 1], [0, 1, 1], [4, 1, 1]])
        >>> plane = PlaneProjection.fit(means)
        >>> plane.explained, plane.axes.abs().round().tolist()
        (1.0, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        """
        if means.ndim != 2 or not len(means):
            raise ValueError(f"a map needs means (n, D) with n ≥ 1, got {tuple(means.shape)}")
        x = means.double()
        center = x.mean(0)
        spread = (x - center).T @ (x - center) / len(x)
        values, vectors = torch.linalg.eigh(spread)
        axes = vectors.flip(1)[:, :2]
        if axes.shape[1] < 2:  # one dimension: a line
            axes = torch.cat([axes, torch.zeros_like(axes)], 1)
        largest = axes.abs().argmax(0)
        axes = axes * torch.where(axes[largest, [0, 1]] < 0, -1.0, 1.0)  # the same on any machine
        total = float(values.clamp_min(0).sum())
        shown = float(values.clamp_min(0).flip(0)[:2].sum())
        return PlaneProjection(center, axes, shown / total if total else 1.0)

    def __call__(self, g: Gaussian) -> list[Place]:
        """Where Gaussians (n, D) fall.

        >>> plane = PlaneProjection(torch.zeros(3), torch.eye(3)[:, :2], 1.0)
        >>> g = Gaussian(torch.tensor([[1.0, 2, 3]]), torch.tensor([[1.0, 4, 9]]).log())
        >>> plane(g)
        [Place(x=1.0, y=2.0, a=2.0, b=1.0, angle=1.5708)]
        """
        axes = self.axes.double()
        x, y = ((g.mean.double() - self.center) @ axes).unbind(-1)
        if g.is_point:
            return [Place(*at, None, None, None) for at in zip(_listed(x), _listed(y), strict=True)]
        variance = g.expand().variance.double()
        a, b = axes.unbind(-1)
        xx, xy, yy = variance @ (a * a), variance @ (a * b), variance @ (b * b)
        mean, half = (xx + yy) / 2, (xx - yy) / 2
        radius = torch.hypot(half, xy)
        major, minor = (mean + radius).sqrt(), (mean - radius).clamp_min(0).sqrt()
        return list(map(Place, *map(_listed, (x, y, major, minor, torch.atan2(xy, half) / 2))))


def _listed(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]
