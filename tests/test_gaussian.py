from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.core.gaussian import Gaussian

KINDS = ["point", "sphere", "ellipsoid"]


def make(kind: str, *shape: int, dim: int = 4, dtype: torch.dtype = torch.float32) -> Gaussian:
    mean = torch.randn(*shape, dim, dtype=dtype)
    if kind == "point":
        return Gaussian(mean)
    return Gaussian(mean, torch.randn(*shape, 1 if kind == "sphere" else dim, dtype=dtype))


def assert_same(a: Gaussian, b: Gaussian) -> None:
    assert torch.equal(a.mean, b.mean)
    assert a.is_point == b.is_point
    assert a.is_point or torch.equal(a.log_var, b.log_var)


# ---- what it is ----


@pytest.mark.parametrize("kind", KINDS)
def test_kind_shape_and_dim(kind):
    g = make(kind, 2, 3)
    assert (g.shape, g.dim, len(g)) == ((2, 3), 4, 2)
    assert g.is_point == (kind == "point")
    assert g.is_spherical == (kind == "sphere")
    assert (g.device, g.dtype) == (torch.device("cpu"), torch.float32)
    assert ("ellipsoidal" if kind == "ellipsoid" else kind[:5]) in repr(g)


@pytest.mark.parametrize("field", ["mean", "log_var"])
def test_is_frozen(field):
    g = make("ellipsoid", 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(g, field, torch.zeros(3, 4))


@pytest.mark.parametrize("kind", KINDS)
def test_variance_and_std(kind):
    g = make(kind, 5)
    width = 4 if kind == "ellipsoid" else 1
    assert g.variance.shape == g.std.shape == (5, width)
    expected = torch.zeros(5, 1) if g.is_point else g.log_var.exp()
    torch.testing.assert_close(g.variance, expected)
    torch.testing.assert_close(g.std.square(), expected)


# ---- uncertainty ----


@pytest.mark.parametrize("dim", [1, 4])
@pytest.mark.parametrize("kind", ["sphere", "ellipsoid"])
def test_uncertainty_is_the_log_determinant_of_the_covariance(kind, dim):
    g = make(kind, 6, dim=dim, dtype=torch.float64)
    covariance = torch.diag_embed(g.variance.expand(6, dim))
    torch.testing.assert_close(g.uncertainty(), torch.logdet(covariance))
    torch.testing.assert_close(g.mean_log_var(), g.uncertainty() / dim)
    torch.testing.assert_close(g.expand().uncertainty(), g.uncertainty())


@pytest.mark.parametrize("ask", ["uncertainty", "mean_log_var"])
def test_a_point_has_no_uncertainty(ask):
    with pytest.raises(ValueError, match=rf"{ask}\(\) needs variances"):
        getattr(make("point", 3), ask)()


@pytest.mark.parametrize("kind", KINDS)
def test_expand_gives_every_dimension_its_variance(kind):
    g = make(kind, 3).expand()
    assert not g.is_spherical
    assert g.is_point or g.log_var.shape == (3, 4)


# ---- a container ----

INDICES = {
    "int": 2,
    "negative": -1,
    "slice": slice(1, 4),
    "step": slice(None, None, 2),
    "list": [3, 0, 3],
    "empty": [],
    "mask": torch.tensor([True, False, True, True, False]),
    "tensor": torch.tensor([4, 1]),
    "ellipsis": ...,
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
@pytest.mark.parametrize("kind", KINDS)
def test_indexing_selects_items(kind, index):
    g = make(kind, 5)
    rows = torch.arange(5)[index]
    assert_same(g[index], Gaussian(g.mean[rows], None if g.is_point else g.log_var[rows]))


@pytest.mark.parametrize("index", [(1, 2), (slice(None), 0), (..., 1), (0, ...), ([0, 1], [2, 0])])
def test_indexing_several_batch_dimensions(index):
    g = make("sphere", 2, 3)
    items = torch.arange(6).reshape(2, 3)[index]
    assert g[index].shape == items.shape
    assert torch.equal(g[index].mean, g.mean.reshape(6, 4)[items])
    assert torch.equal(g[index].log_var, g.log_var.reshape(6, 1)[items])


@pytest.mark.parametrize("index", [(slice(None), 0), (0, 0), (..., 0, 0)])
@pytest.mark.parametrize("kind", KINDS)
def test_indexing_never_reaches_the_dimensions(kind, index):
    with pytest.raises(IndexError):
        make(kind, 5)[index]


def test_a_single_gaussian_is_no_container():
    single = make("ellipsoid", 5)[0]
    with pytest.raises(TypeError, match="no length"):
        len(single)
    with pytest.raises(TypeError, match="cannot be indexed"):
        single[0]


@given(st.sampled_from(KINDS), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_cat_undoes_slicing(kind, sizes):
    whole = make(kind, sum(sizes))
    starts = np.cumsum([0, *sizes]).tolist()
    parts = [whole[a:b] for a, b in pairwise(starts)]
    assert_same(Gaussian.cat(parts), whole)


@pytest.mark.parametrize(
    "parts",
    [
        (make("point", 2), make("sphere", 2)),
        (make("sphere", 2), make("ellipsoid", 2)),
        (make("ellipsoid", 2), make("point", 2)),
        (make("ellipsoid", 2), make("ellipsoid", 2, dim=5)),
        (make("sphere", 2), make("sphere", 2, dim=5)),
        (make("point", 2), make("point", 2, 3)),
        (make("point", 2, 2), make("point", 2, 3)),
    ],
)
def test_cat_refuses_to_mix(parts):
    with pytest.raises(ValueError, match="different shapes or dimensions"):
        Gaussian.cat(parts)


def test_cat_of_nothing():
    with pytest.raises(ValueError, match="nothing to concatenate"):
        Gaussian.cat([])


@pytest.mark.parametrize("kind", KINDS)
def test_to_converts_both_tensors(kind):
    g = make(kind, 3)
    wide = g.to(torch.float64)
    assert wide.dtype == torch.float64
    assert wide.is_point or wide.log_var.dtype == torch.float64
    assert_same(wide.to(dtype=torch.float32), g)


@pytest.mark.parametrize("kind", KINDS)
def test_detach_cuts_both_tensors(kind):
    g = make(kind, 3)
    for tensor in (g.mean, g.log_var):
        if tensor is not None:
            tensor.requires_grad_()
    cut = g.detach()
    assert not cut.mean.requires_grad
    assert cut.is_point or not cut.log_var.requires_grad
    assert_same(cut, g)


# ---- on disk ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_load_reads_what_save_wrote(tmp_path, kind, dtype):
    g = make(kind, 2, 3, dtype=dtype)
    g.save(tmp_path / "g.safetensors")
    back = Gaussian.load(str(tmp_path / "g.safetensors"))
    assert back.dtype == dtype
    assert_same(back, g)


def test_save_takes_views_and_tensors_with_gradients(tmp_path):
    both = torch.randn(1, 8, requires_grad=True)
    views = Gaussian(both[:, :4], both[:, 4:])
    for g in (views, make("sphere", 5).expand(), make("ellipsoid", 6)[::2]):
        g.save(tmp_path / "g.safetensors")
        assert_same(Gaussian.load(tmp_path / "g.safetensors"), g)


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_a_truncated_file_is_named(tmp_path, keep):
    path = tmp_path / "cut.safetensors"
    make("ellipsoid", 10).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"cut\.safetensors: not a complete safetensors file"):
        Gaussian.load(path)


def test_another_file_is_named(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"model\.safetensors: holds no 'mean'; found \['weight'\]"
    ):
        Gaussian.load(tmp_path / "model.safetensors")


# ---- refusals ----


@pytest.mark.parametrize(
    ("mean", "log_var"),
    [
        ((3, 4), (3, 2)),
        ((3, 4), (2, 4)),
        ((3, 4), (4,)),
        ((3, 4), (3,)),
        ((3, 4), (1, 4)),
        ((4,), (1, 4)),
        ((2, 3, 4), (3, 4)),
    ],
)
def test_a_log_variance_that_does_not_fit(mean, log_var):
    with pytest.raises(ValueError, match="does not fit mean") as error:
        Gaussian(torch.zeros(mean), torch.zeros(log_var))
    assert str(mean) in str(error.value)
    assert str(log_var) in str(error.value)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_a_mean_without_dimensions(shape):
    with pytest.raises(ValueError, match="D ≥ 1"):
        Gaussian(torch.zeros(shape))


def test_integers_are_refused():
    with pytest.raises(TypeError, match="mean must be a floating-point"):
        Gaussian(torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match="log_var must be a floating-point"):
        Gaussian(torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.int64))


def test_in_one_dimension_a_sphere_is_an_ellipsoid():
    g = Gaussian(torch.zeros(3, 1), torch.tensor([[0.5], [1.0], [2.0]]))
    assert g.is_spherical
    assert g.uncertainty().tolist() == [0.5, 1.0, 2.0]
    assert_same(Gaussian.cat([g.expand(), g]), Gaussian.cat([g, g]))
