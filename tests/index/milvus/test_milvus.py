"""An index in Milvus against the same index on disk, through milvus-lite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from index.contract import LIFTED

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import SIMILARITIES, similarity
from gaussmatch.search import GALLERIES, Hits, Index, IndexSettings, Record, merge
from gaussmatch.search.backends.milvus import milvus as gallery_module
from gaussmatch.search.backends.milvus import rows as coding
from gaussmatch.search.lift import Lift
from gaussmatch.search.topk import Candidates
from gaussmatch.search.trust import Calibration

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")

D = 6
Make = Callable[..., tuple[Index, Index]]


@pytest.fixture
def database(milvus_database: str) -> str:
    return milvus_database


@pytest.fixture
def make(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    """A new index in Milvus and one on disk."""
    name = f"t{abs(hash(request.node.nodeid))}"
    opened: list[Index] = []

    def both(name_of_similarity: str = "kl", **settings: object) -> tuple[Index, Index]:
        chosen = IndexSettings(**settings)  # type: ignore[arg-type]
        there = Index.create(
            f"{database}#{name}_{len(opened)}", similarity=name_of_similarity, settings=chosen
        )
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
        assert (x.uncertainty, x.notes, x.side) == (y.uncertainty, y.notes, y.side)
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


@pytest.mark.parametrize("structure", ["hnsw", "compressed"])
@pytest.mark.parametrize("name", ["kl", "min_kl", "wasserstein"])
def test_other_structures(make: Make, name: str, structure: str, capfd: object) -> None:
    there, here = make(name, structure=structure, search=1024)
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
    there, here = make("kl", structure="hnsw")
    g, queries = gaussians(40), gaussians(3)
    for index in (there, here):
        index.add(g, records(40))
    ask = gallery_module.CollectionView.candidates

    def poor(self: gallery_module.CollectionView, q: object, count: int):  # type: ignore[no-untyped-def]
        found = ask(self, q, count)  # type: ignore[arg-type]
        rows = found.rows.copy()
        rows[:, 2:] = -1
        return Candidates(rows, found.scores)

    monkeypatch.setattr(gallery_module.CollectionView, "candidates", poor)
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
    again = Index.open(str(index.place))
    assert again.info()["images"] == 7
    assert again.info()["source"] == {"folder": "x"}
    again.close()


def test_any_text_can_be_an_id(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery_module, "BLOCK", 2)  # each id is once the last of a block
    index, _ = make("kl")
    quoted = [f"Bob's{i}.jpg" for i in range(2)] + [f'a"{i}' for i in range(2)]
    names = [*quoted, "c\\", "c\\'", "d\n1", "d\t", "100%", "%27", '" or id != "', "é\x00", "z"]
    index.add(gaussians(len(names)), [Record(name) for name in names])
    assert sorted(record.id for record in index.records()) == sorted(names)
    for name in names:
        assert name in index
        assert index.get(name).id == name
        assert sorted([name, *index.search_id(name, 50).ids]) == sorted(names)
    assert index.delete(["Bob's0.jpg", '" or id != "']) == 2
    assert index.size() == len(names) - 2
    with pytest.raises(ValueError, match="no item"):
        index.delete(["' or id != '"])


def test_drop_also_removes_what_a_killed_process_left(make: Make) -> None:
    (index, _), (other, _) = make("kl"), make("kl")
    for each in (index, other):
        each.add(gaussians(3), records(3))
    old = index.manifest
    held = index.backend._held("images")
    assert held is not None
    index.backend._new_collection("images", held.lift, 3, dict(held.form), held)
    index.backend.save(old)  # as if it had been killed before
    name = index.backend.address.name
    left = [c for c in index.backend._client("list_collections") if c.startswith(f"{name}_")]
    assert len(left) == 3
    index.drop()
    there = other.backend._client("list_collections")
    assert not [c for c in there if c.startswith(f"{name}_")]
    assert other.size() == 3


def test_an_item_deleted_meanwhile_leaves_no_gap(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _ = make("kl", structure="flat")
    index.add(gaussians(5), records(5))
    reach = gallery_module.Collection.reach
    monkeypatch.setattr(gallery_module.Collection, "reach", lambda *given: reach(*given) + 2)
    for hits in index.search(gaussians(3), 10):
        assert sorted(hits.ids) == [f"a{i}" for i in range(5)]


def test_a_second_opening_sees_the_first_items(make: Make) -> None:
    index, _ = make("kl")
    other = Index.open(index.place)
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
    with pytest.raises(
        ValueError, match=r"D variances \(ellipsoids\), these have D = 6 and one variance"
    ):
        index.add(gaussians(2, sphere=True), records(2, start=5))
    with pytest.raises(ValueError, match="D = 3"):
        index.search(Gaussian(torch.zeros(1, 3), torch.zeros(1, 3)))


def test_compact_standardises_on_more_items(make: Make) -> None:
    """The first add may have been of one odd item."""
    index, here = make("kl", structure="hnsw")
    g, queries = gaussians(50), gaussians(3)
    index.add(g[:1], records(1))
    index.add(g[1:], records(49, start=1))
    here.add(g, records(50))
    before = index.info()["parts"]["images"]
    index.compact()
    after = index.info()["parts"]["images"]
    assert before != after
    assert not index.backend._client("has_collection", before[0]["name"])
    same(index.search(queries, 5), here.search(queries, 5))
    assert index.get("a3").thumbnail == b"jpeg3"
    index.compact()
    assert index.info()["parts"]["images"] == after


def test_what_an_index_finds_is_measured_and_too_little_is_not_used(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two far clusters drown the rest of a score in float32."""
    index, here = make("kl", structure="hnsw")
    g = gaussians(120)
    g.mean[::2] += 3e3
    for one in (index, here):
        one.add(g, records(120))
    with pytest.warns(UserWarning, match=r"less than the 95% wanted: .* searched exactly"):
        index.compact()
    (part,) = index.info()["parts"]["images"]
    assert (part["structure"], part["used"]) == ("flat", False)
    assert part["recall"] < 0.95
    same(index.search(g[:3], 5), here.search(g[:3], 5))
    monkeypatch.setattr(type(index.backend), "_settled", lambda *_: pytest.fail("measured again"))
    index.compact()
    again = Index.open(index.place)
    assert again.info()["parts"]["images"] == [part]
    again.close()


def test_a_walk_is_widened_until_it_finds_enough(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, _ = make("kl", structure="hnsw", search=4)
    g = gaussians(60)
    index.add(g, records(60))
    find = gallery_module.CollectionView.candidates

    def poor(self: gallery_module.CollectionView, q: object, count: int):  # type: ignore[no-untyped-def]
        return find(self, q, count if self.width >= 16 else 2)  # type: ignore[arg-type]

    monkeypatch.setattr(gallery_module.CollectionView, "candidates", poor)
    index.compact()
    (part,) = index.info()["parts"]["images"]
    assert (part["search"], part["used"]) == (16, True)
    assert Index.open(index.place).backend._held("images").width == 16  # type: ignore[attr-defined]


def test_an_open_index_sees_what_another_process_made_of_it(make: Make) -> None:
    """A service goes on while somebody compacts."""
    index, _ = make("kl")
    g = gaussians(20)
    index.add(g, records(20))
    other = Index.open(index.place)
    before = other.search(g[:2], 3)
    assert not other.reload()
    for structure in ("hnsw", "flat", "hnsw", "flat"):
        index.set_settings(replace(index.settings, structure=structure))  # a new collection
        if structure == "hnsw":
            same(other.search(g[:2], 3), before)
        else:
            assert other.get("a3").thumbnail == b"jpeg3"
    index.set_settings(replace(index.settings, structure="hnsw"))
    assert other.size() == 20
    calibration = Calibration(about={"items": 7})
    assert not other.calibration.about
    index.set_calibration(calibration)
    assert other.reload()
    assert other.calibration == calibration
    other.close()


def test_a_name_is_taken_once_and_absence_is_reported(make: Make, database: str) -> None:
    index, _ = make("kl")
    with pytest.raises(FileExistsError, match="is an index already"):
        Index.create(str(index.place), similarity="kl")
    with pytest.raises(FileNotFoundError, match="no index of this name"):
        Index.open(f"{database}#nobody")


def test_a_similarity_without_a_lift_is_refused(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SIMILARITIES["kl"], "no_lift", "it is the best of many")
    with pytest.raises(ValueError, match=r"kl cannot be kept at .*: it is the best of many"):
        Index.create(f"{database}#none", similarity="kl")


@pytest.mark.parametrize("mmap", [True, False])
def test_what_only_a_shortlist_needs_is_mapped_from_disk(
    database: str, monkeypatch: pytest.MonkeyPatch, mmap: bool
) -> None:
    """As it goes to the server; milvus-lite takes it and does nothing with it."""
    from pymilvus.client.prepare import Prepare

    sent = []
    send = Prepare.get_schema_from_collection_schema.__func__  # type: ignore[attr-defined]

    def seen(cls: type, name: str, fields: object, **more: object) -> object:
        sent.append(send(cls, name, fields, **more))
        return sent[-1]

    monkeypatch.setattr(Prepare, "get_schema_from_collection_schema", classmethod(seen))
    option = "" if mmap else "?mmap=false"
    index = Index.create(f"{database}{option}#mapped_{mmap}", similarity="kl")
    index.add(gaussians(3), records(3))
    index.close()
    shortened = {
        field.name: pair.value
        for field in sent[-1].fields
        for pair in field.type_params
        if pair.key == "mmap.enabled"
    }
    assert shortened == dict.fromkeys(
        ("gaussian", "record", "thumbnail"), "true" if mmap else "false"
    )


def held(index: Index) -> dict[tuple[str, str], tuple[Record, bytes, bytes]]:
    """Every item with its thumbnail, and the bits of its Gaussian."""
    found = {}
    for gallery in GALLERIES:
        for g, some in index.blocks(gallery):
            assert g.log_var is not None
            for n, record in enumerate(some):
                bits = g.mean[n].numpy().tobytes(), g.log_var[n].numpy().tobytes()
                found[gallery, record.id] = (record, *bits)
    return found


def test_merge_into_milvus_and_back(make: Make, database: str, tmp_path: Path) -> None:
    """Folder and Milvus → Milvus → folder: nothing is lost, all is found as before."""
    there, here = make("kl")
    g, queries = gaussians(50), gaussians(3)
    there.add(g[:20], records(20))
    there.delete(["a3"])
    here.add(g[20:], records(30, start=20))
    here.delete(["a25"])
    here.add(g[:5], records(5), "captions")
    calibration = Calibration(about={"items": 7})
    here.set_calibration(calibration)
    here.note_source({"folder": "x"})
    name = f"{database}#merged"
    merged = merge(name, [str(there.place), here.place], progress=False)
    assert held(merged) == held(there) | held(here)
    assert merged.calibration == calibration  # of the first that has one
    assert not merged.manifest.source  # the photos of one part only
    back = merge(
        tmp_path / "back", [name], settings=IndexSettings(structure="hnsw"), progress=False
    )
    assert held(back) == held(merged)
    assert back.settings.structure == "hnsw"
    same(merged.search(queries, 60), back.search(queries, 60))
    merged.close()
    with pytest.raises(FileExistsError, match="merged is an index already; choose another name"):
        merge(name, [here.place], progress=False)
    copy = merge(f"{database}#copy", [here.place], progress=False)
    assert copy.manifest.source == {"folder": "x"}  # so that it can be updated
    copy.close()


def test_what_a_merge_refuses_or_a_kill_leaves_is_not_in_the_way(
    make: Make, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = make("kl")
    for index in (there, here):
        index.add(gaussians(4), records(4))
    name = f"{database}#refused"
    with pytest.raises(ValueError, match="'a0' is in the index already"):
        merge(name, [here.place, str(there.place)], progress=False)
    with pytest.raises(FileNotFoundError, match="no index of this name"):
        Index.open(name)
    add = Index.add

    def killed(self: Index, *given: object, **more: object) -> None:
        add(self, *given, **more)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Index, "add", killed)
        with pytest.raises(KeyboardInterrupt):
            merge(name, [here.place, str(there.place)], replace=True, progress=False)
    left = Index.open(name)
    assert left.size() == 4
    assert left.info()["source"] == {"building": [str(here.place), str(there.place)]}
    left.close()
    merged = merge(name, [here.place, str(there.place)], replace=True, progress=False)
    assert held(merged) == held(there)  # the later takes the place
    merged.drop()
    with pytest.raises(FileNotFoundError, match="no index of this name"):
        Index.open(name)
    other, _ = make("wasserstein")
    with pytest.raises(ValueError, match=f"{other.place} was made with another model"):
        merge(name, [here.place, str(other.place)])


def test_upserts_are_of_moderate_size() -> None:
    g = gaussians(30)
    lift = Lift.of(similarity("kl"), "images", g)
    found = coding.rows(g, [Record(f"x{i}", {"t": "t" * 1000}) for i in range(30)], lift, {})
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


def test_foreign_collections_stay(database: str) -> None:
    place = f"{database}#guest"
    index = Index.create(place, similarity="kl")
    client = index.backend._client
    for name in ("guest_images_7", "host_about"):
        client("create_collection", name, dimension=4)
    with pytest.raises(FileExistsError, match="guest_images_7 was not made by gaussmatch"):
        index.drop()
    with pytest.raises(FileExistsError, match="host_about was not made by gaussmatch"):
        Index.create(f"{database}#host", similarity="kl")
    assert {"guest_images_7", "host_about"} <= set(client("list_collections"))
    for name in ("guest_images_7", "host_about"):
        client("drop_collection", name)
    index.drop()
