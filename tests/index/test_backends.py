"""What every backend must keep: inherited by the folder, Milvus, and one of the tests' own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from index.contract import clustered, records, truth
from index.real_milvus import RealMilvus
from index.real_postgres import RealPostgres

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, IndexSettings, Record, backend, backends, merge
from gaussmatch.search.trust import Calibration
from gaussmatch.search.where import UnknownFieldError


class BackendContract(ABC):
    refused: ClassVar[dict[str, str]] = {}
    """Similarities that it cannot keep, and what it says."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, request: pytest.FixtureRequest) -> None:
        self.tmp_path, self.number = tmp_path, abs(hash(request.node.nodeid))

    @abstractmethod
    def place(self, name: str = "a") -> str:
        """A new place; another one for another name."""

    def made(self, n: int = 30, name: str = "a", **options) -> Index:
        index = Index.create(self.place(name), similarity="kl", **options)
        if n:
            index.add(clustered(n), records(0, n))
        return index

    def test_a_condition_on_a_field_that_no_item_has_is_refused(self, monkeypatch):
        monkeypatch.setattr(backend, "FIELD_ITEMS", 2)  # a sample must not decide it
        index = self.made(4)
        index.add(clustered(1, seed=2), [Record("z", {"rare": 7})])
        assert index.search(clustered(1), 5, where={"rare": 8})[0].ids == []
        with pytest.raises(
            UnknownFieldError, match="no item has a field 'evn'; did you mean 'even'"
        ):
            index.search(clustered(1), 5, where={"evn": True})
        without = {"evn": None, "rare": 8}  # "without the field" is no misspelling
        assert index.search(clustered(1), 5, where=without)[0].ids == []
        assert index.search(clustered(1), 5, gallery="captions", where={"x": 1})[0].ids == []
        index.close()

    @pytest.mark.parametrize("gallery", ["images", "captions"])
    @pytest.mark.parametrize("name", ["kl", "min_kl", "wasserstein"])
    def test_search(self, name, gallery):
        if name in self.refused:
            with pytest.raises(ValueError, match=self.refused[name]):
                Index.create(self.place(), similarity=name)
            return
        items, queries = clustered(40), clustered(4, seed=1)
        index = Index.create(self.place(), similarity=name)
        index.add(items, records(0, 40), gallery)
        scores = truth(name, items, queries, gallery)
        options = {"gallery": gallery, "where": {"even": True}, "exclude": ["i4", "i5"]}
        allowed = torch.arange(40) % 2 == 0
        allowed[4] = False
        few = scores.where(allowed, -torch.inf)
        for found, values in ((index.search(queries, 50, gallery=gallery), scores),
                              (index.search(queries, 50, **options), few)):  # fmt: skip
            for hits, row in zip(found, values, strict=True):
                right = [
                    f"i{j}" for j in row.argsort(descending=True).tolist() if row[j].isfinite()
                ]
                assert hits.ids == right
                ranked = row.sort(descending=True).values[: len(right)]
                assert [h.score for h in hits.hits] == pytest.approx(ranked.tolist(), rel=1e-5)
                assert hits[0].meta["n"] == int(hits[0].id[1:])
        unsure = {f"i{j}": u for j, u in enumerate(items.uncertainty().tolist())}
        assert found[0][0].uncertainty == pytest.approx(unsure[found[0][0].id], rel=1e-5)
        assert [len(h) for h in index.search(queries, 3, gallery="images")] in ([3] * 4, [0] * 4)
        index.close()

    def test_add_replace_delete(self):
        index = self.made(0)
        assert (index.size(), index.search(clustered(1), 3)[0].ids) == (0, [])
        g = clustered(10)
        meta = {"tags": ["é", 1], "by": None}
        index.add(g, [*records(0, 9), Record("x", meta, b"jpeg", "mark")])
        assert (index.size(), len(index), "i3" in index, "y" in index) == (10, 10, True, False)
        assert index.get("x") == Record("x", meta, b"jpeg", "mark")
        assert torch.equal(index.gaussian("x").log_var, g[9:].log_var)
        assert index.fields() == ["by", "even", "n", "tags"]
        with pytest.raises(ValueError, match="'i3' is in the index already"):
            index.add(g[:2], [Record("new"), Record("i3")])
        with pytest.raises(ValueError, match="'new' is given twice"):
            index.add(g[:2], [Record("new"), Record("new")])
        with pytest.raises(ValueError, match="holds Gaussians with"):
            index.add(clustered(1, shape="point"), [Record("new")])
        assert index.size() == 10
        index.add(g[:1], [Record("i3", {"new": True})], replace=True)
        assert (index.size(), dict(index.get("i3").meta)) == (10, {"new": True})
        assert torch.equal(index.gaussian("i3").mean, g[:1].mean)
        assert index.delete(["i1", "i2", "i1"]) == 2
        with pytest.raises(ValueError, match="no item 'i1' among the images"):
            index.delete(["i1", "i4"])
        assert index.delete(["i1", "i4"], missing_ok=True) == 1
        left = {"i0", "i3", "i5", "i6", "i7", "i8", "x"}
        assert {r.id for r in index.records()} == left
        assert {r.id for _, some in index.blocks() for r in some} == left
        held, some = index.some(3)
        assert len(held) == len(some or []) == 3
        with pytest.raises(ValueError, match="no gallery 'photos'"):
            index.size("photos")
        index.compact()
        assert set(index.search(clustered(1), 20)[0].ids) == left
        index.verify()
        index.close()

    def test_another_opening_sees_the_changes(self):
        index = self.made()
        other = Index.open(index.place)
        index.delete(["i0"])
        index.note_source({"folder": "x"})
        index.set_calibration(Calibration(about={"items": 7}))
        index.set_settings(IndexSettings(structure="hnsw", search=99, flat_below=5))
        assert other.reload()
        assert not other.reload()
        assert (other.size(), other.settings.search) == (29, 99)
        assert other.manifest.source == {"folder": "x"}
        assert other.calibration == Calibration(about={"items": 7})
        assert other.info() == index.info()
        assert len(other.search(clustered(1), 50)[0]) == 29
        other.close()
        index.close()

    def test_a_place_is_taken_once_and_may_be_dropped(self):
        index = self.made()
        with pytest.raises(FileExistsError, match="is an index already"):
            self.made(0)
        index.drop()
        with pytest.raises(FileNotFoundError):
            Index.open(self.place())
        again = self.made(3)
        assert again.size() == 3
        again.close()

    def test_merge(self):
        a, b = self.made(name="a"), self.made(name="b")
        b.delete(["i1"])
        b.add(clustered(1), [Record("only-b", {}, b"jpeg")])
        with pytest.raises(ValueError, match="is in the index already"):
            merge(self.place("c"), [a.place, b.place], progress=False)
        with pytest.raises(FileNotFoundError):  # nothing of it stays
            Index.open(self.place("c"))
        merged = merge(self.place("c"), [a.place, b.place], replace=True, progress=False)
        assert merged.size() == 31
        assert merged.get("only-b").thumbnail == b"jpeg"
        for index in (a, b, merged):
            index.close()
        with pytest.raises(FileExistsError):
            merge(self.place("c"), [self.place("a")], progress=False)

    def test_a_model_comes_along(self, tiny_run: Path):
        index = Index.create(self.place(), tiny_run)
        index.add(
            index.model.encode_texts(["a red star", "a blue dot"]), [Record("a"), Record("b")]
        )
        index.close()
        again = Index.open(self.place())
        assert again.search_text(["a red star"], 1)[0].ids[0] in ("a", "b")
        assert again.manifest.run
        again.close()

    def test_what_is_not_finite_in_float32_is_refused(self):
        index = self.made(3)
        g = clustered(1)
        with pytest.raises(ValueError, match="the embedding of 'new' holds"):
            index.add(Gaussian(g.mean.double() * 1e300, g.log_var.double()), [Record("new")])
        assert len(index.search(clustered(1), 5)[0]) == 3
        index.close()


class TestFolder(BackendContract):
    def place(self, name="a"):
        return str(self.tmp_path / name)


class TestMilvus(BackendContract):
    @pytest.fixture(autouse=True)
    def _needs(self) -> None:
        pytest.importorskip("pymilvus")
        pytest.importorskip("milvus_lite")

    @pytest.fixture(autouse=True)
    def _server(self, milvus_database: str) -> None:
        self.database = milvus_database

    def place(self, name="a"):
        return f"{self.database}#t{self.number}_{name}"


class TestMemory(BackendContract):
    @pytest.fixture(autouse=True)
    def _scheme(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(backends.SCHEMES, "memory:", "index.memory_backend:Memory")

    def place(self, name="a"):
        return f"memory:{self.number}-{name}"


class TestMilvusServer(BackendContract):
    refused: ClassVar[dict[str, str]] = {"min_kl": r"is Milvus 2\.3, and min_kl needs 2\.4"}

    @pytest.fixture(autouse=True)
    def _server(self, milvus_server: RealMilvus) -> None:
        self.server = milvus_server

    def place(self, name="a"):
        return f"{self.server.address}#t{self.number}_{name}"


class TestPostgres(BackendContract):
    @pytest.fixture(autouse=True)
    def _server(self, postgres_server: RealPostgres) -> None:
        self.server = postgres_server

    def place(self, name="a"):
        return f"{self.server.address}#t{self.number}_{name}"
