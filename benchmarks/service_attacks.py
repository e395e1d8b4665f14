"""What does a hostile client cost? Memory and answers of the service under bounded attacks.

    python benchmarks/service_attacks.py INDEX [--only trailers slow-heads …]

Starts ``gaussmatch serve INDEX`` on 127.0.0.1 for each attack, sends it a bounded number of
requests, and prints its memory at rest and at the peak (VmRSS, VmHWM of /proc; Linux only), what
was answered, and whether an ordinary client is served meanwhile:

- trailers: a chunked body, then trailer lines without end, up to 150 MB
- slow-heads: 1,000 connections that send half a head, 40 from each of 25 loopback addresses
- uploads: 100 pictures of 19 MiB at once
- bombs: 24 WebP of 49 megapixels in about 2 kB, and 24 one-bit PNG of 100 megapixels
- stop: 20 clients send requests without a pause on their connections, 20 more connect anew for
  each, while the service gets SIGTERM
- links: 2,000 requests for a photo that another process replaces by a link to a file outside, and
  back, all the time
- crash: 20 clients reconnect for each request while one of two workers is killed, three times
- update: a second service on a copy of the index; another process adds, replaces, deletes and
  compacts while 10 clients search in both
- cut: a file of the index is cut to half its length while 10 clients search, then restored; each
  file twenty times
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from urllib.parse import urlsplit

from PIL import Image

from gaussmatch.search import Index
from gaussmatch.search import update as update_index
from gaussmatch.search.sources import Changes

MIB = 2**20


class Service:
    """A service in a process of its own."""

    def __init__(self, index: Path, *options: str) -> None:
        self.index, self.log = index, TemporaryFile()  # noqa: SIM115
        command = [sys.executable, "-m", "gaussmatch", "serve", str(index), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--no-browser", "--log-level", "warning", *options],
            stdout=subprocess.PIPE,
            stderr=self.log,
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
        return self.answer(method, path, body)[0]

    def answer(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body; 0 where the connection was closed."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def logged(self, event: bytes) -> int:
        """How often something was logged."""
        return os.pread(self.log.fileno(), 2**30, 0).count(b'"event":"%s"' % event)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


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
                    connection.connect() if connection.sock is None else None
                except OSError:
                    found["turned away"] += 1
                    return  # refused before anything was sent
                try:
                    connection.request("GET", "/api/search?text=red&k=1")
                except OSError:
                    found["reset while sending"] += 1
                    return
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


@contextmanager
def searching(*services: Service, clients: int) -> Iterator[Counter[int]]:
    """Clients that search meanwhile, each on a new connection; what they were answered."""
    found: Counter[int] = Counter()
    ending = threading.Event()

    def client(service: Service) -> None:
        while not ending.is_set():
            found[service.get("/api/search?text=red&k=5")] += 1

    threads = [
        threading.Thread(target=client, args=(services[n % len(services)],)) for n in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        ending.set()
        for thread in threads:
            thread.join(60)


def counts(found: Counter[int]) -> str:
    return ", ".join(f"{n} × {status or 'closed'}" for status, n in sorted(found.items()))


def index_photos(model: Path, photos: Path, out: Path) -> Changes:
    """An index of photos, with the model of another."""
    other = Index.open(model)
    index = Index.with_model(out, other.run_folder, other.similarity)
    return update_index(index, photos, progress=False)


def links(service: Service) -> str:
    with TemporaryDirectory() as name:
        folder, secret = Path(name) / "photos", Path(name) / "secret.jpg"
        folder.mkdir()
        photo, own, other = folder / "a.jpg", jpeg((64, 64)), jpeg((80, 80))
        photo.write_bytes(own)
        secret.write_bytes(other)
        index_photos(service.index, folder, Path(name) / "index")
        swap = (
            "import os, sys\n"
            "photo, secret = sys.argv[1:]\n"
            "os.rename(photo, photo + '.kept')\n"
            "while True:\n"
            "    os.symlink(secret, photo + '.new'); os.rename(photo + '.new', photo)\n"
            "    os.link(photo + '.kept', photo + '.new'); os.rename(photo + '.new', photo)\n"
        )
        album = Service(Path(name) / "index")
        swapping = subprocess.Popen([sys.executable, "-c", swap, str(photo), str(secret)])
        try:
            found: Counter[str] = Counter()
            for _ in range(2000):
                status, body = album.answer("GET", "/api/picture?id=a.jpg")
                what = "leaked" if body == other else "sent" if body == own else str(status)
                found[what] += 1
        finally:
            swapping.kill()
            swapping.wait()
            album.close()
    return ", ".join(f"{n} {what}" for what, n in sorted(found.items()))


def crash(service: Service) -> str:
    several = Service(service.index, "--workers", "2", "--log-level", "info")
    children = Path(f"/proc/{several.process.pid}/task/{several.process.pid}/children")
    try:
        with searching(several, clients=20) as found:
            for ready in (2, 3, 4, 5):
                end = time.monotonic() + 120
                while several.logged(b"ready") < ready and time.monotonic() < end:
                    time.sleep(0.1)
                if ready < 5:
                    workers = [int(pid) for pid in children.read_text().split()]
                    busy = [pid for pid in workers if b"spawn_main" in _command(pid)]
                    os.kill(busy[0], signal.SIGKILL)
            before = found.copy()
            time.sleep(2)
            after, died = found - before, several.logged(b"worker died")
    finally:
        several.close()
    return f"{died} workers died: {counts(found)}; in the two seconds after: {counts(after)}"


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def update(service: Service) -> str:
    with TemporaryDirectory() as name:
        shutil.copytree(service.index, Path(name) / "index")
        both = [Service(Path(name) / "index") for _ in range(2)]
        index = Index.open(Path(name) / "index")
        records, gaussians = index.some(20)
        assert gaussians is not None
        try:
            with searching(*both, clients=10) as found:
                for n in range(30):
                    new = [replace(r, id=f"new/{n}/{r.id}") for r in records]
                    index.add(gaussians, new)
                    index.add(gaussians, new, replace=True)
                    index.delete([r.id for r in new[1:]])
                    if n % 10 == 9:
                        index.compact()
                time.sleep(7)  # changes appear within five seconds
                seen = [each.get(f"/api/item?id=new/29/{records[0].id}") for each in both]
        finally:
            for each in both:
                each.close()
    return f"{counts(found)}; the last item in both: {seen}"


def cut(service: Service) -> str:
    """A service that dies of it is started again."""
    cuts, deaths = 0, 0
    answered: Counter[int] = Counter()
    with TemporaryDirectory() as name:
        shutil.copytree(service.index, Path(name) / "index")
        files = sorted(Path(name).glob("index/segments/images-*/*"))
        whole = {path: path.read_bytes() for path in files}
        left = files * 20
        while left:
            attacked = Service(Path(name) / "index")
            try:
                with searching(attacked, clients=10) as found:
                    while left and attacked.process.poll() is None:
                        path = left.pop()
                        os.truncate(path, len(whole[path]) // 2)
                        time.sleep(0.05)
                        path.write_bytes(whole[path])
                        time.sleep(0.05)
                        cuts += 1
                answered += found
                deaths += attacked.process.poll() is not None
            finally:
                attacked.close()
    return f"{len(files)} files, {cuts} cuts: the process died {deaths} times; {counts(answered)}"


ATTACKS: dict[str, Callable[[Service], str]] = {
    "trailers": trailers,
    "slow-heads": slow_heads,
    "uploads": uploads,
    "bombs": bombs,
    "stop": stop,
    "links": links,
    "crash": crash,
    "update": update,
    "cut": cut,
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
