"""The measures of ranked ids against slow, independent ones."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.core.metrics import (
    Relevance,
    contiguous_folds,
    first_hits,
    map_at_r,
    map_at_r_each,
    over_folds,
    pmrp,
    r_precision,
    r_precision_each,
    recall_at_k,
    restrict,
)


@st.composite
def cases(draw):
    """Complete rankings of strange ids, and any positives."""
    queries = draw(st.integers(1, 5))
    ids = draw(st.lists(st.integers(-9, 10**9), min_size=1, max_size=7, unique=True))
    ranked = [draw(st.permutations(ids)) for _ in range(queries)]
    positives = [draw(st.lists(st.sampled_from(ids), unique=True)) for _ in range(queries)]
    return ranked, positives


def slow_recall(ranked, positives, k):
    found = [bool(set(list(row)[:k]) & set(p)) for row, p in zip(ranked, positives, strict=True)]
    return 100 * sum(found) / len(found)


def slow_precisions(ranked, positives):
    return [
        sum(item in set(p) for item in list(row)[: len(set(p))]) / len(set(p))
        for row, p in zip(ranked, positives, strict=True)
        if len(p)
    ]


def slow_average_precisions(ranked, positives):
    values = []
    for row, p in zip(ranked, positives, strict=True):
        right, r, total, found = set(p), len(set(p)), 0.0, 0
        for place, item in enumerate(list(row)[:r], 1):
            if item in right:
                found += 1
                total += found / place
        if r:
            values.append(total / r)
    return values


def mean(values):
    return 100 * sum(values) / len(values) if values else math.nan


@given(cases())
def test_against_slow_ones(case):
    ranked, positives = case
    assert recall_at_k(ranked, positives, (1, 2, 99)) == pytest.approx(
        [slow_recall(ranked, positives, k) for k in (1, 2, 99)]
    )
    assert r_precision(ranked, positives) == pytest.approx(
        mean(slow_precisions(ranked, positives)), nan_ok=True
    )
    assert map_at_r(ranked, positives) == pytest.approx(
        mean(slow_average_precisions(ranked, positives)), nan_ok=True
    )
    places = [
        min((row.index(i) for i in p), default=np.iinfo(np.int64).max)
        for row, p in zip(ranked, positives, strict=True)
    ]
    assert first_hits(ranked, positives).tolist() == places


@given(st.integers(1, 6), st.integers(1, 6), st.randoms(use_true_random=False))
def test_a_relation_and_plain_lists_agree(queries, gallery, dice):
    ranked = torch.stack([torch.randperm(gallery) for _ in range(queries)])
    sets = [[i for i in range(gallery) if dice.random() < 0.4] for _ in range(queries)]
    relation = Relevance.from_sets(sets, gallery=gallery)
    for measure in (r_precision_each, map_at_r_each, first_hits):
        np.testing.assert_array_equal(measure(ranked, relation), measure(ranked.numpy(), sets))
    assert recall_at_k(ranked, relation) == recall_at_k(ranked, sets)


@pytest.mark.parametrize(
    ("ranked", "positives", "message"),
    [
        (np.array([1, 2]), [[1]], "integer array"),
        (np.array([[0.5]]), [[1]], "integer array"),
        (np.zeros((0, 3), int), [], "0 queries × 3 items"),
        (np.zeros((2, 0), int), [[], []], "2 queries × 0 items"),
        ([[1]], [[1], [2]], "1 rankings but positives for 2 queries"),
    ],
)
def test_rankings_that_are_none(ranked, positives, message):
    for measure in (r_precision, map_at_r, recall_at_k, first_hits):
        with pytest.raises(ValueError, match=message):
            measure(ranked, positives)


def test_more_positives_than_ranked_items_are_refused():
    with pytest.raises(ValueError, match="query 1 has 3 positives but only 2 items are ranked"):
        r_precision([[1, 2], [1, 2]], [[1], [1, 2, 3]])


def test_ids_outside_the_relation_are_refused():
    relation = Relevance.from_pairs([0], [0], queries=1, gallery=2)
    with pytest.raises(ValueError, match=r"must lie in \[0, 2\)"):
        r_precision([[2, 1]], relation)


def test_one_image_and_one_caption():
    assert recall_at_k([[0]], [[0]]) == [100.0, 100.0, 100.0]
    assert r_precision([[0]], [[0]]) == map_at_r([[0]], [[0]]) == 100.0


def test_a_k_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        recall_at_k([[0]], [[0]], [0])


# ---- folds ----


@pytest.mark.parametrize(("images", "folds"), [(3, 5), (5, 0)])
def test_more_folds_than_images_are_refused(images, folds):
    with pytest.raises(ValueError, match="cannot be split into"):
        contiguous_folds([0], images, folds)


def test_what_does_not_divide_makes_the_first_folds_larger():
    folds = contiguous_folds([0, 3, 3, 6, 1], images=7, folds=3)
    assert [f.images.tolist() for f in folds] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [f.captions.tolist() for f in folds] == [[0, 4], [1, 2], [3]]


def test_a_cut_ranking_cannot_be_folded():
    with pytest.raises(ValueError, match="query 1 holds 1 of the 2 items"):
        restrict([[0, 1, 2], [0, 2, 2]], np.array([0, 1]), np.array([0, 1]))


# ---- PMRP ----


def slow_pmrp(ranked, query_classes, gallery_classes, zeta, queries, gallery):
    values = []
    for q in queries:
        if not query_classes[q].any():
            continue
        kept = [g for g in ranked[q] if g in gallery and gallery_classes[g].any()]
        right = [g for g in kept if (query_classes[q] != gallery_classes[g]).sum() <= zeta]
        if right:
            values.append(sum(g in set(right) for g in kept[: len(right)]) / len(right))
    return mean(values)


@given(st.integers(0, 10**6))
def test_pmrp_against_a_slow_one(seed):
    rng = np.random.default_rng(seed)
    images = rng.random((6, 4)) < 0.4
    images[[0, 3]] |= np.array([True, False, False, False])
    image_of = np.repeat(np.arange(6), 2)
    ranked = np.stack([rng.permutation(6) for _ in image_of])
    got = pmrp(ranked, images[image_of], images)
    expected = [
        slow_pmrp(ranked, images[image_of], images, z, range(12), set(range(6))) for z in (0, 1, 2)
    ]
    assert got == pytest.approx(expected)
    folds = [(f.captions, f.images) for f in contiguous_folds(image_of, 6, 2)]
    expected = [
        np.mean(
            [slow_pmrp(ranked, images[image_of], images, z, q, set(g.tolist())) for q, g in folds]
        )
        for z in (0, 1, 2)
    ]
    assert pmrp(ranked, images[image_of], images, folds=folds) == pytest.approx(expected)


def test_pmrp_refuses_what_it_cannot_measure():
    classes = np.ones((2, 3), dtype=bool)
    with pytest.raises(ValueError, match="complete rankings"):
        pmrp([[0], [0]], classes, classes)
    with pytest.raises(ValueError, match="no query has an object class, or no gallery item"):
        pmrp([[0, 1], [0, 1]], classes, ~classes)


# ---- the real ids ----


@pytest.fixture(scope="module")
def coco(shared_data: Path):
    """(caption ids, image ids in order, image id of each caption, CxC positives both ways)."""
    captions = np.load(shared_data / "coco" / "coco_test_ids.npy")
    text = (shared_data / "coco" / "test_original_caption_to_image.json").read_text()
    image_of = {int(c): i[0] for c, i in json.loads(text).items()}
    images = list(dict.fromkeys(image_of[c] for c in captions.tolist()))
    t2i = {c: {image_of[c]} for c in captions.tolist()}
    with (shared_data / "cxc" / "sits_test.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["sampling_method"] == "c2i_intrasim" and float(row["agg_score"]) >= 3:
                caption = int(row["caption"].rsplit(":", 1)[1])
                t2i[caption].add(int(row["image"].rsplit("_", 1)[1].removesuffix(".jpg")))
    return captions, np.array(images), image_of, t2i


def random_rankings(coco, seed: int = 0):
    """Rankings (captions × images) by chance, the own image a little favored, as real ids."""
    captions, images, image_of, _ = coco
    rng, row = np.random.default_rng(seed), {i: n for n, i in enumerate(images.tolist())}
    chosen = np.sort(rng.choice(len(captions), 400, replace=False))
    scores = rng.random((len(chosen), len(images)), dtype=np.float32)
    own = [row[image_of[c]] for c in captions[chosen].tolist()]
    scores[np.arange(len(chosen)), own] += rng.random(len(chosen), dtype=np.float32) * 0.01
    scores[np.arange(len(chosen)), own] += rng.random(len(chosen)) < 0.5
    return chosen, images[np.argsort(-scores, axis=1)]


def test_real_ids_have_the_known_number_of_positives(coco):
    captions, images, _, t2i = coco
    assert (len(captions), len(images)) == (25000, 5000)
    assert sum(len(p) for p in t2i.values()) == 35614


def test_cxc_recall_and_rpc2_on_real_ids(coco):
    captions, images, image_of, t2i = coco
    chosen, ranked = random_rankings(coco)
    positives = [t2i[c] for c in captions[chosen].tolist()]
    assert recall_at_k(ranked, positives) == pytest.approx(
        [slow_recall(ranked.tolist(), positives, k) for k in (1, 5, 10)]
    )
    assert r_precision(ranked, positives) == pytest.approx(
        mean(slow_precisions(ranked.tolist(), positives))
    )
    row = {i: n for n, i in enumerate(images.tolist())}
    of = np.array([row[image_of[c]] for c in captions[chosen].tolist()])
    folds = contiguous_folds(of, len(images))
    values, recalls = [], []
    for f in folds:
        held = set(images[f.images].tolist())
        kept = [[i for i in ranked[q].tolist() if i in held] for q in f.captions]
        inside = [positives[q] & held for q in f.captions]
        values.append(mean(slow_precisions(kept, inside)))
        recalls.append(slow_recall(kept, inside, 5))
    parts = [(f.captions, images[f.images]) for f in folds]
    assert over_folds(r_precision, ranked, positives, parts) == pytest.approx(np.mean(values))
    five = over_folds(lambda r, p: recall_at_k(r, p, [5])[0], ranked, positives, parts)
    assert five == pytest.approx(np.mean(recalls))


@pytest.mark.filterwarnings("ignore:failed to import:UserWarning")
def test_agrees_with_eccv_caption(coco):
    """Same rankings, same ground truth: the same numbers (see docs/evaluation.md)."""
    theirs = pytest.importorskip("eccv_caption._metrics")
    captions, _, _, t2i = coco
    chosen, ranked = random_rankings(coco, seed=1)
    ids = captions[chosen].tolist()
    rankings = dict(zip(ids, ranked.tolist(), strict=True))
    truth = {c: sorted(t2i[c]) for c in ids}
    positives = [truth[c] for c in captions[chosen].tolist()]
    for k in (1, 5, 10):
        expected = 100 * theirs.compute_r_at_k(rankings, truth, k)
        assert recall_at_k(ranked, positives, [k])[0] == pytest.approx(expected, abs=1e-12)
    reference = theirs.compute_eccv_metrics(rankings, truth)
    assert map_at_r(ranked, positives) == pytest.approx(100 * reference["eccv_map_at_r"], abs=1e-11)
    assert r_precision(ranked, positives) == pytest.approx(
        100 * reference["eccv_rprecision"], abs=1e-11
    )
