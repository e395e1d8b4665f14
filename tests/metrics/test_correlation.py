from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from gaussmatch.core.metrics import average_ranks, spearman

FEW = st.integers(-2, 2).map(float)  # many ties
ANY = st.floats(-1e6, 1e6, width=32)


def columns(elements):
    return st.integers(2, 12).flatmap(
        lambda n: st.tuples(*[st.lists(elements, min_size=n, max_size=n)] * 2)
    )


@given(columns(FEW) | columns(ANY))
def test_agrees_with_scipy(case):
    x, y = case
    assume(len(set(x)) > 1 and len(set(y)) > 1)
    expected = spearmanr(x, y).statistic
    assert spearman(torch.tensor(x), torch.tensor(y)) == pytest.approx(expected, abs=1e-9)


@given(st.lists(FEW | ANY | st.sampled_from([math.inf, -math.inf]), min_size=1, max_size=12))
def test_equal_values_share_their_mean_rank(x):
    assert average_ranks(torch.tensor(x)).tolist() == (rankdata(x) - 1).tolist()


@pytest.mark.parametrize("swap", [False, True])
def test_a_constant_correlates_with_nothing(swap):
    pair = torch.ones(4), torch.arange(4.0)
    assert math.isnan(spearman(*(reversed(pair) if swap else pair)))


@pytest.mark.parametrize("bad", [0, 1])
def test_a_nan_is_refused(bad):
    pair = [torch.arange(4.0), torch.arange(4.0)]
    pair[bad][2] = torch.nan
    with pytest.raises(ValueError, match="NaN has no rank"):
        spearman(*pair)


def test_one_value_has_no_order():
    with pytest.raises(ValueError, match="two vectors of one length ≥ 2"):
        spearman(torch.zeros(1), torch.zeros(1))
