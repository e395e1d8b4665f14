"""Published encoders as they are: nothing is learned. Those that are probabilistic themselves are
taken apart into mean and variance; the embeddings of others are points."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.encoders.adapter import FrozenImages, FrozenTexts


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
    """Pictures, or their embeddings by the encoder, → Gaussians or points.

    Args:
        dim: D.
        feature_dim: width of the embeddings.
        image_encoder, image_sha256: see ``FrozenImages``.
    """

    def __init__(
        self, dim: int, feature_dim: int, image_encoder: str, image_sha256: str | None = None
    ) -> None:
        super().__init__(image_encoder, image_sha256)
        self.dim, self.width, self._name = dim, feature_dim, image_encoder

    def forward(self, embeddings: Tensor) -> Gaussian:
        return taken_apart(embeddings, self.dim, self.width, self._name)


class PublishedTexts(FrozenTexts):
    """Texts, or their embeddings by the encoder, → Gaussians or points.

    Args:
        dim, feature_dim: see ``PublishedImages``.
        text_encoder, text_sha256: see ``FrozenTexts``.
    """

    def __init__(
        self, dim: int, feature_dim: int, text_encoder: str, text_sha256: str | None = None
    ) -> None:
        super().__init__(text_encoder, text_sha256)
        self.dim, self.width, self._name = dim, feature_dim, text_encoder

    def forward(self, inputs: Any) -> Gaussian:
        return taken_apart(self.embedding(inputs), self.dim, self.width, self._name)
