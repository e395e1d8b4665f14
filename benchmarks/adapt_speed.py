"""How long does ``gaussmatch adapt`` take, and how much memory, for many pairs of embeddings?

    python benchmarks/adapt_speed.py [--pairs 100000] [--dim 512] [--ranking keep]

Images are random unit vectors, their texts the same with noise, so that they match as those of a
contrastive model do. Prints processor time and peak memory of the whole command: reading, training,
validation, calibration. Split: 98 % train, 1 % dev, 1 % test.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from gaussmatch.apps.cli import main as gaussmatch


def main() -> None:
    parser = argparse.ArgumentParser(description="What does adapt cost?")
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--ranking", choices=("keep", "improve"), default="keep")
    parser.add_argument("--noise", type=float, default=1.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make(root, options.pairs, options.dim, options.noise)
        before, wall = usage(), time.perf_counter()
        files = {"images": "img.npy", "texts": "txt.npy", "pairs": "pairs.csv", "out": "run"}
        words = [word for name, file in files.items() for word in (f"--{name}", str(root / file))]
        if gaussmatch(["adapt", *words, "--ranking", options.ranking]):
            raise SystemExit("adapt failed")
        after = usage()
        print(
            f"{options.pairs:,} pairs, D = {options.dim}, {options.ranking}: "
            f"{after[0] - before[0]:.0f} s of processor time, {time.perf_counter() - wall:.0f} s; "
            f"peak memory {after[1]:,.0f} MB, {after[1] - before[1]:,.0f} above that before"
        )


def make(root: Path, pairs: int, dim: int, noise: float) -> None:
    rng = np.random.default_rng(0)
    images = unit(rng.standard_normal((pairs, dim), np.float32))
    spread = noise / np.sqrt(dim, dtype=np.float32)
    np.save(root / "img.npy", images)
    np.save(root / "txt.npy", unit(images + spread * rng.standard_normal(images.shape, np.float32)))
    splits = ["dev" if i % 100 == 0 else "test" if i % 100 == 1 else "train" for i in range(pairs)]
    lines = (f"{i},{i},{split}" for i, split in enumerate(splits))
    (root / "pairs.csv").write_text("\n".join(["image,text,split", *lines]))


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def usage() -> tuple[float, float]:
    """Processor seconds and peak memory in MB of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


if __name__ == "__main__":
    main()
