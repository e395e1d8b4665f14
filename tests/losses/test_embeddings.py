"""Losses of the embeddings themselves, each against its formula by loops in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.losses import bottleneck, diversity, mean_discrepancy


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


sizes = st.integers(1, 4)


@given(sizes, sizes, st.integers(0, 99))
def test_diversity_is_its_formula(n, k, seed):
    residuals = draw(n, k, 3, seed=seed)
    each = []
    for item in residuals.numpy():
        cosines = [
            a @ b / np.sqrt((a @ a) * (b @ b))
            for i, a in enumerate(item)
            for j, b in enumerate(item)
            if i != j
        ]
        each.append(math.sqrt(sum(c**2 for c in cosines)) / k**2)
    assert float(diversity(residuals)) == pytest.approx(np.mean(each), abs=1e-12)


def test_diversity_has_a_finite_gradient_where_there_is_nothing_to_separate():
    for x in (draw(3, 1, 4), torch.eye(4, dtype=torch.float64)[None], torch.zeros(2, 3, 4)):
        x = x.clone().requires_grad_()
        diversity(x).backward()
        assert x.grad.isfinite().all()


@given(sizes, sizes, st.integers(0, 99))
def test_discrepancy_is_its_formula(n, k, seed):
    images, captions = draw(n, k, 3, seed=seed), draw(n, k, 3, seed=seed + 1)
    x, y = images.reshape(-1, 3).numpy(), captions.reshape(-1, 3).numpy()

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.mean([np.exp(-0.5 * np.sqrt(((p - q) ** 2).sum())) for p in a for q in b]))

    expected = kernel(x, x) - 2 * kernel(x, y) + kernel(y, y)
    assert float(mean_discrepancy(images, captions)) == pytest.approx(expected, abs=1e-12)
    flat = mean_discrepancy(torch.from_numpy(x), torch.from_numpy(y))
    assert float(flat) == pytest.approx(expected, abs=1e-12)


def test_discrepancy_falls_as_the_sides_meet_and_has_a_gradient_at_zero_distance():
    x = draw(6, 3)
    far, near = (float(mean_discrepancy(x, x + shift)) for shift in (2.0, 0.1))
    assert far > near > 0
    same = x.clone().requires_grad_()
    mean_discrepancy(same, x).backward()
    assert same.grad.isfinite().all()


@pytest.mark.parametrize("as_published", [False, True])
@pytest.mark.parametrize("width", [1, 3], ids=["sphere", "ellipsoid"])
def test_bottleneck_is_its_formula(width, as_published):
    g = Gaussian(draw(4, 3), draw(4, width, seed=1))
    total = 0.0
    for mean, log_var in zip(g.mean.tolist(), g.log_var.expand(4, 3).tolist(), strict=True):
        for m, v in zip(mean, log_var, strict=True):
            v = v / 2 if as_published else v
            total += -0.5 * (1 + v - m**2 - math.exp(v))
    assert float(bottleneck(g, as_published=as_published)) == pytest.approx(total)


def test_bottleneck_is_the_divergence_of_torch():
    from torch.distributions import Normal, kl_divergence

    g = Gaussian(draw(4, 3), draw(4, 3, seed=1))
    unit = Normal(torch.zeros(4, 3).double(), torch.ones(4, 3).double())
    torch.testing.assert_close(bottleneck(g), kl_divergence(Normal(g.mean, g.std), unit).sum())


def test_bottleneck_refuses_points():
    with pytest.raises(ValueError, match="needs variances"):
        bottleneck(Gaussian(torch.zeros(2, 3)))
