from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from losses.contract import LossContract

from gaussmatch.core.losses import TripletLoss, negatives

MININGS = ["hardest", "semi-hard", "sum"]


class TestHardest(LossContract):
    def make(self):
        return TripletLoss(margin=0.5, mining="hardest")


class TestSemiHard(LossContract):
    def make(self):
        return TripletLoss(margin=0.5, mining="semi-hard")


class TestSum(LossContract):
    def make(self):
        return TripletLoss(margin=0.5, mining="sum")


class TestMean(LossContract):
    def make(self):
        return TripletLoss(margin=0.5, reduction="mean")


def reference(scores: list[list[float]], ids: list[int], margin, mining, same_image_negatives):
    """The paper's sum, one triplet at a time."""
    n, total = len(scores), 0.0
    for k in range(n):
        positive = scores[k][k]
        others = [j for j in range(n) if (j != k if same_image_negatives else ids[j] != ids[k])]
        for wrong in ([scores[k][j] for j in others], [scores[j][k] for j in others]):
            if not wrong:
                continue
            if mining == "hardest":
                wrong = [max(wrong)]
            elif mining == "semi-hard":
                below = [s for s in wrong if s < positive]
                wrong = [max(below) if below else min(wrong)]
            total += sum(max(0.0, margin + s - positive) for s in wrong)
    return total


def value(loss: TripletLoss, scores: torch.Tensor, negative: torch.Tensor) -> float:
    return loss(scores, scores, negative)["triplet"].item()


@st.composite
def batches(draw):
    """Scores in quarters, so that sums are exact and ties are many; images with many captions."""
    n = draw(st.integers(1, 6))
    quarter = st.integers(-6, 6).map(lambda k: k / 4)
    scores = draw(st.lists(st.lists(quarter, min_size=n, max_size=n), min_size=n, max_size=n))
    return scores, draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))


@pytest.mark.parametrize("same", [False, True], ids=["distinct", "same-image"])
@pytest.mark.parametrize("mining", MININGS)
@given(batch=batches(), margin=st.sampled_from([0.0, 0.25, 1.0]))
def test_agrees_with_the_slow_loop(batch, margin, mining, same):
    scores, ids = batch
    negative = negatives(torch.tensor(ids), same_image_negatives=same)
    got = value(TripletLoss(margin, mining), torch.tensor(scores), negative)
    assert got == reference(scores, ids, margin, mining, same)


@pytest.mark.parametrize("level", [0.0, 0.7, -1234.5])
@pytest.mark.parametrize("batch", [1, 2, 7, 128])
@pytest.mark.parametrize("mining", MININGS)
def test_all_equal_scores_give_the_collapsed_value(mining, batch, level):
    loss = TripletLoss(0.2, mining)
    got = value(loss, torch.full((batch, batch), level), negatives(torch.arange(batch)))
    assert got == pytest.approx(loss.collapsed_value(batch), rel=1e-6)


@pytest.mark.parametrize(("mining", "terms"), [("hardest", 6), ("semi-hard", 6), ("sum", 36)])
def test_the_mean_is_over_rows_or_over_all_entries(mining, terms):
    """As PVSE's code takes it: of the maxima, or of the whole matrix with its zero diagonal."""
    scores, negative = torch.randn(6, 6), negatives(torch.arange(6))
    total = value(TripletLoss(0.5, mining), scores, negative)
    mean = TripletLoss(0.5, mining, "mean")
    assert value(mean, scores, negative) == pytest.approx(total / terms)
    alike = value(mean, torch.zeros(6, 6), negative)
    assert mean.collapsed_value(6) == pytest.approx(alike)


@pytest.mark.parametrize("mining", ["hardest", "semi-hard"])
def test_the_peers_collapse_is_two_batches_of_margins(mining):
    assert TripletLoss(0.2, mining).collapsed_value(128) == pytest.approx(2 * 128 * 0.2)


@pytest.mark.parametrize("mining", MININGS)
@pytest.mark.parametrize("ids", [[5], [5, 5, 5]], ids=["one pair", "one image"])
def test_without_negatives_the_loss_is_exactly_zero(mining, ids):
    scores = torch.randn(len(ids), len(ids), requires_grad=True)
    total = TripletLoss(0.2, mining)(scores, scores, negatives(torch.tensor(ids)))["triplet"]
    total.backward()
    assert total.item() == 0
    assert (scores.grad == 0).all()


@pytest.mark.parametrize("mining", MININGS)
def test_beyond_the_margin_there_is_nothing_to_learn(mining):
    scores = torch.eye(4)
    negative = negatives(torch.arange(4))
    assert value(TripletLoss(0.5, mining), scores, negative) == 0
    assert value(TripletLoss(1.5, mining), scores, negative) > 0


def test_the_gradient_reaches_the_positive_and_the_hardest_negative_both_ways():
    scores = torch.tensor([[0.5, 0.4, 0.1], [0.1, 0.9, 0.0], [0.3, 0.0, 0.9]], requires_grad=True)
    TripletLoss(0.25)(scores, scores, negatives(torch.arange(3)))["triplet"].backward()
    # Row 0 is beaten by (0, 1); column 0 by (2, 0). Everything else lies beyond the margin.
    assert scores.grad.tolist() == [[-2, 1, 0], [0, 0, 0], [1, 0, 0]]


def test_semi_hard_takes_the_most_similar_one_below_the_positive():
    scores = torch.tensor([[0.5, 0.9, 0.25], [-9, 9, -9], [-9, -9, 9.0]])
    negative = negatives(torch.arange(3))
    assert value(TripletLoss(0.5, "semi-hard"), scores, negative) == 0.25
    assert value(TripletLoss(0.5, "hardest"), scores, negative) == pytest.approx(0.9)


def test_semi_hard_falls_back_to_the_least_similar_one():
    scores = torch.tensor([[0.5, 0.75, 1.0], [-9, 9, -9], [-9, -9, 9.0]])
    assert value(TripletLoss(0.5, "semi-hard"), scores, negatives(torch.arange(3))) == 0.75


def test_other_captions_of_an_image_are_no_negatives_unless_set():
    ids = torch.tensor([7, 7, 9])
    assert negatives(ids).tolist() == [[0, 0, 1], [0, 0, 1], [1, 1, 0]]
    official = negatives(ids, same_image_negatives=True)
    assert official.tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_refuses_unknown_minings_and_negative_margins():
    with pytest.raises(ValueError, match="margin must not be negative, got -1"):
        TripletLoss(margin=-1.0)
    with pytest.raises((ValueError, TypeError), match="softest"):
        TripletLoss(mining="softest")
