from __future__ import annotations

import pytest
import torch
from similarities.contract import draw

from gaussmatch.core.similarities import similarity


def test_csd_is_the_expected_squared_distance_of_two_samples():
    image, caption = draw(1, 3, seed=1), draw(1, 3, "sphere", seed=2)
    x, y = (g.mean + g.std * torch.randn(200_000, 3) for g in (image, caption))
    sampled = (x - y).square().sum(-1).mean().item()
    assert similarity("csd").matrix(image, caption).item() == pytest.approx(-sampled, rel=0.02)
