"""Random bits flipped in the files of a run: is a change ever accepted in silence?

    python benchmarks/run_corruption.py [--flips 500]

A small run is trained into a temporary folder. Each flip hits a random bit of a random file. The
run is then loaded, its recipe and metrics are read, and its checkpoint is looked for, as
``--resume`` does. Every flip must be refused, or change nothing: what was loaded is compared with
the undamaged run, and a damaged checkpoint must be replaced by the one before it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from toy import toy_data
from training.test_loop import RECIPE

from gaussmatch.files import sha256
from gaussmatch.learn.training.loop import train
from gaussmatch.learn.training.start import find_checkpoint
from gaussmatch.models import run

FILES = (*run.MODEL, run.METRICS, run.CHECKPOINT, run.PREVIOUS, run.MANIFEST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=500)
    flips = parser.parse_args().flips
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole"
        train(RECIPE, whole, data=toy_data(), progress_bar=False)
        expected, good = state(whole), {sha256(whole / n) for n in (run.CHECKPOINT, run.PREVIOUS)}
        chance, counts = random.Random(0), Counter[tuple[str, str]]()
        for _ in range(flips):
            name = chance.choice(FILES)
            damaged = Path(scratch) / "damaged"
            shutil.copytree(whole, damaged)
            flip(damaged / name, chance)
            counts[name, outcome(damaged, expected, good)] += 1
            shutil.rmtree(damaged)
    for (name, result), count in sorted(counts.items()):
        print(f"{name:24} {result:10} {count}")
    silent = sum(count for (_, result), count in counts.items() if result == "SILENT")
    print(f"{silent} silent of {flips}")
    sys.exit(silent > 0)


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def outcome(folder: Path, expected: object, good: set[str]) -> str:
    """What became of a damaged run: ``refused``, ``restored``, ``unchanged`` or ``SILENT``."""
    try:
        found = state(folder)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            find_checkpoint(folder)
    except (ValueError, OSError):
        return "refused"
    if found != expected or sha256(folder / run.CHECKPOINT) not in good:
        return "SILENT"
    return "restored" if caught else "unchanged"


def state(folder: Path) -> object:
    """All that is read of a run, comparable."""
    model = run.load(folder)
    weights = {name: t.tolist() for name, t in model.matcher.state_dict().items()}
    return model.recipe, weights, run.read_metrics(folder), model.read(["a red cat"])


if __name__ == "__main__":
    main()
