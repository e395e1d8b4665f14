"""What an index of every structure must keep. Subclass, name it, inherit the tests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import SIMILARITIES, similarity
from gaussmatch.search import Index, IndexSettings, Record

K = 10
LIFTED = [name for name, s in SIMILARITIES.items() if s.no_lift is None]


def clustered(n: int, dim: int = 12, shape: str = "ellipsoid", seed: int = 0) -> Gaussian:
    """Gaussians about thirty centers; the same centers for every seed."""
    dice = torch.Generator().manual_seed(99)
    centers, widths = (torch.randn(30, dim, generator=dice) for _ in range(2))
    dice = torch.Generator().manual_seed(seed)
    own = torch.randint(30, (n,), generator=dice)
    mean = centers[own] + 0.4 * torch.randn(n, dim, generator=dice)
    width = {"ellipsoid": dim, "sphere": 1, "point": 0}[shape]
    if not width:
        return Gaussian(mean)
    noise = 0.3 * torch.randn(n, width, generator=dice)
    return Gaussian(mean, 0.5 * widths[own, :width] + noise)


def records(start: int, stop: int) -> list[Record]:
    return [Record(f"i{j}", {"n": j, "even": j % 2 == 0}) for j in range(start, stop)]


def truth(name: str, items: Gaussian, queries: Gaussian, gallery: str) -> torch.Tensor:
    """Queries × items, in float64."""
    items, queries = items.to(torch.float64), queries.to(torch.float64)
    if gallery == "images":
        return similarity(name).for_query("captions").matrix(items, queries).T
    return similarity(name).for_query("images").matrix(queries, items)


class IndexContract:
    structure: ClassVar[str]
    least_recall: ClassVar[float] = 1.0

    @property
    def settings(self) -> IndexSettings:
        return IndexSettings(structure=self.structure, flat_below=50)  # type: ignore[arg-type]

    def check(self, index: Index, scores: torch.Tensor, queries: Gaussian, **options) -> None:
        """Against the scores of all items, −inf for those that must not be found."""
        k = min(K, int(scores[0].isfinite().sum()))
        best = scores.topk(k)
        found = index.search(queries, K, **options)
        right = 0.0
        for hits, ids, values, row in zip(found, best.indices, best.values, scores, strict=True):
            assert len(hits) == k  # never fewer than there are
            assert len(set(hits.ids)) == k
            numbers = [int(id_[1:]) for id_ in hits.ids]
            own = np.array([hit.score for hit in hits.hits])
            np.testing.assert_allclose(own, row[numbers].numpy(), rtol=1e-5, atol=1e-6)
            assert (np.diff(own) <= 0).all()
            if self.least_recall == 1.0:
                np.testing.assert_allclose(own, values.numpy(), rtol=1e-5, atol=1e-6)
                assert numbers == ids.tolist()
            right += len(set(numbers) & set(ids.tolist())) / k
        assert right / len(found) >= self.least_recall

    @pytest.mark.parametrize("gallery", ["images", "captions"])
    @pytest.mark.parametrize("name", LIFTED)
    def test_finds_what_the_similarity_ranks_first(self, tmp_path: Path, name, gallery):
        items, queries = clustered(400), clustered(20, seed=1)
        index = Index.create(tmp_path / "i", similarity=name, settings=self.settings)
        index.add(items, records(0, 400), gallery)
        scores = truth(name, items, queries, gallery)
        self.check(Index.open(tmp_path / "i"), scores, queries, gallery=gallery)
        some = torch.arange(400) % 2 == 0
        self.check(
            index, scores.where(some, -torch.inf), queries, gallery=gallery, where={"even": True}
        )

    @pytest.mark.parametrize("scale", [1e-6, 1e6])
    @pytest.mark.parametrize("name", ["kl", "wasserstein"])
    def test_the_unit_of_the_space_does_not_matter(self, tmp_path: Path, name, scale):
        def scaled(g: Gaussian) -> Gaussian:
            return Gaussian(g.mean * scale, g.log_var + 2 * math.log(scale))

        items, queries = scaled(clustered(400)), scaled(clustered(20, seed=1))
        index = Index.create(tmp_path / "i", similarity=name, settings=self.settings)
        index.add(items, records(0, 400))
        self.check(index, truth(name, items, queries, "images"), queries)

    @pytest.mark.parametrize(
        ("name", "shape", "dim"),
        [
            ("kl", "sphere", 12),
            ("min_kl", "sphere", 3),
            ("cosine", "point", 12),
            ("csd", "sphere", 2),
        ],
    )
    def test_other_shapes(self, tmp_path: Path, name, shape, dim):
        items, queries = clustered(300, dim, shape), clustered(9, dim, shape, seed=1)
        index = Index.create(tmp_path / "i", similarity=name, settings=self.settings)
        index.add(items, records(0, 300))
        self.check(index, truth(name, items, queries, "images"), queries)

    def test_over_segments_with_deleted_items_and_after_compacting(self, tmp_path: Path):
        items, queries = clustered(400), clustered(20, seed=1)
        index = Index.create(tmp_path / "i", similarity="kl", settings=self.settings)
        for start, stop in ((0, 200), (200, 210), (210, 400)):
            index.add(items[start:stop], records(start, stop))
        scores = truth("kl", items, queries, "images")
        self.check(index, scores, queries)
        index.delete([f"i{j}" for j in range(0, 400, 3)])
        live = torch.arange(400) % 3 != 0
        scores = scores.where(live, -torch.inf)
        self.check(index, scores, queries)
        index.compact()
        assert [p.structure for p in index.manifest.galleries["images"]] == [self.structure]
        self.check(Index.open(tmp_path / "i"), scores, queries)
        few = torch.arange(400) < 9  # fewer than K, after deletion six
        self.check(index, scores.where(few, -torch.inf), queries, where={"n": {"lt": 9}})
        assert len(index.search(queries[:1], 5, where={"n": 1000})[0]) == 0

    def test_more_than_there_are(self, tmp_path: Path):
        index = Index.create(tmp_path / "i", similarity="kl", settings=self.settings)
        queries = clustered(2, seed=1)
        assert [len(hits) for hits in index.search(queries, 5)] == [0, 0]
        index.add(clustered(60), records(0, 60))
        assert [len(hits) for hits in index.search(queries, 100)] == [60, 60]
