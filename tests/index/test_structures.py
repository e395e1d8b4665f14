"""Every structure keeps the contract; approximate structures find nearly all."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from index.contract import IndexContract, clustered, records, truth

from gaussmatch.gaussian import Gaussian
from gaussmatch.index import Index, IndexSettings
from gaussmatch.index.backends.folder import exact
from gaussmatch.similarities import similarity


class TestFlat(IndexContract):
    structure = "flat"


class TestFlatWithoutFaiss(IndexContract):
    structure = "flat"

    @pytest.fixture(autouse=True)
    def _without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exact, "faiss", None)


class TestHnsw(IndexContract):
    structure = "hnsw"
    least_recall = 0.95


class TestCompressed(IndexContract):
    structure = "compressed"
    least_recall = 0.93


def test_without_faiss_a_graph_says_what_is_missing(tmp_path, monkeypatch):
    index = Index.create(
        tmp_path / "i", similarity="kl", settings=IndexSettings(structure="hnsw", flat_below=5)
    )
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"gaussmatch\[search\]"):
        index.add(clustered(10), records(0, 10))


def test_flat_is_exact_where_float32_alone_is_not(tmp_path):
    """All items nearly alike, and far from the origin."""
    dice = torch.Generator().manual_seed(0)
    mean = 50 + 0.01 * torch.randn(500, 8, generator=dice)
    items = Gaussian(mean, -2 + 0.01 * torch.randn(500, 8, generator=dice))
    queries = Gaussian(mean[:20] + 0.001, items.log_var[:20])
    index = Index.create(tmp_path / "i", similarity="kl")
    index.add(items, records(0, 500))
    TestFlat().check(index, truth("kl", items, queries, "images"), queries)


def test_the_shortlist_grows_when_rounding_could_hide_the_best(tmp_path):
    """A hundred items that are equal in float32, the best of them last."""
    g = Gaussian(torch.zeros(200, 4), torch.zeros(200, 4))
    g.mean[:, 0] = 1e4
    g.mean[100:, 0] -= torch.arange(100) * 1e-2
    items = Gaussian(torch.cat([g.mean, -g.mean]), torch.zeros(400, 4))
    queries = Gaussian(torch.zeros(1, 4), torch.zeros(1, 4))
    index = Index.create(tmp_path / "i", similarity="kl")
    index.add(items, records(0, 400))
    scores = truth("kl", items, queries, "images")
    hits = index.search(queries, 3)[0]
    np.testing.assert_allclose([h.score for h in hits.hits], scores.topk(3).values[0], rtol=1e-9)


def test_a_graph_on_clustered_gaussians_finds_95_percent(tmp_path):
    """A small setting of benchmarks/search_speed.py."""
    items, queries = clustered(2000, 32), clustered(100, 32, seed=1)
    index = Index.create(
        tmp_path / "i", similarity="kl", settings=IndexSettings(structure="hnsw", flat_below=5)
    )
    index.add(items, records(0, 2000))
    best = truth("kl", items, queries, "images").topk(10).indices
    found = index.search(queries, 10)
    right = [
        len({int(i[1:]) for i in h.ids} & set(b.tolist())) for h, b in zip(found, best, strict=True)
    ]
    assert np.mean(right) / 10 >= 0.95


def test_a_similarity_without_a_lift_is_scanned_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(type(similarity("kl")), "no_lift", "for the test")
    with pytest.raises(ValueError, match="use structure 'flat'"):
        Index.create(tmp_path / "h", similarity="kl", settings=IndexSettings(structure="hnsw"))
    index = Index.create(tmp_path / "i", similarity="kl")
    items, queries = clustered(100), clustered(5, seed=1)
    index.add(items, records(0, 100))
    assert index.manifest.galleries["images"][0].structure == "scan"
    TestFlat().check(index, truth("kl", items, queries, "images"), queries)


@pytest.mark.parametrize("gallery", ["images", "captions"])
def test_a_similarity_with_weights_of_its_own_is_scanned(tmp_path, gallery):
    items, queries = clustered(60), clustered(5, seed=1)
    index = Index.create(tmp_path / "i", similarity="match_prob")
    index.add(items, records(0, 60), gallery)
    scores = truth("match_prob", items, queries, gallery).detach()
    TestFlat().check(index, scores, queries, gallery=gallery)
    with pytest.raises(ValueError, match="use structure 'flat'"):
        Index.create(
            tmp_path / "h", similarity="match_prob", settings=IndexSettings(structure="hnsw")
        )


def test_bad_queries_are_refused(tmp_path):
    index = Index.create(tmp_path / "i", similarity="kl")
    index.add(clustered(10), records(0, 10))
    good = clustered(1)
    for query, message in [
        (clustered(1, 5), "D = 5"),
        (Gaussian(good.mean), "a query is a point"),
        (Gaussian(good.mean * torch.nan, good.log_var), "NaN"),
        (good[0], "batch"),
    ]:
        with pytest.raises(ValueError, match=message):
            index.search(query, 3)
    with pytest.raises(ValueError, match="at least 1"):
        index.search(good, 0)
    with pytest.raises(ValueError, match="no gallery"):
        index.search(good, 1, gallery="photos")
    assert len(index.search(clustered(1, shape="sphere"), 3)[0]) == 3  # a sphere is an ellipsoid


def test_several_embeddings_an_item_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"one Gaussian for each item.*put every embedding"):
        Index.create(tmp_path / "i", similarity="mil")
    assert not (tmp_path / "i").exists()
