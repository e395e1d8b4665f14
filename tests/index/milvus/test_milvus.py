"""An index in Milvus against the same index on disk, through milvus-lite."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from index.contract import LIFTED

from gaussmatch.gaussian import Gaussian
from gaussmatch.index import Hits, Index, Record, Settings
from gaussmatch.index.lift import Lift
from gaussmatch.index.milvus import MilvusIndex
from gaussmatch.index.milvus import gallery as gallery_module
from gaussmatch.index.milvus import rows as coding
from gaussmatch.index.opening import create_index, open_index
from gaussmatch.similarities import SIMILARITIES, similarity

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

D = 6
Make = Callable[..., tuple[MilvusIndex, Index]]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One embedded server for all tests: a first client keeps it up. pymilvus looks every half
    second whether a collection is loaded; here it looks sooner."""
    from pymilvus.client import grpc_handler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc_handler, "time", SimpleNamespace(**{**vars(time), "sleep": _short}))
        yield from _database(tmp_path_factory)


def _short(seconds: float) -> None:
    time.sleep(min(seconds, 0.01))


def _database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file = tmp_path_factory.mktemp("milvus") / "test.db"
    keeper = create_index(f"milvus:{file}#keeper", similarity="cosine")
    yield f"milvus:{file}"
    keeper.close()  # type: ignore[attr-defined]


@pytest.fixture
def make(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    """A new index in Milvus and one on disk."""
    name = f"t{abs(hash(request.node.nodeid))}"
    opened: list[MilvusIndex] = []

    def both(name_of_similarity: str = "kl", **settings: object) -> tuple[MilvusIndex, Index]:
        chosen = Settings(**settings)  # type: ignore[arg-type]
        there = create_index(
            f"{database}#{name}_{len(opened)}", similarity=name_of_similarity, settings=chosen
        )
        assert isinstance(there, MilvusIndex)
        opened.append(there)
        here = Index.create(tmp_path / f"{len(opened)}", similarity=name_of_similarity)
        return there, here

    yield both
    for index in opened:
        index.close()


def gaussians(n: int, *, point: bool = False, sphere: bool = False) -> Gaussian:
    mean = 3 + torch.randn(n, D)  # far from zero, where a raw lift is hard on float32
    return Gaussian(mean, None if point else 0.5 * torch.randn(n, 1 if sphere else D))


def records(n: int, start: int = 0) -> list[Record]:
    return [
        Record(
            f"a{i}",
            {"year": 2000 + i % 5, "by": "ann" if i % 3 else None, "tags": ["é", i]},
            b"jpeg%d" % i if i % 2 else None,
            f"mark {i}",
        )
        for i in range(start, start + n)
    ]


def same(a: list[Hits], b: list[Hits]) -> None:
    assert [hits.ids for hits in a] == [hits.ids for hits in b]
    for x, y in zip(a, b, strict=True):
        assert [h.meta for h in x.hits] == [h.meta for h in y.hits]
        assert [h.score for h in x.hits] == pytest.approx([h.score for h in y.hits], rel=1e-6)
        assert (x.uncertainty, x.notes, x.kind) == (y.uncertainty, y.notes, y.kind)
        for h, k in zip(x.hits, y.hits, strict=True):
            assert (h.uncertainty is None) == (k.uncertainty is None)
            assert h.uncertainty is None or h.uncertainty == pytest.approx(k.uncertainty, rel=1e-5)


@pytest.mark.parametrize("name", LIFTED)
def test_it_finds_what_the_index_on_disk_finds(make: Make, name: str) -> None:
    there, here = make(name)
    g, queries = gaussians(80), gaussians(4)
    for index in (there, here):
        index.add(g, records(80))
        index.add(g[:30], records(30), "captions")
    same(there.search(queries, 7), here.search(queries, 7))
    same(there.search(queries, 99), here.search(queries, 99))
    options = {"where": {"year": {"gte": 2002}, "by": None}, "exclude": ["a3", "a12"]}
    same(there.search(queries, 9, **options), here.search(queries, 9, **options))
    same(there.search(queries, 5, gallery="captions"), here.search(queries, 5, gallery="captions"))
    same([there.search_id("a7", 3)], [here.search_id("a7", 3)])
    assert there.search(queries, 3, where={"year": 1900})[0].ids == []


@pytest.mark.parametrize("kind", ["hnsw", "compressed"])
@pytest.mark.parametrize("name", ["kl", "min_kl", "wasserstein"])
def test_other_kinds_of_index(make: Make, name: str, kind: str, capfd: object) -> None:
    there, here = make(name, kind=kind, search=1024)
    g, queries = gaussians(60), gaussians(3)
    for index in (there, here):
        index.add(g, records(60))
    same(there.search(queries, 5), here.search(queries, 5))


@pytest.mark.parametrize("form", [{"point": True}, {"sphere": True}])
def test_points_and_spheres(make: Make, form: dict[str, bool]) -> None:
    there, here = make("cosine" if form.get("point") else "kl")
    g, queries = gaussians(20, **form), gaussians(2, **form)
    for index in (there, here):
        index.add(g, records(20))
    same(there.search(queries, 5), here.search(queries, 5))
    assert torch.equal(there.gaussian("a3").mean, g[3:4].mean)


def test_a_search_that_misses_looks_at_everything(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph may find fewer than there are, above all under a narrow filter."""
    there, here = make("kl", kind="hnsw")
    g, queries = gaussians(40), gaussians(3)
    for index in (there, here):
        index.add(g, records(40))
    ask = gallery_module.Seen.candidates

    def poor(self: gallery_module.Seen, q: Gaussian, count: int, allowed: object = None):  # type: ignore[no-untyped-def]
        told = ask(self, q, count, None)
        told.rows[:, 2:] = -1
        return told

    monkeypatch.setattr(gallery_module.Seen, "candidates", poor)
    where = {"year": 2003}
    same(there.search(queries, 6, where=where), here.search(queries, 6, where=where))


def test_add_delete_replace_and_look(make: Make, database: str) -> None:
    index, _ = make("kl")
    assert index.size() == 0
    assert index.search(gaussians(1), 3)[0].ids == []
    g = gaussians(10)
    index.add(g, records(10))
    assert (index.size(), len(index), "a3" in index, "b3" in index) == (10, 10, True, False)
    got = index.get("a3")
    assert (got.meta["tags"], got.thumbnail, got.source) == (["é", 3], b"jpeg3", "mark 3")
    assert torch.equal(index.gaussian("a3").log_var, g[3:4].log_var)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'a9' is in the index already"):
        index.add(g[:2], records(2, start=9))
    assert index.size() == 10  # nothing of it was added
    index.add(g[:1], [Record("a9", {"new": True})], replace=True)
    assert (index.size(), dict(index.get("a9").meta)) == (10, {"new": True})
    assert torch.equal(index.gaussian("a9").mean, g[:1].mean)
    assert index.delete(["a1", "a2", "a1"]) == 2
    with pytest.raises(ValueError, match="no item 'a1' among the images"):
        index.delete(["a1", "a4"])
    assert index.delete(["a1", "a4"], missing_ok=True) == 1
    assert {r.id for r in index.records()} == {f"a{i}" for i in (0, 3, 5, 6, 7, 8, 9)}
    assert len(index.some(3)[0]) == len(index.some(3)[1] or []) == 3
    index.note_source({"folder": "x"})
    again = open_index(str(index.address))
    assert again.info()["images"] == 7
    assert again.info()["source"] == {"folder": "x"}
    again.close()  # type: ignore[attr-defined]


def test_a_second_opening_sees_the_first_items(make: Make) -> None:
    index, _ = make("kl")
    other = MilvusIndex(str(index.address))
    index.add(gaussians(5), records(5))
    assert other.size() == 5
    assert len(other.search(gaussians(1), 3)[0]) == 3
    other.close()


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda: (gaussians(2), records(3)), "2 Gaussians, but 3 records"),
        (lambda: (gaussians(2), [*records(1), *records(1)]), "'a0' is given twice"),
        (lambda: (gaussians(1, point=True), records(1)), "compares distributions"),
        (lambda: (gaussians(1), [Record("x" * 3000)]), "the id .* more than the 2,048 bytes"),
        (lambda: (gaussians(1), [Record("x\x00")]), "no control character"),
        (lambda: (gaussians(1), [Record("x", {"a": "é" * 40_000})]), "the metadata of 'x'"),
        (lambda: (Gaussian(torch.full((1, D), torch.nan), torch.zeros(1, D)), records(1)), "NaN"),
    ],
)
def test_what_cannot_be_added_is_refused_and_nothing_changes(
    make: Make, add: Callable[[], tuple[Gaussian, list[Record]]], message: str
) -> None:
    index, _ = make("kl")
    with pytest.raises(ValueError, match=message):
        index.add(*add())
    assert index.size() == 0


def test_another_form_is_refused(make: Make) -> None:
    index, _ = make("kl")
    index.add(gaussians(2), records(2))
    with pytest.raises(ValueError, match="these are of"):
        index.add(gaussians(2, sphere=True), records(2, start=5))
    with pytest.raises(ValueError, match="D = 3"):
        index.search(Gaussian(torch.zeros(1, 3), torch.zeros(1, 3)))


def test_compact_standardises_on_more_items(make: Make) -> None:
    """The first add may have been of one odd item."""
    index, here = make("kl", kind="hnsw")
    g, queries = gaussians(50), gaussians(3)
    index.add(g[:1], records(1))
    index.add(g[1:], records(49, start=1))
    here.add(g, records(50))
    before = index.info()["collections"]["images"]
    index.compact()
    after = index.info()["collections"]["images"]
    assert before != after
    assert not index._client("has_collection", before[0])
    same(index.search(queries, 5), here.search(queries, 5))
    assert index.get("a3").thumbnail == b"jpeg3"
    index.compact()
    assert index.info()["collections"]["images"] == after


def test_a_name_is_taken_once_and_absence_is_told(make: Make, database: str) -> None:
    index, _ = make("kl")
    with pytest.raises(FileExistsError, match="is an index already"):
        create_index(str(index.address), similarity="kl")
    with pytest.raises(FileNotFoundError, match="no index of this name"):
        open_index(f"{database}#nobody")
    with pytest.raises(ValueError, match="not in files"):
        index.segments("images")


def test_a_similarity_without_a_lift_is_refused(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SIMILARITIES["kl"], "no_lift", "it is the best of many")
    with pytest.raises(ValueError, match="kl cannot be kept in Milvus: it is the best of many"):
        create_index(f"{database}#none", similarity="kl")


def test_upserts_are_of_moderate_size() -> None:
    g = gaussians(30)
    lift = Lift.of(similarity("kl"), "images", g)
    found = coding.rows(g, [Record(f"x{i}", {"t": "t" * 1000}) for i in range(30)], lift)
    few = list(coding.batches(found))
    assert [len(b) for b in few] == [30]
    size = coding.BATCH_BYTES, coding.BATCH_ROWS
    try:
        coding.BATCH_BYTES = 10_000
        sizes = [len(b) for b in coding.batches(found)]
        assert sum(sizes) == 30
        assert 5 <= len(sizes) < 30
        coding.BATCH_BYTES, coding.BATCH_ROWS = size[0], 7
        assert [len(b) for b in coding.batches(found)] == [7, 7, 7, 7, 2]
    finally:
        coding.BATCH_BYTES, coding.BATCH_ROWS = size
