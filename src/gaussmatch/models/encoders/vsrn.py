"""VSRN: regions reason in a graph, a GRU reads them into one point, and a second head generates
their caption."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, normalize
from torch.nn.utils.rnn import PackedSequence

from gaussmatch.models.encoders.vsepp import Linear

Duplicate = Literal["gru", "all"]


class RegionGRU(nn.Module):
    """A GRU over the regions in their order; its last state. All images have as many regions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(dim, dim, batch_first=True)

    def forward(self, regions: Float[Tensor, "n r d"]) -> Float[Tensor, "n d"]:
        return self.rnn(regions)[1][-1]


class RegionReasoning(nn.Module):
    """Region features (n, R, F) → graph → GRU over the regions → L2-norm; settings: ``VSRNRecipe``.

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
        normalize: bool = True,
        duplicate: Duplicate = "gru",
    ) -> None:
        super().__init__()
        self.dim, self.normalize = dim, normalize
        self.part = {"gru": "reasoning.embed", "all": "reasoning"}[duplicate]
        graph = Graph(feature_dim, dim, blocks, over, norm_first=not batch_norm)
        self.reasoning = nn.Sequential(OrderedDict(graph=graph, embed=RegionGRU(dim)))
        self.norm = nn.BatchNorm1d(dim) if batch_norm else None

    def forward(self, regions: Float[Tensor, "n r f"]) -> Float[Tensor, "n d"]:
        point = self.reasoning(regions)
        if self.norm is not None:
            point = self.norm(point)
        return normalize(point, dim=-1) if self.normalize else point


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
        affinity = self.theta(regions) @ self.phi(regions).transpose(-2, -1) / regions.shape[1]
        message = self.w(affinity @ self.g(regions))
        return regions + self.norm(message.flatten(0, 1)).view_as(regions)


class Graph(nn.Module):
    """Region features → linear → L2-norm → blocks → L2-norm: regions that know of each other.

    Args:
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
            raise ValueError(f"cannot normalize over {over!r}; choose features or regions")
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


class CaptionGenerator(nn.Module):
    """Regions → encoder GRU; then a decoder GRU that attends to its states generates the words;
    settings: ``GeneratorRecipe``.

    Args:
        vocabulary: number of words V.
        input_dim: width of the regions.
        dropout: on the projected regions, and on the input of the decoder. (The official
            code's second rate, 0.5 between layers of a GRU, acts on nothing: there is one layer.)

    Step t: weights a = softmax(v·tanh(A [e; h])) over the region states e, from the state h so far;
    h ← GRU([word t; Σ a e], h); logits = O h. The state depends on the attention and the attention
    on the state, so the steps come one after another; what does not (A e, the logits) is
    computed for all at once.
    """

    def __init__(
        self,
        vocabulary: int,
        input_dim: int,
        hidden: int = 512,
        word_dim: int = 300,
        dropout: float = 0.2,
        longest: int = 60,
    ) -> None:
        super().__init__()
        self.hidden, self.longest = hidden, longest
        self.project = nn.Linear(input_dim, hidden)
        nn.init.xavier_normal_(self.project.weight)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.words = nn.Embedding(vocabulary, word_dim)
        self.attention, self.score = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1, bias=False)
        self.decoder = nn.GRUCell(word_dim + hidden, hidden)
        self.output = nn.Linear(hidden, vocabulary)
        nn.init.xavier_normal_(self.output.weight)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, regions: Float[Tensor, "n r d"], given: PackedSequence
    ) -> Float[Tensor, "k v"]:
        """Logits of the next word after each of the k given words, in the order of their pack.

        Captions that have ended drop out, so that a step costs what its captions need.
        """
        if given.sorted_indices is not None:
            regions = regions[given.sorted_indices]
        states, last = self.encoder(self.dropout(self.project(regions)))
        of_region, of_state = self.attention.weight.split(self.hidden, 1)
        keys, state = linear(states, of_region, self.attention.bias), last[-1]
        outputs = []
        for word in self.words(given.data).split(given.batch_sizes.tolist()):
            if len(word) < len(state):
                keys, states, state = (x[: len(word)] for x in (keys, states, state))
            query = linear(state, of_state)[:, None]
            weights = (
                self.score(torch.tanh(keys + query)).transpose(-2, -1).softmax(-1)
            )  # (n, 1, r)
            context = (weights @ states)[:, 0]
            state = self.decoder(self.dropout(torch.cat([word, context], -1)), state)
            outputs.append(state)
        return self.output(torch.cat(outputs))
