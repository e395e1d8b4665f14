"""ECCV Caption through the project's own measures, against the package's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import contiguous_folds, over_folds, recall_at_k
from gaussmatch.core.similarities import similarity
from gaussmatch.data.pairs import Pairs
from gaussmatch.learn.evaluation.retrieval import eccv, eccv_measures, eccv_positives

MEASURED = ("r1", "r_precision", "map_at_r")

pytestmark = pytest.mark.filterwarnings("ignore:failed to import:UserWarning")


@pytest.fixture(scope="module")
def package():
    return pytest.importorskip("eccv_caption")


@pytest.fixture(scope="module")
def ids(shared_data: Path):
    captions = np.load(shared_data / "coco" / "coco_test_ids.npy")
    text = (shared_data / "coco" / "test_original_caption_to_image.json").read_text()
    image_of = {int(c): i[0] for c, i in json.loads(text).items()}
    return captions, np.array(list(dict.fromkeys(image_of[c] for c in captions.tolist()))), image_of


def shuffled(queries: np.ndarray, gallery: np.ndarray, truth, depth: int) -> np.ndarray:
    """Rankings by chance, with some of the positives among the first."""
    rng = np.random.default_rng(0)
    rows = np.stack([rng.choice(gallery, depth, replace=False) for _ in queries])
    for row, query in zip(rows, queries.tolist(), strict=True):
        for item in truth.get(query, []):
            if rng.random() < 0.5 and item not in row:
                row[rng.integers(0, min(20, depth))] = item
    return rows


def test_agrees_with_the_package_on_its_own_ground_truth(package, ids):
    captions, images, _ = ids
    metrics, truth = package.Metrics(), eccv_positives()
    query_ids = {"i2t": np.array(list(truth["i2t"])), "t2i": np.array(list(truth["t2i"]))}
    galleries = {"i2t": captions, "t2i": images}
    depth = {way: max(len(p) for p in truth[way].values()) for way in truth}
    rankings = {
        way: shuffled(query_ids[way], galleries[way], truth[way], depth[way] + 5)
        for way in query_ids
    }
    reference = metrics.eccv_metrics(
        {w: dict(zip(query_ids[w].tolist(), rankings[w].tolist(), strict=True)) for w in query_ids},
        "all",
    )
    got = eccv_measures(rankings, query_ids)
    for way in query_ids:
        for ours, theirs in (("r1", "r1"), ("r_precision", "rprecision"), ("map_at_r", "map_at_r")):
            expected = 100 * reference[f"eccv_{theirs}"][way]
            assert got[f"{way}_eccv_{ours}"] == pytest.approx(expected, abs=1e-10)


def test_folds_agree_with_the_package(package, ids):
    """The 1K protocol on text-to-image, on a twentieth of the captions."""
    captions, images, image_of = ids
    chosen = captions[::20]
    rng = np.random.default_rng(0)
    ranked = np.stack([rng.permutation(images) for _ in chosen])
    own = {int(c): image_of[int(c)] for c in chosen}
    for row, c in zip(ranked, chosen.tolist(), strict=True):  # swap the right one near the front
        at, to = int(np.flatnonzero(row == own[c])[0]), int(rng.integers(0, 40))
        row[at], row[to] = row[to], row[at]
    place = {i: n for n, i in enumerate(images.tolist())}
    folds = contiguous_folds([place[own[c]] for c in chosen.tolist()], len(images))
    parts = [(f.captions, images[f.images]) for f in folds]
    positives = [[own[c]] for c in chosen.tolist()]
    for k in (1, 5, 10):
        expected = []
        for rows, held in parts:
            some = [int(c) for c in chosen[rows]]
            expected.append(
                package._metrics.compute_coco1k_r_at_k(
                    {c: ranked[n].tolist() for n, c in zip(rows, some, strict=True)},
                    {c: [own[c]] for c in some},
                    set(held.tolist()),
                    k,
                )
            )
        got = over_folds(lambda r, p, k=k: recall_at_k(r, p, [k])[0], ranked, positives, parts)
        assert got == pytest.approx(100 * np.mean(expected), abs=1e-11)


def test_a_query_that_is_not_ranked_is_named(package):
    with pytest.raises(ValueError, match="ECCV Caption needs t2i query"):
        eccv_measures({"t2i": np.zeros((1, 3), int)}, {"t2i": np.array([-1])})


def test_the_test_split_of_coco_is_measured_and_nothing_else(package, ids):
    captions, images, image_of = ids
    place = {i: n for n, i in enumerate(images.tolist())}
    own = torch.tensor([place[image_of[c]] for c in captions.tolist()])
    names = [str(i) for i in images], [str(c) for c in captions]
    points = torch.randn(len(images), 8)
    pairs = Pairs("coco/test", points, ["x"] * len(own), own, ids=names)
    g, c = Gaussian(points), Gaussian(points[own])  # every caption finds its own image
    found = eccv(similarity("cosine"), g, c, pairs)
    assert set(found) == {f"{w}_eccv_{m}" for w in ("i2t", "t2i") for m in MEASURED}
    assert found["t2i_eccv_r1"] == 100
    part = replace(pairs, ids=(names[0][:9], names[1][:9]))
    for other in (part, replace(pairs, name="scenes/test"), replace(pairs, ids=None)):
        assert eccv(similarity("cosine"), g, c, other) == {}
