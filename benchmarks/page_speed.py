"""How fast the web page is with many pictures, measured inside Chromium:

    python benchmarks/page_speed.py INDEX [--items 10000] [--queries 20]
    python benchmarks/page_speed.py INDEX --items 100000 --timeline

Copies the pictures of INDEX, each a little elsewhere, until there are so many; serves them, and
prints the time from a submitted search to the frame that shows the first result with its picture,
and the frames a second while the map of all is dragged. With --timeline, the page is told that
there are so many pictures, which are those of INDEX again and again; it prints the frames a second
while they are scrolled through, and the memory of the browser's tab. On a busy machine all
are worse; so it also prints the CPU time of service and browser together, which one free core would
take at most.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from chromium import chromium, served

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, Record

TARGETS = {"search": 150.0, "frames": 30.0, "timeline": 50.0, "memory": 300.0}
SECONDS = 4  # that the map is dragged, or the timeline scrolled
YEARS = 15  # that the pictures were taken in

SEARCH = """async text => {
  const frame = () => new Promise(requestAnimationFrame);
  for (const card of document.querySelectorAll('.card')) card.dataset.old = '1';
  document.getElementById('q').value = text;
  const start = performance.now();
  document.getElementById('search').requestSubmit();
  for (;;) {
    await frame();
    const image = document.querySelector('.card:not([data-old]) img');
    if (image?.complete && image.naturalWidth) break;
  }
  await frame();  // it is painted
  return performance.now() - start;
}"""

DRAG = """async seconds => {
  const canvas = document.querySelector('#plane canvas');
  const box = canvas.getBoundingClientRect();
  const send = (target, kind, x, y) => target.dispatchEvent(new PointerEvent(kind,
    {clientX: box.left + x, clientY: box.top + y, bubbles: true, pointerType: 'mouse'}));
  send(canvas, 'pointerdown', 300, 200);
  const start = performance.now();
  let frames = 0;
  while (performance.now() - start < 1000 * seconds) {
    await new Promise(requestAnimationFrame);
    frames += 1;
    send(window, 'pointermove', 300 + 80 * Math.sin(frames / 15), 200 + 60 * Math.cos(frames / 15));
  }
  send(window, 'pointerup', 300, 200);
  return 1000 * frames / (performance.now() - start);
}"""


SCROLL = """async ([seconds, step]) => {
  const start = performance.now();
  let frames = 0;
  while (performance.now() - start < 1000 * seconds) {
    await new Promise(requestAnimationFrame);
    frames += 1;
    scrollBy(0, step);
  }
  return 1000 * frames / (performance.now() - start);
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the web page.")
    parser.add_argument("index", type=Path, help="with pictures, of any model")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--timeline", action="store_true", help="scroll through all pictures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "index"
        if options.timeline:
            with served(options.index, "--timeout", "120") as address, chromium() as browser:
                page = browser.new_page(viewport={"width": 1280, "height": 860})
                page.set_default_timeout(120_000)
                pretend(page, Index.open(options.index), options.items)
                scroll(page, address)
            return
        queries = grown(Index.open(options.index), place, options.items)
        with served(place) as address, chromium() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            measure(page, address, list(islice(cycle(queries), options.queries)))


def grown(source: Index, place: Path, items: int) -> list[str]:
    """An index of so many items; gives searches to try in it."""
    assert source.run_folder is not None
    index = Index.with_model(
        place, source.run_folder, source.similarity, calibration=source.calibration
    )
    blocks = list(source.blocks())
    made, generator = 0, torch.Generator().manual_seed(0)
    while made < items:
        for g, records in blocks:
            some = records[: items - made]
            noise = 0.3 * torch.randn(g.mean.shape, generator=generator) * g.mean.std(0)
            near = Gaussian(g.mean + noise, g.log_var)[: len(some)]
            copies = [Record(f"{made}/{r.id}", r.meta, r.thumbnail) for r in some]
            index.add(near, copies)
            made += len(some)
            if made == items:
                break
    index.compact()
    captions = [str(r.meta["caption"]) for r in source.some(20, "captions")[0]]
    return captions or ["a dog", "two children playing", "a man rides a bike", "snow", "a red car"]


def taken(number: int) -> str:
    """A date for each picture, every month of some years."""
    month, day = number % (12 * YEARS), 1 + number % 28
    return f"{2010 + month // 12}-{1 + month % 12:02}-{day:02}T10:22:31"


def tab_memory() -> float:
    """Megabytes of memory that the browser's tabs have for themselves (Linux)."""
    total = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"--type=renderer" not in file.read_bytes():
                continue
            parts = (file.parent / "smaps_rollup").read_text().splitlines()
        except OSError:  # it has just ended, or is somebody else's
            continue
        if int(file.parent.name) in family():
            total += sum(int(line.split()[1]) for line in parts if line.startswith("Private_"))
    return total / 1024


def pretend(page: Any, index: Index, items: int) -> None:
    """Let the timeline hold so many pictures, without an index of them."""
    ids = [record.id for record in index.some(items)[0]]
    months = [f"{2010 + n // 12}-{1 + n % 12:02}" for n in reversed(range(12 * YEARS))]
    counts = [items // len(months) + (n < items % len(months)) for n in range(len(months))]
    listed = [{"month": m, "count": n} for m, n in zip(months, counts, strict=True)]
    answer = {"months": listed, "total": items, "mark": "1"}
    page.route("**/api/timeline*", lambda route: route.fulfill(json=answer))

    def some(route: Any) -> None:
        asked = parse_qs(urlsplit(route.request.url).query)
        first, count = int(asked["offset"][0]), int(asked["k"][0])
        rows = range(first, min(items, first + count))
        route.fulfill(
            json={"ids": [ids[row % len(ids)] for row in rows], "taken": [taken(r) for r in rows]}
        )

    page.route("**/api/browse*", some)


def scroll(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#timeline .tile img")
    page.wait_for_timeout(2000)
    height = page.evaluate("document.documentElement.scrollHeight")
    print(
        f"timeline: {page.evaluate('document.querySelectorAll(`.tile`).length')} elements at a time"
    )
    for name, step in (("slowly", 20), ("fast", 400), ("through all", height // 200)):
        page.evaluate("scrollTo(0, 0)")
        before = cpu_seconds()
        frames = page.evaluate(SCROLL, [SECONDS, step])
        work = 1000 * (cpu_seconds() - before) / (frames * SECONDS)
        page.wait_for_timeout(1500)  # pictures come in
        print(
            f"timeline scrolled {name} ({step:,} pixels a frame): {frames:.0f} frames a second "
            f"(target {TARGETS['timeline']:.0f}); CPU time of a frame {work:.0f} ms; memory of the "
            f"tab {tab_memory():.0f} MB (target {TARGETS['memory']:.0f})",
            flush=True,
        )


def family() -> set[int]:
    """This process, all that it has started, and that they have (Linux)."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    members, found = {os.getpid()}, True
    while found:
        found = {pid for pid, parent in parents.items() if parent in members} - members
        members |= found
    return members


def cpu_seconds() -> float:
    """CPU time of all processes that this one has started, and that they have (Linux)."""
    ticks = 0
    for pid in family() - {os.getpid()}:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(page: Any, address: str, queries: list[str]) -> None:
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    page.evaluate(SEARCH, queries[0])  # what only the first search pays for
    before = cpu_seconds()
    times = sorted(page.evaluate(SEARCH, text) for text in queries)
    work = 1000 * (cpu_seconds() - before) / len(queries)
    high = times[min(len(times) - 1, round(0.95 * len(times)))]
    print(
        f"search to first picture painted: median {statistics.median(times):.0f} ms, "
        f"95th percentile {high:.0f} ms (target {TARGETS['search']:.0f} ms); CPU time of a whole "
        f"search, all its cards included, {work:.0f} ms"
    )
    page.click("#asmap")
    page.wait_for_selector("#legend .key")
    page.wait_for_timeout(3000)  # thumbnails come in
    for zoom in range(3):
        before = cpu_seconds()
        frames = page.evaluate(DRAG, SECONDS)
        work = 1000 * (cpu_seconds() - before) / (frames * SECONDS)
        print(
            f"map dragged, zoomed in {zoom} times: {frames:.0f} frames a second "
            f"(target {TARGETS['frames']:.0f}); CPU time of a frame {work:.0f} ms"
        )
        page.click("#zoomin")
        page.wait_for_timeout(1000)


if __name__ == "__main__":
    main()
