"""Published encoders that are probabilistic themselves: nothing is learned, only taken apart."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.encoders.adapter import FrozenImages, FrozenTexts


def taken_apart(embeddings: Tensor, dim: int, encoder: object) -> Gaussian:
    """Means and ln σ² that stand side by side.

    >>> import torch
    >>> taken_apart(torch.zeros(3, 8), 4, "prolip:small")
    Gaussian(ellipsoidal, shape=(3,), dim=4, dtype=torch.float32)
    >>> taken_apart(torch.zeros(3, 6), 4, "prolip:small")
    Traceback (most recent call last):
    ValueError: embeddings of 6 values, but prolip:small gives 8: a mean and ln σ² of 4 each
    """
    if embeddings.ndim != 2 or embeddings.shape[1] != 2 * dim:
        found = embeddings.shape[1] if embeddings.ndim == 2 else tuple(embeddings.shape)
        raise ValueError(
            f"embeddings of {found} values, but {encoder} gives {2 * dim}: a mean and ln σ² of "
            f"{dim} each"
        )
    return Gaussian(embeddings[:, :dim], embeddings[:, dim:])


class PublishedImages(FrozenImages):
    """Pictures, or their embeddings by the encoder, → Gaussians.

    Args:
        dim: D.
        image_encoder, image_sha256: see ``FrozenImages``.
    """

    def __init__(self, dim: int, image_encoder: str, image_sha256: str | None = None) -> None:
        super().__init__(image_encoder, image_sha256)
        self.dim, self.width, self._name = dim, 2 * dim, image_encoder

    def forward(self, embeddings: Tensor) -> Gaussian:
        return taken_apart(embeddings, self.dim, self._name)


class PublishedTexts(FrozenTexts):
    """Texts, or their embeddings by the encoder, → Gaussians.

    Args:
        dim: D.
        text_encoder, text_sha256: see ``FrozenTexts``.
    """

    def __init__(self, dim: int, text_encoder: str, text_sha256: str | None = None) -> None:
        super().__init__(text_encoder, text_sha256)
        self.dim, self.width, self._name = dim, 2 * dim, text_encoder

    def forward(self, inputs: Any) -> Gaussian:
        return taken_apart(self.embedding(inputs), self.dim, self._name)
