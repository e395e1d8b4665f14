"""The real server as a process: it starts, answers, logs, and ends what it has begun."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from data.test_pictures import many_scans
from service.served import jpeg, make_index

from gaussmatch.apps.cli import main


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make_index(tmp_path_factory.mktemp("server")).place)


def in_flight(connection: http.client.HTTPConnection) -> float:
    connection.request("GET", "/metrics")
    printed = connection.getresponse().read().decode()
    return float(printed.split("\ngaussmatch_requests_in_flight ")[1].split()[0])


def test_a_request_in_flight_is_answered_after_sigterm(index: Path) -> None:
    command = [sys.executable, "-m", "gaussmatch", "serve", str(index), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    connection = None
    try:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().split()[0])
        assert url.hostname == "127.0.0.1"
        assert url.port is not None
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        connection.request("GET", "/readyz")
        assert connection.getresponse().read() == b'{"status":"ready"}'
        picture, alone = jpeg(), in_flight(connection)
        slow = socket.create_connection((url.hostname, url.port), timeout=60)
        head = "POST /api/search/image?k=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        slow.sendall(f"{head}Content-Length: {len(picture)}\r\n\r\n".encode() + picture[:50])
        while in_flight(connection) <= alone:  # until the other request has begun
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert process.poll() is None
        slow.sendall(picture[50:])
        answer = b"".join(iter(lambda: slow.recv(65536), b""))
        slow.close()
        assert answer.startswith(b"HTTP/1.1 200")
        _, errors = process.communicate(timeout=60)
    finally:
        if connection is not None:
            connection.close()
        process.kill()
        process.communicate()
    assert process.returncode in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in errors.splitlines()]
    requests = [line for line in lines if line["event"] == "request" and line["path"] != "/metrics"]
    assert [line["path"] for line in requests] == ["/readyz", "/api/search/image"]
    assert all(line["id"] and line["status"] == 200 for line in requests)
    assert "stopped" in [line["event"] for line in lines]


def test_sigterm_ends_the_service_though_its_decoders_are_busy(index: Path) -> None:
    """Two pictures that would take minutes, and a limit that would let them: it ends in its grace,
    and so do they."""
    command = [sys.executable, "-m", "gaussmatch", "serve", str(index), "--port", "0"]
    command += ["--grace", "6", "--decode-timeout", "600", "--timeout", "600"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    clients = []
    try:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().split()[0])
        assert url.hostname is not None
        body = many_scans(200_000)
        for _ in range(2):
            clients.append(http.client.HTTPConnection(url.hostname, url.port, timeout=60))
            clients[-1].request("POST", "/api/search/image?k=1", body)
        watch = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        clients.append(watch)
        while in_flight(watch) < 3:  # until both uploads have begun
            time.sleep(0.01)
        decoders = decoders_of(process.pid)
        assert len(decoders) == 2
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)  # the grace, and a busy machine
    finally:
        for client in clients:
            client.close()
        process.kill()
        process.communicate()
    assert process.returncode in (0, -signal.SIGTERM)
    assert not [pid for pid in decoders if Path(f"/proc/{pid}").exists()]


HANGS = """
import sys, time
from gaussmatch.apps.cli import main
from gaussmatch.apps.service.engine import Engine
def about(self):
    if self.ready:
        print("hangs", flush=True)
        time.sleep(600)
    self.ready = True
Engine.ready, Engine.about = False, about
sys.exit(main(sys.argv[1:]))
"""


def test_sigterm_ends_the_service_though_the_index_does_not_answer(index: Path) -> None:
    """As with a server elsewhere that hangs: no thread can be stopped, but the process can."""
    command = [sys.executable, "-c", HANGS, "serve", str(index), "--port", "0", "--grace", "4"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().split()[0])
        assert url.hostname is not None
        client = http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        client.request("GET", "/api/about")
        assert process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)  # the grace, and a busy machine
        client.close()
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1


def decoders_of(process: int) -> list[int]:
    """Its children that open pictures."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    children = " ".join(task.read_text() for task in tasks).split()
    return [
        int(pid) for pid in children if b"decoder.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "nowhere"], "nowhere"),
        (["serve", "INDEX", "--api-key-env", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is empty"),
        (["serve", "INDEX", "--max-batch", "0"], "max_batch is 0"),
        (["serve", "INDEX", "--workers", "0"], "workers is 0"),
        (["serve", "INDEX", "--cors", "*"], "is not an origin"),
        (["serve", "INDEX", "--port", "PORT"], "is taken by another program"),
        (["serve", "INDEX", "--port", "80000"], "choose one from 0 to 65535"),
        (["serve", "INDEX", "--port", "-1"], "choose one from 0 to 65535"),
        (["serve", "INDEX", "--rate", "-1"], "must not be negative"),
        (["serve", "INDEX", "--head-timeout", "0"], "must be positive"),
    ],
)
def test_what_is_wrong_is_one_clear_line(
    words: list[str], message: str, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        known = {"INDEX": str(index), "PORT": str(taken.getsockname()[1])}
        assert main([known.get(word, word) for word in words]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
