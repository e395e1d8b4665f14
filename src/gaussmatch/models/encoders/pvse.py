"""PVSE, PCME and PCME++: several points, or a Gaussian, for each image and each caption, from what
attention heads see in its local features, or (PCME++) pooled from them by a learned weighting of
their order (GPO)."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.encoders.base import Tokenizer, Tokens
from gaussmatch.models.encoders.vsepp import (
    BiGRU,
    Linear,
    State,
    WordReader,
    padding_of,
    states_each_way,
)

Local = Float[Tensor, "n r f"]
Padding = Bool[Tensor, "n r"] | None


class Attention(nn.Module):
    """K-head attention over local features x: softmax over the places of w₂·tanh(w₁·x).

    Args:
        local_dim: F, the width of x.
        heads: K.

    >>> Attention(6, heads=2)(torch.randn(3, 5, 6)).shape
    torch.Size([3, 2, 6])
    """

    def __init__(self, local_dim: int, heads: int = 1) -> None:
        super().__init__()
        hidden = max(1, local_dim // 2)
        self.hidden = nn.Linear(local_dim, hidden, bias=False)
        self.heads = nn.Linear(hidden, heads, bias=False)
        for layer in (self.hidden, self.heads):
            nn.init.xavier_uniform_(layer.weight)

    def forward(self, local: Local, padding: Padding = None) -> Float[Tensor, "n k f"]:
        """The mean of the local features under each head's weights; padding has none."""
        return self.weights(local, padding).transpose(1, 2) @ local

    def weights(self, local: Local, padding: Padding = None) -> Float[Tensor, "n r k"]:
        """Where each head looks: sums to one over the r places."""
        raw: Tensor = self.heads(torch.tanh(self.hidden(local)))
        if padding is not None:
            raw = raw.masked_fill(padding[..., None], -torch.inf)
        return raw.softmax(1)


class Residual(nn.Module):
    """What the attended features add to the global one: dropout(sigmoid(linear(·)))."""

    def __init__(self, local_dim: int, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = Linear(local_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, attended: Float[Tensor, "n k f"]) -> Float[Tensor, "n k d"]:
        return self.dropout(torch.sigmoid(self.embed(attended)))


class PIE(nn.Module):
    """LayerNorm(global + residual of each attention head): K embeddings of one item.

    Args:
        local_dim: F, the width of the local features.
        dim: D.
        embeddings: K. One embedding is a plain point (n, D), several are (n, K, D).
        dropout: of the residual.

    ``residual`` always gives (n, K, D): what the diversity loss looks at.

    >>> PIE(6, 4, embeddings=2)(torch.randn(3, 4), torch.randn(3, 5, 6)).shape
    torch.Size([3, 2, 4])
    """

    def __init__(self, local_dim: int, dim: int, embeddings: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(local_dim, embeddings)
        self.residual = Residual(local_dim, dim, dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(
        self, whole: Float[Tensor, "n d"], local: Local, padding: Padding = None
    ) -> Float[Tensor, "n ... d"]:
        residual = self.residual(self.attention(local, padding))
        return self.norm(whole[:, None] + residual).squeeze(1)


def local_features(images: Float[Tensor, "n ..."], backbone: Any) -> Local:
    """The cells that a backbone makes of pictures, or local features as they are given."""
    if backbone is not None:
        return backbone.forward_grid(images)
    if images.ndim != 3:
        raise ValueError(
            f"images must be local features (n, R, F), got {tuple(images.shape)}; "
            "set data.features to regions"
        )
    return images


class PVSEImage(nn.Module):
    """Local features → linear of their mean, PIE over themselves → L2-norm: (n, K, D).

    Args:
        embeddings: K; 1 gives plain points (n, D).
        backbone: a network with ``forward_grid``, pictures (n, 3, H, W) → (n, R, F); ``None`` when
            the input is local features (n, R, F) already: regions, or the cells of a grid.
    """

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        embeddings: int = 1,
        dropout: float = 0.0,
        backbone: nn.Module | None = None,
        normalize: bool = True,
    ) -> None:
        super().__init__()
        self.dim, self.normalize = dim, normalize
        self.backbone = backbone
        self.embed = Linear(feature_dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.pie = PIE(feature_dim, dim, embeddings, dropout)

    def forward(self, images: Float[Tensor, "n ..."]) -> Float[Tensor, "n ... d"]:
        local = local_features(images, self.backbone)
        return self.points(local, local.mean(1))

    def points(self, local: Local, pooled: Float[Tensor, "n f"]) -> Float[Tensor, "n ... d"]:
        points = self.pie(self.dropout(self.embed(pooled)), local)
        return normalize(points, dim=-1) if self.normalize else points


class PVSEText(WordReader):
    """Word vectors → their bi-directional GRU, PIE over themselves → L2-norm: (n, K, D).

    Args:
        dim: D, even: half for each direction.
        embeddings: K; 1 gives plain points (n, D).
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dim: int,
        word_dim: int = 300,
        embeddings: int = 1,
        dropout: float = 0.0,
        state: State = "final",
        normalize: bool = True,
    ) -> None:
        super().__init__(tokenizer, dim, word_dim, normalize)
        self.embed = BiGRU(word_dim, dim, state)
        self.dropout = nn.Dropout(dropout)
        self.pie = PIE(word_dim, dim, embeddings, dropout)

    def forward(self, tokens: Tokens) -> Float[Tensor, "n ... d"]:
        return self.points(self.dropout(self.words(tokens.ids)), tokens)

    def points(self, words: Float[Tensor, "n t w"], tokens: Tokens) -> Float[Tensor, "n ... d"]:
        whole = self.dropout(self.embed(words, tokens.lengths))
        points = self.pie(whole, words, padding_of(tokens.lengths, words.shape[1]))
        return normalize(points, dim=-1) if self.normalize else points


class ImageSpread(nn.Module):
    """ln σ = linear(attention over the local features) + linear(their mean): (n, D), unbounded."""

    def __init__(self, feature_dim: int, dim: int, start: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(feature_dim)
        self.attended = Linear(feature_dim, dim)
        nn.init.constant_(self.attended.bias, start)
        self.pooled = nn.Linear(feature_dim, dim)

    def forward(self, local: Local, pooled: Float[Tensor, "n f"]) -> Float[Tensor, "n d"]:
        return self.attended(self.attention(local).squeeze(1)) + self.pooled(pooled)


class TextSpread(nn.Module):
    """ln σ = linear(attention over the words) + a bi-directional GRU of its own: (n, D)."""

    def __init__(self, word_dim: int, dim: int, state: State, start: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(word_dim)
        self.attended = Linear(word_dim, dim)
        nn.init.constant_(self.attended.bias, start)
        self.embed = BiGRU(word_dim, dim, state)

    def forward(self, words: Float[Tensor, "n t w"], tokens: Tokens) -> Float[Tensor, "n d"]:
        padding = padding_of(tokens.lengths, words.shape[1])
        attended = self.attention(words, padding).squeeze(1)
        return self.attended(attended) + self.embed(words, tokens.lengths)


class PCMEImage(PVSEImage):
    """The mean is that of PVSE with K = 1 and no dropout; the log-variance is 2 ln σ.

    Nothing bounds it, as in the official code; the loss term ``vib`` holds it.

    Args:
        log_sigma: about where ln σ starts. At 0 (published) the samples of D dimensions lie √(2D)
            apart and drown the means, until the variances have shrunk.

    >>> import torch
    >>> PCMEImage(6, 4)(torch.randn(3, 5, 6))
    Gaussian(ellipsoidal, shape=(3,), dim=4, dtype=torch.float32)
    """

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        backbone: nn.Module | None = None,
        normalize: bool = True,
        log_sigma: float = 0.0,
    ) -> None:
        super().__init__(feature_dim, dim, backbone=backbone, normalize=normalize)
        self.spread = ImageSpread(feature_dim, dim, log_sigma)

    def forward(self, images: Float[Tensor, "n ..."]) -> Gaussian:  # type: ignore[override]
        local = local_features(images, self.backbone)
        pooled = local.mean(1)
        return Gaussian(self.points(local, pooled), 2 * self.spread(local, pooled))


class PCMEText(PVSEText):
    """The caption side of ``PCMEImage``."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        dim: int,
        word_dim: int = 300,
        state: State = "final",
        normalize: bool = True,
        log_sigma: float = 0.0,
    ) -> None:
        super().__init__(tokenizer, dim, word_dim, state=state, normalize=normalize)
        self.spread = TextSpread(word_dim, dim, state, log_sigma)

    def forward(self, tokens: Tokens) -> Gaussian:  # type: ignore[override]
        words = self.words(tokens.ids)
        return Gaussian(self.points(words, tokens), 2 * self.spread(words, tokens))


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

    def forward(self, local: Local, padding: Padding = None) -> Float[Tensor, "n f"]:
        """The pooled features; padding, wherever it stands, has no part."""
        if padding is None:
            weights = self.weights(torch.tensor([local.shape[1]], device=local.device))
            ranked = local.sort(dim=1, descending=True).values
        else:
            lengths, row = (~padding).sum(1), slice(None)
            if not torch.onnx.is_in_onnx_export():  # the same for items of one length
                lengths, row = lengths.unique(return_inverse=True)
            weights = self.weights(lengths, local.shape[1])[row]
            ranked = local.masked_fill(padding[..., None], -torch.inf)
            ranked = ranked.sort(dim=1, descending=True).values
            ranked = ranked.masked_fill(weights[..., None] == 0, 0)
        return (ranked * weights[..., None]).sum(1)

    def weights(self, lengths: Int[Tensor, "m"], places: int | None = None) -> Float[Tensor, "m r"]:
        """w of items with these numbers of local features; 0 after the last of them."""
        longest = int(lengths.max()) if places is None else places
        given = encoded_places(longest, self.linear.weight).expand(lengths.shape[0], -1, -1)
        raw = SHARPNESS * self.linear(mean_state(self.gru, given, lengths)).squeeze(-1)
        return raw.masked_fill(padding_of(lengths, longest), -torch.inf).softmax(-1)


def mean_state(rnn: nn.GRU, sequence: Tensor, lengths: Tensor) -> Float[Tensor, "n t h"]:
    """The mean of the states of both directions at every step."""
    forward, backward = states_each_way(rnn, sequence, lengths).chunk(2, -1)
    return (forward + backward) / 2


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

    def forward(self, local: Local, padding: Padding = None) -> Float[Tensor, "n d"]:
        out = self.fc(local)
        if self.mlp is not None:
            out = out + self.mlp(local.flatten(0, 1)).view_as(out)
        return self.gpool(out, padding)


def _network(local_dim: int, dim: int) -> nn.Sequential:
    hidden = dim // 2
    return nn.Sequential(
        nn.Linear(local_dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, dim)
    )


class Halves(nn.Module):
    """Both halves of a Gaussian, each pooled from the local features by layers of its own."""

    mean: Pooled
    spread: Pooled
    normalize: bool
    drop: float

    def gaussian(self, local: Local, padding: Padding = None) -> Gaussian:
        if self.training and self.drop:
            if padding is None:
                padding = torch.zeros(local.shape[:2], dtype=torch.bool, device=local.device)
            padding = thinned(padding, self.drop)
        mean = self.mean(local, padding)
        mean = normalize(mean, dim=-1) if self.normalize else mean
        return Gaussian(mean, self.spread(local, padding))


def thinned(padding: Bool[Tensor, "n r"], share: float) -> Bool[Tensor, "n r"]:
    """With a share of the local features left out at random, but never all of an item's."""
    chance = torch.rand(padding.shape, device=padding.device)
    first = chance.masked_fill(padding, 2).argmin(1, keepdim=True)  # one that is there, at random
    out = padding | (torch.rand(padding.shape, device=padding.device) < share)
    return out.scatter(1, first, False)


class PCMEPPImage(Halves):
    """Local features → unit mean and ln σ², each through layers and a pooling of its own.

    Nothing bounds the log-variance, as in the official code; the loss term ``vib`` holds it.

    Args:
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
        return self.gaussian(local_features(images, self.backbone))


class PCMEPPText(WordReader, Halves):
    """Word vectors → the mean of a GRU each way at every word → mean and ln σ² as of an image.

    Args:
        dim: D, also the width of the GRUs.
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
        super().__init__(tokenizer, dim, word_dim, normalize)
        self.drop = drop
        self.rnn = nn.GRU(word_dim, dim, batch_first=True, bidirectional=True)
        self.mean = Pooled(dim, dim)
        self.spread = Pooled(dim, dim, start=log_var)

    def forward(self, tokens: Tokens) -> Gaussian:
        words = self.words(tokens.ids)
        local = mean_state(self.rnn, words, tokens.lengths)
        return self.gaussian(local, padding_of(tokens.lengths, words.shape[1]))
