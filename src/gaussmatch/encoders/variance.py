"""From a raw output to a log-variance: the bound of the paper and the three shapes."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Shape = Literal["ellipsoidal", "spherical-avgpool", "spherical-one-value"]
Bound = Literal["clamp", "smooth"]

Range = tuple[float, float]

VARIANCE_RANGE: Range = (0.1, 10.0)
"""The paper bounds every variance to this range (Sec. 4.2)."""


def bounded(
    raw: Float[Tensor, "... d"], bound: Bound, within: Range = VARIANCE_RANGE
) -> Float[Tensor, "... d"]:
    """ln σ² within the range.

    ``clamp`` is the paper's literal bound; outside, its gradient is zero and an item can stay
    stuck there. ``smooth`` bends towards the same bounds with slope 1 at their geometric mean (σ² =
    1 for the paper's range) and never stops.

    >>> bounded(torch.tensor([-9.0, 0.0, 9.0]), "clamp").exp()
    tensor([ 0.1000,  1.0000, 10.0000])
    """
    low, high = (math.log(v) for v in within)
    if bound == "clamp":
        return raw.clamp(low, high)
    center, half = (high + low) / 2, (high - low) / 2
    return center + half * torch.tanh((raw - center) / half)


def shaped(log_var: Float[Tensor, "... d"], shape: Shape) -> Float[Tensor, "... k"]:
    """The log-variance in its final shape: (…, D) as it is, or (…, 1) for a sphere.

    ``spherical-avgpool`` takes the arithmetic mean of the *variances* of an ellipsoid.

    >>> shaped(torch.tensor([[1.0, 3.0]]).log(), "spherical-avgpool").exp()
    tensor([[2.]])
    """
    if shape == "spherical-avgpool":
        return log_var.logsumexp(-1, keepdim=True) - math.log(log_var.shape[-1])
    return log_var
