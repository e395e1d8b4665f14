"""Kill a process that fills an index, at a random moment, and look at what it left."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

WRITER = """
import sys, torch
from gaussmatch.gaussian import Gaussian
from gaussmatch.index import Index, Record, Settings
path, log = sys.argv[1:]
try:
    index = Index.create(path, similarity="kl", settings=Settings(kind="hnsw", flat_below=60))
except FileExistsError:
    index = Index.open(path)
start = index.size()
with open(log, "a") as told:
    print("ready", flush=True)
    for step in range(start // 20, start // 20 + 10_000):
        ids = [f"{step}/{j}" for j in range(20)]
        g = torch.Generator().manual_seed(step)
        items = Gaussian(torch.randn(20, 4, generator=g), torch.randn(20, 4, generator=g))
        index.add(items, [Record(i, {"step": step}) for i in ids])
        told.write(f"{step}\\n"); told.flush()      # from here on it is promised
        if step % 5 == 4:
            index.compact()
"""


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


def check(path: Path, log: Path) -> tuple[int, int]:
    """Open what is left and hold it against what was promised: (items, promised items)."""
    import torch

    from gaussmatch.gaussian import Gaussian
    from gaussmatch.index import Index

    promised = [int(line) for line in log.read_text().splitlines()] if log.exists() else []
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
