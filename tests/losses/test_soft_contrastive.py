from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from losses.contract import LossContract

from gaussmatch.core.losses import SoftContrastive, negatives


class TestSum(LossContract):
    def make(self):
        return SoftContrastive()


class TestMean(LossContract):
    def make(self):
        return SoftContrastive("mean")


def value(loss: SoftContrastive, scores: torch.Tensor, negative: torch.Tensor) -> float:
    return loss(scores, scores, negative)["soft_contrastive"].item()


@pytest.mark.parametrize("same", [False, True], ids=["distinct", "same-image"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@given(ids=st.lists(st.integers(0, 2), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_agrees_with_the_slow_loop(ids, seed, reduction, same):
    n = len(ids)
    scores = 3 * torch.randn(
        n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    total = 0.0
    for i in range(n):
        for c in range(n):
            p = 1 / (1 + math.exp(-scores[i, c].item()))
            if i == c:
                total -= 2 * math.log(p)
            elif same or ids[i] != ids[c]:
                total -= 2 * math.log(1 - p)
    negative = negatives(torch.tensor(ids), same_image_negatives=same)
    expected = total if reduction == "sum" else total / n**2
    assert value(SoftContrastive(reduction), scores, negative) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("batch", [1, 2, 7, 128])
def test_the_collapsed_value_is_the_least_that_one_score_for_all_can_reach(batch, reduction):
    loss, negative = SoftContrastive(reduction), negatives(torch.arange(batch))
    guess = math.log(1 / (batch - 1)) if batch > 1 else 40.0
    collapsed = loss.collapsed_value(batch)
    got = value(loss, torch.full((batch, batch), guess, dtype=torch.float64), negative)
    assert got == pytest.approx(collapsed, abs=1e-9)
    for other in (guess - 0.5, guess + 0.5):
        level = torch.full((batch, batch), other, dtype=torch.float64)
        assert value(loss, level, negative) >= collapsed


def test_refuses_unknown_reductions():
    with pytest.raises((ValueError, TypeError), match="median"):
        SoftContrastive("median")
