"""The loss that keeps several embeddings of one item apart (PVSE)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize


def diversity(residuals: Float[Tensor, "n k d"]) -> Float[Tensor, ""]:
    """‖G − I‖₂ / K², the mean over items, with G the cosines between an item's K residuals.

    Zero where they are orthogonal, and where K = 1.

    >>> diversity(torch.eye(2)[None])
    tensor(0.)
    >>> diversity(torch.ones(1, 2, 3))      # twice the same: √2 / 4
    tensor(0.3536)
    """
    unit = normalize(residuals, dim=-1)
    heads = unit.shape[1]
    same = torch.eye(heads, dtype=torch.bool, device=unit.device)
    others = (unit @ unit.mT).masked_fill(same, 0)
    alike: Tensor = others.flatten(1).norm(dim=1).mean()
    return alike / heads**2
