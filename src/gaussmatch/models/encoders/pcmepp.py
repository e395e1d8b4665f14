"""PCME++: a Gaussian for each image and each caption, each of its two halves pooled from local
features by a learned weighting of their order (GPO)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.encoders.base import TextEncoder, Tokenizer, Tokens
from gaussmatch.models.encoders.pvse import local_features
from gaussmatch.models.encoders.vsepp import Linear, padding_of, states_each_way

PLACES, SHARPNESS = 32, 10.0
"""Width of a place's encoding and of the GRUs over the places; how sharply places are weighted."""


class GPO(nn.Module):
    """Generalized pooling: the k-th largest value of every dimension, weighted by w_k.

        w = softmax(10 · u·(→h + ←h)/2),   h: a GRU each way over sine encodings of the places 1…r

    The weights depend on how many local features there are, and not on what they are. w = (1, 0, …)
    is the maximum, equal weights the mean.

    >>> GPO()(torch.randn(3, 5, 6)).shape
    torch.Size([3, 6])
    """

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(PLACES, PLACES, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(PLACES, 1, bias=False)

    def forward(
        self, local: Float[Tensor, "n r f"], padding: Bool[Tensor, "n r"] | None = None
    ) -> Float[Tensor, "n f"]:
        """The pooled features; padding, wherever it stands, has no part."""
        if padding is None:
            weights = self.weights(torch.tensor([local.shape[1]], device=local.device))
            ranked = local.sort(dim=1, descending=True).values
        else:
            weights = self._of_each((~padding).sum(1), local.shape[1])
            ranked = local.masked_fill(padding[..., None], -torch.inf)
            ranked = ranked.sort(dim=1, descending=True).values
            ranked = ranked.masked_fill(weights[..., None] == 0, 0)
        return (ranked * weights[..., None]).sum(1)

    def _of_each(self, lengths: Int[Tensor, "n"], places: int) -> Float[Tensor, "n r"]:
        if torch.onnx.is_in_onnx_export():
            return self.weights(lengths, places)
        some, row = lengths.unique(return_inverse=True)  # the same for items of one length
        return self.weights(some, places)[row]

    def weights(self, lengths: Int[Tensor, "m"], places: int | None = None) -> Float[Tensor, "m r"]:
        """w of items with these numbers of local features; 0 after the last of them."""
        longest = int(lengths.max()) if places is None else places
        given = encoded_places(longest, self.linear.weight).expand(len(lengths), -1, -1)
        both = states_each_way(self.gru, given, lengths).unflatten(-1, (2, PLACES)).mean(-2)
        raw = SHARPNESS * self.linear(both).squeeze(-1)
        return raw.masked_fill(padding_of(lengths, longest), -torch.inf).softmax(-1)


def encoded_places(count: int, like: Tensor) -> Float[Tensor, "count 32"]:
    """Sines and cosines of the numbers 0…count − 1, at falling frequencies, one after the other."""
    places = torch.arange(count, device=like.device, dtype=like.dtype)
    steps = torch.arange(0, PLACES, 2, device=like.device, dtype=like.dtype)
    angles = places[:, None] * torch.exp(steps * (-math.log(10000.0) / PLACES))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class Pooled(nn.Module):
    """Local features → linear, plus a two-layer network → GPO: (n, D).

    Args:
        deep: have the network, with batch normalization, as for regions of a detector; else the
            linear layer alone, as over the tokens of a transformer.
    """

    def __init__(self, local_dim: int, dim: int, deep: bool = False, start: float = 0.0) -> None:
        super().__init__()
        self.fc = Linear(local_dim, dim)
        nn.init.constant_(self.fc.bias, start)
        self.mlp = _network(local_dim, dim) if deep else None
        self.gpool = GPO()

    def forward(
        self, local: Float[Tensor, "n r f"], padding: Bool[Tensor, "n r"] | None = None
    ) -> Float[Tensor, "n d"]:
        out = self.fc(local)
        if self.mlp is not None:
            out = out + self.mlp(local.flatten(0, 1)).view_as(out)
        pooled: Tensor = self.gpool(out, padding)
        return pooled


def _network(local_dim: int, dim: int) -> nn.Sequential:
    hidden = dim // 2
    return nn.Sequential(
        nn.Linear(local_dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
    )


def thinned(padding: Bool[Tensor, "n r"], share: float) -> Bool[Tensor, "n r"]:
    """With a share of the local features left out at random, but never all of an item's."""
    chance = torch.rand(padding.shape, device=padding.device)
    first = chance.masked_fill(padding, 2).argmin(1, keepdim=True)  # one that is there, at random
    out = padding | (torch.rand(padding.shape, device=padding.device) < share)
    return out.scatter(1, first, False)


class PCMEPPImage(nn.Module):
    """Local features → unit mean and ln σ², each through layers and a pooling of its own.

    Nothing bounds the log-variance, as in the official code; the loss term ``vib`` holds it.

    Args:
        feature_dim: F, the width of the local features.
        dim: D.
        backbone: a network with ``forward_grid``, pictures (n, 3, H, W) → (n, R, F); ``None`` when
            the input is local features (n, R, F) already.
        normalize: L2-norm of the mean.
        deep: see ``Pooled``.
        drop: share of the local features that a training step leaves out of the pooling.
        log_var: about where ln σ² starts.

    >>> PCMEPPImage(6, 4)(torch.randn(3, 5, 6))
    Gaussian(ellipsoidal, shape=(3,), dim=4, dtype=torch.float32)
    """

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        backbone: nn.Module | None = None,
        normalize: bool = True,
        deep: bool = True,
        drop: float = 0.0,
        log_var: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim, self.normalize, self.drop = dim, normalize, drop
        self.backbone = backbone
        self.mean = Pooled(feature_dim, dim, deep)
        self.spread = Pooled(feature_dim, dim, deep, log_var)

    def forward(self, images: Float[Tensor, "n ..."]) -> Gaussian:
        local, padding = local_features(images, self.backbone), None
        if self.training and self.drop:
            none = torch.zeros(local.shape[:2], dtype=torch.bool, device=local.device)
            padding = thinned(none, self.drop)
        mean = self.mean(local, padding)
        mean = normalize(mean, dim=-1) if self.normalize else mean
        return Gaussian(mean, self.spread(local, padding))


class PCMEPPText(TextEncoder):
    """Word vectors → the mean of a GRU each way at every word → mean and ln σ² as of an image.

    Args:
        tokenizer: the words.
        dim: D, also the width of the GRUs.
        word_dim: width of the word vectors.
        normalize, drop, log_var: as of ``PCMEPPImage``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dim: int,
        word_dim: int = 300,
        normalize: bool = True,
        drop: float = 0.0,
        log_var: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokenizer, self.dim, self.normalize, self.drop = tokenizer, dim, normalize, drop
        self.words = nn.Embedding(len(tokenizer), word_dim)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.rnn = nn.GRU(word_dim, dim, batch_first=True, bidirectional=True)
        self.mean = Pooled(dim, dim)
        self.spread = Pooled(dim, dim, start=log_var)

    def forward(self, tokens: Tokens) -> Gaussian:
        words = self.words(tokens.ids)
        states = states_each_way(self.rnn, words, tokens.lengths)
        local = states.unflatten(-1, (2, self.dim)).mean(-2)
        padding = padding_of(tokens.lengths, words.shape[1])
        if self.training and self.drop:
            padding = thinned(padding, self.drop)
        mean = self.mean(local, padding)
        mean = normalize(mean, dim=-1) if self.normalize else mean
        return Gaussian(mean, self.spread(local, padding))
