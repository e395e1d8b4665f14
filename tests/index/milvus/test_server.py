"""A server of its own process: it is reached by its address, goes away and comes back."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, Record
from gaussmatch.search.backends.milvus.client import ATTEMPTS

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")


class Server:
    """milvus-lite behind a port; the data stay when it is killed."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"milvus:http://127.0.0.1:{self.port}"
        self._words = ["--data-dir", str(folder), "--host", "127.0.0.1", "--port", str(self.port)]
        self.start()

    def start(self) -> None:
        words = [sys.executable, "-m", "milvus_lite", "server", *self._words]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdout=quiet, stderr=quiet)
        for _ in range(600):
            with socket.socket() as door:
                if not door.connect_ex(("127.0.0.1", self.port)):
                    return
            time.sleep(0.1)
        pytest.fail("the server did not start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "data")
    yield started
    started.kill()


def test_a_server_that_goes_away(server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    index = Index.create(f"{server.address}#there", similarity="kl")
    g = Gaussian(torch.randn(20, 4), torch.randn(20, 4))
    index.add(g, [Record(f"a{n}", {"n": n}) for n in range(20)])
    before = index.search(g[:3], 5, where={"n": {"lt": 9}})
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            server.start()
        if len(waits) >= 2:  # gRPC has waits of its own
            time.sleep(seconds)

    index.backend._client._sleep = wait
    server.kill()
    assert index.search(g[:3], 5, where={"n": {"lt": 9}}) == before  # it came back in between
    assert len(waits) >= 2
    server.kill()
    index.backend._client._sleep = lambda _: None
    with pytest.raises(ConnectionError, match=f"Milvus did not do query in {ATTEMPTS} attempts"):
        index.search(g[:3], 5)
    index.close()
    assert not capfd.readouterr().err  # no traceback of the library
