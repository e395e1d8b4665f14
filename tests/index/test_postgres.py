"""What an index in PostgreSQL promises beyond the contract."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from index.contract import clustered, records, truth
from index.milvus.test_filter import META, WANTED
from index.real_postgres import RealPostgres

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, IndexBusyError, IndexSettings, Record
from gaussmatch.search.backends import database
from gaussmatch.search.where import UnknownFieldError, Where

psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def index(postgres_server: RealPostgres) -> Iterator[Index]:
    settings = IndexSettings(fields={"b": "number", "x'y": "text"})
    made = Index.create(f"{postgres_server.address}#pg", similarity="kl", settings=settings)
    made.add(clustered(1), [Record("kept")])
    yield made
    made.close()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(META, max_size=4), st.dictionaries(st.sampled_from(["a", "b", "x'y"]), WANTED))
def test_filters_mean_there_what_they_mean_here(
    index: Index, metas: list[dict[str, Any]], spec: dict[str, Any]
) -> None:
    for meta in metas:
        if type(meta.get("b")) not in (int, float):
            meta.pop("b", None)
        if not isinstance(meta.get("x'y"), str):
            meta.pop("x'y", None)
    index.delete([f"m{n}" for n in range(4)], missing_ok=True)
    index.add(clustered(len(metas)), [Record(f"m{n}", meta) for n, meta in enumerate(metas)])
    where = Where.of(spec)
    right = {f"m{n}" for n, meta in enumerate(metas) if where.holds(meta)}
    nowhere = [name for name in where.needed if all(meta.get(name) is None for meta in metas)]
    if nowhere:  # then nothing is right
        with pytest.raises(UnknownFieldError, match="no item has a field"):
            index.search(clustered(1), 20, where=spec, exclude=["kept"])
        return
    (hits,) = index.search(clustered(1), 20, where=spec, exclude=["kept"])
    assert set(hits.ids) == right


def test_what_a_value_cannot_do(index: Index) -> None:
    index.delete([f"m{n}" for n in range(4)], missing_ok=True)  # of the last example above
    odd = ["'; DROP TABLE pg_images; --", 'x"y', "%s", "\\", "a\nb"]
    index.add(clustered(5), [Record(f"o{n}", {"t": t, "x'y": t}) for n, t in enumerate(odd)])
    for n, text in enumerate(odd):
        for field in ("t", "x'y"):
            assert index.search(clustered(1), 9, where={field: text})[0].ids == [f"o{n}"]
    index.delete([f"o{n}" for n in range(5)])
    with pytest.raises(ValueError, match="zero byte"):
        index.add(clustered(1), [Record("a\x00b")])
    index.add(clustered(1), [Record("zero", {"t": "\x00"})])
    assert index.get("zero").meta == {"t": "\x00"}
    assert "zero" in index.search(clustered(1), 9, where={"t": {"not": None}})[0].ids
    index.delete(["zero"])


def graphs(index: Index) -> list[str]:
    """How its vectors are indexed."""
    found = index.backend._session._connection.execute(  # type: ignore[attr-defined]
        "SELECT indexdef FROM pg_indexes WHERE indexname LIKE %s",
        [f"{index.place.partition('#')[2]}_images_lift%"],
    )
    return [text for (text,) in found]


@pytest.mark.parametrize("structure", ["hnsw", "compressed"])
def test_its_own_graph(postgres_server: RealPostgres, structure: str) -> None:
    place = f"{postgres_server.address}#graph_{structure}"
    made = Index.create(place, similarity="kl", settings=IndexSettings(structure=structure))
    g, queries = clustered(600), clustered(10, seed=1)
    best = truth("kl", g, queries, "images").topk(10).indices

    def hits() -> int:
        found = [{int(i[1:]) for i in hits.ids[:10]} for hits in made.search(queries, 10)]
        return sum(len(f & set(b.tolist())) for f, b in zip(found, best, strict=True))

    made.add(g[:20], records(0, 20))
    made.add(g[20:590], records(20, 590))
    assert not graphs(made)  # every item would be put in for itself
    made.add(g[590:], records(590, 600))
    assert hits() == 100
    made.compact()
    (part,) = made.info()["parts"]["images"]
    assert (part["structure"], part["used"]) == (structure, True)
    assert part["recall"] >= 0.95
    assert hits() >= 95
    assert ["halfvec" in text for text in graphs(made)] == [structure == "compressed"]
    made.add(g[:1], [Record("later")])
    assert "later" in made.search(g[:1], 2)[0].ids
    made.drop()


def test_wide_lifts(postgres_server: RealPostgres) -> None:
    """2D + 2 numbers: float32 up to 2,000, float16 up to 4,000, then no graph."""
    for dim, fits in ((999, True), (1500, True), (2100, False)):
        place = f"{postgres_server.address}#wide{dim}"
        made = Index.create(place, similarity="kl", settings=IndexSettings(structure="hnsw"))
        g = Gaussian(torch.randn(30, dim), torch.randn(30, dim))
        if fits:
            made.add(g, records(0, 30))
            made.compact()
            assert ["halfvec" in text for text in graphs(made)] == [dim == 1500]
            assert made.search(g[:1], 3)[0].ids[0] == "i0"
        else:
            with pytest.raises(ValueError, match="up to 4000 numbers, and these have 4202"):
                made.add(g, records(0, 30))
        made.drop()


def test_a_graph_that_does_not_fit_into_memory_is_said(index: Index) -> None:
    made = index.backend._session._connection  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="PostgreSQL: hnsw .* maintenance_work_mem .* raise that"):
        made.execute("DO $$ BEGIN RAISE NOTICE 'hnsw graph: maintenance_work_mem is used'; END $$")


def test_other_declared_fields_are_other_columns(postgres_server: RealPostgres) -> None:
    made = Index.create(f"{postgres_server.address}#fields", similarity="kl")
    made.add(clustered(5), records(0, 5))
    made.set_settings(replace(made.settings, fields={"n": "number", "even": "truth"}))
    made.compact()
    assert made.search(clustered(1), 9, where={"n": {"gte": 3}, "even": True})[0].ids == ["i4"]
    with pytest.raises(ValueError, match="'n' is declared a number"):
        made.add(clustered(1), [Record("x", {"n": "three"})])
    assert made.size() == 5
    made.drop()


def test_an_open_index_sees_the_lift_that_another_process_made_anew(
    postgres_server: RealPostgres,
) -> None:
    place, g = f"{postgres_server.address}#lifted", clustered(60)
    made = Index.create(place, similarity="kl", settings=IndexSettings(structure="hnsw"))
    made.add(g[:1], records(0, 1))  # one odd item
    other = Index.open(place)
    assert other.search(g[:1], 1)[0].ids == ["i0"]
    made.add(g[1:], records(1, 60))
    before = other.backend._lift("images").centers[0]  # type: ignore[attr-defined]
    made.compact()
    other.reload()
    new, held = (i.backend._lift("images").centers[0] for i in (made, other))  # type: ignore[attr-defined]
    assert (new == held).all()
    assert (new != before).any()
    other.close()
    made.drop()


def test_items_deleted_behind_its_back_are_noticed(index: Index) -> None:
    index.add(clustered(2), records(0, 2))
    index.verify()
    index.backend._session._connection.execute("DELETE FROM pg_images WHERE id = 'i0'")  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="images: 1 of 3 items are missing"):
        index.verify()
    index.backend._tally("images", -1)  # type: ignore[attr-defined]
    index.delete(["i1"])


def test_one_writer_at_a_time(index: Index) -> None:
    other = Index.open(index.place, wait=0.2)
    with index.backend.writing(), pytest.raises(IndexBusyError, match=r"for 0\.2 s"):
        other.add(clustered(1), [Record("busy")])
    other.add(clustered(1), [Record("busy")])
    index.delete(["busy"])
    other.close()


def test_a_failed_change_leaves_nothing(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    before = index.size()
    monkeypatch.setattr(type(index.backend), "_tally", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        index.add(clustered(3), records(0, 3))
    assert (index.size(), "i0" in index) == (before, False)
    index.verify()


def test_a_server_killed_in_the_middle_of_an_add(postgres_server: RealPostgres) -> None:
    made = Index.create(f"{postgres_server.address}#killed", similarity="kl")
    g, acknowledged, errors = clustered(3000), [0], []

    def add() -> None:
        try:
            for start in range(0, 3000, 200):
                made.add(g[start : start + 200], records(start, start + 200))
                acknowledged.append(start + 200)
        except Exception as error:
            errors.append(error)

    worker = threading.Thread(target=add)
    worker.start()
    while len(acknowledged) < 4:
        time.sleep(0.005)
    postgres_server.kill()
    assert not made.backend.alive()
    postgres_server.start()
    worker.join()
    assert not errors  # it waited, and went on
    assert (made.size(), acknowledged[-1]) == (3000, 3000)
    made.verify()
    made.drop()


def test_a_restart_of_a_minute_is_waited_out(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    session, clock = index.backend._session, [0.0]  # type: ignore[attr-defined]
    connect, patiently = session._connect, database.patiently

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def once_it_is_up() -> Any:
        if clock[0] < 60:
            raise psycopg.OperationalError("connection refused")
        return connect()

    monkeypatch.setattr(database, "patiently", partial(patiently, sleep=sleep))
    monkeypatch.setattr(session, "_connect", once_it_is_up)
    session.close()
    assert index.size() == 1
    assert 60 <= clock[0] <= 60 + database.LONGEST_WAIT


def test_addresses() -> None:
    from gaussmatch.search.backends.session import parsed

    assert parsed("postgresql://h/d") == ("postgresql://h/d", "gaussmatch")
    with pytest.raises(ValueError, match="PGPASSWORD") as raised:
        parsed("postgresql://me:secret@h/d")
    assert "secret" not in str(raised.value)
    with pytest.raises(ValueError, match="letters, digits and _"):
        parsed("postgresql://h/d#a-b")
    with pytest.raises(ConnectionError, match="is the server up"):
        Index.open("postgresql://127.0.0.1:1/d")
