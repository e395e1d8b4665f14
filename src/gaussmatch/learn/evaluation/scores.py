"""The scores of a split as the measures take them, whatever the similarity is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.core.similarities.base import wide
from gaussmatch.learn.evaluation.blocks import CHUNK, TILE, Blocks, refuse_nan

KEPT_BYTES = 2**29
"""A whole matrix up to this size is kept: its scores are costly, and needed several times."""


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
        self._whole: Tensor | None = None

    def rows(self, start: int, stop: int) -> Float[Tensor, "block captions"]:
        return self._part(slice(start, stop), slice(None))

    def columns(self, start: int, stop: int) -> Float[Tensor, "block images"]:
        return self._part(slice(None), slice(start, stop)).T

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        height, width = TILE
        for j in range(0, self.captions, width):
            columns = slice(j, min(j + width, self.captions))
            for i in range(0, self.images, height):
                rows = slice(i, min(i + height, self.images))
                yield rows, columns, self._part(rows, columns)

    @torch.no_grad()
    def pairs(self, image: Tensor, caption: Tensor) -> tuple[Tensor, Tensor]:
        if self._keeps:
            close = self._part(slice(None), slice(None))[image, caption]
        else:
            parts = [
                self._similarity.paired(
                    self._images[image[i : i + CHUNK]], self._captions[caption[i : i + CHUNK]]
                )
                for i in range(0, len(image), CHUNK)
            ]
            close = torch.cat([self._images.mean.new_zeros(0, dtype=torch.float32), *parts])
        return close, (1 + close.abs()) * 4 * torch.finfo(close.dtype).eps

    @property
    def _keeps(self) -> bool:
        return self.images * self.captions * 4 <= KEPT_BYTES

    @torch.no_grad()
    def _part(self, rows: slice, columns: slice) -> Tensor:
        if not self._keeps:
            return self._similarity.matrix(self._images[rows], self._captions[columns])
        if self._whole is None:
            self._whole = self._similarity.matrix(self._images, self._captions)
        return self._whole[rows, columns]


Scores = Blocks | PairwiseBlocks
"""Closeness of images and captions, any part of it at a time."""


@dataclass(frozen=True)
class BothWays:
    """The scores of a split for image queries and for caption queries: one object twice, and one
    matrix product, where the similarity does not depend on the direction."""

    image_queries: Scores
    caption_queries: Scores

    @property
    def _one(self) -> bool:
        return self.image_queries is self.caption_queries

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """(images, captions, part for image queries, part for caption queries)."""
        if self._one:
            for rows, columns, part in self.image_queries.tiles():
                yield rows, columns, part, part
            return
        both = zip(self.image_queries.tiles(), self.caption_queries.tiles(), strict=True)
        for (rows, columns, by_image), (_, _, by_caption) in both:
            yield rows, columns, by_image, by_caption

    def pairs(self, image: Tensor, caption: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(closeness, rounding) of listed pairs for image queries and for caption queries."""
        first = self.image_queries.pairs(image, caption)
        return [first, first if self._one else self.caption_queries.pairs(image, caption)]


def blocks_of(
    similarity: Similarity, images: Gaussian, captions: Gaussian, dtype: torch.dtype | None = None
) -> BothWays:
    """The scores of a split by the similarity's lift, or pair by pair where it has none."""

    def scores(s: Similarity) -> Scores:
        if s.no_lift is None:
            return Blocks(s, images, captions, dtype)
        return PairwiseBlocks(s, images, captions)

    by_image, by_caption = similarity.for_query("images"), similarity.for_query("captions")
    image_queries = scores(by_image)
    return BothWays(image_queries, image_queries if by_caption is by_image else scores(by_caption))


@torch.no_grad()
def query_scores(
    similarity: Similarity, queries: Gaussian, items: Gaussian, gallery: str
) -> Float[Tensor, "queries items"]:
    """The scores of queries with items of a gallery, ``"images"`` or ``"captions"``; the queries
    are of the other side."""
    if gallery == "images":
        return similarity.for_query("captions").matrix(items, queries).T
    return similarity.for_query("images").matrix(queries, items)
