"""What every similarity must keep. Subclass ``LiftedContract``, or ``PairwiseContract`` for one
without a lift; give a name and a formula, inherit the tests."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import Side, Similarity, base, pairwise, similarity
from gaussmatch.core.similarities.base import SIDES, CenteredLift, other_side

LOW, HIGH = math.log(0.1), math.log(10.0)
KINDS = ("ellipsoid", "sphere")
MIXES = [(a, b) for a in KINDS for b in KINDS]


def draw(
    n: int, dim: int, kind: str = "ellipsoid", *, unit: bool = False, seed: int = 0, **to: Any
):
    """n random Gaussians with ln σ² uniform on [ln 0.1, ln 10]."""
    dice = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, dim, generator=dice)
    if unit:
        mean = torch.nn.functional.normalize(mean, dim=-1)
    width = {"ellipsoid": dim, "sphere": 1}[kind]
    log_var = LOW + (HIGH - LOW) * torch.rand(n, width, generator=dice)
    return Gaussian(mean, log_var).to(**to) if to else Gaussian(mean, log_var)


def leaf(g: Gaussian) -> Gaussian:
    """A copy whose tensors collect gradients."""
    log_var = None if g.log_var is None else g.log_var.detach().clone().requires_grad_()
    return Gaussian(g.mean.detach().clone().requires_grad_(), log_var)


def gradients(*gaussians: Gaussian) -> list[Tensor]:
    tensors = [t for g in gaussians for t in (g.mean, g.log_var) if t is not None]
    return [t.grad for t in tensors if t.grad is not None]


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation makes."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.dtype, self.numel = dtype, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and self.dtype in (None, tensor.dtype):
                self.numel = max(self.numel, tensor.numel())
        return result


class Products(TorchDispatchMode):
    """Remembers the shape of every matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm):
            self.shapes.append(tuple(result.shape))
        return result


class SimilarityContract(ABC):
    name: ClassVar[str]
    symmetric: ClassVar[bool]
    settings: ClassVar[dict[str, Any]] = {}
    query: ClassVar[Side] = "captions"
    """The side of the query; subclass once for each where the direction counts."""

    @staticmethod
    @abstractmethod
    def formula(mi: np.ndarray, vi: np.ndarray, mc: np.ndarray, vc: np.ndarray) -> float:
        """The score of one image N(mi, diag vi) and one caption, each (D,), in float64."""

    # ---- tools ----

    @property
    def similarity(self) -> Similarity:
        made = similarity(self.name, **self.settings).for_query(self.query)
        return made.requires_grad_(False) if isinstance(made, nn.Module) else made

    def reference(self, images: Gaussian, captions: Gaussian) -> np.ndarray:
        """``matrix`` by two loops, each side blown up to one variance for each dimension."""

        def rows(g: Gaussian):
            mean, var = g.mean.double().numpy(), np.exp(g.log_var.double().numpy())
            return list(zip(mean, np.broadcast_to(var, mean.shape), strict=True))

        return np.array([[self.formula(*i, *c) for c in rows(captions)] for i in rows(images)])

    def call(self, how: str, images: Gaussian, captions: Gaussian) -> Tensor:
        return getattr(self.similarity, how)(images, captions)

    # ---- the numbers ----

    @pytest.mark.parametrize("unit", [True, False], ids=["unit", "raw"])
    @pytest.mark.parametrize(("left", "right"), MIXES)
    @pytest.mark.parametrize("dim", [8, 64, 1024])
    def test_float32_agrees_with_the_float64_formula(self, dim, left, right, unit):
        images = draw(20, dim, left, unit=unit, seed=1)
        captions = draw(25, dim, right, unit=unit, seed=2)
        truth = self.reference(images, captions)

        matrix = self.similarity.matrix(images, captions)
        assert matrix.dtype == torch.float32
        np.testing.assert_allclose(matrix.numpy(), truth, rtol=1e-5)
        paired = self.similarity.paired(images, captions[:20])
        np.testing.assert_allclose(paired.numpy(), truth.diagonal(), rtol=1e-5)

        for scores, expected in ((matrix, truth), (matrix.T, truth.T)):
            best = np.argsort(-expected, axis=1)[:, :10]
            np.testing.assert_array_equal(scores.topk(10).indices.numpy(), best)

    @pytest.mark.parametrize("kind", KINDS)
    def test_one_dimension(self, kind):
        images, captions = draw(3, 1, kind, seed=1), draw(4, 1, kind, seed=2)
        matrix = self.similarity.matrix(images, captions)
        np.testing.assert_allclose(matrix.numpy(), self.reference(images, captions), rtol=1e-5)

    @pytest.mark.parametrize(("left", "right"), MIXES)
    def test_paired_is_the_diagonal_of_matrix(self, left, right):
        images, captions = draw(9, 16, left, seed=1), draw(9, 16, right, seed=2)
        diagonal = self.similarity.matrix(images, captions).diagonal()
        torch.testing.assert_close(self.similarity.paired(images, captions), diagonal)

    @pytest.mark.parametrize(("left", "right"), MIXES)
    def test_items_that_are_fixed_score_as_in_matrix(self, left, right):
        images, captions = draw(7, 8, left, seed=1), draw(5, 8, right, seed=2)
        whole = self.similarity.matrix(images, captions)
        assert torch.equal(self.similarity.against(images, "images")(captions), whole.T)
        assert torch.equal(self.similarity.against(captions, "captions")(images), whole)

    def test_shift_invariance_is_as_declared(self):
        images, captions = (draw(5, 6, seed=n, dtype=torch.float64) for n in (1, 2))
        moved = (Gaussian(g.mean + torch.arange(6.0), g.log_var) for g in (images, captions))
        same = torch.allclose(
            self.similarity.matrix(images, captions), self.similarity.matrix(*moved)
        )
        assert same == self.similarity.shift_invariant

    def test_symmetry_is_as_declared(self):
        a, b = draw(6, 8, seed=1), draw(7, 8, seed=2)
        there, back = self.similarity.matrix(a, b), self.similarity.matrix(b, a).T
        assert torch.allclose(there, back) is self.symmetric

    @given(st.permutations(range(5)), st.permutations(range(6)))
    def test_permuting_the_items_permutes_the_scores(self, rows, columns):
        images, captions = draw(5, 8, seed=1), draw(6, 8, seed=2)
        permuted = self.similarity.matrix(images[rows], captions[columns])
        expected = self.similarity.matrix(images, captions)[rows][:, columns]
        torch.testing.assert_close(permuted, expected)

    # ---- gradients ----

    @pytest.mark.parametrize("how", ["matrix", "paired"])
    @pytest.mark.parametrize(("left", "right"), MIXES)
    def test_gradients_are_those_of_finite_differences(self, how, left, right):
        images = leaf(draw(2, 3, left, seed=1, dtype=torch.float64))
        captions = leaf(draw(2, 3, right, seed=2, dtype=torch.float64))

        def scores(mi, li, mc, lc):
            return self.call(how, Gaussian(mi, li), Gaussian(mc, lc))

        torch.autograd.gradcheck(
            scores, (images.mean, images.log_var, captions.mean, captions.log_var)
        )

    @pytest.mark.parametrize("shared", [False, True], ids=["equal", "shared"])
    @pytest.mark.parametrize("how", ["matrix", "paired"])
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("log_var", [None, LOW, HIGH], ids=["random", "low", "high"])
    def test_gradients_are_finite_at_distance_zero(self, how, kind, log_var, shared):
        g = draw(4, 16, kind)
        if log_var is not None:
            g = Gaussian(g.mean, torch.full_like(g.log_var, log_var))
        images = leaf(g)
        captions = images if shared else leaf(g)
        self.call(how, images, captions).sum().backward()
        found = gradients(images, captions)
        assert found
        assert all(t.isfinite().all() for t in found)

    @pytest.mark.parametrize("how", ["matrix", "paired"])
    @pytest.mark.parametrize("bounds", [(LOW, LOW), (LOW, HIGH), (HIGH, LOW), (HIGH, HIGH)])
    def test_gradients_are_finite_at_the_variance_bounds(self, how, bounds):
        images, captions = (
            leaf(Gaussian(g.mean, torch.full_like(g.log_var, bound)))
            for g, bound in zip((draw(4, 16, seed=1), draw(4, 16, seed=2)), bounds, strict=True)
        )
        scores = self.call(how, images, captions)
        assert scores.isfinite().all()
        scores.sum().backward()
        assert all(t.isfinite().all() for t in gradients(images, captions))

    # ---- memory ----

    per_pair: ClassVar[int] = 1
    """Numbers that are held at once for a pair of items."""
    many: ClassVar[tuple[int, int]] = (200, 64)
    """Items and dimensions of the test of memory."""

    def test_nothing_is_ever_n_by_m_by_d(self):
        n, dim = self.many
        images, captions = leaf(draw(n, dim, seed=1)), leaf(draw(n, dim, seed=2))
        with Largest() as largest:
            self.similarity.matrix(images, captions).sum().backward()
        assert n * n <= largest.numel <= 3 * n * n * self.per_pair  # min_kl stacks two matrices
        assert largest.numel < n * n * dim

    def test_blocks_do_not_change_the_result(self, monkeypatch):
        images, captions = draw(60, 4, seed=1), draw(50, 4, seed=2)
        whole = self.similarity.matrix(images, captions)
        monkeypatch.setattr(base, "BLOCK_BYTES", 1)
        with Largest(torch.float64) as largest:
            blocked = self.similarity.matrix(images, captions)
        torch.testing.assert_close(blocked, whole)
        assert largest.numel < whole.numel()  # it did work in blocks

    @pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (0, 0)])
    def test_empty_sides(self, n, m):
        assert self.similarity.matrix(draw(n, 4), draw(m, 4)).shape == (n, m)

    # ---- precision ----

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("how", ["matrix", "paired"])
    def test_half_precision_stays_finite_even_at_the_bounds(self, how, dtype):
        images, captions = draw(4, 2048, seed=1, dtype=dtype), draw(4, 2048, seed=2, dtype=dtype)
        images = Gaussian(images.mean, torch.full_like(images.log_var, HIGH))
        captions = Gaussian(captions.mean, torch.full_like(captions.log_var, LOW))
        for a, b in ((images, captions), (captions, images)):
            scores = self.call(how, a, b)
            assert scores.isfinite().all()
            torch.testing.assert_close(
                scores, self.call(how, a.to(torch.float32), b.to(torch.float32))
            )

    def test_autocast_costs_no_precision(self):
        images, captions = draw(4, 64, seed=1), draw(4, 64, seed=2)
        with torch.autocast("cpu", torch.bfloat16):
            scores = self.similarity.matrix(images, captions)
        torch.testing.assert_close(scores, self.similarity.matrix(images, captions))

    # ---- refusals ----

    @pytest.mark.parametrize("how", ["matrix", "paired"])
    def test_refuses_another_dimension(self, how):
        with pytest.raises(ValueError, match="images have D = 4, captions have D = 5"):
            self.call(how, draw(3, 4), draw(3, 5))

    @pytest.mark.parametrize("how", ["matrix", "paired"])
    @pytest.mark.parametrize("side", ["images", "captions"])
    def test_points_where_variances_are_needed(self, how, side):
        sides = {"images": draw(3, 4, seed=1), "captions": draw(3, 4, seed=2)}
        sides[side] = Gaussian(sides[side].mean)
        if not self.similarity.needs_variance:
            assert self.call(how, **sides).isfinite().all()
            return
        with pytest.raises(ValueError, match=f"{self.similarity.name} .* the {side} are points"):
            self.call(how, **sides)

    def test_paired_refuses_unequal_lengths(self):
        with pytest.raises(ValueError, match="3 images but 4 captions"):
            self.similarity.paired(draw(3, 4), draw(4, 4))

    @pytest.mark.parametrize("side", ["images", "captions"])
    def test_refuses_what_is_not_a_batch(self, side):
        sides = {"images": draw(3, 4), "captions": draw(3, 4)}
        sides[side] = sides[side][0]
        with pytest.raises(ValueError, match=rf"{side} must be a batch"):
            self.similarity.matrix(**sides)

    def test_knows_its_name(self):
        assert similarity(self.name).name == self.name
        assert repr(similarity(self.name)) == f"similarity({self.name!r})"

    # ---- directions ----

    def test_both_ways_are_the_matrices_of_each_query(self):
        images, captions = draw(4, 6, seed=1), draw(5, 6, seed=2)
        whole = similarity(self.name)
        for side, scores in zip(SIDES, whole.both_ways(images, captions), strict=True):
            expected = whole.for_query(side).matrix(images, captions)
            torch.testing.assert_close(scores, expected)

    def test_a_direction_that_does_not_count_costs_nothing(self):
        """The same object is computed once; another one differs."""
        a, b = (similarity(self.name).for_query(side) for side in SIDES)
        made = similarity(self.name)
        if type(a) is type(b):
            assert made.for_query("images") is made
            assert made.for_query("captions") is made
        else:
            images, captions = draw(4, 6, seed=1), draw(5, 6, seed=2)
            assert not torch.allclose(a.matrix(images, captions), b.matrix(images, captions))

    def test_refuses_an_unknown_side(self):
        with pytest.raises((ValueError, TypeError), match="'image'"):
            similarity(self.name).for_query("image")


class LiftedContract(SimilarityContract):
    """A similarity that is its lift."""

    def test_says_that_an_index_can_hold_it(self):
        assert self.similarity.no_lift is None

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_lift_gives_the_matrix(self, kind):
        images, captions = draw(6, 16, kind, seed=1), draw(7, 16, kind, seed=2)
        s = self.similarity
        lifts = zip(
            s.lift_images(images.to(torch.float64)),
            s.lift_captions(captions.to(torch.float64)),
            strict=True,
        )
        scores = []
        for a, b in lifts:
            if s.metric == "inner_product":
                raw = torch.einsum("nw,mw->nm", a, b)
            else:
                raw = (a[:, None] - b[None]).square().sum(-1)
            scores.append(s.from_raw(raw))
        best = torch.stack(scores).amax(0).float()
        torch.testing.assert_close(best, s.matrix(images, captions))

    @pytest.mark.parametrize("side", SIDES)
    @pytest.mark.parametrize("kind", KINDS)
    def test_numpy_arrays_are_lifted_and_scored_as_tensors_are(self, kind, side):
        """Search takes its items and queries as arrays."""
        s, g, other = self.similarity, draw(6, 16, kind, seed=1), draw(6, 16, kind, seed=2)
        if not s.on_arrays:
            pytest.skip("its lift takes tensors only")
        lift = CenteredLift.of(s, g.to(torch.float64))
        tensors = lift(g, side), lift(other, other_side(side))
        arrays = lift.arrays(g.numpy(), side), lift.arrays(other.numpy(), other_side(side))
        for as_tensors, as_arrays in zip(tensors, arrays, strict=True):
            for a, b in zip(as_tensors, as_arrays, strict=True):
                assert isinstance(b, np.ndarray)
                np.testing.assert_allclose(b, a.numpy(), rtol=1e-12, atol=1e-12)
        order = slice(None, None, 1 if side == "images" else -1)
        scores = s.of_lifted(*arrays[order])
        assert isinstance(scores, np.ndarray)
        expected = s.of_lifted(*tensors[order]).numpy()
        np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("side", SIDES)
    def test_a_lift_of_tensors_alone_is_enough(self, side):
        """Someone's own similarity need not know arrays."""

        class OfTensors(type(self.similarity)):
            on_arrays = False

        own, g = OfTensors(), draw(6, 16, seed=1)
        lifted = CenteredLift.of(own, g.to(torch.float64)).arrays(g.numpy(), side)
        expected = CenteredLift.of(own, g.to(torch.float64))(g, side)
        for a, b in zip(lifted, expected, strict=True):
            np.testing.assert_array_equal(a, b.numpy())
        raw = np.linspace(0.5, 2, 4)
        found = own.score(raw)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, own.from_raw(torch.from_numpy(raw)).numpy())

    def test_a_matrix_is_one_product_for_each_lift(self):
        """And no loop over pairs, images or captions."""
        images, captions = draw(20, 8, seed=1), draw(30, 8, seed=2)
        with Products() as products:
            self.similarity.matrix(images, captions)
        assert products.shapes == [(20, 30)] * len(self.similarity.lift_images(images))

    def test_from_raw_never_decreases_in_closeness(self):
        raw = torch.linspace(-5, 5, 101, dtype=torch.float64)
        if self.similarity.metric == "squared_l2":
            raw = torch.cat([raw.new_tensor([-1e-9]), raw[raw >= 0]]).flip(0)  # far to close
        scores = self.similarity.from_raw(raw)
        assert scores.isfinite().all()
        assert (scores.diff() >= 0).all()
        assert scores[-1] > scores[0]


class PairwiseContract(SimilarityContract):
    """A similarity without a lift."""

    @pytest.mark.parametrize("side", ["images", "captions"])
    def test_says_why_an_index_cannot_hold_it_and_what_to_do(self, side):
        lift = getattr(self.similarity, f"lift_{side}")
        with pytest.raises(ValueError, match=f"{self.name} cannot be lifted .* index") as error:
            lift(draw(3, 4))
        assert self.similarity.no_lift in str(error.value)

    @pytest.mark.parametrize("columns", [1, 7, 1000])
    def test_blocks_of_captions_do_not_change_the_result(self, monkeypatch, columns):
        images, captions = draw(9, 4, seed=1), draw(20, 4, seed=2)
        whole = self.similarity.matrix(images, captions)
        monkeypatch.setattr(pairwise, "COLUMNS", columns)
        torch.testing.assert_close(self.similarity.matrix(images, captions), whole)
