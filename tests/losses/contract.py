"""What every loss over a score matrix must keep. Subclass, give ``make``, inherit the tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gaussmatch.losses import negatives

Loss = Callable[[Tensor, Tensor], dict[str, Tensor]]


class LossContract(ABC):
    @abstractmethod
    def make(self) -> Loss:
        """The loss under test: (scores, negatives) → named terms."""

    def total(self, scores: Tensor, negative: Tensor) -> Tensor:
        return sum(self.make()(scores, negative).values(), start=torch.zeros(()))

    def test_gives_named_finite_scalars(self):
        terms = self.make()(torch.randn(6, 6), negatives(torch.arange(6)))
        assert terms
        for name, value in terms.items():
            assert isinstance(name, str)
            assert value.shape == ()
            assert value.isfinite()

    def test_gradients_are_those_of_finite_differences(self):
        scores = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
        negative = negatives(torch.tensor([0, 1, 1, 2, 3]))
        assert torch.autograd.gradcheck(lambda s: self.total(s, negative), (scores,))
        self.total(scores, negative).backward()
        assert scores.grad.any()

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
        self.make()(scores, negative)
        assert torch.equal(scores, before[0])
        assert torch.equal(negative, before[1])
