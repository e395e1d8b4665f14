"""Every score of a split at the price of one float32 matrix product, block by block.

A raw lift in float32 loses a KL to cancellation: large terms that all items share drown the small
differences that rank them. So the shared part is taken out in float64 first: all means are moved
to lie about zero where that changes no score, and with lifts a of images and b of captions and any
centers u, v,

    a·b = (a − u)·(b − v) + (a − u)·v + u·b

where the last two depend on one side only. They ride along as two more columns,
[a − u, (a − u)·v, 1] · [b − v, 1, u·b − offset], so the product is the whole score up to one
constant and nothing is added afterwards. A squared distance is first an inner product of centered
vectors, with −‖a‖² and −‖b‖² beside it. What comes out is *closeness*: it orders as the score does
(``from_raw`` is monotone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.core.gaussian import Gaussian, Side
from gaussmatch.core.similarities import Similarity
from gaussmatch.core.similarities.base import CenteredLift, center, wide

SMALL = 2**29
"""Below this many multiplications float64 is used throughout: it costs nothing that one feels."""

TILE = (4096, 1024)
"""Images × captions of one part of ``tiles``, at most."""

CHUNK = 256  # items lifted at a time


class Blocks:
    """Closeness of images and captions, any rows or columns of it at a time.

    Args:
        dtype: of the product; if not given float32, or float64 for a small problem.

    >>> from gaussmatch.core.similarities import similarity
    >>> g = Gaussian(torch.eye(3), torch.zeros(3, 3))
    >>> blocks = Blocks(similarity("kl"), g, g)
    >>> (2 + blocks.offset + blocks.rows(0, 2)).round(decimals=6)      # 2 − KL
    tensor([[2., 1., 1.],
            [1., 2., 1.]], dtype=torch.float64)
    """

    def __init__(
        self,
        similarity: Similarity,
        images: Gaussian,
        captions: Gaussian,
        dtype: torch.dtype | None = None,
    ) -> None:
        images, captions = _checked(similarity, images, captions)
        work = len(images) * len(captions) * images.dim
        self.dtype = dtype or (wide(images) if work <= SMALL else torch.float32)
        self.images, self.captions = len(images), len(captions)
        squared = similarity.metric == "squared_l2"
        some_images, some_captions = _sample(images), _sample(captions)
        lift = CenteredLift.of(similarity, some_images, some_captions)
        samples = lift(some_images, "images"), lift(some_captions, "captions")
        centers = [_Center.of(a, b, squared) for a, b in zip(*samples, strict=True)]
        self.offset = centers[0].typical(samples[1][0])
        """What was taken off every score to keep the numbers small."""
        eps = torch.finfo(self.offset.dtype).eps
        self._floor = 16 * eps * torch.stack([c.size() for c in centers]).amax()
        writers = [c.images for c in centers]
        self._left = _filled(lift, "images", images, writers, self.dtype)
        writers = [partial(c.captions, self.offset) for c in centers]
        self._right = _filled(lift, "captions", captions, writers, self.dtype)

    def rows(self, start: int, stop: int) -> Float[Tensor, "block captions"]:
        """Images ``start:stop`` as queries."""
        return _product([a[start:stop] for a in self._left], self._right)

    def columns(self, start: int, stop: int) -> Float[Tensor, "block images"]:
        """Captions ``start:stop`` as queries."""
        return _product([b[start:stop] for b in self._right], self._left)

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """All of it once, in parts that stay in the processor's cache: (images, captions, part).

        A part is only good until the next one is made: they share their memory.
        """
        tiles = _tiles(self.images, self.captions)
        height, width = (side.stop for side in tiles[0])
        room = [self._left[0].new_empty(height * width) for _ in self._left[:2]]
        for rows, columns in tiles:
            left, right = [a[rows] for a in self._left], [b[columns] for b in self._right]
            yield rows, columns, _product(left, right, room)

    def pairs(self, image: Tensor, caption: Tensor) -> tuple[Tensor, Tensor]:
        """Closeness of listed pairs, and how much of it can be rounding: both (pairs,)."""
        close, rounding = [self._left[0][:0, 0]], [self._left[0][:0, 0]]
        for start in range(0, len(image), CHUNK):
            i, c = image[start : start + CHUNK], caption[start : start + CHUNK]
            terms = torch.stack([a[i] * b[c] for a, b in _zip(self._left, self._right)])
            close.append(terms.sum(-1, dtype=self.offset.dtype).amax(0).to(self.dtype))
            rounding.append(terms.abs_().sum(-1).amax(0) * torch.finfo(self.dtype).eps)
        return torch.cat(close), torch.cat(rounding) + self._floor.to(self.dtype)


def _tiles(images: int, captions: int) -> list[tuple[slice, slice]]:
    """Parts of one size, none larger than ``TILE``; the first is the largest."""
    rows, columns = (
        [slice(i, min(i + step, size)) for i in range(0, size, step)]
        for size, most in ((images, TILE[0]), (captions, TILE[1]))
        for step in [-(-size // -(-size // most))]
    )
    return [(row, column) for column in columns for row in rows]


@dataclass(frozen=True)
class _Center:
    """The centers of one lift, and what each side becomes with them."""

    origin: Tensor | None  # of both sides, where closeness is −‖a − b‖² = 2a·b − ‖a‖² − ‖b‖²
    u: Tensor
    v: Tensor

    @staticmethod
    def of(a: Tensor, b: Tensor, squared: bool) -> _Center:
        if not squared:
            return _Center(None, center(a), center(b))
        origin = (center(a) + center(b)) / 2
        return _Center(origin, 2 * (center(a) - origin), center(b) - origin)

    def typical(self, b: Tensor) -> Tensor:
        """The center of what depends on the caption alone."""
        out = b.new_empty(len(b), b.shape[-1] + 2)
        self.captions(b.new_zeros(()), b, out)
        return out[:, -1].median()

    def size(self) -> Tensor:
        """How large the terms are that the centers take out."""
        taken = (self.u * self.v).abs().sum()
        return taken if self.origin is None else taken + self.origin.square().sum()

    def images(self, a: Tensor, out: Tensor) -> None:
        """Write [a − u, (a − u)·v + own, 1] into ``out``."""
        own: Tensor | float = 0.0
        if self.origin is not None:
            a = a - self.origin
            own = -a.square().sum(-1)
            a = 2 * a
        a = a - self.u
        out[:, :-2] = a
        out[:, -2] = a @ self.v + own
        out[:, -1] = 1

    def captions(self, offset: Tensor, b: Tensor, out: Tensor) -> None:
        """Write [b − v, 1, u·b + own − offset] into ``out``."""
        own: Tensor | float = 0.0
        if self.origin is not None:
            b = b - self.origin
            own = -b.square().sum(-1)
        out[:, :-2] = b - self.v
        out[:, -2] = 1
        out[:, -1] = b @ self.u + own - offset


def _sample(g: Gaussian) -> Gaussian:
    """Some items, evenly spread: any center is right, a typical one is best."""
    return g[:: max(1, len(g) // 128)].to(wide(g))


def _filled(
    lift: CenteredLift,
    side: Side,
    g: Gaussian,
    writers: Sequence[Callable[[Tensor, Tensor], None]],
    dtype: torch.dtype,
) -> list[Tensor]:
    """The lifted and centered vectors of one side, made in float64 and kept in ``dtype``."""
    filled: list[Tensor] = []
    for start in range(0, len(g), CHUNK):
        lifted = lift(g[start : start + CHUNK].to(wide(g)), side)
        if not filled:
            filled = [x.new_empty(len(g), x.shape[-1] + 2, dtype=dtype) for x in lifted]
        for write, x, whole in zip(writers, lifted, filled, strict=True):
            kept = whole[start : start + CHUNK]
            write(x, kept)
            if not _finite(kept):
                at = start + int((~kept.isfinite()).any(-1).nonzero()[0])
                raise ValueError(
                    f"{side[:-1]} {at}: its embedding is too large to be scored in {dtype}"
                )
    return filled


def _checked(s: Similarity, images: Gaussian, captions: Gaussian) -> tuple[Gaussian, Gaussian]:
    """As the similarity takes them. A NaN compares false with everything and would pass for a good
    rank, so it is refused."""
    if not len(images) or not len(captions):
        raise ValueError(f"nothing to rank: {len(images)} images and {len(captions)} captions")
    for side, g in (("image", images), ("caption", captions)):
        for what, values in (("mean", g.mean), ("log-variance", g.log_var)):
            if values is not None and not _finite(values):
                at = int((~values.isfinite()).flatten(1).any(1).nonzero()[0])
                raise ValueError(f"the {what} of {side} {at} holds a NaN or infinity")
    return s.prepare(images, captions, paired=False)


def _finite(values: Tensor) -> bool:
    """All of them, in one pass: a NaN or infinity is the least or the largest."""
    return all(x.isfinite() for x in values.aminmax())


def _product(left: list[Tensor], right: list[Tensor], room: Sequence[Tensor] = ()) -> Tensor:
    """The best over the lifts of each product, in the memory given, if any."""
    shape = len(left[0]), len(right[0])
    outs: list[Tensor | None] = [r[: shape[0] * shape[1]].view(shape) for r in room]
    outs = outs or [None, None]
    best = torch.matmul(left[0], right[0].T, out=outs[0])
    for a, b in _zip(left[1:], right[1:]):
        torch.maximum(best, torch.matmul(a, b.T, out=outs[-1]), out=best)
    return best


_zip = partial(zip, strict=True)


KEPT_BYTES = 2**29
"""A whole matrix up to this size is kept: its scores are costly, and needed several times."""


class PairwiseBlocks:
    """As ``Blocks``, for a similarity without a lift: its own ``matrix``, part by part."""

    def __init__(self, similarity: Similarity, images: Gaussian, captions: Gaussian) -> None:
        self._images, self._captions = _checked(similarity, images, captions)
        self._similarity = similarity
        self.images, self.captions = len(images), len(captions)
        self.offset = images.mean.new_zeros((), dtype=wide(images))
        self._whole: Tensor | None = None

    def rows(self, start: int, stop: int) -> Float[Tensor, "block captions"]:
        return self._part(slice(start, stop), slice(None))

    def columns(self, start: int, stop: int) -> Float[Tensor, "block images"]:
        return self._part(slice(None), slice(start, stop)).T

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        for rows, columns in _tiles(self.images, self.captions):
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
    matrix product, if the similarity does not depend on the direction."""

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
    """The scores of a split by the similarity's lift, or pair by pair if it has none."""

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


def best_scores(blocks: BothWays) -> tuple[Tensor, Tensor]:
    """The closeness of each image to its nearest caption, and of each caption to its image."""
    i, c = blocks.image_queries, blocks.caption_queries
    i2t = i.offset.new_full((i.images,), -torch.inf)
    t2i = c.offset.new_full((c.captions,), -torch.inf)
    for rows, columns, by_image, by_caption in blocks.tiles():
        i2t[rows] = i2t[rows].maximum(by_image.amax(1))
        t2i[columns] = t2i[columns].maximum(by_caption.amax(0))
    return (i2t + i.offset).cpu(), (t2i + c.offset).cpu()
