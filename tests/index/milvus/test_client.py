"""Retries, seen with a client that fails as often as it is raised; and addresses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity
from gaussmatch.search import Record
from gaussmatch.search.backends.database import LONGEST_WAIT, PATIENCE
from gaussmatch.search.backends.milvus import Address
from gaussmatch.search.backends.milvus import client as client_module
from gaussmatch.search.backends.milvus.client import Client, MilvusError, connect
from gaussmatch.search.backends.milvus.rows import rows
from gaussmatch.search.lift import Lift

pymilvus = pytest.importorskip("pymilvus")
import grpc  # noqa: E402
from pymilvus.exceptions import MilvusException, MilvusUnavailableException  # noqa: E402


class Rpc(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


class Failing:
    """Does its work after ``times`` failures."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def upsert(self, *args: Any, **options: Any) -> tuple[Any, Any]:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return args, options


TRANSIENT = [
    MilvusException(8, "rate limit"),
    MilvusException(2, "Fail connecting to server"),  # what a server that went away gives
    MilvusException(grpc.StatusCode.UNAVAILABLE, "server away"),
    MilvusException(1, "later", retriable=True),
    MilvusUnavailableException(message="away"),
    Rpc(grpc.StatusCode.DEADLINE_EXCEEDED),
    ConnectionResetError("gone"),
]


@pytest.mark.parametrize("error", TRANSIENT, ids=lambda e: type(e).__name__)
def test_transient_failures_are_tried_again(error: Exception) -> None:
    waits: list[float] = []
    fake = Failing(error, times=3)
    assert Client(fake, sleep=waits.append)("upsert", "c", [1], timeout=2) == (
        ("c", [1]),
        {"timeout": 2},
    )
    assert fake.calls == 4
    assert len(waits) == 3
    for n, wait in enumerate(waits):  # twice as long each time, less a random part
        assert 0.1 * 2**n <= wait <= 0.2 * 2**n


@pytest.mark.parametrize(
    "error",
    [MilvusException(1100, "bad parameter"), Rpc(grpc.StatusCode.INVALID_ARGUMENT), KeyError("x")],
    ids=lambda e: type(e).__name__,
)
def test_other_failures_are_reported_at_once(error: Exception) -> None:
    fake = Failing(error, times=1)
    raised = MilvusError if isinstance(error, MilvusException) else type(error)
    with pytest.raises(raised, match="bad parameter" if raised is MilvusError else None):
        Client(fake, sleep=lambda _: pytest.fail("waited"))("upsert")
    assert fake.calls == 1


def test_it_gives_up_with_one_clear_line() -> None:
    waits: list[float] = []
    fake = Failing(MilvusException(8, "rate limit exceeded"), times=999)
    with pytest.raises(ConnectionError, match="upsert in 120 s: rate limit exceeded"):
        Client(fake, sleep=waits.append)("upsert")
    assert PATIENCE <= sum(waits) <= PATIENCE + LONGEST_WAIT  # a server may need 60 s to start
    assert max(waits) <= LONGEST_WAIT


def test_what_a_process_wrote_it_sees_at_once_and_what_others_wrote_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(client_module.time, "monotonic", lambda: now[0])
    writer, other = (Client(Failing(KeyError(), 0), uri) for uri in ("http://h:1", "http://h:2"))
    assert writer.level("c", "Session") == "Bounded"
    writer.write("upsert", "c", [1])
    assert writer.level("c", "Session") == "Session"
    assert [writer.level("d", "Session"), other.level("c", "Session")] == ["Bounded"] * 2
    assert [writer.level("c", x) for x in ("Strong", "Bounded")] == ["Strong", "Bounded"]
    now[0] += client_module.BOUND
    assert writer.level("c", "Session") == "Bounded"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("milvus:demo.db", Address("demo.db")),
        ("milvus:/a b/demo.db#photos_2", Address("/a b/demo.db", "photos_2")),
        ("milvus:demo.db?mmap=false#p", Address("demo.db", "p", mmap=False)),
        (
            "milvus:http://h:1?consistency=Session&mmap=false",
            Address("http://h:1", mmap=False),
        ),
        (
            "milvus:https://h:19530?consistency=Eventually#x",
            Address("https://h:19530", "x", "Eventually"),
        ),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    assert Address.of(text) == expected
    assert Address.of(str(expected)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("milvus:demo", r"ends in \.db"),
        ("milvus:", r"ends in \.db"),
        ("milvus:demo.db#a-b", "letters, digits and _"),
        ("milvus:demo.db?consistency=weak", "choose Strong"),
        ("milvus:demo.db?level=x", "no option 'level'"),
        ("milvus:demo.db?mmap=yes", "mmap is true or false, not 'yes'"),
        ("milvus:http://root:secret@h:19530", "MILVUS_TOKEN"),
    ],
)
def test_bad_addresses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        Address.of(text)
    assert "secret" not in str(raised.value)


def test_a_file_is_not_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        connect(Address.of(f"milvus:{tmp_path}/x.db"))
    assert not list(tmp_path.iterdir())


def test_a_file_in_use_by_another_process(tmp_path: Path, capfd: Any) -> None:
    pytest.importorskip("milvus_lite")
    file = tmp_path / "x.db"
    hold = (
        "import sys; from milvus_lite.db import MilvusLite; db = MilvusLite(sys.argv[1]); "
        "print('held', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", hold, file], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConnectionError, match="is another process using it"):
            connect(Address.of(f"milvus:{file}"))
        other.kill()
    assert "Traceback" not in capfd.readouterr().err


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(ImportError, match=r"gaussmatch\[milvus\]"):
        connect(Address.of("milvus:demo.db"))


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        MilvusException = MilvusException

        @staticmethod
        def MilvusClient(uri: str, token: str) -> None:  # noqa: N802
            assert token == "key"
            raise MilvusException(2, "fail to connect")

    monkeypatch.setenv("MILVUS_TOKEN", "key")
    monkeypatch.setattr(client_module, "pymilvus", lambda: Away)
    with pytest.raises(ConnectionError, match="milvus:http://h:1: cannot connect"):
        connect(Address.of("milvus:http://h:1"))


def test_a_text_is_checked_as_one_not_letter_by_letter() -> None:
    from pymilvus.client.entity_helper import convert_to_str_array

    g = Gaussian(torch.zeros(1, 4), torch.zeros(1, 4))
    lift = Lift.of(similarity("kl"), "images", g)
    (row,) = rows(g, [Record("a")], lift, {})
    field, seen = {"name": "gaussian", "params": {"max_length": 100}}, row["gaussian"]
    assert len(seen) > 1 == len([*seen])
    assert convert_to_str_array(seen, field) == seen
    with pytest.raises(MilvusException, match="exceeds max length"):
        convert_to_str_array(seen, {**field, "params": {"max_length": 3}})
