"""One embedded server of Milvus for all tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gaussmatch.search import Index


@pytest.fixture(scope="session")
def milvus_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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
    keeper = Index.create(f"milvus:{file}#keeper", similarity="cosine")
    yield f"milvus:{file}"
    keeper.close()
