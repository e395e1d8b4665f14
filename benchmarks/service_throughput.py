"""What does HTTP cost? Queries a second through the service, as a share of the library's own.

    python benchmarks/service_throughput.py INDEX [--queries 3000] [--concurrency 32] [--rounds 3]

The library: ``index.search_text`` on batches of 32 texts, k = 10, one after the other, in a process
that does nothing else. The service: ``gaussmatch serve`` with its usual settings (logs into a
file), asked for the same texts one at a time by 32 clients at once, each of which asks again when
it is answered; the clients are a third process. Rounds alternate between the two and the best of
each counts, so that a busy machine does not decide. Both use one torch thread. Every answer is
compared with the library's: an error is any status but 200 or any other ids.

Texts are the captions of the index, all different; nothing is cached on either side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlsplit

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description="Service against library, in one run.")
    parser.add_argument("index", type=Path)
    parser.add_argument("--queries", type=int, default=3000)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
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
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.json"
        common = [str(options.index), "--queries", str(options.queries), "--texts", str(texts)]
        common += ["--concurrency", str(options.concurrency), "--seconds", str(options.seconds)]
        with open(Path(folder) / "serve.log", "w", encoding="utf-8") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "gaussmatch", "serve", str(options.index), "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=ENVIRONMENT,
            )
            try:
                assert server.stdout is not None
                address = server.stdout.readline().split()[0]
                best_library, best_service = 0.0, {"rate": 0.0}
                errors = 0
                cpu_library: list[float] = []
                cpu_service: list[float] = []
                for _ in range(options.rounds):
                    alone = ask("library", common)
                    before = processor(server.pid)
                    told = ask("clients", [*common, "--address", address])
                    used = (processor(server.pid) - before) / told["queries"]
                    cpu_library.append(alone["cpu"])
                    cpu_service.append(used)
                    errors += int(told["errors"])
                    print(
                        f"  library {alone['rate']:6.0f}/s, {1e6 * alone['cpu']:5.0f} µs of "
                        f"processor a query; service {told['rate']:6.0f}/s, {1e6 * used:5.0f} µs",
                        flush=True,
                    )
                    best_library = max(best_library, alone["rate"])
                    best_service = max(best_service, told, key=lambda t: t["rate"])
                together = mean_batch(address)
            finally:
                server.terminate()
                server.wait(60)
    rate, p50, p99 = (best_service[name] for name in ("rate", "p50", "p99"))
    print(
        f"{options.queries} queries, {options.concurrency} at a time: service {rate:.0f}/s = "
        f"{100 * rate / best_library:.0f} % of library {best_library:.0f}/s; "
        f"{errors} errors; latency p50 {p50:.1f} ms, p99 {p99:.1f} ms; "
        f"{together:.1f} queries in a batch\n"
        f"by processor time: {100 * min(cpu_library) / min(cpu_service):.0f} %"
    )


def mean_batch(address: str) -> float:
    """Queries that the service encoded together, on average since it started."""
    with urllib.request.urlopen(f"{address}metrics") as answer:
        lines = answer.read().decode().splitlines()
    told = dict(
        line.split()
        for line in lines
        if line.startswith("gaussmatch_batch_size_") and "{" not in line
    )
    return float(told["gaussmatch_batch_size_sum"]) / float(told["gaussmatch_batch_size_count"])


def processor(pid: int) -> float:
    """Seconds of processor that a process has used (Linux; NaN elsewhere)."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return float("nan")
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    from gaussmatch.index import Index

    index = Index.open(options.index)
    records, _ = index.some(10 * options.queries, "captions")
    texts = list(dict.fromkeys(str(r.meta["caption"]) for r in records))
    texts = [t for t in texts if index.model.vocabulary.known(t)][: options.queries]
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
    """So many connections at once, each kept alive and asking again when answered."""
    url = urlsplit(options.address)
    todo = iter(json.loads(options.texts.read_text(encoding="utf-8")))
    times: list[float] = []
    answers: list[tuple[bytes, bytes, list[str]]] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        for text, ids in todo:
            asked = time.perf_counter()
            line = (
                f"GET /api/search?k={K}&text={quote(text)} HTTP/1.1\r\nHost: {url.netloc}\r\n\r\n"
            )
            writer.write(line.encode())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            times.append(time.perf_counter() - asked)
            answers.append((head, body, ids))
        writer.close()

    async with asyncio.timeout(options.seconds):
        started = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(options.concurrency)))
        seconds = time.perf_counter() - started
    errors = sum(not right(*answer) for answer in answers)
    times.sort()
    p50, p99 = (1000 * times[int(share * (len(times) - 1))] for share in (0.5, 0.99))
    told = {"rate": len(times) / seconds, "queries": len(times), "errors": errors}
    print(json.dumps({**told, "p50": p50, "p99": p99}))


def right(head: bytes, body: bytes, ids: list[str]) -> bool:
    """Whether the service found what the library found."""
    good = head.startswith(b"http/1.1 200")
    return good and [hit["id"] for hit in json.loads(body)["hits"]] == ids


if __name__ == "__main__":
    main()
