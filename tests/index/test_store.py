"""What is on disk: changes against a naive model, atomicity, damage, memory mapping."""

from __future__ import annotations

import errno
import json
import math
import mmap
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from index.contract import clustered, records, truth

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, IndexBusyError, IndexSettings, Record, Where, merge
from gaussmatch.search import manifest as manifest_module
from gaussmatch.search.backends.folder import folder as store
from gaussmatch.search.backends.folder import structure
from gaussmatch.search.backends.folder.layout import locked
from gaussmatch.search.manifest import FORMAT
from gaussmatch.search.trust import Calibration
from gaussmatch.search.trust.familiarity import Words

SMALL = IndexSettings(flat_below=4)
IDS = [f"i{j}" for j in range(12)]
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.sampled_from(IDS), max_size=5, unique=True)),
        st.tuples(st.just("replace"), st.lists(st.sampled_from(IDS), max_size=5, unique=True)),
        st.tuples(st.just("delete"), st.lists(st.sampled_from(IDS), max_size=5, unique=True)),
        st.tuples(st.sampled_from(["compact", "open", "merge"]), st.just([])),
    ),
    max_size=12,
)


@given(CHANGES)
@settings(max_examples=25)
def test_any_changes_leave_what_a_dict_would_hold(changes):
    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(Path(folder) / "0", similarity="kl", settings=SMALL)
        held: dict[str, int] = {}
        for step, (verb, ids) in enumerate(changes, start=1):
            if verb in ("add", "replace"):
                g = clustered(max(1, len(ids)), 3, seed=step)[: len(ids)]
                new = [Record(id_, {"step": step}) for id_ in ids]
                if verb == "add" and set(ids) & set(held):
                    with pytest.raises(ValueError, match="already"):
                        index.add(g, new)
                else:
                    index.add(g, new, replace=verb == "replace")
                    held |= dict.fromkeys(ids, step)
            elif verb == "delete":
                if set(ids) - set(held):
                    with pytest.raises(ValueError, match="no item"):
                        index.delete(ids)
                    ids = [id_ for id_ in ids if id_ in held]
                assert index.delete(ids) == len(ids)
                held = {id_: s for id_, s in held.items() if id_ not in ids}
            elif verb == "compact":
                index.compact()
            elif verb == "open":
                index = Index.open(index.place)
            else:
                index = merge(Path(folder) / str(step), [index.place])
            assert {r.id: r.meta["step"] for r in index.records()} == held
            assert index.size() == len(index) == len(held)
            found = index.search(clustered(1, 3), 20)[0]
            assert {hit.id: hit.meta["step"] for hit in found.hits} == held
            for id_, s in list(held.items())[:2]:
                assert index.get(id_).meta == {"step": s}


def made(path: Path, n: int = 30, **options) -> Index:
    index = Index.create(path, similarity="kl", **options)
    index.add(clustered(n), records(0, n))
    return index


def test_a_record_comes_back_with_its_gaussian(tmp_path):
    g = clustered(3)
    index = Index.create(tmp_path / "i", similarity="kl")
    meta = {"name": "Ä", "list": [1, None], "deep": {"a": 1.5}}
    index.add(g, [Record("a", meta, b"jpeg"), Record("b"), Record("c")])
    index.add(g[:1], [Record("a")], "captions")  # ids are unique in a gallery
    again = Index.open(tmp_path / "i")
    assert again.get("a") == Record("a", meta, b"jpeg")
    assert again.get("b").thumbnail is None
    torch.testing.assert_close(again.gaussian("b").mean, g.mean[1:2])
    assert "a" in again
    assert "z" not in again
    with pytest.raises(ValueError, match="no item 'z' among the images"):
        again.get("z")
    options, some = again.some(2)
    assert [r.id for r in options] == ["a", "c"]
    torch.testing.assert_close(some.mean, g.mean[[0, 2]])


@pytest.mark.parametrize(
    ("g", "given_", "message"),
    [
        (clustered(2), [Record("a")], "2 Gaussians, but 1 records"),
        (clustered(2), [Record("a"), Record("a")], "'a' is given twice"),
        (clustered(1), [Record("i3")], "'i3' is in the index already"),
        (clustered(1, 5), [Record("a")], "holds Gaussians with"),
        (clustered(1, shape="point"), [Record("a")], "holds Gaussians with"),
        (clustered(1), [Record("a", {"x": float("nan")})], "metadata of 'a' is not JSON"),
        (clustered(1), [Record("a", {"x": "\udcff"})], "metadata of 'a' is not valid text"),
        (Gaussian(clustered(1).mean / 0), None, "'a' holds a NaN"),
    ],
)
def test_bad_items_are_refused_and_change_nothing(tmp_path, g, given_, message):
    index = made(tmp_path / "i")
    before = (tmp_path / "i" / "manifest.json").read_bytes()
    with pytest.raises(ValueError, match=message):
        index.add(g, given_ or [Record("a")])
    assert (tmp_path / "i" / "manifest.json").read_bytes() == before
    assert Index.open(tmp_path / "i").size() == 30


def test_many_small_additions_are_joined(tmp_path):
    index = Index.create(tmp_path / "i", similarity="kl")
    g = clustered(20)
    for j in range(20):
        index.add(g[j : j + 1], records(j, j + 1))
        assert len(index.backend.segments("images")) <= store.MOST_SEGMENTS + 1
    assert index.size() == 20
    assert len(list((tmp_path / "i" / "segments").iterdir())) <= store.MOST_SEGMENTS + 1


def test_one_writer_at_a_time_and_readers_see_the_old_index(tmp_path):
    index = made(tmp_path / "i")
    reader = Index.open(tmp_path / "i")
    index.backend.wait = 0
    with locked(tmp_path / "i", 0), pytest.raises(IndexBusyError, match="another process"):
        index.delete(["i0"])
    index.delete(["i0"])
    assert reader.size() == 30
    assert reader.search(clustered(1), 30)[0].ids.count("i0") == 1
    assert reader.reload()
    assert not reader.reload()
    assert reader.size() == 29


def test_a_reader_goes_on_while_segments_are_joined(tmp_path):
    index = made(tmp_path / "i")
    reader = Index.open(tmp_path / "i")
    index.add(clustered(5, seed=3), records(30, 35))
    index.compact()
    assert len(reader.search(clustered(1), 50)[0]) == 35  # its files are gone: it looks again


@pytest.mark.parametrize("moment", ["segment", "manifest"])
def test_a_writer_that_dies_leaves_the_old_index(tmp_path, monkeypatch, moment):
    index = made(tmp_path / "i")

    class Dead(BaseException):
        pass

    def die(*_args, **_told):
        raise Dead

    place = "layout.atomic" if moment == "manifest" else "segment.sync"
    with monkeypatch.context() as patched:
        patched.setattr(f"gaussmatch.search.backends.folder.{place}", die)
        with pytest.raises(Dead):
            index.add(clustered(5), records(30, 35))
    folders = list((tmp_path / "i" / "segments").iterdir())
    assert len(folders) == 2
    again = Index.open(tmp_path / "i")
    assert again.size() == 30
    again.add(clustered(5), records(30, 35))
    assert again.size() == 35
    assert not {f.name for f in folders[:2]} <= {
        f.name for f in (tmp_path / "i" / "segments").iterdir()
    }


def test_a_full_disk_is_reported_and_takes_nothing(tmp_path, monkeypatch):
    index = made(tmp_path / "i")
    before = sorted((tmp_path / "i").rglob("*"))

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full)
        with pytest.raises(OSError, match=r"npy: cannot be written .*No space left"):
            index.add(clustered(5), records(30, 35))
    assert sorted((tmp_path / "i").rglob("*")) == before
    index.add(clustered(5), records(30, 35))
    assert index.size() == 35


def test_open_segments_follow_new_settings(tmp_path):
    index, other = made(tmp_path / "i"), Index.open(tmp_path / "i")
    index.set_settings(IndexSettings(search=99))
    other.reload()
    for each in (index, other):
        assert [s.settings.search for s in each.backend.segments("images")] == [99]


def test_settings_that_cannot_be_applied_are_not_kept(tmp_path, monkeypatch):
    index = made(tmp_path / "i")

    def fails(*_):
        raise ImportError("no faiss")

    monkeypatch.setattr(store.Folder, "compact", fails)
    with pytest.raises(ImportError):
        index.set_settings(IndexSettings(structure="hnsw"))
    assert index.settings.structure == Index.open(tmp_path / "i").settings.structure == "flat"


def test_a_reader_sees_a_new_calibration_and_notices_another_index(tmp_path):
    index = made(tmp_path / "i")
    index.set_calibration(Calibration(words=Words({"dog": 1})))
    reader = Index.open(tmp_path / "i")
    index.set_calibration(Calibration(words=Words({"dog": 1, "labradoodle": 1})))
    assert set(reader.calibration.words.counts) == {"dog", "labradoodle"}
    query = clustered(1)
    assert len(reader.search(query, 50)[0]) == 30
    index.drop()
    other = Index.create(tmp_path / "i", similarity="wasserstein")
    other.add(clustered(30), records(0, 30))
    reader.reload()
    assert reader.similarity.name == "wasserstein"
    assert reader.search(query, 5)[0].ids == other.search(query, 5)[0].ids


def signed(content: dict) -> str:
    """A manifest with its checksum."""
    content.pop("sha256", None)
    return json.dumps({**content, "sha256": manifest_module._digest(content)})


def test_a_reload_that_fails_changes_nothing(tmp_path):
    index = made(tmp_path / "i")
    manifest = tmp_path / "i" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["galleries"]["images"][0]["name"] = "elsewhere"
    manifest.write_text(signed(content))
    for _ in range(2):
        with pytest.raises(ValueError, match="missing; the index is damaged"):
            index.reload()
    assert len(index.search(clustered(1), 50)[0]) == 30


@pytest.mark.parametrize("similarity", ["kl", "reverse_kl", "min_kl", "wasserstein"])
def test_extreme_variances_are_found_too(tmp_path, similarity):
    index = Index.create(tmp_path / "i", similarity=similarity)
    g = clustered(30)
    g.log_var[3], g.log_var[4] = -100.0, 100.0
    index.add(g, records(0, 30))
    wanted = clustered(2, seed=5)
    scores = truth(similarity, g, wanted, "images")
    for q, hits in enumerate(index.search(wanted, 30)):
        assert hits.ids == [f"i{j}" for j in scores[q].argsort(descending=True).tolist()]


def test_no_queries_get_no_answers(tmp_path):
    index = made(tmp_path / "i")
    assert index.search(clustered(3)[:0], 5) == []


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("mean.npy", "bytes, but"),
        ("lifted0.npy", "bytes, but"),
        ("items.sqlite", "bytes, but"),
        ("records.jsonl", "bytes, but"),
    ],
)
def test_a_truncated_file_is_named(tmp_path, file, message):
    made(tmp_path / "i")
    path = next((tmp_path / "i" / "segments").glob(f"*/{file}"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=message) as error:
        Index.open(tmp_path / "i")
    assert file in str(error.value)


def test_other_damage_is_named(tmp_path):
    made(tmp_path / "i")
    manifest = tmp_path / "i" / "manifest.json"
    whole = manifest.read_text()
    for text, message in [
        (whole[:50], "not valid JSON"),
        ("[]", "format None"),
        (json.dumps({**json.loads(whole), "format": 99}), "format 99"),
        (signed({"format": FORMAT, "similarity": "kl"}), "not a manifest"),
        (whole.replace('"kl"', '"cosine"'), "its checksum does not match"),
    ]:
        manifest.write_text(text)
        with pytest.raises(ValueError, match=message):
            Index.open(tmp_path / "i")
    manifest.write_text(whole)
    lines = next((tmp_path / "i" / "segments").glob("*/records.jsonl"))
    lines.write_bytes(b"\0" * lines.stat().st_size)
    with pytest.raises(ValueError, match=r"records\.jsonl: damaged"):
        Index.open(tmp_path / "i").search(clustered(1), 3)
    items = lines.with_name("items.sqlite")
    items.write_bytes(b"\0" * items.stat().st_size)
    with pytest.raises(ValueError, match=r"items\.sqlite: damaged"):
        Index.open(tmp_path / "i").get("i0")
    shutil.rmtree(items.parent)
    with pytest.raises(ValueError, match="missing; the index is damaged"):
        Index.open(tmp_path / "i")
    with pytest.raises(FileNotFoundError, match="not an index"):
        Index.open(tmp_path)


def test_opening_maps_what_is_large_and_does_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "WHOLE", 0)
    index = Index.open(made(tmp_path / "i").place)
    index.search(clustered(1), 3)
    segment = index.backend.segments("images")[0]
    for array in (segment.mean, segment.log_var, segment.structure.arrays[0]):
        while isinstance(array, np.ndarray):
            array = array.base
        assert isinstance(array, mmap.mmap)


def test_create_refuses_a_folder_in_use_but_not_its_own_remains(tmp_path):
    made(tmp_path / "i")
    with pytest.raises(FileExistsError, match="an index already"):
        Index.create(tmp_path / "i", similarity="kl")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        Index.create(tmp_path / "full", similarity="kl")
    (tmp_path / "i" / "manifest.json").unlink()  # killed before the first commit
    assert Index.create(tmp_path / "i", similarity="kl").size() == 0


def test_merge_refuses_other_models_and_equal_ids(tmp_path):
    a, b = made(tmp_path / "a"), made(tmp_path / "b", 10)
    with pytest.raises(ValueError, match="'i0' is in the index already"):
        merge(tmp_path / "c", [a.place, b.place])
    assert not (tmp_path / "c").exists()
    merged = merge(tmp_path / "c", [a.place, b.place], replace=True)
    assert merged.size() == 30
    queries = clustered(3, seed=1)
    best = truth("kl", clustered(30), queries, "images")
    assert best.shape == (3, 30)
    other = Index.create(tmp_path / "w", similarity="wasserstein")
    with pytest.raises(ValueError, match="another model"):
        merge(tmp_path / "d", [a.place, other.place])


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([-1.5, 1.0, 2.5]),
    st.sampled_from(["", "a", "b", "1", "é"]),
)  # fmt: skip
ORDERED = st.one_of(st.integers(-3, 3), st.sampled_from([1.5, "a", "b"]))
SPECS = st.one_of(
    VALUES,
    st.lists(VALUES, max_size=3),
    st.fixed_dictionaries({"not": VALUES}),
    st.fixed_dictionaries({"gte": ORDERED}, optional={"lt": ORDERED}),
)


@given(
    st.lists(st.dictionaries(st.sampled_from(["x", "y z"]), VALUES), min_size=1, max_size=8),
    st.dictionaries(st.sampled_from(["x", "y z"]), SPECS, max_size=2),
)
def test_columns_and_python_agree_on_conditions(metas, spec):
    where = Where.of(spec)
    with tempfile.TemporaryDirectory() as folder:
        from gaussmatch.search.backends.folder.segment import ItemStore, write_items

        write_items(Path(folder), [Record(str(i), meta) for i, meta in enumerate(metas)])
        found = np.flatnonzero(ItemStore(Path(folder)).where(where)).tolist()
    assert found == [i for i, meta in enumerate(metas) if where.holds(meta)]


def test_a_field_is_read_once_for_all_conditions_on_it(tmp_path):
    index = made(tmp_path / "i")
    queries, seen = clustered(3, seed=1), []
    (segment,) = index.backend.segments("images")
    index.search(queries, 5, where={"n": 3})
    segment.items._db.set_trace_callback(seen.append)
    found = index.search(queries, 50, where={"n": {"gte": 4, "lt": 9}})
    assert not seen
    assert {*found[0].ids} == {f"i{n}" for n in range(4, 9)}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"x": {"like": "a"}}, "no comparison"),
        ({"x": {"gt": None}}, "gt needs text or a number"),
        ({"x": [[1]]}, "neither text nor a number"),
        ({'a"b': 1}, "not a field name"),
        ({"a\\b": 1}, "not a field name"),
        ({"a\nb": 1}, "not a field name"),
        ({"x": 2**70}, "64 bits"),
        ({"x": {"lt": math.inf}}, "neither text nor a number"),
    ],
)
def test_conditions_that_mean_nothing_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        Where.of(spec)


def test_conditions_on_other_types_differ():
    assert Where.of({"x": 1}) != Where.of({"x": True})
    assert Where.of({"x": [1, "a"]}) == Where.of({"x": [1, "a"]})


def test_a_condition_takes_any_number_of_values(tmp_path):
    index = made(tmp_path / "i")
    ids = [r.id for r in index.records()][:1]
    index.add(clustered(1), [Record("new", {"tag": "t7"})])
    many = [*(f"t{n}" for n in range(50_000)), *range(50_000), True, None]
    assert index.search(clustered(1), 50, where={"tag": many[:-1]})[0].ids == ["new"]
    assert len(index.search(clustered(1), 50, where={"tag": {"not": many}})[0]) == 0
    index.add(clustered(1), [Record("other", {"tag": "else"})])
    found = index.search(clustered(1), 50, where={"tag": {"not": many[:-1]}})[0].ids
    assert found == ["other"]
    assert ids[0] in index.search(clustered(1), 50, where={"tag": None})[0].ids


def test_not_finds_only_items_that_have_the_field():
    """A photo without a date was not taken on another day."""
    metas: list[dict[str, object]] = [{}, {"x": None}, {"x": "a"}, {"x": "b"}, {"x": [1]}, {"x": 1}]
    for spec, expected in (
        ({"not": "a"}, [3, 4, 5]),
        ({"not": ["a", 1]}, [3, 4]),
        ({"not": None}, [2, 3, 4, 5]),
        ({"not": []}, [2, 3, 4, 5]),
    ):
        where = Where.of({"x": spec})
        assert [i for i, meta in enumerate(metas) if where.holds(meta)] == expected
