"""The map: the plane of most variance, and covariances that are projected, not guessed."""

from __future__ import annotations

import math
from dataclasses import astuple
from statistics import fmean, variance

import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.learn.plot import PlaneProjection


def test_it_is_the_plane_of_most_variance() -> None:
    means = torch.randn(400, 6) * torch.tensor([1, 9, 1, 5, 1, 0.5])
    plane = PlaneProjection.fit(means)
    assert plane.axes.T @ plane.axes == pytest.approx(torch.eye(2).double(), abs=1e-9)
    _, singular, _ = torch.linalg.svd(means.double() - means.double().mean(0))
    assert plane.explained == pytest.approx(
        float(singular[:2].square().sum() / singular.square().sum())
    )
    places = plane(Gaussian(means))
    assert variance(p.x for p in places) > variance(p.y for p in places)
    assert fmean(p.x for p in places) == pytest.approx(0, abs=1e-5)


def test_the_ellipse_is_the_projected_covariance() -> None:
    """Rebuilt from its axes and angle it is AᵀΣA, and samples spread as it says."""
    means = torch.randn(50, 5)
    plane = PlaneProjection.fit(means)
    g = Gaussian(means[:3], torch.randn(3, 5))
    for i, place in enumerate(plane(g)):
        assert place.angle is not None
        assert place.a is not None
        assert place.b is not None
        whole = plane.axes.T @ torch.diag(g.variance[i].double()) @ plane.axes
        c, s = math.cos(place.angle), math.sin(place.angle)
        turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
        axes = torch.tensor([place.a**2, place.b**2], dtype=torch.float64)
        assert turn @ torch.diag(axes) @ turn.T == pytest.approx(whole, abs=1e-3)
        assert place.a >= place.b


def test_spheres_become_circles_and_points_have_no_ellipse() -> None:
    plane = PlaneProjection.fit(torch.randn(20, 4))
    sphere = plane(Gaussian(torch.randn(2, 4), torch.full((2, 1), math.log(4.0))))
    assert [(p.a, p.b) for p in sphere] == [(2.0, 2.0)] * 2
    row = plane(Gaussian(torch.zeros(1, 4)))[0]
    assert row.a is row.b is row.angle is None


@pytest.mark.parametrize("shape", [(1, 4), (3, 1), (2, 2)])
def test_small_galleries_have_a_map_too(shape: tuple[int, int]) -> None:
    means = torch.randn(shape)
    row = PlaneProjection.fit(means)(Gaussian(means, torch.zeros(shape)))[0]
    assert all(math.isfinite(value) for value in astuple(row) if value is not None)


def test_no_means_no_map() -> None:
    with pytest.raises(ValueError, match="n ≥ 1"):
        PlaneProjection.fit(torch.zeros(0, 3))
