"""Several processes behind one port: one dies and is replaced, all stop together."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from service.served import make_index

from gaussmatch.apps.service import server


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make_index(tmp_path_factory.mktemp("workers")).place)


class Served:
    """A running service with its log."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process, self._log = process, log
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().split()[0])
        assert url.hostname is not None
        self._where = url.hostname, url.port

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        """Log lines that are whole so far; each must be JSON."""
        text = self._log.read_text(encoding="utf-8").rpartition("\n")[0]
        lines = [json.loads(line) for line in text.splitlines()]
        return [line for line in lines if event in (None, line["event"])]

    def pids(self) -> list[int]:
        return [line["pid"] for line in self.lines("ready")]

    def get(self, path: str) -> tuple[int, str, bytes]:
        """Status, request id and body, over a connection of its own."""
        connection = http.client.HTTPConnection(*self._where, timeout=60)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, str(answer.headers["x-request-id"]), answer.read()
        finally:
            connection.close()


@contextmanager
def served(index: Path, log: Path) -> Iterator[Served]:
    command = [sys.executable, "-m", "gaussmatch", "serve", str(index), "--port", "0"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, "--workers", "2"], stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        yield Served(process, log)
    finally:
        process.kill()  # its workers follow
        process.communicate()


def until(happened: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def counted(metrics: bytes) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in metrics.decode().splitlines() if line[0] != "#")
    return {name: float(value) for name, value in pairs}


def test_one_dies_and_is_replaced_and_nothing_is_forgotten(index: Path, tmp_path: Path) -> None:
    with served(index, tmp_path / "log") as service:
        until(lambda: len(service.pids()) == 2)
        ids = set()
        for _ in range(20):
            status, id, _ = service.get("/api/search?text=a+star&k=1")
            assert status == 200
            ids.add(id)
        time.sleep(0.3)  # until the lines of the requests are written
        dead = service.pids()[0]
        os.kill(dead, signal.SIGKILL)
        until(lambda: len(service.lines("worker died")) == 1)
        for _ in range(10):  # the other one answers
            status, id, _ = service.get("/api/search?text=a+star&k=1")
            assert status == 200
            ids.add(id)
        until(lambda: len(service.pids()) == 3)
        assert service.get("/readyz")[0] == 200
        assert len(ids) == 30
        metrics = counted(service.get("/metrics")[2])
        assert metrics['gaussmatch_requests_total{route="/api/search",status="200"}'] == 30
        assert metrics['gaussmatch_request_seconds_count{route="/api/search"}'] == 30
        assert metrics["gaussmatch_batch_size_sum"] == 30
        assert metrics['gaussmatch_query_uncertainty_percentile_count{type="text"}'] == 30
        assert metrics["gaussmatch_requests_in_flight"] == 1  # this one
        assert metrics['gaussmatch_index_items{gallery="images"}'] > 0
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(60) == 0
        pids = service.pids()
        assert all(gone(pid) for pid in pids)
        (died,) = service.lines("worker died")
        assert (died["pid"], died["exit_code"]) == (dead, -signal.SIGKILL)
        assert {line["pid"] for line in service.lines("stopped")} == set(pids) - {dead}
        searched = [r["id"] for r in service.lines("request") if r["path"] == "/api/search"]
        assert sorted(searched) == sorted(ids)


def test_workers_do_not_outlive_their_supervisor(index: Path, tmp_path: Path) -> None:
    with served(index, tmp_path / "log") as service:
        until(lambda: len(service.pids()) == 2)
        service.process.kill()
        until(lambda: all(gone(pid) for pid in service.pids()))


def test_an_index_that_cannot_be_served_ends_it(index: Path, tmp_path: Path) -> None:
    broken = tmp_path / "index"
    shutil.copytree(index, broken)
    (broken / "run" / "model.safetensors").write_bytes(b"broken")
    command = [sys.executable, "-m", "gaussmatch", "serve", str(broken), "--port", "0"]
    done = subprocess.run(
        [*command, "--workers", "2"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    *lines, last = done.stderr.splitlines()
    assert last == "gaussmatch serve: a worker could not start; the log above says why"
    records = [json.loads(line) for line in lines]
    assert "model.safetensors" in next(t["traceback"] for t in records if "traceback" in t)


class FakeProcess:
    """A process that has ended, or goes on until it is stopped."""

    pid, exitcode = 1, 1

    def __init__(self, alive: bool) -> None:
        self.alive, (self.sentinel, self._other) = alive, os.pipe()
        if not alive:
            os.close(self._other)

    def is_alive(self) -> bool:
        return self.alive

    def terminate(self) -> None:
        self.alive = False

    def join(self, seconds: float | None = None) -> None:
        pass


@pytest.mark.parametrize("proved", [True, False])
def test_one_that_cannot_start_is_tried_less_and_less_often(
    proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class FakeWorker(server.Worker):
        def __init__(self, work: server.Work, pause: float = 0.0) -> None:
            pauses.append(pause)
            self.pause, self._ready = pause, len(pauses) == 1 and proved
            self.process = FakeProcess(alive=self._ready)  # type: ignore[assignment]
            if len(pauses) == 6:
                os.kill(os.getpid(), signal.SIGTERM)

        def was_ready(self) -> bool:
            return self._ready

    monkeypatch.setattr(server, "Worker", FakeWorker)
    monkeypatch.setattr(server, "PAUSE", (0.01, 0.03))
    if proved:
        server.supervise(lambda ready: None, 2, 0)
        assert pauses == [0, 0, 0.01, 0.02, 0.03, 0.03]
    else:
        with pytest.raises(ChildProcessError, match="could not start"):
            server.supervise(lambda ready: None, 2, 0)
        assert pauses == [0, 0]
