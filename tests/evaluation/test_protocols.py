"""All measures of a split against the pure functions on plain rankings, whole and in folds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import (
    Relevance,
    contiguous_folds,
    map_at_r,
    over_folds,
    pmrp,
    r_precision,
    recall_at_k,
)
from gaussmatch.core.similarities import similarity
from gaussmatch.learn.evaluation.retrieval import Truth, folded, measures_of, top

IMAGES, CAPTIONS, DIM = 20, 60, 8


@pytest.fixture
def case():
    images = Gaussian(torch.randn(IMAGES, DIM), torch.randn(IMAGES, DIM))
    captions = Gaussian(torch.randn(CAPTIONS, DIM), torch.randn(CAPTIONS, DIM))
    image_of = torch.arange(CAPTIONS) // 3
    own = Relevance.from_pairs(torch.arange(CAPTIONS), image_of, queries=CAPTIONS, gallery=IMAGES)
    more = torch.rand(CAPTIONS, IMAGES) < 0.2
    more[torch.arange(CAPTIONS), image_of] = True
    known = Relevance.from_sets([r.nonzero()[:, 0].tolist() for r in more], gallery=IMAGES)
    classes = torch.rand(IMAGES, 5) < 0.4
    classes[3] = False
    return images, captions, Truth(own, known, classes, image_of)


def rankings(case):
    images, captions, _ = case
    i2t, t2i = top(similarity("kl"), images, captions, CAPTIONS)
    return {"i2t": i2t.numpy(), "t2i": t2i.numpy()}


def relations(truth: Truth):
    return {"i2t": truth.known.transpose(), "t2i": truth.known}


def test_all_measures_are_those_of_the_pure_functions(case):
    images, captions, truth = case
    got, each = measures_of(similarity("kl"), images, captions, truth)
    codes = truth.classes.numpy()
    spread = codes[truth.image_of.numpy()]
    sides = {"i2t": (codes, spread), "t2i": (spread, codes)}
    for way, ranked in rankings(case).items():
        known = relations(truth)[way]
        own = truth.own if way == "t2i" else truth.own.transpose()
        for k, value, true in zip(
            (1, 5, 10), recall_at_k(ranked, own), recall_at_k(ranked, known), strict=True
        ):
            assert got[f"{way}_r{k}"] == pytest.approx(value)
            assert got[f"{way}_true_r{k}"] == pytest.approx(true)
        assert got[f"{way}_r_precision"] == pytest.approx(r_precision(ranked, known))
        assert got[f"{way}_map_at_r"] == pytest.approx(map_at_r(ranked, known))
        levels = pmrp(ranked, *sides[way])
        assert [got[f"{way}_pmrp_{z}"] for z in (0, 1, 2)] == pytest.approx(levels)
        assert got[f"{way}_pmrp"] == pytest.approx(np.mean(levels))
    assert each["t2i_r1"].shape == (CAPTIONS,)
    assert each["i2t_pmrp"].isnan().tolist() == (~truth.classes.any(1)).tolist()
    assert got["rsum"] == pytest.approx(
        sum(got[f"{way}_r{k}"] for way in ("i2t", "t2i") for k in (1, 5, 10))
    )


def test_folds_are_those_of_the_pure_functions(case):
    images, captions, truth = case
    got = folded(similarity("kl"), images, captions, truth)
    folds = contiguous_folds(truth.image_of.numpy(), IMAGES)
    for way, ranked in rankings(case).items():
        parts = [(f.images, f.captions) if way == "i2t" else (f.captions, f.images) for f in folds]
        expected = over_folds(r_precision, ranked, relations(truth)[way], parts)
        assert got[f"1k_{way}_r_precision"] == pytest.approx(expected)
        own = truth.own if way == "t2i" else truth.own.transpose()
        five = over_folds(lambda r, p: recall_at_k(r, p, [5])[0], ranked, own, parts)
        assert got[f"1k_{way}_r5"] == pytest.approx(five)
    codes = truth.classes.numpy()
    parts = [(f.captions, f.images) for f in folds]
    levels = pmrp(rankings(case)["t2i"], codes[truth.image_of.numpy()], codes, folds=parts)
    assert got["1k_t2i_pmrp"] == pytest.approx(np.mean(levels))


def test_only_what_the_truth_allows(case):
    images, captions, truth = case
    bare = Truth(truth.own, None, None, truth.image_of)
    got, _ = measures_of(similarity("kl"), images, captions, bare)
    assert not [key for key in got if "precision" in key or "pmrp" in key or "true" in key]


def test_one_image_and_one_caption():
    one = Gaussian(torch.randn(1, DIM), torch.randn(1, DIM))
    own = Relevance.from_pairs([0], [0], queries=1, gallery=1)
    truth = Truth(own, own, torch.ones(1, 2).bool(), torch.zeros(1).long())
    got, _ = measures_of(similarity("kl"), one, one, truth)
    assert got["rsum"] == 600.0
    assert got["i2t_pmrp"] == got["t2i_map_at_r"] == 100.0


def test_measures_without_any_query_are_left_out():
    g = Gaussian(torch.randn(2, DIM), torch.randn(2, DIM))
    own = Relevance.from_pairs([0, 1], [0, 1], queries=2, gallery=2)
    nothing = Relevance.from_pairs([], [], queries=2, gallery=2)
    truth = Truth(own, nothing, torch.zeros(2, 3).bool(), torch.arange(2))
    got, _ = measures_of(similarity("kl"), g, g, truth)
    assert "t2i_r_precision" not in got
    assert "t2i_pmrp" not in got
    assert got["t2i_true_r1"] == 0.0
