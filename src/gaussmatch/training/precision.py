"""Mixed precision: networks in bfloat16 or float16, weights, gradients and scores in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from gaussmatch.recipe.training import PrecisionName

SCALE = 2.0**8
"""Of a float16 loss at the start; it grows by itself. The loss is a sum over the batch already."""


class Precision:
    """How a step computes on a device.

    bfloat16 has the range of float32 and needs nothing more; float16 has not, so its loss is
    scaled up for the backward pass and a step whose gradients overflow is left out. Scores are in
    float64 or float32 always (``Similarity.matrix``).

    >>> Precision("auto", torch.device("cpu")).dtype
    torch.float32
    """

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self.device, self.dtype = device, _dtype(name, device)
        half = self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.type, init_scale=SCALE, enabled=half)

    def forward(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def step(self, optimiser: torch.optim.Optimizer, clip: float) -> None:
        """Clipping and step, after the backward pass of the scaled loss."""
        self.scaler.unscale_(optimiser)
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        self.scaler.step(optimiser)
        self.scaler.update()


def _dtype(name: PrecisionName, device: torch.device) -> torch.dtype:
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type != "cuda":  # a CPU has no units for it as a rule; MPS has no float64 beside it
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
