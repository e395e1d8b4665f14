from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from similarities.contract import KINDS, draw
from torch.distributions import Independent, Normal, kl_divergence

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity
from gaussmatch.core.similarities.lifted import KL

KLS = st.sampled_from(["kl", "reverse_kl", "min_kl"])


def torch_kl(p: Gaussian, q: Gaussian) -> torch.Tensor:
    """KL(p ‖ q) of every pair, by torch's own formula."""

    def normal(g: Gaussian, at: int) -> Independent:
        g = g.expand()
        return Independent(Normal(g.mean.unsqueeze(at), g.std.unsqueeze(at)), 1)

    return kl_divergence(normal(p, 1), normal(q, 0))


def test_kl_is_the_divergence_of_the_image_from_the_caption():
    images, captions = draw(5, 12, seed=1), draw(6, 12, "sphere", seed=2)
    there, back = torch_kl(images, captions), torch_kl(captions, images).T
    torch.testing.assert_close(similarity("kl").matrix(images, captions), -there)
    torch.testing.assert_close(similarity("reverse_kl").matrix(images, captions), -back)


def test_min_kl_is_the_better_of_the_two_directions():
    images, captions = draw(20, 3, seed=1), draw(20, 3, seed=2)
    kl, reverse = (similarity(s).matrix(images, captions) for s in ("kl", "reverse_kl"))
    assert (kl > reverse).any()
    assert (reverse > kl).any()
    assert torch.equal(similarity("min_kl").matrix(images, captions), torch.maximum(kl, reverse))


@given(KLS, st.integers(0, 10_000), st.integers(1, 300), *[st.sampled_from(KINDS)] * 2)
def test_no_divergence_is_negative(name, seed, dim, left, right):
    images, captions = draw(4, dim, left, seed=seed), draw(5, dim, right, seed=seed + 1)
    assert (similarity(name).matrix(images, captions) <= 1e-6).all()


@given(KLS, st.integers(0, 10_000), st.integers(1, 300), st.sampled_from(KINDS))
def test_the_divergence_of_a_gaussian_from_itself_is_zero(name, seed, dim, kind):
    g = draw(4, dim, kind, seed=seed)
    zero = torch.zeros(4)
    torch.testing.assert_close(similarity(name).paired(g, g), zero, atol=1e-6, rtol=0)
    torch.testing.assert_close(similarity(name).matrix(g, g).diagonal(), zero, atol=1e-6, rtol=0)


def test_a_caption_that_is_off_gains_by_being_wide_under_kl_only():
    """The reason why a caption's uncertainty means something (the paper's argument)."""
    image = Gaussian(torch.zeros(1, 4), torch.zeros(1, 4))
    log_var = torch.zeros(1, 4, requires_grad=True)
    off = Gaussian(torch.full((1, 4), 3.0), log_var)

    def pull(name: str) -> torch.Tensor:
        return torch.autograd.grad(similarity(name).paired(image, off).sum(), log_var)[0]

    assert (pull("kl") > 0).all()
    assert (pull("reverse_kl") == 0).all()  # at equal variances
    assert (pull("csd") < 0).all()


@given(st.integers(0, 10_000), st.integers(1, 100), *[st.sampled_from(KINDS)] * 2)
def test_query_kl_turned_round_is_itself(seed, dim, left, right):
    """Images that ask captions are scored as captions that ask images: roles, not kinds, count."""
    a, b = draw(3, dim, left, seed=seed), draw(4, dim, right, seed=seed + 1)
    s = similarity("query_kl")
    there, back = s.for_query("images").matrix(a, b), s.for_query("captions").matrix(b, a).T
    torch.testing.assert_close(there, back)


def test_query_kl_alone_explains_what_it_needs():
    g = draw(2, 3)
    for how in ("matrix", "paired", "lift_images", "lift_captions"):
        with pytest.raises(ValueError, match=r"choose the side of the query with .*for_query"):
            getattr(similarity("query_kl"), how)(*[g] * (1 if "lift" in how else 2))


def test_under_query_kl_the_width_of_the_query_is_its_temperature():
    """Among items of one width, a wider query scores flatter and in the same order."""
    items = Gaussian(torch.randn(6, 4), torch.zeros(6, 4))
    scores = [
        similarity("query_kl")
        .for_query("captions")
        .matrix(items, Gaussian(torch.zeros(1, 4), torch.full((1, 4), log_var)))[:, 0]
        for log_var in (0.0, 1.0)
    ]
    narrow, wide = (s - s.mean() for s in scores)
    torch.testing.assert_close(narrow, wide * torch.e)


@given(st.sampled_from(["kl", "reverse_kl", "min_kl", "query_kl"]), st.integers(2, 40))
def test_relative_widths_mean_the_same_in_every_dimension(name, dim):
    """Spheres with u = D·σ² at squared distance d: KL / D knows u and d, and not D."""
    u, v, d = 0.5, 2.0, 1.5

    def pair(dim: int) -> list[Gaussian]:
        mean = torch.zeros(1, dim)
        far = torch.full((1, dim), (d / dim) ** 0.5)
        widths = (torch.tensor([[x / dim]]).log() for x in (u, v))
        return [Gaussian(m, w) for m, w in zip((mean, far), widths, strict=True)]

    for side in ("images", "captions"):
        s = similarity(name, per_dimension=True).for_query(side)
        torch.testing.assert_close(s.paired(*pair(dim)), s.paired(*pair(3)), rtol=1e-5, atol=1e-6)


def test_a_score_per_dimension_is_learned_in_float32_and_ranked_in_float64() -> None:
    torch.manual_seed(0)
    mean, raw = torch.randn(2, 6, 512) / 512**0.5, torch.randn(2, 6, 512)
    seen: list[torch.dtype] = []

    class Watched(KL):
        def lift_images(self, g: Gaussian) -> tuple[torch.Tensor, ...]:
            seen.append(g.mean.dtype)
            return super().lift_images(g)

    grads = []
    for dtype in (torch.float32, torch.float64):
        log_var = (0.5 * raw - 6.2).to(dtype).requires_grad_()
        a, b = (Gaussian(m.to(dtype), v) for m, v in zip(mean, log_var, strict=True))
        Watched(per_dimension=True).matrix(a, b).logsumexp(0).sum().backward()
        grads.append(log_var.grad)
        Watched(per_dimension=True).matrix(a.detach(), b.detach())
        Watched().matrix(a, b)
    single, double = torch.float32, torch.float64
    assert seen == [single, double, double, double, double, double]
    torch.testing.assert_close(grads[0].double(), grads[1], atol=1e-7, rtol=1e-4)
