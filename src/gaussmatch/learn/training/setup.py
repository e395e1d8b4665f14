"""What is settled before the first step: seeds, device, precision, width of the features,
rates."""

from __future__ import annotations

import math
import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, StepLR

from gaussmatch.data.pairs import Pairs
from gaussmatch.models.matcher import Matcher
from gaussmatch.models.recipe import Recipe, TrainingRecipe
from gaussmatch.models.recipe.training import PrecisionName


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - third-party code may draw from it
    torch.manual_seed(seed)


def with_feature_dim(recipe: Recipe, pairs: Pairs) -> Recipe:
    """The recipe with the width of the data's features filled in, or checked."""
    if recipe.model.backbone is not None:
        return recipe
    width = int(np.asarray(pairs.images[0]).shape[-1])
    if recipe.model.feature_dim not in (None, width):
        raise ValueError(
            f"model.feature_dim is {recipe.model.feature_dim}, but {pairs.name} has {width}"
        )
    return replace(recipe, model=replace(recipe.model, feature_dim=width))


def optimizer(matcher: Matcher, settings: TrainingRecipe) -> torch.optim.Optimizer:
    """Adam or AdamW at one rate; a backbone at ``backbone_rate`` times it, or not at all."""
    inside = {id(p) for name, p in matcher.named_parameters() if ".backbone." in name}
    rest = [p for p in matcher.parameters() if id(p) not in inside]
    groups = [{"params": rest, "lr": settings.learning_rate}]
    backbone = [p for p in matcher.parameters() if id(p) in inside]
    if backbone and settings.backbone_rate > 0:
        rate = settings.backbone_rate * settings.learning_rate
        groups.append({"params": backbone, "lr": rate})
    for p in backbone:
        p.requires_grad_(settings.backbone_rate > 0)
    if settings.optimizer == "adamw":  # one pass over the weights: an eighth of the time
        return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.Adam(groups, fused=settings.optimizer == "fused-adam" or None)


def schedule(optimiser: torch.optim.Optimizer, settings: TrainingRecipe, steps: int) -> LRScheduler:
    """The learning rate over time: ``step`` moves with each epoch, the others with each step."""
    if settings.schedule == "step":
        return StepLR(optimiser, settings.decay_epoch, settings.decay)
    if settings.schedule == "one-cycle":
        rates = [group["lr"] for group in optimiser.param_groups]
        return OneCycleLR(optimiser, rates, steps, pct_start=settings.warmup, cycle_momentum=False)
    return LambdaLR(optimiser, lambda step: cosine(step, steps, settings.warmup))


def cosine(step: int, steps: int, warmup: float) -> float:
    """Factor of the rate: up in a line over a share of all steps, then down half a cosine to 0.

    >>> [round(cosine(step, 8, warmup=0.25), 2) for step in range(9)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07, 0.0]
    """
    up = warmup * steps
    if step + 1 <= up:
        return (step + 1) / up
    done = max(0.0, step - up) / max(1.0, steps - up)
    return (1 + math.cos(math.pi * min(1.0, done))) / 2


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
