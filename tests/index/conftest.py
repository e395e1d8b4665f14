"""Servers for all tests: milvus-lite in this process, a real Milvus, a real PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from index.real_milvus import NoServerError, RealMilvus
from index.real_postgres import RealPostgres

from gaussmatch.search import Index

FAST = {
    "queryCoord.checkInterval": "100",
    "queryCoord.distPullInterval": "50",
    "queryCoord.checkHandoffInterval": "200",
    "queryCoord.updateNextTargetInterval": "1",
    "indexCoord.scheduler.interval": "100",
    "dataCoord.segmentFlushInterval": "0",
    "proxy.timeTickInterval": "50",
    "common.session.ttl": "5",
}
"""How often the parts of a server look at each other, and how long they believe in dead ones."""


@pytest.fixture(scope="session")
def _impatient() -> Iterator[None]:
    """pymilvus looks every half second whether something is done; here it looks sooner."""
    grpc_handler = pytest.importorskip("pymilvus.client.grpc_handler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpc_handler, "time", SimpleNamespace(**{**vars(time), "sleep": _short}))
        yield


def _short(seconds: float) -> None:
    time.sleep(min(seconds, 0.01))


@pytest.fixture(scope="session")
def milvus_database(tmp_path_factory: pytest.TempPathFactory, _impatient: None) -> Iterator[str]:
    """milvus-lite: a first client keeps it up."""
    pytest.importorskip("milvus_lite")
    file = tmp_path_factory.mktemp("milvus") / "test.db"
    keeper = Index.create(f"milvus:{file}#keeper", similarity="cosine")
    yield f"milvus:{file}"
    keeper.close()


@pytest.fixture(scope="session")
def milvus_server(
    tmp_path_factory: pytest.TempPathFactory, _impatient: None
) -> Iterator[RealMilvus]:
    """A real server, shared by all tests; whoever kills it starts it again."""
    try:
        server = RealMilvus(tmp_path_factory.mktemp("milvus-server"), **FAST)
    except NoServerError as error:
        pytest.skip(f"no Milvus server: {error}")
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[RealPostgres]:
    """A real server, shared by all tests; whoever kills it starts it again."""
    pytest.importorskip("psycopg")
    try:
        server = RealPostgres()
    except NoServerError as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    yield server
    server.close()
