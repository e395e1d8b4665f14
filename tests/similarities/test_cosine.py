from __future__ import annotations

import torch
from similarities.contract import draw, leaf

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity


def test_cosine_sees_neither_variances_nor_lengths():
    images, captions = draw(4, 8, seed=1), draw(5, 8, "sphere", seed=2)
    points = similarity("cosine").matrix(Gaussian(3 * images.mean), Gaussian(captions.mean))
    torch.testing.assert_close(similarity("cosine").matrix(images, captions), points)


def test_a_zero_mean_scores_zero_with_a_finite_gradient():
    zero = leaf(Gaussian(torch.zeros(2, 4)))
    scores = similarity("cosine").matrix(zero, draw(3, 4))
    scores.sum().backward()
    assert (scores == 0).all()
    assert zero.mean.grad.isfinite().all()
