"""What the annotators write, and what it means."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.data.scenes import SIZES, Split, make_split
from gaussmatch.data.scenes.captions import (
    Both,
    Count,
    Exists,
    Form,
    Kind,
    On,
    Related,
    annotate,
    describe,
    kind_of,
    related,
)
from gaussmatch.data.scenes.truth import true_of
from gaussmatch.data.scenes.world import Dice, Scene, Thing, sample_scene


@pytest.fixture(scope="module")
def split() -> Split:
    return make_split("test", 100)


def thing(shape: str = "star", colour: str = "red", x: int = 30, y: int = 30) -> Thing:
    return Thing(shape, colour, "small", "plain", x, y, 5)


@given(st.integers(0, 10**9).map(str))
def test_captions_are_true_of_their_scene_and_by_five_annotators(seed: str) -> None:
    dice = Dice(seed)
    scene = sample_scene(dice)
    captions = annotate(dice, scene)
    assert len({caption.annotator for caption in captions}) == 5
    for caption in captions:
        assert caption.form.holds(scene), caption
        assert caption.text == " ".join(caption.text.split())
        assert true_of([caption.form], [scene]).counts.tolist() == [1]
    for one in scene.things:
        assert describe(dice, one)


def test_truth_is_what_holds(split: Split) -> None:
    """Both ways of judging agree on every pair of caption and scene."""
    scenes = split.scenes
    forms = [caption.form for captions in split.captions for caption in captions]
    brute = np.array([[form.holds(scene) for scene in scenes] for form in forms])
    assert (true_of(forms, scenes).dense().numpy() == brute).all()


KINDS = st.builds(
    Kind,
    st.sampled_from([(), ("star",), ("circle", "heart", "moon")]),
    st.sampled_from([(), ("red",), ("red", "pink")]),
    st.sampled_from([(), ("small",)]),
    st.just(()),
    st.sampled_from(["", "left", "top right"]),
)
PARTS: st.SearchStrategy[Form] = st.one_of(
    st.builds(Exists, st.lists(KINDS, min_size=1, max_size=4).map(tuple)),
    st.builds(Count, KINDS, st.integers(0, 2), st.integers(1, 6)),
    st.builds(Related, KINDS, st.sampled_from(["left of", "next to", "coloured like"]), KINDS),
    st.builds(On, st.sampled_from(["white", "black"])),
)
FORMS = PARTS | st.builds(Both, st.lists(PARTS, min_size=2, max_size=3).map(tuple))


@given(FORMS)
def test_truth_is_what_holds_for_any_form(form: Form) -> None:
    scenes = make_split("test", 40).scenes
    held = [i for i, scene in enumerate(scenes) if form.holds(scene)]
    assert true_of([form], scenes).of(0).tolist() == held


def test_what_captions_mean() -> None:
    left, right = thing(x=10), thing("heart", "blue", x=40)
    scene = Scene((left, right), "white")
    star, red = Kind(("star",)), Kind(colours=("red",))
    assert Exists((star,)).holds(scene)  # whatever else there is
    assert not Exists((star, red)).holds(scene)  # two different things are meant
    assert Count(star, 1, 1).holds(scene)
    assert not Count(Kind(), 1, 1).holds(scene)  # a number is exact
    assert Related(star, "left of", Kind()).holds(scene)
    assert not Related(Kind(("heart",)), "left of", Kind()).holds(scene)
    assert Exists((Kind(place="left"),)).holds(scene)
    assert not Exists((Kind(("heart",), place="left"),)).holds(scene)
    assert kind_of(left, "shape", "colour") == Kind(("star",), ("red",))


def test_relations_want_a_margin() -> None:
    assert not related(thing(x=30), "left of", thing(x=35))
    assert related(thing(x=30), "left of", thing(x=36))
    assert related(thing(y=30), "above", thing(y=40))
    with pytest.raises(ValueError, match="unknown relation 'inside'"):
        related(thing(), "inside", thing())


def test_ambiguity_is_spread_widely() -> None:
    """From captions of one image to captions of most, with many that are specific."""
    split = make_split("test", 300)
    forms = [caption.form for captions in split.captions for caption in captions]
    counts = true_of(forms, split.scenes).counts.numpy()
    assert counts.min() == 1
    assert 0.3 < (counts == 1).mean() < 0.7
    assert (counts > 30).mean() > 0.15
    assert counts.max() > 150


def test_annotators_differ_in_how_much_they_say() -> None:
    split = make_split("test", 300)
    flat = [caption for captions in split.captions for caption in captions]
    counts = true_of([caption.form for caption in flat], split.scenes).counts.numpy()
    who = np.array([caption.annotator for caption in flat])
    matches = {name: counts[who == name].mean() for name in set(who)}
    assert matches["thorough"] < matches["pointer"] < matches["painter"] < matches["dreamer"]


def test_nothing_has_changed() -> None:
    """The tiny data set with seed 0, structure and words. A change here must raise ``VERSION``."""
    made = repr([make_split(name, n) for name, n in SIZES["tiny"].items()])
    made = made.replace("SceneCaption(", "Caption(")  # as the class was called at first
    assert hashlib.sha256(made.encode()).hexdigest()[:16] == "88fdb02a06229e56"
