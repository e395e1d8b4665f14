"""The joint space on a plane: the principal axes of the means, and Gaussians projected onto it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.gaussian import Gaussian


@dataclass(frozen=True, eq=False)
class Places:
    """Gaussians on the plane. An ellipse is one standard deviation wide.

    Args:
        x, y: of the means, (n).
        major, minor: half-axes of the ellipses, (n); ``None`` for points.
        angle: of the major axis against x, in radians, (n); ``None`` for points.
    """

    x: Float[Tensor, "n"]
    y: Float[Tensor, "n"]
    major: Float[Tensor, "n"] | None = None
    minor: Float[Tensor, "n"] | None = None
    angle: Float[Tensor, "n"] | None = None


@dataclass(frozen=True, eq=False)
class Projection:
    """A linear map from the joint space to the plane: x ↦ Aᵀ(x − centre), A orthonormal (D, 2).

    A Gaussian N(μ, Σ) becomes N(Aᵀ(μ − centre), AᵀΣA): its mean a point, its covariance an ellipse.
    """

    centre: Float[Tensor, "d"]
    axes: Float[Tensor, "d 2"]
    explained: float  #: share of the variance of the means that the plane shows

    @staticmethod
    def fit(means: Float[Tensor, "n d"]) -> Projection:
        """The principal plane of some means.

        >>> means = torch.tensor([[0.0, 0, 1], [4, 0, 1], [0, 1, 1], [4, 1, 1]])
        >>> plane = Projection.fit(means)
        >>> plane.explained, plane.axes.abs().round().tolist()
        (1.0, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        """
        if means.ndim != 2 or not len(means):
            raise ValueError(f"a map needs means (n, D) with n ≥ 1, got {tuple(means.shape)}")
        x = means.double()
        centre = x.mean(0)
        spread = (x - centre).T @ (x - centre) / len(x)
        values, vectors = torch.linalg.eigh(spread)
        axes = vectors.flip(1)[:, :2]
        if axes.shape[1] < 2:  # one dimension: a line
            axes = torch.cat([axes, torch.zeros_like(axes)], 1)
        largest = axes.abs().argmax(0)
        axes = axes * torch.where(axes[largest, [0, 1]] < 0, -1.0, 1.0)  # the same on any machine
        total = float(values.clamp_min(0).sum())
        shown = float(values.clamp_min(0).flip(0)[:2].sum())
        return Projection(centre, axes, shown / total if total else 1.0)

    def __call__(self, g: Gaussian) -> Places:
        """Where Gaussians (n, D) fall.

        >>> plane = Projection(torch.zeros(3), torch.eye(3)[:, :2], 1.0)
        >>> g = Gaussian(torch.tensor([[1.0, 2, 3]]), torch.tensor([[1.0, 4, 9]]).log())
        >>> at = plane(g)
        >>> [round(float(v), 3) for v in (at.x, at.y, at.major, at.minor, at.angle)]
        [1.0, 2.0, 2.0, 1.0, 1.571]
        """
        axes = self.axes.double()
        x, y = ((g.mean.double() - self.centre) @ axes).unbind(-1)
        if g.is_point:
            return Places(x, y)
        variance = g.expand().variance.double()
        a, b = axes.unbind(-1)
        xx, xy, yy = variance @ (a * a), variance @ (a * b), variance @ (b * b)
        mean, half = (xx + yy) / 2, (xx - yy) / 2
        radius = torch.hypot(half, xy)
        major, minor = (mean + radius).sqrt(), (mean - radius).clamp_min(0).sqrt()
        return Places(x, y, major, minor, torch.atan2(xy, half) / 2)
