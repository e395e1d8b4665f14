"""Retrieval measures of one split: from Gaussians to numbers, in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussmatch.data.pairs import Pairs
from gaussmatch.gaussian import Gaussian
from gaussmatch.metrics import (
    Relevance,
    first_ranks,
    over_queries,
    precision_at_r,
    spearman,
    summary,
)
from gaussmatch.metrics.ranking import ScoreRows
from gaussmatch.similarities import Similarity


def rows_of_images(s: Similarity, images: Gaussian, captions: Gaussian) -> ScoreRows:
    """Scores with images as queries: block × captions."""
    return lambda start, stop: s.matrix(images[start:stop], captions)


def rows_of_captions(s: Similarity, images: Gaussian, captions: Gaussian) -> ScoreRows:
    """Scores with captions as queries: block × images."""
    return lambda start, stop: s.matrix(images, captions[start:stop]).T.contiguous()


def ranks(
    s: Similarity, images: Gaussian, captions: Gaussian, pairs: Relevance
) -> tuple[Tensor, Tensor]:
    """Rank (from 0) of the best right item: of each image among captions, and the other way.

    ``pairs`` is captions × images.
    """
    i2t = over_queries(first_ranks, rows_of_images(s, images, captions), pairs.transpose())
    t2i = over_queries(first_ranks, rows_of_captions(s, images, captions), pairs)
    return i2t, t2i


def recalls(s: Similarity, images: Gaussian, captions: Gaussian, pairs: Pairs) -> dict[str, float]:
    """R@1/5/10 and median rank both ways, and rsum, with each caption's own image as the match."""
    return summary(*ranks(s, images, captions, pairs.pairs()))


def true_matches(
    s: Similarity, images: Gaussian, captions: Gaussian, relevance: Relevance
) -> dict[str, float]:
    """R-Precision in percent on everything that is *true*, not just on the annotated pairs."""
    i2t = over_queries(precision_at_r, rows_of_images(s, images, captions), relevance.transpose())
    t2i = over_queries(precision_at_r, rows_of_captions(s, images, captions), relevance)
    return {
        "i2t_r_precision": 100 * float(i2t.nanmean()),
        "t2i_r_precision": 100 * float(t2i.nanmean()),
    }


def ambiguity(images: Gaussian, captions: Gaussian, relevance: Relevance) -> dict[str, float]:
    """Spearman's ρ of uncertainty with the log of the number of true matches.

    For captions: images it is true of. For images: captions that are true of it.
    """
    return {
        "caption_rho": _rho(captions, relevance.counts),
        "image_rho": _rho(images, relevance.transpose().counts),
    }


def _rho(items: Gaussian, counts: Tensor) -> float:
    known = counts > 0
    return spearman(items.uncertainty()[known].double(), torch.log(counts[known].double()))
