from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from similarities.contract import draw
from torch import nn

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity


def near(n: int, dim: int = 6, seed: int = 0, log_var: float = -5.0) -> Gaussian:
    """Unit means with small variances: probabilities of every size."""
    g = draw(n, dim, unit=True, seed=seed)
    return Gaussian(g.mean, torch.full_like(g.log_var, log_var))


def probability(g: Gaussian, h: Gaussian, a: float, b: float, s) -> np.ndarray:
    """P by its definition, sample by sample: eˣ / (eˣ + e⁻ˣ)."""
    sides = []
    for side, x in (("images", g), ("captions", h)):
        mean, std = x.mean.double().numpy(), x.std.double().numpy()
        noise = s.noise(side, x.dim).numpy()
        sides.append([[m + d * e for e in noise] for m, d in zip(mean, std, strict=True)])
    table = np.zeros((len(g), len(h)))
    for i, left in enumerate(sides[0]):
        for c, right in enumerate(sides[1]):
            for x in left:
                for y in right:
                    logit = b - a * np.sqrt(((x - y) ** 2).sum() + 1e-6)
                    table[i, c] += np.exp(logit) / (np.exp(logit) + np.exp(-logit))
    return table / s.samples**2


@given(st.integers(0, 50), st.sampled_from([1, 2, 7]), st.floats(1, 6), st.floats(-1, 6))
def test_the_sigmoid_of_a_score_is_the_probability(seed, samples, a, b):
    s = similarity("match_prob", samples=samples, scale=a, shift=b).requires_grad_(False)
    images, captions = near(3, seed=seed), near(4, seed=seed + 1, log_var=-2.0)
    expected = probability(images, captions, float(s.scale), float(s.shift), s)
    got = s.matrix(images, captions).double().sigmoid()
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4)
    paired = s.paired(images, captions[:3]).double().sigmoid()
    np.testing.assert_allclose(paired.numpy(), expected.diagonal(), rtol=1e-4)


def test_it_never_saturates():
    """P is 0 and 1 to the last bit in float64, and the scores still differ."""
    s = similarity("match_prob").requires_grad_(False)
    far = Gaussian(torch.tensor([[100.0], [101.0], [0.0]]), torch.full((3, 1), -20.0))
    scores = s.matrix(far[2:], far)[0]
    assert scores.isfinite().all()
    assert scores[2] > scores[0] > scores[1]
    sure = similarity("match_prob", scale=15.0, shift=500.0).requires_grad_(False)
    assert sure.matrix(far[2:], far[2:]).item() == pytest.approx(1000, rel=1e-3)


def test_the_gradient_pulls_pairs_together_even_from_afar():
    s = similarity("match_prob")
    mean = torch.full((1, 4), 50.0, requires_grad=True)
    score = s.matrix(Gaussian(mean, torch.zeros(1, 4)), near(1, 4))
    nn.functional.softplus(-score).sum().backward()
    assert (mean.grad > 1).all()


# ---- samples ----


def test_outside_training_a_score_does_not_depend_on_what_else_is_scored():
    s = similarity("match_prob").requires_grad_(False)
    images, captions = near(5), near(6, seed=1)
    whole = s.matrix(images, captions)
    assert torch.equal(whole, s.matrix(images, captions))
    torch.testing.assert_close(s.matrix(images[3:4], captions[2:3])[0, 0], whole[3, 2])
    assert torch.equal(similarity("match_prob").matrix(images, captions).detach(), whole)


def test_outside_training_the_generator_of_torch_is_left_alone():
    before = torch.get_rng_state()
    similarity("match_prob").matrix(near(3), near(3))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_sides_have_independent_standard_noise():
    noise = [
        similarity("match_prob", samples=500).noise(side, 40) for side in ("images", "captions")
    ]
    for e in noise:
        assert abs(float(e.mean())) < 0.02
        assert abs(float(e.std()) - 1) < 0.02
    assert abs(float((noise[0] * noise[1]).mean())) < 0.02


def test_in_training_every_item_is_sampled_afresh():
    s = similarity("match_prob").train()
    images, captions = (Gaussian(torch.zeros(4, 3), torch.zeros(4, 3)) for _ in range(2))
    scores = s.matrix(images, captions)
    assert len(set(scores.flatten().tolist())) == 16  # equal items, different luck
    assert not torch.equal(scores, s.matrix(images, captions))
    torch.manual_seed(3)
    once = s.matrix(images, captions)
    torch.manual_seed(3)
    assert torch.equal(s.matrix(images, captions), once)


def test_in_training_a_caption_keeps_its_samples_across_blocks(monkeypatch):
    from gaussmatch.core.similarities import base, pairwise

    s, images, captions = similarity("match_prob").train(), near(6), near(7, seed=1)
    torch.manual_seed(3)
    whole = s.matrix(images, captions)
    monkeypatch.setattr(base, "BLOCK_BYTES", 1)
    monkeypatch.setattr(pairwise, "COLUMNS", 2)
    torch.manual_seed(3)
    torch.testing.assert_close(s.matrix(images, captions), whole)


def test_more_samples_come_nearer_to_symmetry():
    a, b = near(6, log_var=-3.0), near(6, seed=1, log_var=-3.0)

    def gap(samples: int) -> float:
        s = similarity("match_prob", samples=samples, scale=2.0, shift=2.0).requires_grad_(False)
        return float((s.matrix(a, b) - s.matrix(b, a).T).abs().mean())

    assert gap(200) < 0.3 * gap(2)


# ---- it learns ----


def test_scale_and_shift_are_learned_and_saved():
    s = similarity("match_prob", scale=3.0)
    s.matrix(near(3), near(3, seed=1)).sum().backward()
    assert s.scale.grad != 0
    assert s.shift.grad != 0
    other = similarity("match_prob")
    other.load_state_dict(s.state_dict())
    assert set(s.state_dict()) == {"scale", "shift"}
    assert other.scale.item() == 3.0


def test_the_spread_of_a_pair_that_is_off_gains_by_growing():
    """Some samples then come near: why its variances can separate vague from specific."""
    log_var = torch.full((1, 6), -5.0, requires_grad=True)
    image = Gaussian(torch.eye(6)[:1], torch.full((1, 6), -5.0))
    caption = Gaussian(torch.eye(6)[1:2], log_var)
    similarity("match_prob").paired(image, caption).sum().backward()
    assert log_var.grad.sum() > 0
