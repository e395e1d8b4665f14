"""Memory while photos are indexed: one is decoded at a time, large ones at reduced scale."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from data.files import photo
from data.test_pictures import one_colour_png

INDEX = """
import resource, sys
from gaussmatch.apps.cli import main

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

run, ordinary, huge, out = sys.argv[1:]
assert main(["index", run, ordinary, "--out", out + "/a"]) == 0
before = peak()
assert main(["index", run, huge, "--out", out + "/b"]) == 0
print(peak() - before, file=sys.stderr)
"""


def test_photos_of_100_megapixels_take_the_memory_of_one(tiny_run: Path, tmp_path: Path) -> None:
    """Three of them, one bit a pixel: as RGB they would be 1.2 GB."""
    ordinary, huge = tmp_path / "ordinary", tmp_path / "huge"
    huge.mkdir()
    png = one_colour_png(10_000, 10_000, 1, 0)
    for number in range(3):
        photo(ordinary / f"{number}.jpg", number, (640, 480))
        (huge / f"{number}.png").write_bytes(png)
    words = [sys.executable, "-c", INDEX, *map(str, (tiny_run, ordinary, huge, tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stderr.splitlines()[-1]) < 200 * 2**20
