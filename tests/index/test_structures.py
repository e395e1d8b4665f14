"""Every structure keeps the contract; approximate structures find nearly all."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from index.contract import IndexContract, clustered, records, truth
from similarities.contract import Largest

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity
from gaussmatch.search import Index, IndexSettings, Record
from gaussmatch.search.backends.folder import structure
from gaussmatch.search.backends.folder.segment import FILTERS
from gaussmatch.search.where import Where


class TestFlat(IndexContract):
    structure = "flat"


class TestFlatWithoutFaiss(IndexContract):
    structure = "flat"

    @pytest.fixture(autouse=True)
    def _without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(structure, "faiss", None)


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


def test_a_graph_walks_by_the_scores_of_items_that_are_far_surer_than_most(tmp_path):
    """Their coordinates lie dozens of standard deviations away; cut off, they looked best."""
    items, queries = clustered(500, 8), clustered(20, 8, seed=1)
    items.log_var[::10] -= 6
    settings = IndexSettings(structure="hnsw", flat_below=5)
    index = Index.create(tmp_path / "i", similarity="kl", settings=settings)
    index.add(items, records(0, 500), "captions")
    structure = index.backend.segments("captions")[0].structure
    found = structure.candidates(structure.lifted(queries.numpy()), 400)
    scores = truth("kl", items, queries, "captions").numpy()
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, found.rows, 1), rtol=0.01)


@pytest.mark.parametrize(
    ("percent", "skipped"), [(1, 50), (1, 200), (10, 200), (40, 200), (90, 200)]
)
def test_a_filter_on_a_graph_finds_the_best_of_what_it_leaves(
    tmp_path, monkeypatch, percent, skipped
):
    """By decoding a few vectors, by looking at the coded ones in order, or by a wider walk."""
    monkeypatch.setattr(structure, "SKIPPED", skipped)
    items, queries = clustered(4000, 16), clustered(50, 16, seed=1)
    settings = IndexSettings(structure="hnsw", flat_below=5)
    index = Index.create(tmp_path / "i", similarity="kl", settings=settings)
    index.add(items, [Record(f"i{j}", {"percent": j % 100}) for j in range(4000)])
    left = torch.arange(4000) % 100 < percent
    best = truth("kl", items, queries, "images").where(left, -torch.inf).topk(10).indices
    found = index.search(queries, 10, where={"percent": {"lt": percent}})
    right = [
        len({*h.ids} & {f"i{j}" for j in b}) for h, b in zip(found, best.tolist(), strict=True)
    ]
    assert np.mean(right) / 10 >= 0.95


def test_compacting_brings_an_older_graph_into_the_new_order(tmp_path):
    items, queries = clustered(500, 8), clustered(20, 8, seed=1)
    settings = IndexSettings(structure="hnsw", flat_below=5)
    index = Index.create(tmp_path / "i", similarity="kl", settings=settings)
    index.add(items, records(0, 500))
    before = index.manifest.galleries["images"]
    index.compact()
    assert index.manifest.galleries["images"] == before  # it is in that order already
    with index.backend.writing():
        files = {name: mark for name, mark in before[0].files.items() if name != "rows0.npy"}
        older = index.manifest.with_parts("images", (replace(before[0], files=files),))
        index.backend.save(older)
    index.compact()
    (part,) = index.manifest.galleries["images"]
    assert part.name != before[0].name
    assert "rows0.npy" in part.files
    assert len(index.search(queries, 10)[0]) == 10


def test_the_rows_of_the_last_filters_are_kept_and_no_deleted_one_among_them(tmp_path):
    index = Index.create(tmp_path / "i", similarity="kl")
    index.add(clustered(60), [Record(f"i{j}", {"third": j % 3}) for j in range(60)])
    where, query = Where.of({"third": 1}), clustered(1, seed=1)
    (held,) = index.backend.segments("images")
    assert held.allowed(where, []) is held.allowed(Where.of({"third": 1}), [])
    assert held.allowed(where, ["i1"]).count == held.allowed(where, []).count - 1
    for j in range(2 * FILTERS):
        held.allowed(Where.of({"third": j}), [])
    assert len(held._filtered) == FILTERS
    best = index.search(query, 1, where=where)[0].ids
    index.delete(best)
    assert best[0] not in index.search(query, 60, where=where)[0].ids


@pytest.mark.parametrize("structure", ["flat", "hnsw", "compressed"])
def test_a_query_copies_nothing_of_the_gallery(tmp_path, structure):
    items, query = clustered(4000, 64), clustered(1, 64, seed=1)
    settings = IndexSettings(structure=structure, flat_below=5)
    index = Index.create(tmp_path / "i", similarity="kl", settings=settings)
    index.add(items, records(0, 4000))
    with Largest() as largest:
        index.search(query, 5)
    tracemalloc.start()  # numpy's memory, and Python's
    try:
        index.search(query, 5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    gallery = 4000 * 64 * 2 * 4
    assert peak < gallery / 10
    assert 8 * largest.numel < gallery / 10


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
