"""Twenty kills (SIGKILL) at random moments: is the index ever broken, is an item ever lost?

    python benchmarks/index_kills.py [--kills 20] [--run RUN]

A process that adds, joins and compacts; with ``--run`` as many more times ``gaussmatch index RUN``
itself, over the run's own data. The latter is first left alone once, to see when its fill begins
and ends; most kills are then drawn from within the fill, a commit at a time, the others from its
start and from the calibration at its end. A quarter of them hit a run that goes on after a kill.

After each kill the index must open, hold every item that the manifest named a moment before, each
as in the index that was left alone, and be searched; the command given again must end with exactly
the items and the calibration of the index that was left alone.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from index.kills import check, contents, one_kill

from gaussmatch.search import Index
from gaussmatch.search.backends.folder.layout import load_manifest
from gaussmatch.search.index import CALIBRATION
from gaussmatch.search.manifest import MANIFEST
from gaussmatch.search.sources import COMMIT

LOOK = 0.002  # seconds between two looks at a manifest


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a writer at random moments.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--run", type=Path, help="a run on scenes: kills 'gaussmatch index' too")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        adding(Path(folder), options.kills, dice)
        if options.run is not None:
            indexing(options.run, Path(folder), options.kills, dice)
    print("no broken index, no lost item")


def adding(folder: Path, kills: int, dice: random.Random) -> None:
    """One index, added to and compacted by one killed process after the other."""
    path, log = folder / "added", folder / "log"
    landed: Counter[str] = Counter()
    for kill in range(kills):
        before = log.read_text() if log.exists() else ""
        one_kill(path, log, dice, within=2.0)
        held, promised = check(path, log)
        entries = (log.read_text() if log.exists() else "")[len(before) :].splitlines()
        where = (
            "starting" if not entries else "compacting" if entries[-1] == "compacting" else "adding"
        )
        landed[where] += 1
        print(
            f"add, kill {kill + 1:3} {where:10}: {held:6} items, {promised:6} promised", flush=True
        )
    print("add:", ", ".join(f"{n} while {where}" for where, n in landed.items()))


def indexing(run: Path, folder: Path, kills: int, dice: random.Random) -> None:
    """``gaussmatch index`` killed before, during and after the fill."""
    whole = folder / "whole"
    course = Course.of(command(run, whole), whole)
    truth = contents(Index.open(whole))
    print(
        f"index, left alone: made after {course.made:.1f} s, {course.items} items in "
        f"{course.commits} commits within {course.fill:.1f} s, calibrated in {course.rest:.1f} s"
    )
    landed: Counter[str] = Counter()
    fresh, path = True, folder / "indexed"
    for kill in range(kills):
        if fresh:
            shutil.rmtree(path, ignore_errors=True)
        promised = one_index_kill(command(run, path), path, course, dice)
        held = 0
        if promised is not None or (path / MANIFEST).exists():
            index = Index.open(path)
            some = contents(index)
            assert some.items() <= truth.items(), "an item is not as it should be"
            held = len(some)
            assert held == len(index) >= (promised or 0), f"{promised} promised, {held} held"
            if index.size("images"):
                assert len(index.search_text(["a red star"], 10)[0]) == 10
        where = "before" if not held else "during" if held < course.items else "after"
        landed[where] += 1
        again = "" if fresh else ", gone on after a kill"
        print(f"index, kill {kill + 1:3} {where:6} the fill: {held:6} items{again}", flush=True)
        fresh = where == "after" or dice.random() < 0.75
        if fresh:
            subprocess.run(command(run, path), check=True, capture_output=True)
            assert contents(Index.open(path)) == truth, "not the index that was left alone"
            assert (path / CALIBRATION).read_bytes() == (whole / CALIBRATION).read_bytes()
    print("index:", ", ".join(f"{n} {where} the fill" for where, n in landed.items()))


def command(run: Path, path: Path) -> list[str]:
    """With one thread: several may round differently from run to run."""
    words = [sys.executable, "-m", "gaussmatch", "index", str(run), "--out", str(path)]
    return [*words, "--threads", "1"]


def seen(path: Path) -> tuple[int, int] | None:
    """Generation and items of the manifest, if there is one."""
    if not (path / MANIFEST).exists():
        return None
    manifest = load_manifest(path)
    return manifest.generation, sum(p.live for ps in manifest.galleries.values() for p in ps)


@dataclass(frozen=True)
class Course:
    """How a run goes that is left alone: seconds until the manifest is there, from then to the
    last item, and from there to the end; how many items in how many commits."""

    made: float
    fill: float
    rest: float
    items: int
    commits: int

    @staticmethod
    def of(words: list[str], path: Path) -> Course:
        times: list[tuple[float, int]] = []  # of each number of items
        process = start(words)
        began = time.monotonic()
        while process.poll() is None:
            now = seen(path)
            if now is not None and (not times or times[-1][1] != now[1]):
                times.append((time.monotonic() - began, now[1]))
            time.sleep(LOOK)
        assert process.returncode == 0, f"{' '.join(words)} failed"
        (made, _), (filled, items) = times[0], times[-1]
        return Course(made, filled - made, time.monotonic() - began - filled, items, len(times) - 1)


def one_index_kill(words: list[str], path: Path, course: Course, dice: random.Random) -> int | None:
    """Start, wait for a random moment, kill; the items of the last manifest seen before."""
    generation, held = seen(path) or (0, 0)
    phase = dice.choices(("before", "during", "after"), (15, 70, 15))[0]
    left = max(1, (course.items - held) // COMMIT)
    commits = 1 + dice.randrange(left)
    wait = {"before": course.made, "during": course.fill / course.commits, "after": course.rest}
    process = start(words)

    def come() -> bool:
        now = seen(path)
        if phase == "before" or now is None:
            return phase == "before"
        return now[1] == course.items if phase == "after" else now[0] >= generation + commits

    while process.poll() is None and not come():
        time.sleep(LOOK)
    time.sleep(dice.random() * wait[phase])
    now = seen(path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return None if now is None else now[1]


def start(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
