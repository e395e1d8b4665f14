"""What every loss over a score matrix must keep. Subclass, give ``make``, inherit the tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gaussmatch.core.losses import negatives

Loss = Callable[[Tensor, Tensor, Tensor], dict[str, Tensor]]


class LossContract(ABC):
    @abstractmethod
    def make(self) -> Loss:
        """The loss under test: scores of both directions and negatives → named terms."""

    def total(self, scores: Tensor, negative: Tensor, captions: Tensor | None = None) -> Tensor:
        """One score matrix for both directions, unless that of caption queries is given."""
        both = scores, scores if captions is None else captions
        return sum(self.make()(*both, negative).values(), start=torch.zeros(()))

    def test_gives_named_finite_scalars(self):
        terms = self.make()(torch.randn(6, 6), torch.randn(6, 6), negatives(torch.arange(6)))
        assert terms
        for name, value in terms.items():
            assert isinstance(name, str)
            assert value.shape == ()
            assert value.isfinite()

    def test_gradients_are_those_of_finite_differences(self):
        both = [torch.randn(5, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        negative = negatives(torch.tensor([0, 1, 1, 2, 3]))
        assert torch.autograd.gradcheck(lambda i, c: self.total(i, negative, c), both)
        self.total(both[0], negative, both[1]).backward()
        assert all(scores.grad.any() for scores in both)

    def test_images_and_captions_have_the_same_role(self):
        by_image, by_caption = torch.randn(5, 5), torch.randn(5, 5)
        negative = negatives(torch.tensor([0, 1, 1, 2, 3]))
        there = self.total(by_image, negative, by_caption)
        torch.testing.assert_close(self.total(by_caption.T, negative.T, by_image.T), there)

    def test_what_is_neither_the_pair_nor_a_negative_plays_no_part(self):
        scores, negative = torch.randn(4, 4), negatives(torch.tensor([0, 0, 1, 2]))
        changed = scores.clone()
        changed[0, 1] = changed[1, 0] = 50.0
        torch.testing.assert_close(self.total(changed, negative), self.total(scores, negative))

    @pytest.mark.parametrize("ids", [[0], [3, 3, 3], [0, 1], [0, 0, 1]])
    @pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
    def test_value_and_gradient_are_finite_in_odd_batches(self, ids, scale):
        """One pair, one image only, all scores alike, scores as large as a divergence's."""
        scores = (-scale * torch.rand(len(ids), len(ids))).requires_grad_()
        total = self.total(scores, negatives(torch.tensor(ids)))
        total.backward()
        assert total.isfinite()
        assert scores.grad.isfinite().all()

    @given(st.permutations(range(6)))
    def test_the_order_of_the_batch_does_not_matter(self, order):
        scores, ids = torch.randn(6, 6), torch.tensor([0, 0, 1, 2, 2, 3])
        permuted = self.total(scores[order][:, order], negatives(ids[order]))
        torch.testing.assert_close(permuted, self.total(scores, negatives(ids)))

    def test_leaves_its_inputs_alone(self):
        scores, negative = torch.randn(4, 4), negatives(torch.arange(4))
        before = scores.clone(), negative.clone()
        self.make()(scores, scores, negative)
        assert torch.equal(scores, before[0])
        assert torch.equal(negative, before[1])
