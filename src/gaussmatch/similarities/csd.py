"""The closed-form sampled distance of later probabilistic models, negated."""

from __future__ import annotations

import torch
from torch import Tensor

from gaussmatch.gaussian import Gaussian
from gaussmatch.similarities.base import Lifted, Similarity


class CSD(Similarity):
    """−CSD = −(‖μi − μc‖² + Σσi² + Σσc²), the expected squared distance of two samples (PCME++).

    As a squared distance: each side puts the root of its total variance on an axis of its own.
    """

    name = "csd"
    metric = "squared_l2"
    uncertainty_note = (
        "every match pays for its variance under CSD, so with a ranking loss frequent, vague "
        "captions become the *narrowest*: the sign turns round"
    )

    def lift_images(self, g: Gaussian) -> Lifted:
        root = _root_total_variance(g)
        return (torch.cat([g.mean, root, torch.zeros_like(root)], -1),)

    def lift_captions(self, g: Gaussian) -> Lifted:
        root = _root_total_variance(g)
        return (torch.cat([g.mean, torch.zeros_like(root), root], -1),)


def _root_total_variance(g: Gaussian) -> Tensor:
    total = g.variance.sum(-1, keepdim=True)
    return (total * g.dim if g.is_spherical else total).sqrt()
