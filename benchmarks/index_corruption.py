"""Random corruptions of an index: is each one noticed?

    python benchmarks/index_corruption.py [--tries 500] [--seed 0]

Each try damages one file of a fresh copy (a flipped bit, a cut end, bytes overwritten, a file
removed), then runs ``Index.open(verify=True)``. A corruption is *silent* if that passes and any
answer, record or Gaussian is another than before. The marker and the lock hold no content.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, IndexSettings, Record
from gaussmatch.search.trust import Calibration

EMPTY = (".lock", ".gaussmatch-index")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        make(whole)
        before = contents(Index.open(whole))
        found: Counter[str] = Counter()
        for _ in range(options.tries):
            copy = Path(folder) / "copy"
            shutil.copytree(whole, copy)
            files = sorted(p for p in copy.rglob("*") if p.is_file() and p.name not in EMPTY)
            how = damage(dice.choice(files), dice)
            found[outcome(copy, before)] += 1
            found[how] += 1
            shutil.rmtree(copy)
    print(", ".join(f"{name} {count}" for name, count in sorted(found.items())))


def make(path: Path) -> None:
    """Two structures of segments, deleted rows, a calibration."""
    dice = torch.Generator().manual_seed(0)
    settings = IndexSettings(structure="hnsw", flat_below=100)
    index = Index.create(path, similarity="kl", settings=settings)
    for gallery, count in (("images", 200), ("images", 50), ("captions", 60)):
        start = index.size(gallery)  # type: ignore[arg-type]
        g = Gaussian(torch.randn(count, 8, generator=dice), torch.randn(count, 8, generator=dice))
        records = [Record(f"{gallery}{n}", {"n": n}, b"jpeg") for n in range(start, start + count)]
        index.add(g, records, gallery)  # type: ignore[arg-type]
    index.delete(["images3", "images7"])
    index.set_calibration(Calibration({"images": tuple(map(float, range(1001)))}, about={"a": 1}))


def contents(index: Index) -> list[object]:
    dice = torch.Generator().manual_seed(1)
    queries = Gaussian(torch.randn(20, 8, generator=dice), torch.randn(20, 8, generator=dice))
    held: list[object] = []
    for gallery in ("images", "captions"):
        held.append(index.search(queries, 10, gallery=gallery))  # type: ignore[arg-type]
        held.append(index.search(queries, 5, gallery=gallery, where={"n": {"lt": 20}}))  # type: ignore[arg-type]
        for g, records in index.blocks(gallery):  # type: ignore[arg-type]
            assert g.log_var is not None
            held += [g.mean.numpy().tobytes(), g.log_var.numpy().tobytes(), records]
    return held


def damage(path: Path, dice: random.Random) -> str:
    content = bytearray(path.read_bytes())
    how = dice.choice(("bit flipped", "cut", "overwritten", "removed"))
    if how == "removed":
        path.unlink()
        return how
    at = dice.randrange(len(content))
    if how == "bit flipped":
        content[at] ^= 1 << dice.randrange(8)
    elif how == "cut":
        content = content[:at]
    else:
        length = dice.randrange(1, 100)
        content[at : at + length] = bytes(b ^ 0xFF for b in content[at : at + length])
    path.write_bytes(content)
    return how


def outcome(path: Path, before: list[object]) -> str:
    try:
        index = Index.open(path, verify=True)
        same = contents(index) == before
    except (ValueError, OSError):
        return "NOTICED"
    return "HARMLESS" if same else "SILENT"


if __name__ == "__main__":
    main()
