"""What every encoder must do. Subclass, and give ``make`` and ``batch``."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gaussmatch.core.gaussian import Gaussian


class EncoderContract:
    """``make()`` → a module; ``batch(n)`` → its positional inputs; ``take(inputs, order)``."""

    dim: int
    embeddings: int = 1
    """K: how many points an item has."""
    idle: tuple[str, ...] = ()
    """Endings of parameters that by design no gradient reaches."""

    def make(self) -> nn.Module:
        raise AssertionError("give a factory")

    def batch(self, n: int) -> Any:
        raise AssertionError("give a batch")

    def take(self, inputs: Any, order: Tensor) -> Any:
        return inputs[order]

    def encode(self, encoder: nn.Module, inputs: Any) -> Gaussian:
        output = encoder(inputs)
        return output if isinstance(output, Gaussian) else Gaussian(output)

    def made(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().eval()

    def test_shapes(self) -> None:
        g = self.encode(self.made(), self.batch(5))
        assert g.shape == ((5,) if self.embeddings == 1 else (5, self.embeddings))
        assert g.dim == self.dim

    def test_order_of_the_batch_does_not_matter(self) -> None:
        encoder, inputs, order = self.made(), self.batch(6), torch.tensor([3, 0, 5, 1, 4, 2])
        direct = self.encode(encoder, inputs)[order]
        permuted = self.encode(encoder, self.take(inputs, order))
        torch.testing.assert_close(permuted.mean, direct.mean)
        if direct.log_var is not None:
            torch.testing.assert_close(permuted.log_var, direct.log_var)

    def test_gradients_reach_every_parameter(self) -> None:
        encoder = self.made().train()
        g = self.encode(encoder, self.batch(4))
        weights = torch.randn(g.mean.shape, generator=torch.Generator().manual_seed(1))
        total = (g.mean * weights).sum()
        if g.log_var is not None:
            total = total + (g.log_var * weights[..., : g.log_var.shape[-1]]).sum()
        total.backward()
        for name, p in encoder.named_parameters():
            assert p.grad is not None, name
            assert p.grad.isfinite().all(), name
            assert bool(p.grad.any()) is not name.endswith(self.idle or "-"), name

    def test_state_dict_gives_the_same_output(self) -> None:
        encoder, inputs = self.made(), self.batch(3)
        torch.manual_seed(99)
        other = self.make().eval()
        other.load_state_dict(copy.deepcopy(encoder.state_dict()))
        a, b = self.encode(encoder, inputs), self.encode(other, inputs)
        assert torch.equal(a.mean, b.mean)
        if a.log_var is not None:
            assert torch.equal(a.log_var, b.log_var)

    def test_bfloat16_stays_finite(self) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            g = self.encode(self.made(), self.batch(4))
        assert g.mean.isfinite().all()
        assert g.log_var is None or g.log_var.isfinite().all()
