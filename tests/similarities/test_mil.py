from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from similarities.contract import Largest, leaf

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import base, similarity

MIL = similarity("mil")


def several(n: int, k: int, dim: int = 5, seed: int = 0, dtype=torch.float32) -> Gaussian:
    dice = torch.Generator().manual_seed(seed)
    return Gaussian(torch.randn(n, k, dim, generator=dice).to(dtype))


def brute(images: Gaussian, captions: Gaussian) -> np.ndarray:
    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return a @ b / np.sqrt((a @ a) * (b @ b))

    i, c = images.mean.double().numpy(), captions.mean.double().numpy()
    return np.array([[max(cosine(a, b) for a in x for b in y) for y in c] for x in i])


@given(
    st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 9)
)
def test_is_the_best_of_all_pairs(n, m, k, j, seed):
    images, captions = several(n, k, seed=seed), several(m, j, seed=seed + 1)
    got = MIL.matrix(images, captions)
    np.testing.assert_allclose(got.numpy(), brute(images, captions), rtol=1e-5, atol=1e-6)
    short = min(n, m)
    torch.testing.assert_close(MIL.paired(images[:short], captions[:short]), got.diagonal())


def test_one_embedding_is_the_cosine_and_may_be_a_plain_point():
    images, captions = several(4, 1), several(3, 1, seed=1)
    cosine = similarity("cosine").matrix(Gaussian(images.mean[:, 0]), Gaussian(captions.mean[:, 0]))
    torch.testing.assert_close(MIL.matrix(images, captions), cosine)
    torch.testing.assert_close(MIL.matrix(Gaussian(images.mean[:, 0]), captions), cosine)


def test_the_order_of_an_items_embeddings_does_not_matter():
    images, captions = several(4, 3), several(3, 3, seed=1)
    turned = Gaussian(images.mean.flip(1))
    torch.testing.assert_close(MIL.matrix(turned, captions), MIL.matrix(images, captions))


@pytest.mark.parametrize("how", ["matrix", "paired"])
def test_gradients_are_those_of_finite_differences(how):
    images, captions = (leaf(several(3, 2, seed=s, dtype=torch.float64)) for s in (1, 2))
    torch.autograd.gradcheck(
        lambda a, b: getattr(MIL, how)(Gaussian(a), Gaussian(b)), (images.mean, captions.mean)
    )


def test_only_the_best_pair_of_embeddings_learns():
    images, captions = leaf(several(1, 3, seed=1)), leaf(several(1, 3, seed=2))
    MIL.matrix(images, captions).sum().backward()
    for g in (images, captions):
        assert int(g.mean.grad.abs().sum(-1).gt(1e-9).sum()) == 1


def test_blocks_count_the_embeddings(monkeypatch):
    images, captions = several(40, 4), several(50, 4, seed=1)
    whole = MIL.matrix(images, captions)
    monkeypatch.setattr(base, "BLOCK_BYTES", 10 * 50 * 16 * 8 * 3)  # ten images at a time
    with Largest() as largest:
        blocked = MIL.matrix(images, captions)
    torch.testing.assert_close(blocked, whole)
    assert largest.numel == max(10 * 50 * 16, whole.numel())


def test_other_similarities_refuse_several_embeddings_and_name_the_one_that_takes_them():
    with pytest.raises(ValueError, match=r"\(4, 3, 5\); mil compares several embeddings"):
        similarity("cosine").matrix(several(4, 3), several(4, 3))
