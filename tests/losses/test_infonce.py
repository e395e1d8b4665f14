from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from losses.contract import LossContract
from torch.nn.functional import cross_entropy

from gaussmatch.core.losses import InfoNCE, negatives


class TestSum(LossContract):
    def make(self):
        return InfoNCE(scale=2.0)


class TestMean(LossContract):
    def make(self):
        return InfoNCE(scale=2.0, learn_scale=False, reduction="mean")


@given(st.integers(1, 6), st.integers(0, 99), st.sampled_from([0.5, 1.0, 8.0]))
def test_agrees_with_torch_where_all_others_are_negatives(n, seed, scale):
    dice = torch.Generator().manual_seed(seed)
    by_image, by_caption = (torch.randn(n, n, generator=dice, dtype=torch.float64) for _ in "ic")
    own = torch.arange(n)
    expected = cross_entropy(scale * by_image, own) + cross_entropy(scale * by_caption.T, own)
    loss = InfoNCE(scale, reduction="mean")
    got = loss(by_image, by_caption, negatives(own))["infonce"]
    torch.testing.assert_close(got, expected)
    summed = InfoNCE(scale)(by_image, by_caption, negatives(own))["infonce"]
    torch.testing.assert_close(summed, n * expected)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("batch", [1, 2, 7, 128])
def test_equal_scores_give_the_collapsed_value(batch, reduction):
    level = torch.full((batch, batch), -3.0, dtype=torch.float64)
    loss = InfoNCE(reduction=reduction)
    got = loss(level, level, negatives(torch.arange(batch)))["infonce"].item()
    assert got == pytest.approx(loss.collapsed_value(batch), rel=1e-6)


def test_the_scale_learns_only_if_it_may():
    scores, negative = torch.randn(4, 4), negatives(torch.arange(4))
    for learned in (True, False):
        loss = InfoNCE(learn_scale=learned)
        trained = scores.clone().requires_grad_()
        loss(trained, trained, negative)["infonce"].backward()
        assert (loss.log_scale.grad is not None) == learned
        assert set(loss.state_dict()) == {"log_scale"}


def test_refuses_a_scale_that_is_no_temperature():
    with pytest.raises(ValueError, match="must be positive, got 0"):
        InfoNCE(scale=0.0)
    with pytest.raises((ValueError, TypeError), match="median"):
        InfoNCE(reduction="median")


def test_texts_that_are_queries_only_are_one_direction_of_the_loss():
    """Both directions taken as queries are the whole loss; an image alike is no rival."""
    generator = torch.Generator().manual_seed(0)
    by_image, by_caption = torch.randn(2, 5, 5, generator=generator, dtype=torch.float64)
    negative, own = negatives(torch.tensor([0, 1, 2, 2, 3])), torch.arange(5)
    for reduction in ("sum", "mean"):
        loss = InfoNCE(2.0, learn_scale=False, reduction=reduction)
        both = loss.queries(by_caption, negative, own) + loss.queries(by_image.T, negative.T, own)
        whole = loss(by_image, by_caption, negative)["infonce"]
        assert float(both) == pytest.approx(float(whole), rel=1e-6)
    one = InfoNCE(2.0, learn_scale=False).queries(
        by_caption[:, [2]], negative[:, [2]], torch.tensor([2])
    )
    rivals = 2 * by_caption[[0, 1, 2, 4], 2]
    assert float(one) == pytest.approx(float(rivals.logsumexp(0) - rivals[2]), rel=1e-6)
