"""Frozen encoders, as they are or with learned heads: uncertainty for the embeddings people already
have.

As they are, nothing is learned: those that are probabilistic themselves are taken apart into mean
and variance, the embeddings of others are points. With heads, both sides are an embedding e of a
published encoder, made comparable by the statistics of the training embeddings,
z = scale · (e − m)/s / |(e − m)/s|, and a two-layer head. The mean is the head's output, or e
itself; the log-variance is a head of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.encoders.base import UNREAD, ImageTransform, TextEncoder, Tokenizer
from gaussmatch.models.encoders.onnx import accelerate
from gaussmatch.models.encoders.pretrained import TextTower, image_tower, text_tower
from gaussmatch.models.encoders.probabilistic import Probabilistic

ARRAYS = "arrays"
"""Stands for an encoder that is not known: its embeddings exist already."""


@dataclass
class FrozenEncoder:
    """A published encoder, loaded at first use and known by the SHA-256 of its weights."""

    load: Callable[[str], Any]
    name: str
    sha256: str | None = None

    @cached_property
    def tower(self) -> Any:
        tower = self.load(self.name)
        if self.sha256 is not None and tower.sha256() != self.sha256:
            raise ValueError(
                f"the weights of {self.name} are not those that this model was trained with "
                f"(SHA-256 {self.sha256}); give those as {self.name.split('@')[0]}@PLACE"
            )
        accelerate(tower)
        return tower


class FrozenImages(nn.Module):
    """Image embeddings of a published encoder, or pictures that go through it.

    Args:
        encoder: its name; ``None`` if there are never any pictures, or if the data names it.
        sha256: of its weights.
    """

    def __init__(self, encoder: str | None, sha256: str | None) -> None:
        super().__init__()
        self.frozen = None if encoder is None else FrozenEncoder(image_tower, encoder, sha256)

    @property
    def transform(self) -> ImageTransform | None:
        """Pictures → embeddings by the published encoder, or ``None`` if it has no name."""
        frozen = self.frozen
        return None if frozen is None else lambda some: frozen.tower.encode(some).numpy()


class FrozenTexts(TextEncoder):
    """Texts as a published encoder embeds them.

    Args:
        encoder: its name; ``arrays`` if its embeddings exist already.
        sha256: of its weights.
    """

    _here: Tensor
    width: int

    def __init__(self, encoder: str, sha256: str | None) -> None:
        super().__init__()
        known = encoder != ARRAYS
        self.frozen = FrozenEncoder(text_tower, encoder, sha256) if known else None
        self.register_buffer("_here", torch.empty(0), persistent=False)

    @property
    def reads_text(self) -> bool:
        return self.frozen is not None

    @property
    def tower(self) -> TextTower:
        """The encoder of texts."""
        if self.frozen is None:
            raise ValueError(UNREAD)
        return self.frozen.tower

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]  # it comes with the encoder
        return self.tower.tokenizer

    def prepare(self, texts: Sequence[str]) -> Sequence[Any]:
        """The embedding of each text."""
        return list(self.tower.encode(texts).numpy())

    def embedding(self, inputs: Any) -> Float[Tensor, "n w"]:
        """The published embedding of a batch."""
        if isinstance(inputs, Tensor):
            return inputs
        tower = self.tower.to(self._here.device)
        with torch.no_grad():
            return tower.run(inputs).float()


class Standardize(nn.Module):
    """e → scale · unit((e − m)/s). m and s are learned by ``fit`` and saved with the weights.

    >>> norm = Standardize(3, scale=20.0)
    >>> norm.fit(torch.tensor([[1.0, 0.0, 5.0], [3.0, 0.0, 5.0]]))
    >>> norm(torch.tensor([[3.0, 0.0, 5.0]]))       # a constant feature has no part
    tensor([[20.,  0.,  0.]])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))

    def fit(self, embeddings: Float[Tensor, "n w"], center_only: bool = False) -> None:
        """Mean and standard deviation of embeddings, or the mean alone."""
        self.mean.copy_(embeddings.mean(0))
        if not center_only:
            spread = embeddings.std(0, correction=0)
            self.deviation.copy_(torch.where(spread > 0, spread, 1.0))

    def forward(self, embeddings: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
        if embeddings.shape[-1] != len(self.mean):
            raise ValueError(
                f"embeddings of {embeddings.shape[-1]} values; this model was trained on "
                f"{len(self.mean)}"
            )
        return self.scale * normalize((embeddings - self.mean) / self.deviation, dim=-1)


def head(width: int, dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """Two layers: dropout → linear → GELU → dropout → linear."""
    return nn.Sequential(
        nn.Dropout(dropout),
        nn.Linear(width, hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, dim),
    )


class Adapter(nn.Module):
    """Embeddings (n, width) of a frozen encoder → points (n, D)."""

    part = "head"
    width: int
    dim: int

    def learn(
        self,
        width: int,
        dim: int,
        hidden: int,
        dropout: float,
        scale: float,
        center_only: bool = False,
    ) -> None:
        """Make what learns.

        Args:
            width: of the embeddings.
            dim, hidden, dropout: of the head.
            scale: length of the standardized embedding.
            center_only: subtract the mean, and do not divide by the deviation.
        """
        self.width, self.dim, self._center_only = width, dim, center_only
        self.standardize = Standardize(width, scale)
        self.head = head(width, dim, hidden, dropout)

    def fit(self, embeddings: Float[Tensor, "n w"]) -> None:
        """Learn the statistics of the training embeddings."""
        self.standardize.fit(embeddings, self._center_only)

    def embedding(self, inputs: Any) -> Float[Tensor, "n w"]:
        """The published embedding of a batch."""
        return inputs

    def forward(self, inputs: Any) -> Float[Tensor, "n d"]:
        return normalize(self.head(self.standardize(self.embedding(inputs))), dim=-1)


class ImageAdapter(FrozenImages, Adapter):
    """Image embeddings → points."""

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        hidden: int,
        dropout: float,
        image_scale: float,
        image_encoder: str | None = None,
        image_sha256: str | None = None,
    ) -> None:
        super().__init__(image_encoder, image_sha256)
        self.learn(feature_dim, dim, hidden, dropout, image_scale)


class TextAdapter(FrozenTexts, Adapter):
    """Texts, or their embeddings, → points."""

    def __init__(
        self,
        text_encoder: str,
        text_width: int,
        dim: int,
        hidden: int,
        dropout: float,
        text_scale: float,
        text_sha256: str | None = None,
    ) -> None:
        super().__init__(text_encoder, text_sha256)
        self.learn(text_width, dim, hidden, dropout, text_scale, center_only=True)


class GivenMean(Probabilistic):
    """The published embedding itself is the mean; only the log-variance is learned. Whoever ranks
    by the mean gets what the published encoders give, bit for bit."""

    def __init__(self, encoder: Adapter, **settings: Any) -> None:
        super().__init__(encoder, "head", **settings)
        encoder.head = nn.Sequential()  # its copy is all that learns

    def _mean_and_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, tuple[tuple[Any, ...], dict[str, Any]]]:
        adapter = self.encoder
        assert isinstance(adapter, Adapter)
        mean = adapter.embedding(*args)
        return mean, ((adapter.standardize(mean),), {})


def taken_apart(embeddings: Tensor, dim: int, width: int, encoder: object) -> Gaussian:
    """Means and ln σ² that stand side by side, or, if the ``width`` of the embeddings is D, points.

    >>> import torch
    >>> taken_apart(torch.zeros(3, 8), 4, 8, "prolip:small")
    Gaussian(ellipsoidal, shape=(3,), dim=4, dtype=torch.float32)
    >>> taken_apart(torch.zeros(3, 4), 4, 4, "hf:small").is_point
    True
    >>> taken_apart(torch.zeros(3, 6), 4, 8, "prolip:small")
    Traceback (most recent call last):
    ValueError: embeddings of 6 values, but prolip:small gives 8: a mean and ln σ² of 4 each
    """
    if embeddings.ndim != 2 or embeddings.shape[1] != width:
        found = embeddings.shape[1] if embeddings.ndim == 2 else tuple(embeddings.shape)
        parts = f": a mean and ln σ² of {dim} each" if width > dim else ""
        raise ValueError(f"embeddings of {found} values, but {encoder} gives {width}{parts}")
    return Gaussian(embeddings[:, :dim], embeddings[:, dim:] if width > dim else None)


class PublishedImages(FrozenImages):
    """Pictures, or their embeddings by the encoder, → Gaussians or points."""

    def __init__(
        self, dim: int, feature_dim: int, image_encoder: str, image_sha256: str | None = None
    ) -> None:
        super().__init__(image_encoder, image_sha256)
        self.dim, self.width, self._name = dim, feature_dim, image_encoder

    def forward(self, embeddings: Tensor) -> Gaussian:
        return taken_apart(embeddings, self.dim, self.width, self._name)


class PublishedTexts(FrozenTexts):
    """Texts, or their embeddings by the encoder, → Gaussians or points."""

    def __init__(
        self, dim: int, feature_dim: int, text_encoder: str, text_sha256: str | None = None
    ) -> None:
        super().__init__(text_encoder, text_sha256)
        self.dim, self.width, self._name = dim, feature_dim, text_encoder

    def forward(self, inputs: Any) -> Gaussian:
        return taken_apart(self.embedding(inputs), self.dim, self.width, self._name)
