"""Kill a process that writes an index, and look at what it left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import GALLERIES, Index, Record

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

WRITER = """
import sys, torch
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search import Index, Record, IndexSettings
path, log = sys.argv[1:]
try:
    index = Index.create(path, similarity="kl", settings=IndexSettings("hnsw", flat_below=60))
except FileExistsError:
    index = Index.open(path)
start = index.size()
with open(log, "a") as journal:
    print("ready", flush=True)
    for step in range(start // 20, start // 20 + 10_000):
        ids = [f"{step}/{j}" for j in range(20)]
        g = torch.Generator().manual_seed(step)
        items = Gaussian(torch.randn(20, 4, generator=g), torch.randn(20, 4, generator=g))
        index.add(items, [Record(i, {"step": step}) for i in ids])
        journal.write(f"{step}\\n"); journal.flush()      # from here on it is promised
        if step % 5 == 4:
            journal.write("compacting\\n"); journal.flush()
            index.compact()
            journal.write("compacted\\n"); journal.flush()
"""

STOPPING = """
import sys
from gaussmatch.apps.cli import main
from gaussmatch.search.backends.folder import layout
when, number, *words = sys.argv[1:]
save, saved = layout.save_manifest, [0]

def stop_here():
    print("stopped", flush=True)
    sys.stdin.read()

def counted(folder, manifest):
    saved[0] += 1
    if saved[0] == int(number) and when == "before":
        stop_here()
    save(folder, manifest)
    if saved[0] == int(number) and when == "after":
        stop_here()

layout.save_manifest = counted
main(words)
"""
"""``gaussmatch`` that stops just before, or just after, its N-th manifest takes effect."""


def one_kill(path: Path, log: Path, dice: random.Random, within: float) -> None:
    """Start a writer, kill it up to so many seconds after it began to write."""
    command = [sys.executable, "-c", WRITER, str(path), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if dice.random() < 0.9:  # else while it opens or creates the index
            assert process.stdout.readline() == b"ready\n"
        time.sleep(dice.random() * within)
        process.send_signal(signal.SIGKILL)
        process.wait()


def gaussmatch(words: list[str]) -> None:
    """Run it to its end, in a process as those that are killed: the same bits."""
    command = [sys.executable, "-m", "gaussmatch", *words]
    subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=True)


def kill_at(when: str, number: int, words: list[str]) -> None:
    """Run ``gaussmatch`` and kill it before or after its N-th manifest: no clock decides."""
    command = [sys.executable, "-c", STOPPING, when, str(number), *words]
    pipe = subprocess.PIPE
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=quiet, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"stopped\n"
        process.send_signal(signal.SIGKILL)
        process.wait()


def contents(index: Index) -> dict[tuple[str, str], tuple[Record, bytes, bytes]]:
    """Every item, with its picture and the bits of its Gaussian."""
    found = {}
    for gallery in GALLERIES:
        for segment in index.backend.segments(gallery):
            rows = segment.live_rows()
            for row, record in zip(rows, segment.items.records(rows, True), strict=True):
                g = segment.gaussians(np.array([row]))
                assert g.log_var is not None
                bits = g.mean.numpy().tobytes(), g.log_var.numpy().tobytes()
                found[gallery, record.id] = (record, *bits)
    return found


def check(path: Path, log: Path) -> tuple[int, int]:
    """Open what is left and hold it against what was promised: (items, promised items)."""
    journal = log.read_text().splitlines() if log.exists() else []
    promised = [int(line) for line in journal if line.isdigit()]
    if not (path / "manifest.json").exists():
        assert not promised
        return 0, 0
    index = Index.open(path)
    held = {record.id for record in index.records()}
    lost = [step for step in promised if not {f"{step}/{j}" for j in range(20)} <= held]
    assert not lost, f"lost: {lost}"
    assert len(held) == index.size()
    assert len(held) % 20 == 0  # all of an addition or none
    if held:
        found = index.search(Gaussian(torch.zeros(1, 4), torch.zeros(1, 4)), len(held))[0]
        assert set(found.ids) == held
    return len(held), 20 * len(promised)
