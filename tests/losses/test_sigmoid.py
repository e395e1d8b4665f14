from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from losses.contract import LossContract

from gaussmatch.core.losses import PairwiseSigmoid, SoftContrastive, negatives


class TestSum(LossContract):
    def make(self):
        return PairwiseSigmoid(scale=2.0, bias=-1.0)


class TestMean(LossContract):
    def make(self):
        return PairwiseSigmoid(scale=2.0, learn_scale=False, reduction="mean")


class TestPseudoPositives(LossContract):
    def make(self):
        return PairwiseSigmoid(scale=2.0, pseudo_positives=0.1)


def slow(by_image, by_caption, ids, scale, bias, weight):
    """One combination at a time; −ln sigmoid of the logit's sign times the logit."""
    n, plain, pseudo = len(ids), 0.0, 0.0
    for query in range(n):
        for item in range(n):
            for row in (by_image, by_caption.T):
                logit = scale * row[query, item].item() + bias
                own = scale * row[query, query].item() + bias
                if query != item and ids[query] == ids[item]:
                    continue
                match = query == item
                plain += math.log1p(math.exp(-logit if match else logit))
                match = match or logit >= own
                pseudo += math.log1p(math.exp(-logit if match else logit))
    return plain, weight * pseudo


@given(ids=st.lists(st.integers(0, 3), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_agrees_with_the_slow_loop(ids, seed):
    dice = torch.Generator().manual_seed(seed)
    n = len(ids)
    by_image, by_caption = (torch.randn(n, n, generator=dice, dtype=torch.float64) for _ in "ic")
    loss = PairwiseSigmoid(scale=3.0, bias=-1.5, pseudo_positives=0.25)
    terms = loss(by_image, by_caption, negatives(torch.tensor(ids)))
    expected = slow(by_image, by_caption, ids, 3.0, -1.5, 0.25)
    assert [t.item() for t in terms.values()] == pytest.approx(expected, rel=1e-6)
    mean = PairwiseSigmoid(3.0, -1.5, reduction="mean")
    got = mean(by_image, by_caption, negatives(torch.tensor(ids)))["sigmoid"].item()
    assert got == pytest.approx(expected[0] / n, rel=1e-6)


def test_with_log_odds_for_scores_it_is_the_soft_contrastive_loss():
    scores, negative = torch.randn(5, 5), negatives(torch.tensor([0, 1, 1, 2, 3]))
    ours = PairwiseSigmoid(scale=1.0)(scores, scores, negative)["sigmoid"]
    theirs = SoftContrastive()(scores, scores, negative)["soft_contrastive"]
    torch.testing.assert_close(ours, theirs)


def test_scale_and_bias_learn():
    loss, scores = PairwiseSigmoid(), torch.randn(4, 4)
    loss(scores, scores, negatives(torch.arange(4)))["sigmoid"].backward()
    assert loss.log_scale.grad
    assert loss.bias.grad
    assert set(loss.state_dict()) == {"log_scale", "bias"}


def test_the_collapsed_value_is_reached_by_the_bias_alone():
    batch = 7
    loss = PairwiseSigmoid(bias=-math.log(batch - 1))
    level = torch.zeros(batch, batch)
    got = loss(level, level, negatives(torch.arange(batch)))["sigmoid"].item()
    assert got == pytest.approx(loss.collapsed_value(batch), rel=1e-6)


def test_refuses_a_negative_weight():
    with pytest.raises(ValueError, match="pseudo_positives must not be negative"):
        PairwiseSigmoid(pseudo_positives=-0.1)
