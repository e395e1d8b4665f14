"""The scores of a split as the measures take them, whatever the similarity is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.evaluation.blocks import CHUNK, TILE, Blocks, refuse_nan
from gaussmatch.gaussian import Gaussian
from gaussmatch.similarities import Similarity
from gaussmatch.similarities.base import wide


class Scores(Protocol):
    """What the measures take: closeness of images and captions, any part of it at a time."""

    images: int
    captions: int
    offset: Tensor

    def rows(self, start: int, stop: int) -> Float[Tensor, "block captions"]: ...

    def columns(self, start: int, stop: int) -> Float[Tensor, "block images"]: ...

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]: ...

    def pairs(self, image: Tensor, caption: Tensor) -> tuple[Tensor, Tensor]: ...


def blocks_of(
    similarity: Similarity,
    images: Gaussian,
    captions: Gaussian,
    dtype: torch.dtype | None = None,
) -> Scores:
    """The scores of a split by the similarity's lift, or pair by pair where it has none."""
    if similarity.no_lift is None:
        return Blocks(similarity, images, captions, dtype)
    return PairwiseBlocks(similarity, images, captions)


class PairwiseBlocks:
    """As ``Blocks``, for a similarity without a lift: its own ``matrix``, part by part."""

    def __init__(self, similarity: Similarity, images: Gaussian, captions: Gaussian) -> None:
        self._images, self._captions = similarity.prepare(images, captions, paired=False)
        if not len(images) or not len(captions):
            raise ValueError(f"nothing to rank: {len(images)} images and {len(captions)} captions")
        refuse_nan("image", images)
        refuse_nan("caption", captions)
        self._similarity = similarity
        self.images, self.captions = len(images), len(captions)
        self.offset = images.mean.new_zeros((), dtype=wide(images))

    @torch.no_grad()
    def rows(self, start: int, stop: int) -> Float[Tensor, "block captions"]:
        return self._similarity.matrix(self._images[start:stop], self._captions)

    @torch.no_grad()
    def columns(self, start: int, stop: int) -> Float[Tensor, "block images"]:
        return self._similarity.matrix(self._images, self._captions[start:stop]).T

    @torch.no_grad()
    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        height, width = TILE
        for j in range(0, self.captions, width):
            columns = slice(j, min(j + width, self.captions))
            for i in range(0, self.images, height):
                rows = slice(i, min(i + height, self.images))
                part = self._similarity.matrix(self._images[rows], self._captions[columns])
                yield rows, columns, part

    @torch.no_grad()
    def pairs(self, image: Tensor, caption: Tensor) -> tuple[Tensor, Tensor]:
        parts = [
            self._similarity.paired(
                self._images[image[i : i + CHUNK]], self._captions[caption[i : i + CHUNK]]
            )
            for i in range(0, len(image), CHUNK)
        ]
        close = torch.cat([self._images.mean.new_zeros(0, dtype=torch.float32), *parts])
        return close, close.abs() * 4 * torch.finfo(close.dtype).eps
