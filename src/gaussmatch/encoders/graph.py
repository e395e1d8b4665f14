"""Reasoning over the regions of an image: each learns from the others it relates to (VSRN)."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.encoders.image import Linear

NormOver = Literal["features", "regions"]


class ZeroNorm(nn.BatchNorm1d):
    """A BatchNorm whose scale and shift start at zero, so that it puts out nothing at first."""

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class GraphBlock(nn.Module):
    """One step of messages between regions: V + BatchNorm(W (R g(V))), R = θ(V) φ(V)ᵀ / N.

    The affinity R (N × N) has no softmax, as in the official code: a region may speak against
    another. The residual starts at zero, so that the block starts as the identity.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.theta, self.phi, self.g = (nn.Linear(dim, dim) for _ in range(3))
        self.w, self.norm = nn.Linear(dim, dim), ZeroNorm(dim)

    def forward(self, regions: Float[Tensor, "n r d"]) -> Float[Tensor, "n r d"]:
        affinity = self.theta(regions) @ self.phi(regions).mT / regions.shape[1]
        message = self.w(affinity @ self.g(regions))
        return regions + self.norm(message.flatten(0, 1)).view_as(regions)


class Graph(nn.Module):
    """Region features → linear → L2-norm → blocks → L2-norm: regions that know of each other.

    Args:
        feature_dim: F.
        dim: D.
        blocks: how many; VSRN has four.
        over: ``features`` gives each region unit length. ``regions`` gives each of the D features
            unit length over the regions of an image: what the published code does, needed for the
            published weights.
        norm_first: the first L2-norm; the Flickr30K variant is without.

    >>> import torch
    >>> Graph(16, 8)(torch.rand(2, 36, 16)).shape
    torch.Size([2, 36, 8])
    """

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        blocks: int = 4,
        over: NormOver = "features",
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        if over not in ("features", "regions"):
            raise ValueError(f"cannot normalise over {over!r}; choose features or regions")
        self.axis, self.norm_first = {"features": 2, "regions": 1}[over], norm_first
        self.project = Linear(feature_dim, dim)
        self.blocks = nn.Sequential(*(GraphBlock(dim) for _ in range(blocks)))

    def forward(self, regions: Float[Tensor, "n r f"]) -> Float[Tensor, "n r d"]:
        if regions.ndim != 3:
            raise ValueError(
                f"VSRN takes region features (n, regions, F), got {tuple(regions.shape)}; "
                "set data.features to regions"
            )
        projected = self.project(regions)
        if self.norm_first:
            projected = normalize(projected, dim=self.axis)
        return normalize(self.blocks(projected), dim=self.axis)
