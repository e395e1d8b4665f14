"""Scenes and their pictures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.data.scenes import SIZES, make_split
from gaussmatch.data.scenes.world import (
    BACKGROUNDS,
    COLOURS,
    MOST,
    PATTERNS,
    RADII,
    SHAPES,
    WIDTH,
    Dice,
    Scene,
    Thing,
    draw,
    sample_scene,
)

seeds = st.integers(0, 10**9).map(str)


@given(seeds)
def test_things_lie_inside_the_picture_and_apart(seed: str) -> None:
    scene = sample_scene(Dice(seed))
    assert 1 <= len(scene.things) <= MOST
    for thing in scene.things:
        left, top, right, bottom = thing.box
        assert 0 < left < right < WIDTH
        assert 0 < top < bottom < WIDTH
        low, high = RADII[thing.size]
        assert low <= thing.radius <= high
    for i, a in enumerate(scene.things):
        for b in scene.things[:i]:
            assert np.hypot(a.x - b.x, a.y - b.y) >= a.radius + b.radius


@given(seeds)
def test_a_seed_gives_one_scene(seed: str) -> None:
    assert sample_scene(Dice(seed)) == sample_scene(Dice(seed))


@given(seeds, st.integers(1, 50))
def test_dice_stay_in_range(seed: str, n: int) -> None:
    dice = Dice(seed)
    assert all(0 <= dice.below(n) < n for _ in range(20))
    assert sorted(dice.some(range(n), n)) == list(range(n))


def test_every_attribute_and_number_occurs() -> None:
    scenes = make_split("train", 300).scenes
    things = [thing for scene in scenes for thing in scene.things]
    assert {t.shape for t in things} == set(SHAPES)
    assert {t.colour for t in things} == set(COLOURS)
    assert {t.size for t in things} == set(RADII)
    assert {t.pattern for t in things} == set(PATTERNS)
    assert {s.background for s in scenes} == set(BACKGROUNDS)
    assert {len(s.things) for s in scenes} == set(range(1, MOST + 1))


def test_splits_and_seeds_share_no_scene() -> None:
    made = [
        make_split(name, n, seed).scenes for seed in (0, 1) for name, n in SIZES["small"].items()
    ]
    assert len({scene for scenes in made for scene in scenes}) == sum(map(len, made))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_thing_paints_its_box_and_nothing_else(shape: str, pattern: str) -> None:
    empty = np.asarray(draw(Scene((), "white")), dtype=int)
    thing = Thing(shape, "blue", "large", pattern, 30, 34, 12, tilt=9)
    painted = np.abs(np.asarray(draw(Scene((thing,), "white")), dtype=int) - empty).sum(2) > 0
    left, top, right, bottom = map(int, thing.box)
    assert painted[top:bottom, left:right].mean() > 0.15
    painted[top:bottom, left:right] = False
    assert not painted.any()


def test_patterns_look_different() -> None:
    looks = [
        np.asarray(draw(Scene((Thing("square", "red", "small", p, 32, 32, 5),), "grey")), dtype=int)
        for p in PATTERNS
    ]
    for i, a in enumerate(looks):
        for b in looks[:i]:
            assert np.abs(a - b).sum() > 1000


def test_a_known_pixel() -> None:
    """Loose, as Pillow may round otherwise tomorrow."""
    pixels = np.asarray(
        draw(Scene((Thing("circle", "red", "large", "plain", 32, 32, 12),), "black"))
    )
    np.testing.assert_allclose(pixels[32, 32], (208, 38, 38), atol=3)
    np.testing.assert_allclose(pixels[2, 2], (22, 22, 26), atol=3)
