"""What does HTTP cost? Queries a second through the service, as a share of the library's own.

    python benchmarks/service_throughput.py INDEX [--queries 3000] [--concurrency 32] [--rounds 3]
                                                  [--workers 2]

The library: ``index.search_text`` on batches of 32 texts, k = 10, one after the other, in a process
that does nothing else. The service: ``gaussmatch serve`` with its usual settings (logs into a
file), queried with the same texts one at a time by 32 clients at once, each of which sends the next
when it is answered; the clients are a third process. Rounds alternate between the two and the best
of each counts, so that a busy machine does not decide. Both use one torch thread, and the service
one worker: like with like. ``--workers`` measures a service with more processes too, still against
the library in one. Every answer is compared with the library's after the clock has stopped: an
error is any status but 200 or any other ids.

Texts are the captions of the index, again and again until there are enough; nothing is cached on
either side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description="Service against library, in one run.")
    parser.add_argument("index", type=Path)
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="measure so many too")
    parser.add_argument("--seconds", type=float, default=120, help="most for one round")
    parser.add_argument("--role", choices=("library", "clients"), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--texts", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "library":
        library(options)
    elif options.role == "clients":
        asyncio.Runner(loop_factory=event_loop()).run(clients(options))
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        texts = folder / "texts.json"
        common = [str(options.index), "--queries", str(options.queries), "--texts", str(texts)]
        common += ["--concurrency", str(options.concurrency), "--seconds", str(options.seconds)]
        services = {
            n: stack.enter_context(serving(options.index, n, folder / f"{n}.log"))
            for n in dict.fromkeys((1, options.workers))
        }
        alone: list[dict[str, float]] = []
        through: dict[int, list[dict[str, float]]] = {n: [] for n in services}
        for _ in range(options.rounds):
            alone.append(ask("library", common))
            print(f"  library{shown(alone[-1])}", flush=True)
            for n, (pid, address) in services.items():
                before = processor(pid)
                measured = ask("clients", [*common, "--address", address])
                measured["cpu"] = (processor(pid) - before) / measured["queries"]
                through[n].append(measured)
                print(f"  service, {workers(n)}{shown(measured)}", flush=True)
        together = {n: mean_batch(address) for n, (_, address) in services.items()}
    library = max(alone, key=lambda t: t["rate"])["rate"]
    cpu = min(t["cpu"] for t in alone)
    print(f"{options.queries} queries, {options.concurrency} at a time; library {library:.0f}/s")
    for n, measured in through.items():
        best = max(measured, key=lambda t: t["rate"])
        shares = [t["rate"] / a["rate"] for t, a in zip(measured, alone, strict=True)]
        print(
            f"{workers(n)}: service {best['rate']:.0f}/s = {100 * best['rate'] / library:.0f} % of "
            f"the library's one thread (median of the rounds "
            f"{100 * statistics.median(shares):.0f} %); by processor time "
            f"{100 * cpu / min(t['cpu'] for t in measured):.0f} %; "
            f"{sum(t['errors'] for t in measured):.0f} errors; latency p50 {best['p50']:.1f} ms, "
            f"p99 {best['p99']:.1f} ms; {together[n]:.1f} queries in a batch"
        )


def workers(n: int) -> str:
    return "one worker" if n == 1 else f"{n} workers"


def shown(measured: dict[str, float]) -> str:
    return f" {measured['rate']:6.0f}/s, {1e6 * measured['cpu']:5.0f} µs of processor a query"


@contextmanager
def serving(index: Path, n: int, log: Path) -> Iterator[tuple[int, str]]:
    """Process and address of a service whose workers have all answered."""
    command = [sys.executable, "-m", "gaussmatch", "serve", str(index), "--port", "0"]
    with log.open("w", encoding="utf-8") as errors:
        server = subprocess.Popen(
            [*command, "--workers", str(n)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=ENVIRONMENT,
        )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().partition(" ")[0]  # empty if it has failed
        end = time.monotonic() + 120
        while not address or log.read_text(encoding="utf-8").count('"event":"ready"') < n:
            if server.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the service did not start:\n{log.read_text(encoding='utf-8')}")
            time.sleep(0.1)
        yield server.pid, address
    finally:
        server.terminate()
        server.wait(60)


def mean_batch(address: str) -> float:
    """Queries that the service encoded together, on average since it started."""
    with urllib.request.urlopen(f"{address}metrics") as answer:
        lines = answer.read().decode().splitlines()
    measured = dict(
        line.split()
        for line in lines
        if line.startswith("gaussmatch_batch_size_") and "{" not in line
    )
    return float(measured["gaussmatch_batch_size_sum"]) / float(
        measured["gaussmatch_batch_size_count"]
    )


def processor(pid: int) -> float:
    """Seconds of processor that a process and its children have used (Linux; NaN elsewhere)."""
    used = 0.0
    for each in [pid, *children(pid)]:
        stat = Path(f"/proc/{each}/stat")
        if not stat.exists():
            return float("nan")
        fields = stat.read_text().rpartition(")")[2].split()
        used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def children(pid: int) -> list[int]:
    return [
        int(child)
        for file in Path(f"/proc/{pid}/task").glob("*/children")
        for child in file.read_text().split()
    ]


def ask(role: str, words: list[str]) -> dict[str, float]:
    """Run one side in a process of its own."""
    command = [sys.executable, __file__, "--role", role, *words]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def library(options: argparse.Namespace) -> None:
    """Time the batches; leave texts and found ids for the clients."""
    from gaussmatch.search import Index

    index = Index.open(options.index)
    records, _ = index.some(10 * options.queries, "captions")
    texts = list(dict.fromkeys(str(r.meta["caption"]) for r in records))
    texts = [r.text for r in index.model.read(texts) if r.known]
    texts = [*islice(cycle(texts), options.queries)]
    step = options.concurrency
    index.search_text(texts[:step], K)
    found, used, started = [], time.process_time(), time.perf_counter()
    for i in range(0, len(texts), step):
        found += index.search_text(texts[i : i + step], K)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    pairs = [(text, hits.ids) for text, hits in zip(texts, found, strict=True)]
    options.texts.write_text(json.dumps(pairs), encoding="utf-8")
    print(json.dumps({"rate": len(texts) / seconds, "cpu": used / len(texts)}))


def event_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's if it is there, so that the clients do not hold the service up."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return loop


async def clients(options: argparse.Namespace) -> None:
    """So many connections at once, each kept alive and sending the next when answered."""
    url = urlsplit(options.address)
    head = f" HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n"
    pairs = json.loads(options.texts.read_text(encoding="utf-8"))
    todo = iter(
        [(f"GET /api/search?k={K}&text={quote(t)}{head}".encode(), ids) for t, ids in pairs]
    )
    loop, answers = asyncio.get_running_loop(), list[Answer]()
    async with asyncio.timeout(options.seconds):
        made = [
            await loop.create_connection(lambda: Client(todo, answers), url.hostname, url.port)
            for _ in range(options.concurrency)
        ]
        started = time.perf_counter()
        for _, client in made:
            client.ask()
        await asyncio.gather(*(client.done for _, client in made))
        seconds = time.perf_counter() - started
    errors = sum(not right(answer) for answer in answers)
    times = sorted(answer.seconds for answer in answers)
    p50, p99 = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
    measured = {"rate": len(times) / seconds, "queries": len(times), "errors": errors}
    print(json.dumps({**measured, "p50": p50, "p99": p99}))


class Answer(NamedTuple):
    body: bytes
    ids: list[str]
    seconds: float


class Client(asyncio.Protocol):
    """One connection. As little work as may be, so that it does not hold the service up."""

    def __init__(self, todo: Iterator[tuple[bytes, list[str]]], answers: list[Answer]) -> None:
        self._todo, self._answers = todo, answers
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    def ask(self) -> None:
        line, self._ids = next(self._todo, (None, []))
        if line is None:
            self.done.set_result(None)
            self._transport.close()
            return
        self._received, self._length = b"", 0
        self._sent = time.perf_counter()
        self._transport.write(line)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._length and (end := self._received.find(b"\r\n\r\n")) >= 0:
            length = self._received.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._length = end + 4 + int(length)
        if self._length and len(self._received) >= self._length:
            seconds = time.perf_counter() - self._sent
            self._answers.append(Answer(self._received, self._ids, seconds))
            self.ask()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the service hung up"))


def right(answer: Answer) -> bool:
    """Whether the service found what the library found."""
    head, _, body = answer.body.partition(b"\r\n\r\n")
    good = head.startswith(b"HTTP/1.1 200")
    return good and [hit["id"] for hit in json.loads(body)["results"]["hits"]] == answer.ids


if __name__ == "__main__":
    main()
