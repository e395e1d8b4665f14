"""VSRN's image side: regions reason in a graph, then a GRU reads them into one point."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.encoders.graph import Graph, NormOver

Duplicate = Literal["gru", "all"]


class RegionGRU(nn.Module):
    """A GRU over the regions in their order; its last state. All images have as many regions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(dim, dim, batch_first=True)

    def forward(self, regions: Float[Tensor, "n r d"]) -> Float[Tensor, "n d"]:
        return self.rnn(regions)[1][-1]


class RegionReasoning(nn.Module):
    """Region features (n, R, F) → graph → GRU over the regions → L2-norm.

    Args:
        feature_dim: F.
        dim: D.
        blocks: graph blocks.
        over: what the L2-norms of the regions run over; see ``Graph``.
        batch_norm: the Flickr30K variant: BatchNorm after the GRU, no first L2-norm of the regions.
        normalise: L2-norm of the output.
        duplicate: what ``Probabilistic`` doubles for the variance: the GRU over regions, the graph
            being shared (the paper), or all of it, the linear layer and the graph as well.

    BatchNorm stands behind the doubled part, so it touches the mean only, as the L2-norm does: the
    log-variance is the plain state of its GRU. ``reasoning.graph`` puts out the regions that the
    caption generator reads.

    >>> import torch
    >>> RegionReasoning(16, 8)(torch.rand(2, 36, 16)).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        blocks: int = 4,
        over: NormOver = "features",
        batch_norm: bool = False,
        normalise: bool = True,
        duplicate: Duplicate = "gru",
    ) -> None:
        super().__init__()
        self.dim, self.normalise = dim, normalise
        self.part = {"gru": "reasoning.embed", "all": "reasoning"}[duplicate]
        graph = Graph(feature_dim, dim, blocks, over, norm_first=not batch_norm)
        self.reasoning = nn.Sequential(OrderedDict(graph=graph, embed=RegionGRU(dim)))
        self.norm = nn.BatchNorm1d(dim) if batch_norm else None

    def forward(self, regions: Float[Tensor, "n r f"]) -> Float[Tensor, "n d"]:
        point = self.reasoning(regions)
        if self.norm is not None:
            point = self.norm(point)
        return normalize(point, dim=-1) if self.normalise else point
