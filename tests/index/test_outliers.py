"""One odd item must not spoil a gallery: extreme ones are refused, graphs stay good or are not
used."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from index.contract import clustered, records, truth

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, IndexSettings


def spoiled(how: str, n: int = 1500) -> Gaussian:
    g = clustered(n, 16)
    if how == "one outlier":
        g.mean[7] = 1e4
    elif how == "two far clusters":
        g.mean[: n // 2] += 1e3
    elif how == "huge norms":
        g.mean[:] *= torch.logspace(0, 4, n)[:, None]
    elif how == "wide log-variances":
        g.log_var[:] *= 10
    return g


@pytest.mark.parametrize(
    "how", ["none", "one outlier", "two far clusters", "huge norms", "wide log-variances"]
)
@pytest.mark.parametrize("name", ["kl", "wasserstein"])
def test_a_graph_reaches_its_recall_or_is_not_used(tmp_path, name, how):
    items = spoiled(how)
    settings = IndexSettings(structure="hnsw", flat_below=100)
    index = Index.create(tmp_path / "i", similarity=name, settings=settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        index.add(items, records(0, len(items)))
    ((segment,),) = (index.info()["segments"]["images"],)
    used = segment["used"]
    assert used == (not index.backend.segments("images")[0].structure.exact)
    assert used == (not any("searched exactly" in str(w.message) for w in caught))
    if how in ("none", "one outlier"):
        assert used
    queries = items[torch.arange(3, len(items), 31)]
    best = truth(name, items, queries, "images").topk(10).indices.tolist()
    found = [[int(i[1:]) for i in hits.ids] for hits in index.search(queries, 10)]
    right = sum(len(set(a) & set(b)) for a, b in zip(found, best, strict=True))
    assert right / (10 * len(best)) >= 0.93  # 0.95 on the sample that it was measured on


def test_copies_of_one_item_are_equally_good(tmp_path):
    """Ten of twenty equal ones are the best ten, whichever they are."""
    items = clustered(300, 16)[torch.arange(6000) % 300]
    index = Index.create(tmp_path / "i", similarity="kl", settings=IndexSettings(structure="hnsw"))
    index.add(items, records(0, len(items)))
    assert index.info()["segments"]["images"][0]["used"]


@pytest.mark.parametrize("value", [1e3, -1e3])
def test_extreme_log_variances_are_refused_with_the_bound(tmp_path, value):
    index = Index.create(tmp_path / "i", similarity="kl")
    g = clustered(3)
    g.log_var[1, 2] = value
    with pytest.raises(ValueError, match="the log-variances of 'i1' are beyond ±200"):
        index.add(g, records(0, 3))
    index.add(clustered(3), records(0, 3))
    with pytest.raises(ValueError, match="beyond ±200"):
        index.search(g, 1)
    g.log_var[1, 2] = math.copysign(199, value)
    index.add(g, records(10, 13))
    assert len(index.search(clustered(2, seed=1), 9)[1]) == 6
