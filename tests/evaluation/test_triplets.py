"""Crop triplets by the paper's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from toy import toy_pairs

from gaussmatch.data.pairs import Region
from gaussmatch.learn.evaluation.triplets import (
    area,
    crop_pairs,
    cut,
    overlap,
    selection,
    triplet,
    triplets,
)
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.models.run import load

SIZE = (100, 100)


@st.composite
def boxes(draw):
    x, y = draw(st.integers(0, 80)), draw(st.integers(0, 80))
    return (x, y, x + draw(st.integers(0, 60)), y + draw(st.integers(0, 60)))


@given(st.lists(boxes(), max_size=14), st.sampled_from([0.05, 0.1, 0.3, 0.5]))
def test_triplets_against_the_rules_one_by_one(found, threshold):
    regions = [Region(box, f"thing {n}") for n, box in enumerate(found)]
    got = triplet(7, regions, SIZE, threshold)
    allowed = [r for r in regions if 0 < area(r.box) < threshold * 10000]
    if len(allowed) < 2:
        assert got is None
        return
    ten = sorted(allowed, key=lambda r: area(r.box), reverse=True)[:10]
    assert got.a == ten[0]
    least = min(overlap(got.a.box, r.box) for r in ten[1:])
    equals = [r for r in ten[1:] if overlap(got.a.box, r.box) == least]
    assert got.b == equals[0]
    assert area(got.b.box) == max(area(r.box) for r in equals)
    assert got.c.caption == f"{got.a.caption} and {got.b.caption}"
    for n in (0, 1):
        assert got.c.box[n] == min(got.a.box[n], got.b.box[n])
        assert got.c.box[n + 2] == max(got.a.box[n + 2], got.b.box[n + 2])


def test_pictures_without_two_regions_make_room_for_others():
    two = [Region((0, 0, 2, 2), "a"), Region((4, 4, 6, 6), "b")]
    pairs = toy_pairs("test", 6, 0)
    pairs = replace(pairs, regions=[two, two[:1], [], two, two, two])
    found = triplets(pairs, threshold=0.1, most=3)
    assert len(found) == 3
    assert {t.image for t in found} <= {0, 3, 4, 5}
    assert triplets(pairs, threshold=0.1, most=3) == found
    assert len(triplets(pairs, threshold=0.1)) == 4
    assert triplets(pairs, threshold=0.01) == []


def test_data_without_regions_or_pictures_is_named():
    pairs = toy_pairs("test", 2, 0)
    with pytest.raises(ValueError, match="toy/test has no regions"):
        triplets(pairs, 0.1)
    two = [Region((0, 0, 2, 2), "a"), Region((4, 4, 6, 6), "b")]
    pairs = replace(pairs, regions=[two, two])
    pairs.images.picture = lambda index: None
    with pytest.raises(ValueError, match="has regions but no picture"):
        triplets(pairs, 0.1)


@pytest.mark.parametrize(
    ("box", "size"),
    [((1.5, 2.0, 4.2, 5.0), (4, 3)), ((-3, -3, 2, 2), (2, 2)), ((9, 9, 40, 40), (1, 1))],
)
def test_crops_are_whole_pixels_inside_the_picture(box, size):
    assert cut(Image.new("RGB", (10, 10)), box).size == size


def test_overlap_of_boxes():
    assert overlap((0, 0, 1, 1), (0, 0, 1, 1)) == 1
    assert overlap((0, 0, 1, 1), (1, 1, 2, 2)) == 0
    assert overlap((0, 0, 0, 0), (0, 0, 0, 0)) == 0
    assert area((3, 3, 1, 1)) == 0
    assert torch.tensor(overlap((0, 0, 4, 4), (2, 2, 6, 6))).item() == pytest.approx(4 / 28)


def test_a_frozen_network_sees_each_crop_once(tiny_run, monkeypatch):
    pairs = crop_pairs(DataRecipe(size="mini"))
    model, features, seen = load(tiny_run), {}, []
    featurize = type(model).featurize
    monkeypatch.setattr(
        type(model),
        "featurize",
        lambda self, some: (seen.append(len(some)), featurize(self, some))[1],
    )
    alone = selection(model, pairs, (0.1, 0.2), most=5)
    once = sum(seen)
    assert selection(model, pairs, (0.1, 0.2), most=5, features=features) == alone
    assert sum(seen) == 2 * once == 2 * len(features)
    assert selection(model, pairs, (0.1, 0.2), most=5, features=features) == alone
    assert sum(seen) == 2 * once
