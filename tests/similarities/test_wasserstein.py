from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from similarities.contract import draw

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity


def test_wasserstein_is_the_general_formula():
    """W₂² = ‖Δμ‖² + tr(Σi + Σc − 2 (Σc^½ Σi Σc^½)^½), for full covariances."""
    images, captions = draw(3, 4, seed=1), draw(3, 4, seed=2)
    got = similarity("wasserstein").matrix(images, captions).numpy()
    for i in range(3):
        for c in range(3):
            a = np.diag(images[i].variance.double().numpy())
            b = np.diag(captions[c].variance.double().numpy())
            root = np.asarray(sqrtm(b))
            trace = np.trace(a + b - 2 * np.asarray(sqrtm(root @ a @ root)))
            shift = (images[i].mean - captions[c].mean).double().square().sum().item()
            assert got[i, c] == pytest.approx(-np.sqrt(shift + trace.real), rel=1e-5)


@pytest.mark.parametrize(("name", "expected"), [("wasserstein", -1), ("wasserstein_literal", -3)])
def test_exact_compares_deviations_and_literal_compares_variances(name, expected):
    """σ = 2 and σ = 1 at one place: they differ by 1, their squares by 3."""
    wide, unit = (Gaussian(torch.zeros(1, 1), torch.tensor([[v]]).log()) for v in (4.0, 1.0))
    assert similarity(name).matrix(wide, unit).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["wasserstein", "wasserstein_literal"])
def test_the_distance_of_a_gaussian_from_itself_is_zero_and_its_best_match(name):
    g = draw(6, 64)
    scores = similarity(name).matrix(g, g)
    assert scores.diagonal().abs().max() < 1e-5
    assert scores.argmax(-1).tolist() == list(range(6))
