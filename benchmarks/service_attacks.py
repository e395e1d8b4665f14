"""What does a hostile client cost? Memory and answers of the service under bounded attacks.

    python benchmarks/service_attacks.py INDEX [--only trailers slow-heads uploads bombs stop]

Starts ``gaussmatch serve INDEX`` on 127.0.0.1 for each attack, sends it a bounded number of
requests, and prints its memory at rest and at the peak (VmRSS, VmHWM of /proc; Linux only), what
was answered, and whether an ordinary client is served meanwhile:

- trailers: a chunked body, then trailer lines without end, up to 150 MB
- slow-heads: 1,000 connections that send half a head, 40 from each of 25 loopback addresses
- uploads: 100 pictures of 19 MiB at once
- bombs: 24 WebP of 49 megapixels in about 2 kB, and 24 one-bit PNG of 100 megapixels
- stop: 20 clients send requests without a pause on their connections, 20 more connect anew for
  each, while the service gets SIGTERM
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image

MIB = 2**20


class Service:
    """A service in a process of its own."""

    def __init__(self, index: Path) -> None:
        command = [sys.executable, "-m", "gaussmatch", "serve", str(index), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--no-browser", "--log-level", "warning"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        url = urlsplit(self.process.stdout.readline().split()[0])
        assert url.hostname is not None
        assert url.port is not None
        self.address = url.hostname, url.port
        for _ in range(5):
            assert self.get("/api/about") == 200
        self.post(jpeg((2000, 1500)))  # what an ordinary picture takes belongs to being at rest
        time.sleep(1)
        self.rest = self.memory("VmRSS")
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # the peak starts anew

    def ratio(self) -> float:
        """Memory at the peak, of that at rest."""
        return self.memory("VmHWM") / self.rest

    def memory(self, name: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+)", status)
        return int(found[1]) / 1024 if found else float("nan")

    def get(self, path: str) -> int:
        return self.request("GET", path)

    def post(self, body: bytes) -> int:
        return self.request("POST", "/api/search/image?k=1", body)

    def request(self, method: str, path: str, body: bytes | None = None) -> int:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def jpeg(size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.effect_noise(size, 60).convert("RGB").save(file, "JPEG", quality=90)
    return file.getvalue()


def trailers(service: Service) -> str:
    sent = 0
    with socket.create_connection(service.address) as client:
        client.sendall(
            b"POST /api/search/image HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"\r\n3\r\nabc\r\n0\r\n"
        )
        with suppress(OSError):
            for _ in range(2400):
                client.sendall(b"X-Trailer: y\r\n" * 4500)
                sent += 4500 * 14
    return f"{sent / MIB:.1f} of 144 MiB taken before the connection was closed"


def slow_heads(service: Service) -> str:
    clients, refused = [], 0
    with ExitStack() as stack:
        for n in range(1000):
            client = stack.enter_context(socket.socket())
            client.bind((f"127.0.1.{1 + n // 40}", 0))
            try:
                client.connect(service.address)
                client.sendall(b"GET /api/about HTTP/1.1\r\nHost: loc")
                clients.append(client)
            except OSError:
                refused += 1
        meanwhile = service.get("/api/about")
        ends = time.monotonic() + 30
        while time.monotonic() < ends and service.get("/api/about") != 200:
            time.sleep(0.5)
        waited = 30 - (ends - time.monotonic())
    return f"an ordinary client got {meanwhile}, and 200 after {waited:.0f} s; {refused} refused"


def uploads(service: Service) -> str:
    return described(service, [large_upload()] * 100, at_once=50)


def large_upload() -> bytes:
    """19 MiB that begin as a JPEG does."""
    return b"\xff\xd8\xff\xe0" + os.urandom(19 * MIB)


def bombs(service: Service) -> str:
    return described(service, huge_pictures(), at_once=24)


def huge_pictures() -> list[bytes]:
    """24 small files of 49 megapixels each, and 24 of 100."""
    file = io.BytesIO()
    Image.new("RGB", (7000, 7000)).save(file, "WEBP", lossless=True)
    return [file.getvalue()] * 24 + [one_bit_png(10_000)] * 24


def one_bit_png(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 + side // 8) * side)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def answers(service: Service, bodies: list[bytes], at_once: int) -> Counter[int]:
    """How often each status was answered; 0 where the connection was closed."""
    with ThreadPoolExecutor(at_once) as pool:
        return Counter(pool.map(service.post, bodies))


def described(service: Service, bodies: list[bytes], at_once: int) -> str:
    """The same in words, with what an ordinary client gets meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(answers, service, bodies, at_once)
        meanwhile = service.get("/api/about")
        found = sorted(sent.result().items())
    counts = ", ".join(f"{count} × {status or 'closed'}" for status, count in found)
    return f"{counts}; an ordinary client meanwhile {meanwhile}"


def stop(service: Service) -> str:
    """Every request that was sent gets an answer, or its connection was announced to close."""
    found: Counter[str] = Counter()

    def client(keep: bool) -> None:
        connection = http.client.HTTPConnection(*service.address, timeout=60)
        try:
            while True:
                try:
                    connection.request("GET", "/api/search?text=a&k=1")
                except OSError:
                    return  # it was closed before anything was sent
                try:
                    response = connection.getresponse()
                    response.read()
                    found["answered"] += 1
                    if not keep:
                        connection.close()
                    elif response.headers.get("connection") == "close":
                        return
                except (OSError, http.client.HTTPException):
                    found[f"lost, {'kept' if keep else 'new'} connection"] += 1
                    return
        finally:
            connection.close()

    threads = [threading.Thread(target=client, args=(n < 20,)) for n in range(40)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    service.process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    return ", ".join(f"{count} {what}" for what, count in found.items())


ATTACKS: dict[str, Callable[[Service], str]] = {
    "trailers": trailers,
    "slow-heads": slow_heads,
    "uploads": uploads,
    "bombs": bombs,
    "stop": stop,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Bounded attacks on a service of this machine.")
    parser.add_argument("index", type=Path)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    options = parser.parse_args()
    for name in options.only:
        service = Service(options.index)
        try:
            result = ATTACKS[name](service)
            peak = service.memory("VmHWM") if service.process.poll() is None else float("nan")
            after = service.memory("VmRSS") if service.process.poll() is None else float("nan")
        finally:
            service.close()
        row = {"attack": name, "rest_mb": round(service.rest), "peak_mb": peak and round(peak, 0)}
        row |= {"ratio": round(peak / service.rest, 2), "after_mb": round(after, 0)}
        print(json.dumps(row | {"result": result}, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
