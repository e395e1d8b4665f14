"""PCME: a Gaussian for each image and each caption, whose spread has attention of its own."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.encoders.base import Tokenizer, Tokens
from gaussmatch.models.encoders.gru import BiGRU, State, padding_of
from gaussmatch.models.encoders.image import Linear
from gaussmatch.models.encoders.pie import Attention
from gaussmatch.models.encoders.pvse import PVSEImage, PVSEText


class ImageSpread(nn.Module):
    """ln σ = linear(attention over the local features) + linear(their mean): (n, D), unbounded."""

    def __init__(self, feature_dim: int, dim: int, start: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(feature_dim)
        self.attended = Linear(feature_dim, dim)
        nn.init.constant_(self.attended.bias, start)
        self.pooled = nn.Linear(feature_dim, dim)

    def forward(
        self, local: Float[Tensor, "n r f"], pooled: Float[Tensor, "n f"]
    ) -> Float[Tensor, "n d"]:
        out: Tensor = self.attended(self.attention(local).squeeze(1)) + self.pooled(pooled)
        return out


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
        out: Tensor = self.attended(attended) + self.embed(words, tokens.lengths)
        return out


class PCMEImage(PVSEImage):
    """The mean is that of PVSE with K = 1 and no dropout; the log-variance is 2 ln σ.

    Nothing bounds it, as in the official code; the loss term ``vib`` holds it.

    Args:
        feature_dim, dim, backbone, normalise: as of ``PVSEImage``.
        start: about where ln σ starts. At 0 (published) the samples of D dimensions lie √(2D)
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
        normalise: bool = True,
        start: float = 0.0,
    ) -> None:
        super().__init__(feature_dim, dim, backbone=backbone, normalise=normalise)
        self.spread = ImageSpread(feature_dim, dim, start)

    def forward(self, images: Float[Tensor, "n ..."]) -> Gaussian:  # type: ignore[override]
        local = self.local(images)
        pooled = local.mean(1)
        return Gaussian(self.points(local, pooled), 2 * self.spread(local, pooled))


class PCMEText(PVSEText):
    """The caption side of ``PCMEImage``.

    Args:
        tokenizer, dim, word_dim, normalise: as of ``PVSEText``.
        state: what of both GRUs is taken; see ``BiGRU``.
        start: as of ``PCMEImage``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dim: int,
        word_dim: int = 300,
        state: State = "final",
        normalise: bool = True,
        start: float = 0.0,
    ) -> None:
        super().__init__(tokenizer, dim, word_dim, state=state, normalise=normalise)
        self.spread = TextSpread(word_dim, dim, state, start)

    def forward(self, tokens: Tokens) -> Gaussian:  # type: ignore[override]
        words = self.words(tokens.ids)
        return Gaussian(self.points(words, tokens), 2 * self.spread(words, tokens))
