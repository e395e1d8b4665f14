"""Retrieval measures of one split: from Gaussians to numbers, in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance, summary
from gaussmatch.core.metrics.ranking import NEVER, ScoreRows
from gaussmatch.core.similarities import Similarity
from gaussmatch.data.pairs import Pairs
from gaussmatch.learn.evaluation.scores import BothWays, blocks_of

ROWS = 1024
"""Images at a time: a block of 1,024 × 25,000 float32 scores takes 100 MB."""


def ranks(
    s: Similarity,
    images: Gaussian,
    captions: Gaussian,
    pairs: Relevance,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Rank (from 0) of the best right item: of each image among captions, and the other way.

    One matrix product serves both ways, two where the similarity depends on the direction. A
    query's rank is the number of wrong items that come as close as its best right one; what differs
    by no more than the rounding of the product is a tie, and a tie never counts in the model's
    favour. A query without right items gets ``NEVER``.

    Args:
        pairs: captions × images.
        dtype: of the product, see ``Blocks``.
    """
    return ranks_of(blocks_of(s, images, captions, dtype), pairs)


def ranks_of(blocks: BothWays, pairs: Relevance) -> tuple[Tensor, Tensor]:
    """``ranks`` of scores that are already lifted."""
    of_images = pairs.transpose()  # image by image, as the blocks come
    sides, starts = blocks.image_queries, of_images.indptr
    image, caption = (ids.to(sides.offset.device) for ids in (of_images.query_of, of_images.items))
    least_i, least_c = (
        close.new_full((size,), torch.inf).scatter_reduce(
            0, ids, close - rounding, "amax", include_self=False
        )
        for (close, rounding), size, ids in zip(
            blocks.pairs(image, caption),
            (sides.images, sides.captions),
            (image, caption),
            strict=True,
        )
    )
    i2t, t2i = image.new_zeros(sides.images), image.new_zeros(sides.captions)
    for rows, columns, by_image, by_caption in blocks.tiles():
        i2t[rows] += _count(by_image >= least_i[rows, None], 1)
        t2i[columns] += _count(by_caption >= least_c[columns], 0)
        here = slice(int(starts[rows.start]), int(starts[rows.stop]))
        inside = (caption[here] >= columns.start) & (caption[here] < columns.stop)
        i, c = image[here][inside], caption[here][inside]
        at = i - rows.start, c - columns.start  # right items do not count
        i2t.index_add_(0, i, -(by_image[at] >= least_i[i]).long())
        t2i.index_add_(0, c, -(by_caption[at] >= least_c[c]).long())
    i2t, t2i = i2t.cpu(), t2i.cpu()
    i2t[of_images.counts == 0] = NEVER
    t2i[pairs.counts == 0] = NEVER
    return i2t, t2i


def _count(true: Tensor, dim: int) -> Tensor:
    """How many are true: ten times as fast as ``true.sum(dim)``, which counts in int64."""
    return true.view(torch.uint8).sum(dim, dtype=torch.int32)


def top(
    s: Similarity, images: Gaussian, captions: Gaussian, k: int, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """The ids of the k best captions of each image, and of the k best images of each caption,
    best first: what the measures of ranked ids take. A k beyond the gallery gives all of it."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    blocks = blocks_of(s, images, captions, dtype)
    count_i, count_c = len(images), len(captions)
    return (
        _top(blocks.image_queries.rows, count_i, min(k, count_c)),
        _top(blocks.caption_queries.columns, count_c, min(k, count_i)),
    )


def _top(rows: ScoreRows, queries: int, k: int) -> Tensor:
    parts = [
        rows(start, min(start + ROWS, queries)).topk(k).indices for start in range(0, queries, ROWS)
    ]
    return torch.cat(parts)


def recalls(s: Similarity, images: Gaussian, captions: Gaussian, pairs: Pairs) -> dict[str, float]:
    """R@1/5/10 and median rank both ways, and rsum, with each caption's own image as the match."""
    return summary(*ranks(s, images, captions, pairs.pairs()))
