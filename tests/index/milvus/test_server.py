"""What only a real server shows: its parser, its clock, its index, and that it goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from index.contract import clustered, records
from index.real_milvus import NoServerError, RealMilvus
from starlette.testclient import TestClient

from gaussmatch.apps.service.app import create_app
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, IndexSettings, Record
from gaussmatch.search.backends import database
from gaussmatch.search.backends.milvus import client as client_module

pytest.importorskip("pymilvus")
META: list[dict[str, Any]] = [
    {},
    {"a": None},
    {"a": 1, "b": 1},
    {"a": "1", "b": 2.5},
    {"a": True},
    {"a": [1]},
    {"a": 'x"y\\', "b": -3},
]
FILTERS: list[dict[str, Any]] = [
    {"a": None},
    {"a": {"not": None}},
    {"a": [1, None]},
    {"a": {"not": ["1", None]}},
    {"a": True, "b": None},
    {"a": {"not": 1}, "b": {"gte": -3}},
    {"a": 'x"y\\'},
    {"a": {"gt": "0"}},
    {"a": []},
    {"b": {"not": [1, -3]}},
    {"b": {"lt": 2.5}},
    {"b": "1"},
]


@pytest.fixture(scope="module")
def index(milvus_server: RealMilvus) -> Iterator[Index]:
    settings = IndexSettings(fields={"b": "number"})
    made = Index.create(f"{milvus_server.address}#server", similarity="kl", settings=settings)
    made.add(clustered(len(META)), [Record(f"i{n}", meta) for n, meta in enumerate(META)])
    yield made
    made.close()


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_filters_mean_there_what_they_mean_here(index: Index, where: dict[str, Any]) -> None:
    from gaussmatch.search.where import Where

    right = {f"i{n}" for n, meta in enumerate(META) if Where.of(where).holds(meta)}
    (hits,) = index.search(clustered(1), 20, where=where, exclude=["nobody"])
    assert set(hits.ids) == right


def test_a_declared_field_refuses_other_types(index: Index) -> None:
    with pytest.raises(ValueError, match="'b' is declared a number, and 'x' has 'blue'"):
        index.add(clustered(1), [Record("x", {"b": "blue"})])
    with pytest.raises(ValueError, match="too large for the column"):
        index.add(clustered(1), [Record("x", {"b": 2**60})])


def test_a_search_is_one_call_and_sees_what_was_just_written(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Any]] = []
    call = client_module.Client.__call__

    def noted(self: Any, name: str, *given: Any, **options: Any) -> Any:
        seen.append((name, options.get("consistency_level")))
        return call(self, name, *given, **options)

    far = Gaussian(torch.full((1, 12), 50.0), torch.zeros(1, 12))
    other = Index.open(index.place)  # of the same process
    assert other.search(far, 1)[0].ids != ["new"]
    index.add(far, [Record("new")])
    assert [i.search(far, 1)[0].ids for i in (index, other)] == [["new"]] * 2
    monkeypatch.setattr(client_module.Client, "__call__", noted)
    index.search(far, 1)
    assert seen == [("search", "Session")]
    monkeypatch.setattr(client_module, "_written", {})
    index.search(far, 1)
    assert seen[-1] == ("search", "Bounded")
    other.close()
    index.delete(["new"])


def test_items_deleted_behind_its_back_are_noticed(index: Index) -> None:
    index.add(clustered(3), records(100, 103))
    index.delete(["i100"])
    index.verify()
    (part,) = index.manifest.galleries["images"]
    index.backend._client._client.delete(part.name, filter='id in ["i101"]')  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=rf"{part.name}: 1 of 9 items are missing"):
        index.verify()
    index.delete(["i102"])


def test_compact_measures_the_index_that_is_searched_afterwards(
    milvus_server: RealMilvus,
) -> None:
    """Also that it is changed where it is, without a copy."""
    settings = IndexSettings(structure="hnsw", recall=0.5)
    place = f"{milvus_server.address}#compacted"
    index = Index.create(place, similarity="wasserstein", settings=settings)
    index.add(clustered(2000), records(0, 2000))
    backend: Any = index.backend
    name = index.manifest.galleries["images"][0].name
    index.compact()
    assert backend._client.sealed(name) == 2000
    assert backend._client("describe_index", name, "lift0")["indexed_rows"] == 2000
    (part,) = index.info()["parts"]["images"]
    assert (part["name"], part["structure"], part["used"]) == (name, "hnsw", True)
    index.set_settings(IndexSettings(structure="flat"))
    (part,) = index.info()["parts"]["images"]
    assert (part["name"], part["structure"]) == (name, "flat")
    assert backend._client("describe_index", name, "lift0")["index_type"] == "FLAT"
    backend._client("release_collection", name)
    backend._client("drop_index", name, "lift0")  # as after a kill in the middle
    again = Index.open(place)
    assert len(again.search(clustered(1), 10)[0]) == 10
    for opened in (again, index):
        opened.close()


def test_a_server_killed_in_the_middle_of_an_add(
    milvus_server: RealMilvus, capfd: pytest.CaptureFixture[str]
) -> None:
    index = Index.create(f"{milvus_server.address}#killed", similarity="kl")
    g, done, at = clustered(4000), threading.Event(), 500
    index.add(g[:at], records(0, at))
    acknowledged = [at]

    def add() -> None:
        for start in range(at, 4000, at):
            index.add(g[start : start + at], records(start, start + at))
            acknowledged.append(start + at)
        done.set()

    worker = threading.Thread(target=add)
    worker.start()
    while len(acknowledged) < 3:
        time.sleep(0.01)
    milvus_server.kill()
    assert not index.backend.alive()
    milvus_server.start()
    worker.join()
    assert done.is_set()  # it waited, and went on
    assert index.size() == 4000
    assert index.backend.alive()
    index.verify()
    index.close()
    assert "Traceback" not in capfd.readouterr().err


def test_the_service_says_when_the_server_is_gone(tmp_path: Path, tiny_run: Path) -> None:
    """Beside: a token that the server does not know is no server that is away."""
    try:
        server = RealMilvus(tmp_path / "m", **{"common.security.authorizationEnabled": "true"})
    except NoServerError as error:
        pytest.skip(f"no Milvus server: {error}")
    place = f"{server.address}#served"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILVUS_TOKEN", "root:wrong")
        with pytest.raises(PermissionError, match="refuses the token; set MILVUS_TOKEN"):
            Index.create(place, tiny_run)
        patch.setenv("MILVUS_TOKEN", "root:Milvus")
        index = Index.create(place, tiny_run)
        index.add(index.model.encode_texts(["a red star", "a dot"]), [Record("a"), Record("b")])
        with TestClient(create_app(index)) as client:
            assert client.get("/readyz").status_code == 200
            server.close()
            answer = client.get("/readyz")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
            assert client.get("/healthz").status_code == 200
        patch.setattr(database, "PATIENCE", 0.0)
        with pytest.raises(ConnectionError, match="Fail connecting to server"):
            Index.open(place)
        index.close()
