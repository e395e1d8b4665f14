"""SIGKILL at every kind of moment: is anything ever broken, lost or left behind?

    python benchmarks/kills.py [--kills 40] [--only train add compact merge backup] [--seed 0]

Each work is done once undisturbed, counting how often it syncs a file, which it does before
anything counts. Then it is done again and again in a process that kills itself before a random one
of these syncs or, every second time, is killed after a random time. After each kill

- train: the run goes on with ``--resume`` and must end with the bits of the undisturbed one;
- add, compact: the index must verify and hold what it held before, or that and what was added;
- merge, backup: the source must verify and hold what it held, the target must be absent or whole;

the same work must then succeed, and nothing but what it makes may be left in the folder. Training
is of a toy; kills of ``gaussmatch index`` itself are in index_kills.py.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import torch
from index.kills import contents
from toy import toy_data
from training.test_loop import RECIPE

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.files import sha256
from gaussmatch.learn.training.loop import train
from gaussmatch.models.run import WEIGHTS
from gaussmatch.search import Index, IndexSettings, Record, backup, merge
from gaussmatch.search.manifest import MANIFEST

Work = Callable[[Path], object]
"""Something done in a folder."""


def gaussians(count: int, seed: int) -> Gaussian:
    dice = torch.Generator().manual_seed(seed)
    return Gaussian(torch.randn(count, 8, generator=dice), torch.randn(count, 8, generator=dice))


def add_some(index: Index, number: int) -> None:
    records = [Record(f"{number}/{n}", {"n": n}, b"jpeg") for n in range(60)]
    index.add(gaussians(60, number), records)


def make_index(folder: Path) -> None:
    settings = IndexSettings(structure="hnsw", flat_below=100)
    index = Index.create(folder / "index", similarity="kl", settings=settings)
    for number in range(4):
        add_some(index, number)
    index.delete(["0/1", "2/5"])


def make_nothing(folder: Path) -> None:
    """A training starts from nothing."""


def do_train(folder: Path) -> None:
    recipe = replace(RECIPE, training=replace(RECIPE.training, checkpoint_every="3 steps"))
    out = folder / "run"
    train(recipe, out, resume=(out / "recipe.yaml").exists(), data=toy_data(), progress_bar=False)


def do_add(folder: Path) -> None:
    index = Index.open(folder / "index")
    if "9/0" not in index:
        add_some(index, 9)


def do_compact(folder: Path) -> None:
    Index.open(folder / "index").compact()


def do_merge(folder: Path) -> None:
    if not (folder / "new").exists():
        merge(folder / "new", [folder / "index"], progress=False)


def do_backup(folder: Path) -> None:
    if not (folder / "new").exists():
        backup(folder / "new", folder / "index")


WORKS: dict[str, tuple[Work, Work]] = {
    "train": (make_nothing, do_train),
    "add": (make_index, do_add),
    "compact": (make_index, do_compact),
    "merge": (make_index, do_merge),
    "backup": (make_index, do_backup),
}
"""How a folder is prepared, and what is done in it."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill writers at random moments.")
    parser.add_argument("--kills", type=int, default=40, help="of each work")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # a missing checkpoint is replaced with a warning
    dice = random.Random(options.seed)
    failures = 0
    for name in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            failures += kill(name, Path(scratch), options.kills, dice)
    sys.exit(failures > 0)


def kill(name: str, scratch: Path, kills: int, dice: random.Random) -> int:
    """Print how often a work was killed, and when; return how often something was wrong."""
    prepare, work = WORKS[name]
    before, whole = scratch / "before", scratch / "whole"
    for folder in (before, whole):
        folder.mkdir()
        prepare(folder)
    began = time.monotonic()
    syncs = int(forked(work, whole, report=scratch / "syncs") or 0)
    seconds = time.monotonic() - began
    start, end = state(before), state(whole)
    found: Counter[str] = Counter()
    folder, killed, tries = scratch / "killed", 0, 0
    while killed < kills:
        tries += 1
        if not folder.exists():
            shutil.copytree(before, folder)
        if tries % 2:
            dead = forked(work, folder, at=dice.randint(1, syncs)) is None
        else:
            dead = forked(work, folder, after=dice.uniform(0, seconds)) is None
        killed += dead
        fault = wrong(name, work, folder, start, end, again=not dead or dice.random() < 0.7)
        if fault:
            found["failures"] += 1
            print(f"{name}: {fault}", flush=True)
        elif dead:
            found[f"{'left as before' if state(folder) == start else 'partly or wholly done'}"] += 1
        if fault or not folder.exists() or state(folder) == end:
            shutil.rmtree(folder, ignore_errors=True)
    summary = ", ".join(f"{what} {count}" for what, count in sorted(found.items()))
    print(f"{name}: {killed} kills of {syncs} syncs in {seconds:.1f} s: {summary}", flush=True)
    print(f"{name}: {found['failures']} failures", flush=True)
    return found["failures"]


def forked(
    work: Work,
    folder: Path,
    *,
    at: int | None = None,
    after: float | None = None,
    report: Path | None = None,
) -> str | None:
    """Do it in a child; ``None`` if it was killed, before a sync or after a time."""
    child = os.fork()
    if not child:
        done = 0
        sync = os.fsync

        def counted(handle: int) -> None:
            nonlocal done
            done += 1
            if done == at:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(handle)

        os.fsync = counted  # type: ignore[assignment]
        try:
            work(folder)
            if report is not None:
                report.write_text(str(done))
            os._exit(0)
        except BaseException:  # the parent must not go on twice
            import traceback

            traceback.print_exc()
            os._exit(1)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    assert os.WEXITSTATUS(status) == 0, "the work failed; see above"
    return report.read_text() if report is not None else ""


def state(folder: Path) -> dict[str, object]:
    """All that counts in a folder: an index from its manifest on, a copy from its folder on."""
    found: dict[str, object] = {}
    for name, begins in (("index", f"index/{MANIFEST}"), ("new", "new")):
        if (folder / begins).exists():
            found[name] = contents(Index.open(folder / name, verify=True))
    if (folder / "run" / WEIGHTS).exists():
        found["weights"] = sha256(folder / "run" / WEIGHTS)
    return found


def wrong(
    name: str,
    work: Work,
    folder: Path,
    start: dict[str, object],
    end: dict[str, object],
    again: bool,
) -> str | None:
    """What a kill broke, if anything."""
    try:
        now = state(folder)
        if name != "train" and now not in (start, end):
            return "holds neither what it held before nor what it was to hold"
        if again:
            forked(work, folder)
            if state(folder) != end:
                return "done again, it ends otherwise"
            if left := strange(folder, name):
                return f"left behind: {left}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def strange(folder: Path, name: str) -> Sequence[str]:
    """Files that the work does not make."""
    expected = {"run"} if name == "train" else {"index", "new"}
    top = [path.name for path in folder.iterdir() if path.name not in expected]
    partial = [path.name for path in folder.rglob("*") if "partial" in path.name]
    return [*top, *partial]


if __name__ == "__main__":
    main()
