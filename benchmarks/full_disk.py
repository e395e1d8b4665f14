"""A disk that is full at any moment: is what is told true, is anything lost or left behind?

    python benchmarks/full_disk.py [--tries 20] [--only train add compact merge backup index]

Each try does a work of kills.py, or ``gaussmatch index``, on a disk in memory with little room:
from none to more than the work needs. (Linux only: the disk is a tmpfs that only this process sees,
which needs ``unshare`` and no rights.) A try fails if the process dies, if its error is anything
but one line of an ``OSError``, if it says that it failed and has changed something or that it is
done and is not, or if the same work does not succeed once there is room.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from kills import WORKS, Work, make_nothing, state, strange

from gaussmatch.apps.cli import main as gaussmatch

MUCH = 2**30
INSIDE = "GAUSSMATCH_FULL_DISK"


def do_index(folder: Path) -> None:
    """The command; its one line becomes an error again."""
    said = io.StringIO()
    with redirect_stderr(said), redirect_stdout(io.StringIO()):
        code = gaussmatch(["index", os.environ[INSIDE], "--out", str(folder / "index")])
    if code:
        raise OSError([line for line in said.getvalue().splitlines() if line][-1])


def mount(disk: Path, size: int, *, again: bool = False) -> None:
    options = f"{'remount,' if again else ''}size={size}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)


def used(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def told(work: Work, folder: Path) -> str:
    """Do it in a child: what it says, nothing if it is done."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            work(folder)
            said = ""
        except OSError as error:
            said = str(error) or "nothing"
        except BaseException as error:  # the parent must not go on twice
            said = f"raw {type(error).__name__}: {error}"
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        said = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"raw {signal.Signals(os.WTERMSIG(status)).name}"
    return said


def fill(name: str, work: Work, prepare: Work, disk: Path, tries: int) -> int:
    """Print how often there was no room; return how often something was wrong."""
    found: Counter[str] = Counter()
    mount(disk, MUCH)
    prepare(disk)
    start, least = state(disk), used(disk)
    assert not told(work, disk)
    end, most = state(disk), used(disk)
    subprocess.run(["umount", "--lazy", disk], check=True)  # maps may be open
    for number in range(tries):
        mount(disk, MUCH)
        prepare(disk)
        mount(disk, least + 4096 + int(2 * most * (number / tries) ** 3), again=True)
        said = told(work, disk)
        mount(disk, MUCH, again=True)
        fault = wrong(name, work, disk, said, start, end)
        if fault:
            print(f"{name}, try {number}: {fault}; it said: {said or 'done'}", flush=True)
        found["failures" if fault else "no room" if said else "done"] += 1
        subprocess.run(["umount", "--lazy", disk], check=True)  # maps may be open
    counts = ", ".join(f"{what} {count}" for what, count in sorted(found.items()))
    print(f"{name}: {tries} tries: {counts}; {found['failures']} failures", flush=True)
    return found["failures"]


def wrong(
    name: str, work: Work, disk: Path, said: str, start: dict[str, object], end: dict[str, object]
) -> str | None:
    """What is, if anything."""
    if said.startswith("raw ") or "\n" in said:
        return "not one clear line"
    try:
        now = state(disk)
        if now != end if not said else name in ("add", "merge", "backup") and now != start:
            return "what it says is not so"
        if said and (more := told(work, disk)):
            return f"with room, it says {more}"
        if state(disk) != end:
            return "with room, it ends otherwise"
        if left := strange(disk, name):
            return f"left behind: {left}"
    except (OSError, ValueError) as error:
        return f"damaged: {error}"
    return None


def main() -> int:
    works = {**WORKS, "index": (make_nothing, do_index)}
    parser = argparse.ArgumentParser(description="Works on a disk that is full.")
    parser.add_argument("--tries", type=int, default=20, help="of each work")
    parser.add_argument("--only", nargs="+", choices=works, default=list(works))
    options = parser.parse_args()
    if INSIDE not in os.environ:
        with tempfile.TemporaryDirectory() as name:
            run = f"{name}/run"
            if "index" in options.only:
                quick = ["--data.size", "tiny", "--training.epochs", "1"]
                assert gaussmatch(["train", "scenes/vsepp-kl", "--out", run, *quick]) == 0
            command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable]
            environment = {**os.environ, INSIDE: run}
            return subprocess.run([*command, *sys.argv], env=environment, check=False).returncode
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        disk = Path(name) / "disk"
        disk.mkdir()
        for name in options.only:
            prepare, work = works[name]
            failures += fill(name, work, prepare, disk, options.tries)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
