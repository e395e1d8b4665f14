"""From a raw output to a log-variance: the bound of the paper and the three shapes."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Shape = Literal["ellipsoidal", "spherical-avgpool", "spherical-one-value"]
Bound = Literal["clamp", "smooth"]

VARIANCE_RANGE = (0.1, 10.0)
"""The paper bounds every variance to this range (Sec. 4.2)."""

_LOW, _HIGH = (math.log(v) for v in VARIANCE_RANGE)


def bounded(raw: Float[Tensor, "... d"], bound: Bound) -> Float[Tensor, "... d"]:
    """ln σ² within the range.

    ``clamp`` is the paper's literal bound; outside, its gradient is zero and an item can stay
    stuck there. ``smooth`` bends towards the same bounds with slope 1 at σ² = 1 and never stops.

    >>> bounded(torch.tensor([-9.0, 0.0, 9.0]), "clamp").exp()
    tensor([ 0.1000,  1.0000, 10.0000])
    """
    if bound == "clamp":
        return raw.clamp(_LOW, _HIGH)
    middle, half = (_HIGH + _LOW) / 2, (_HIGH - _LOW) / 2
    return middle + half * torch.tanh((raw - middle) / half)


def shaped(log_var: Float[Tensor, "... d"], shape: Shape) -> Float[Tensor, "... k"]:
    """The log-variance in its final shape: (…, D) as it is, or (…, 1) for a sphere.

    ``spherical-avgpool`` takes the arithmetic mean of the *variances* of an ellipsoid.

    >>> shaped(torch.tensor([[1.0, 3.0]]).log(), "spherical-avgpool").exp()
    tensor([[2.]])
    """
    if shape == "spherical-avgpool":
        return log_var.logsumexp(-1, keepdim=True) - math.log(log_var.shape[-1])
    return log_var
