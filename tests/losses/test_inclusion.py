from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from similarities.contract import draw, leaf

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.losses import inclusion, log_inclusion


@given(*[st.floats(-1, 1)] * 2, *[st.floats(-1, 1)] * 2)
def test_log_inclusion_is_the_log_of_an_integral(m1, m2, l1, l2):
    """ln ∫ p₁² p₂ up to the constant −ln 2π − ½ ln 2."""
    inner, outer = (
        Gaussian(torch.tensor([[m]]).double(), torch.tensor([[v]]).double())
        for m, v in ((m1, l1), (m2, l2))
    )
    p, q = norm(m1, np.exp(l1 / 2)), norm(m2, np.exp(l2 / 2))
    exact = np.log(quad(lambda x: p.pdf(x) ** 2 * q.pdf(x), -12, 12)[0])
    constant = -1.5 * np.log(2 * np.pi) + 0.5 * np.log(np.pi)
    assert log_inclusion(inner, outer).item() + constant == pytest.approx(exact, abs=1e-6)


def test_the_specific_lies_inside_the_vague():
    narrow, wide = (Gaussian(torch.zeros(3, 5), torch.full((3, 1), v)) for v in (-1.0, 1.0))
    assert inclusion(narrow, wide) < 0.1 < inclusion(wide, narrow)
    assert inclusion(narrow, narrow).item() == pytest.approx(np.log(2))


def test_it_widens_the_short_one_and_narrows_the_whole():
    whole, short = leaf(draw(4, 6, seed=1)), leaf(draw(4, 6, seed=1))
    inclusion(whole, short).backward()
    assert whole.log_var.grad.sum() > 0  # descent makes it narrower
    assert short.log_var.grad.sum() < 0


def test_points_are_refused():
    point = Gaussian(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="inclusion needs variances"):
        inclusion(point, point)
