"""Connections of hostile or slow clients: memory, time and number are bounded, and errors JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from gaussmatch.apps.service import protocol
from gaussmatch.apps.service.logs import Metrics
from gaussmatch.apps.service.middleware import Middleware
from gaussmatch.apps.service.protocol import MAX_HEAD, MAX_HEADERS
from gaussmatch.apps.service.responses import Json
from gaussmatch.apps.service.server import Server, listening
from gaussmatch.apps.service.settings import Settings

CHUNKED = b"POST /api/ok HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /api/ok HTTP/1.1\r\nHost: localhost\r\n"


async def app(scope, receive, send):  # type: ignore[no-untyped-def]
    """Reads the body, then answers with its length; /api/slow takes its time, and /api/busy
    everybody's."""
    if scope["type"] != "http":
        return
    length, more = 0, True
    while more:
        message = await receive()
        more = message.get("more_body", False)
        length += len(message.get("body", b""))
    if scope["path"] == "/api/slow":
        await asyncio.sleep(0.5)
    if scope["path"] == "/api/busy":
        time.sleep(0.01)
    await Json(b"%d" % length)(scope, receive, send)


@contextmanager
def serving(**settings: float) -> Iterator[tuple[str, int]]:
    with running(**settings) as (address, _):
        yield address


class Stoppable(Server):
    """``last`` is called when the service is about to stop; the event loop stands still."""

    last: Callable[[], object] | None = None

    async def main_loop(self) -> None:
        await super().main_loop()
        if self.last is not None:
            self.last()


@contextmanager
def running(**given: float) -> Iterator[tuple[tuple[str, int], Callable[..., None]]]:
    """A server in a thread: its address, and a way to stop it, which does something else first."""
    settings, sock = Settings(**given), listening("127.0.0.1", 0)  # type: ignore[arg-type]
    server = Stoppable(Middleware(app, settings, Metrics()), settings, grace=5)
    server.config.lifespan = "off"
    loop, stopping = asyncio.new_event_loop(), threading.Event()
    served = server.serve(sockets=[sock])
    thread = threading.Thread(target=lambda: loop.run_until_complete(served))

    def stop(last: Callable[[], object] = lambda: None) -> None:
        while not server.started:
            time.sleep(0.01)
        server.last = lambda: (last(), stopping.set())
        server.should_exit = True
        assert stopping.wait(30)

    thread.start()
    try:
        yield sock.getsockname(), stop
    finally:
        server.should_exit = True
        thread.join(30)
        sock.close()
        assert not thread.is_alive()
        loop.close()


def connect(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, timeout=30)


def exchange(address: tuple[str, int], *parts: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send, and read the answer until the service closes the connection."""
    with connect(address) as client:
        try:
            for part in parts:
                client.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was closed meanwhile, as it should be
        return answer(client)


def answer(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while True:
        try:
            part = client.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        data += part
    if not data:
        return 0, {}, b""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


def code(body: bytes) -> str:
    return str(json.loads(body)["error"]["code"])


def test_an_ordinary_request_is_answered_and_not_cached() -> None:
    with serving() as address:
        status, headers, body = exchange(address, GET + b"Connection: close\r\n\r\n")
        assert (status, body) == (200, b"0")
        assert headers["cache-control"] == "no-store"
        chunked = CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close")
        body = b"3\r\nabc\r\n0\r\nA: b\r\n\r\n"
        assert exchange(address, chunked, body)[2] == b"3"  # a trailer does no harm


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01",
    ],
)
def test_what_is_not_http_is_answered_with_json(sent: bytes) -> None:
    with serving() as address:
        status, headers, body = exchange(address, sent)
    assert (status, code(body)) == (400, "bad_request")
    assert headers["connection"] == "close"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "sent",
    [
        GET + b"X: " + b"x" * (2 * MAX_HEAD),
        GET + b"X: y\r\n" * MAX_HEADERS + b"\r\n",
        b"GET /" + b"x" * (2 * MAX_HEAD),
    ],
)
def test_a_head_that_is_too_long_is_refused(sent: bytes) -> None:
    with serving() as address:
        status, _, body = exchange(address, sent)
    assert (status, code(body)) == (431, "head_too_long")


def test_slow_heads_and_bodies_are_closed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gaussmatch.apps.service")
    body = b"POST /api/ok HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc"
    with serving(head_timeout=0.2, body_timeout=0.2, timeout=20) as address:
        status, _, body_of = exchange(address, GET)
        assert (status, code(body_of)) == (408, "slow_head")
        status, _, body_of = exchange(address, body)
        assert (status, code(body_of)) == (408, "slow_body")
        assert exchange(address)[0] == 408  # nothing at all was sent
        assert exchange(address, GET + b"Connection: close\r\n\r\n")[0] == 200
        time.sleep(1.2)
    found = {(record.reason, record.client) for record in caplog.records}  # type: ignore[attr-defined]
    assert found == {("slow_head", "127.0.0.1"), ("slow_body", "127.0.0.1")}


def test_a_client_that_drips_gets_no_more_time() -> None:
    with serving(head_timeout=0.3) as address, connect(address) as client:
        client.sendall(GET)
        for _ in range(600):
            time.sleep(0.05)
            try:
                client.sendall(b"x")
            except (BrokenPipeError, ConnectionResetError):
                return
        pytest.fail("it was never closed")


def test_idle_connections_are_closed() -> None:
    with serving(idle_timeout=0.2) as address, connect(address) as client:
        client.sendall(GET + b"\r\n")
        status, _, body = answer(client)  # until it is closed
        assert (status, body) == (200, b"0")


LIMITS = pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])


@LIMITS
def test_connections_are_counted_by_address_and_in_all(limit: str) -> None:
    busy = b"POST /api/ok HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabc"
    with serving(**{limit: 3}, timeout=60, body_timeout=60) as address, ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(3)]
        for client in clients:
            client.sendall(busy + b"d" + busy)  # the first is answered, the second has begun
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        status, headers, body = exchange(address, GET)
        assert (status, code(body)) == (503, "too_many_connections")
        assert headers["retry-after"]
        clients[0].close()
        for _ in range(200):  # there is room again
            status = exchange(address, GET + b"Connection: close\r\n\r\n")[0]
            if status == 200:
                break
            time.sleep(0.05)
        assert status == 200


@LIMITS
def test_half_sent_heads_keep_nobody_out(limit: str) -> None:
    with serving(**{limit: 3}, head_timeout=60) as address, ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connect(address)).sendall(GET)
            assert exchange(address, GET + b"Connection: close\r\n\r\n")[0] == 200


def test_requests_on_their_way_are_answered_when_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on connections that were idle: their request may stand in the socket."""
    monkeypatch.setattr(protocol, "DRAIN", 3)
    with running(timeout=20) as (address, stop), ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(10)]
        for client in clients:
            client.sendall(GET + b"\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
        clients[0].sendall(GET.replace(b"/ok", b"/slow") + b"\r\n")
        stop()
        for client in clients[1:]:
            client.sendall(GET + b"\r\n")
        for client in clients:
            status, headers, body = answer(client)
            assert (status, body) == (200, b"0")
            assert headers["connection"] == "close"


def test_who_has_connected_when_it_stops_is_answered() -> None:
    """The service has not accepted them yet: they are in the queue of its socket."""
    with running(timeout=20) as (address, stop), ExitStack() as stack:
        clients: list[socket.socket] = []

        def come() -> None:
            for _ in range(10):
                client = stack.enter_context(connect(address))
                client.sendall(GET + b"\r\n")
                clients.append(client)

        stop(come)
        for client in clients:
            status, headers, body = answer(client)
            assert (status, body) == (200, b"0")
            assert headers["connection"] == "close"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a filter of the kernel")
def test_nobody_is_reset_who_reconnects_while_it_stops() -> None:
    """There is always somebody in the queue of the socket when it closes."""
    found: Counter[str] = Counter()

    def come_again(address: tuple[str, int]) -> None:
        while True:
            try:
                client = connect(address)
            except OSError:
                found["turned away"] += 1
                return
            with client:
                try:
                    client.sendall(GET.replace(b"/ok", b"/busy") + b"Connection: close\r\n\r\n")
                    lost = not client.recv(1000).startswith(b"HTTP/1.1 200")
                except OSError:
                    lost = True
            found["lost" if lost else "answered"] += 1

    with running(timeout=20) as (address, stop):
        threads = [threading.Thread(target=come_again, args=(address,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        while found["answered"] < 16:
            time.sleep(0.01)
        stop()
    for thread in threads:
        thread.join(60)
    assert (found["turned away"], found["lost"]) == (8, 0)


SERVER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from service.test_protocol import Metrics, Middleware, Server, Settings, app, listening
settings, sock = Settings(), listening("127.0.0.1", 0)
server = Server(Middleware(app, settings, Metrics()), settings, grace=1)
server.config.lifespan = "off"
print(sock.getsockname()[1], flush=True)
asyncio.run(server.serve(sockets=[sock]))
"""


def memory(pid: int, name: str = "VmHWM") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
@pytest.mark.parametrize("piece", [b"X: y\r\n" * 10_000, b"x" * 60_000], ids=["lines", "one line"])
def test_endless_trailers_take_no_memory(piece: bytes) -> None:
    tests = str(Path(__file__).parent.parent)
    command = [sys.executable, "-c", SERVER, tests]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        address = "127.0.0.1", int(process.stdout.readline())
        assert exchange(address, GET + b"Connection: close\r\n\r\n")[0] == 200
        before = memory(process.pid)
        start = b"3\r\nabc\r\n0\r\n" + (b"" if piece.startswith(b"X: y") else b"X: ")
        exchange(address, CHUNKED, start, *[piece] * 300)  # 18 MB
        assert memory(process.pid) - before < 4 * 2**20
    finally:
        process.kill()
        process.communicate()
