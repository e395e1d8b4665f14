"""Twenty kills (SIGKILL) at random moments: is the index ever broken, is an item ever lost?

    python benchmarks/index_kills.py [--kills 20] [--run RUN [--seconds 15]]

A process that adds, joins and compacts; with ``--run`` as many more times ``gaussmatch index RUN``
itself, over its own data, up to ``--seconds`` after its start (it calibrates last). After each
kill the index is opened, searched, held against what had been promised, and the next process goes
on with it.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from index.kills import check, one_kill

from gaussmatch.index import Index


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a writer at random moments.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--run", type=Path, help="a run on scenes: kills 'gaussmatch index' too")
    parser.add_argument("--seconds", type=float, default=15, help="the latest kill of the latter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "added", Path(folder) / "log"
        for kill in range(options.kills):
            one_kill(path, log, dice, within=2.0)
            held, promised = check(path, log)
            print(f"add, kill {kill + 1:3}: {held:6} items, {promised:6} promised", flush=True)
        if options.run is not None:
            indexing(options, Path(folder) / "indexed", dice)
    print("no broken index, no lost item")


def indexing(options: argparse.Namespace, path: Path, dice: random.Random) -> None:
    """``gaussmatch index`` killed again and again; what is there never gets less."""
    before = 0
    command = [sys.executable, "-m", "gaussmatch", "index", str(options.run), "--out", str(path)]
    for kill in range(options.kills):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        waited = 2 + dice.random() * (options.seconds - 2)
        started = time.monotonic()
        while process.poll() is None and time.monotonic() - started < waited:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL) if process.poll() is None else None
        process.wait()
        held = 0
        if (path / "manifest.json").exists():
            index = Index.open(path)
            held = len(index)
            assert len(list(index.records("images"))) == index.size("images")
            if index.size("images"):
                index.search_text(["a red star"], 10)
        assert held >= before, f"{before} items, then {held}"
        before = held
        print(f"index, kill {kill + 1:3} after {waited:4.1f} s: {held:6} items", flush=True)


if __name__ == "__main__":
    main()
