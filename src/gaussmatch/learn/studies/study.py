"""A study: rows × seeds × fields, planned as cells, whose runs are trained and measured once.

``plans`` makes one for each verb; what is finished is never done again, so an interrupted study
resumes. A run's folder (``gaussmatch.models.run``) holds also

evaluation-{split}.json        its measures
each-{split}.safetensors       and their values, query by query, for paired tests
crops.json                     choices between crops
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from tqdm import tqdm

from gaussmatch.data import DataSet
from gaussmatch.data.pairs import Pairs
from gaussmatch.files import read_json, save_tensors, write_json
from gaussmatch.learn.evaluation.evaluate import Evaluation, measure_run
from gaussmatch.learn.evaluation.triplets import Features, choose, crop_pairs
from gaussmatch.learn.studies.paper import SplitName, TableRow
from gaussmatch.learn.training.loop import train
from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import DataRecipe, Recipe, identity
from gaussmatch.models.recipe.load import EVALUATION_ONLY
from gaussmatch.models.run import claim, drop_checkpoints, extends, is_finished, load, read_recipe

EVALUATION = tuple(
    name.removeprefix("data.") for name in EVALUATION_ONLY if name.startswith("data.")
)
"""Fields of data that are read when a run is measured, and never in training."""
NEW_PHOTOS = ("backbone", "weights", "view")
"""Fields of data that, where features are given, only say how new photos become such features."""


Trust = Callable[[Path, DataSet], Evaluation]
"""Measures a run on ``trust``: what people say of uncertainty is known to a later package."""


@dataclass(frozen=True)
class Run:
    """A recipe (with its seed), its folder, what it starts from, and what is to be measured of it.
    It is one cell's own, or shared by several of whatever table, or given: it was not trained here
    and is only measured."""

    recipe: Recipe
    place: Path  #: its folder; of a shared run the folder of all, where its content names it
    kind: Literal["own", "shared", "given"] = "own"
    start: Run | None = None
    wants: frozenset[SplitName] = field(default=frozenset(), compare=False)

    @property
    def trained_recipe(self) -> Recipe:
        """The recipe; of a shared run without what training does not read, so that adding it later
        trains nothing again."""
        if self.kind != "shared":
            return self.recipe
        data = self.recipe.data
        unread = EVALUATION + (NEW_PHOTOS if data.extracted is not None else ())
        plain = {name: getattr(DataRecipe(), name) for name in unread}
        return replace(self.recipe, title="", data=replace(data, **plain))

    @property
    def digest(self) -> str:
        """Twelve digits of the content, whatever the title."""
        decides = identity(self.trained_recipe)
        decides.pop("model.checkpointing", None)  # the same gradients, computed another way
        words = [decides, None if self.start is None else self.start.digest]
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """A shared run's is named by a few words for a person, then the digest."""
        if self.kind != "shared":
            return self.place
        model = self.recipe.model
        words = [model.system.replace("+", "p"), *(["ft"] if self.start is not None else [])]
        if model.posthoc.method is not None:
            words.append(model.posthoc.method)
        if model.probabilistic:
            words += [model.similarity.replace("_", "-"), model.shape.removesuffix("-avgpool")]
        words += [f"d{model.dim}", f"seed-{self.recipe.training.seed}", self.digest]
        return self.place / "-".join(words)

    def result(self, split: SplitName) -> Path:
        """The file that says: measured on this split."""
        return self.folder / ("crops.json" if split == "crops" else f"evaluation-{split}.json")

    def each(self, split: SplitName) -> Path:
        return self.folder / f"each-{split}.safetensors"

    @property
    def missing(self) -> list[SplitName]:
        """What is still to be measured; ``dev`` and ``test`` come with their single queries."""
        return [split for split in sorted(self.wants) if not self._measured(split)]

    def _measured(self, split: SplitName) -> bool:
        """Whether a result is there, of as many epochs and the same fields of evaluation."""
        result, recipe = self.result(split), self.recipe
        if split in ("crops", "trust") or not (result.exists() and self.each(split).exists()):
            return result.exists() and split in ("crops", "trust")
        before = read_json(result)["provenance"]["recipe"]
        same = all(before["data"][name] == getattr(recipe.data, name) for name in EVALUATION)
        return same and bool(before["training"]["epochs"] == recipe.training.epochs)

    @property
    def trained(self) -> bool:
        """Whether it is, and not before its recipe got more epochs."""
        if self.kind == "given":
            return True
        own = self.kind == "own"
        return is_finished(self.folder) and not (
            own and extends(self.recipe, read_recipe(self.folder))
        )

    @property
    def finished(self) -> bool:
        return self.trained and not self.missing

    def finish(
        self, visual_genome: str | None = None, bar: bool = False, trust: Trust | None = None
    ) -> None:
        """Train and measure what is wanted; what is there stays as it is."""
        if not self.trained:
            recipe = self.trained_recipe
            if self.start is not None:
                origin = str(self.start.folder)
                recipe = replace(recipe, training=replace(recipe.training, start_from=origin))
            data = _data(self.recipe.data)
            train(recipe, self.folder, resume=True, data=data, progress_bar=bar)
        for split in self.missing:
            if split == "crops":
                self._choose_crops(visual_genome)
            elif split == "trust":
                assert trust is not None
                data = _data(self.recipe.data)
                found = trust(self.folder, data)
                save_tensors(self.each(split), found.each)
                write_json(self.result(split), found.measures)
            else:
                self._measure(split)
        if self.kind == "shared":
            drop_checkpoints(self.folder)

    def _measure(self, split: SplitName) -> None:
        data, given = _data(self.recipe.data), self.recipe.data
        if self.kind != "own":  # crops have a pass of their own
            data = replace(
                data,
                dev=replace(data.dev, regions=None),
                test=replace(data.test, regions=None),
            )
        fields = {f"data.{name}": v for name in EVALUATION if (v := getattr(given, name))}
        measured = measure_run(self.folder, split, data, fields, stem=f"evaluation-{split}")
        values = {**measured.each, "image_of": data.split(split).image_of}
        save_tensors(self.each(split), values)

    def _choose_crops(self, visual_genome: str | None) -> None:
        model = load(self.folder)
        model.recipe = replace(model.recipe, data=self.recipe.data)  # how photos are seen
        pairs, features = _crops(self.recipe.data, visual_genome)
        frozen = self.recipe.model.backbone is None  # else it sees with a network of its own
        found = choose(model, pairs, self.recipe.data, features if frozen else None)
        write_json(self.result("crops"), found)


@lru_cache(maxsize=3)
def _data(recipe: DataRecipe) -> DataSet:
    return load_data(recipe)


@lru_cache(maxsize=1)
def _crops(recipe: DataRecipe, visual_genome: str | None) -> tuple[Pairs, Features]:
    """Pictures to cut crops from, and what the frozen network of this data has seen of them."""
    return crop_pairs(recipe, None if visual_genome is None else Path(visual_genome)), {}


@dataclass(frozen=True)
class Cell:
    """A row with a seed (or, in a search, the number of a trial): its run, or why there is none."""

    row: TableRow
    seed: int
    run: Run | None
    problem: str | None = None
    table: str = ""  #: the experiment that the row is of


@dataclass
class Study:
    """All cells, the runs behind them, and what went wrong."""

    out: Path  #: where results are written
    cells: Sequence[Cell]
    visual_genome: str | None = None  #: the folder of boxes for the crops of photos
    errors: dict[Run, str] = field(default_factory=dict)  #: filled by ``run``

    @property
    def runs(self) -> list[Run]:
        return merged(cell.run for cell in self.cells if cell.run is not None)

    @property
    def todo(self) -> list[Run]:
        return [run for run in self.runs if not run.finished]

    def run(self, jobs: int = 1, unit: str = "run", trust: Trust | None = None) -> None:
        """Train and measure all that is missing, ``jobs`` at a time; one that fails is noted, and
        the others continue. Refuses a folder that holds a run of another recipe."""
        for run in self.runs:
            if run.kind == "own":
                claim(run.folder, run.recipe, resume=True)
        todo = self.todo
        after = {run: run.start for run in todo if run.start in todo and run.start is not None}
        work = partial(Run.finish, visual_genome=self.visual_genome, bar=jobs == 1, trust=trust)
        with tqdm(total=len(todo), desc=f"{unit}s", unit=unit, disable=not todo) as bar:
            for run, error in run_jobs(todo, work, jobs, after):
                bar.update()
                if error is not None:
                    self.errors[run] = error
                    bar.write(f"failed: {run.folder}: {error}")


def merged(runs: Iterable[Run]) -> list[Run]:
    """Each run once, wanting all that anybody wanted of it, and every start before its sequel."""
    wants: dict[Run, frozenset[SplitName]] = {}
    for run in runs:
        if run.start is not None:
            wants.setdefault(run.start, frozenset())
        wants[run] = wants.get(run, frozenset()) | run.wants
    return [replace(run, wants=wanted) for run, wanted in wants.items()]


# ---- many independent jobs, several at a time ----


Item = TypeVar("Item")


def run_jobs(
    items: Sequence[Item],
    work: Callable[[Item], None],
    jobs: int = 1,
    after: Mapping[Item, Item] | None = None,
) -> Iterator[tuple[Item, str | None]]:
    """Do ``work`` for each item; yields (item, its error or ``None``) as they finish.

    If a process dies, those that were running are tried again alone, and one that dies alone has
    failed.

    Args:
        work: called in this process with one job, else in processes that share the cores (and the
            GPUs, one each in turn).
        after: item → the item that must be done before; if that fails, so does this.
    """
    if jobs < 1:
        raise ValueError(f"at least one job is needed, got {jobs}")
    after = after or {}
    start = _Here if jobs == 1 or len(items) < 2 else partial(_processes, jobs)
    waiting, suspects = deque(items), deque[Item]()
    flying: dict[Future[str | None], Item] = {}
    failed, done = set[Item](), set[Item]()
    pool: Any = start()
    try:
        while waiting or suspects or flying:
            for item in [i for i in waiting if after.get(i) in failed]:
                waiting.remove(item)
                failed.add(item)
                yield item, "what it starts from failed"
            source, most = (suspects, 1) if suspects else (waiting, jobs)
            ready = [i for i in source if after.get(i) in done or after.get(i) not in items]
            for item in ready[: most - len(flying)]:
                source.remove(item)
                flying[pool.submit(attempt, work, item)] = item
            ended, _ = wait(flying, return_when=FIRST_COMPLETED)
            for future in ended:
                item = flying.pop(future)
                try:
                    error = future.result()
                except BrokenProcessPool:
                    if most > 1:
                        suspects.append(item)
                        continue
                    error = "its process died (out of memory, or killed)"
                (done if error is None else failed).add(item)
                yield item, error
            if ended and getattr(pool, "_broken", False):
                suspects.extend(flying.values())
                flying.clear()
                pool.shutdown(wait=False)
                pool = start()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if flying:  # interrupted: do not continue for a program that has ended
            for process in (getattr(pool, "_processes", None) or {}).values():
                process.terminate()


def attempt(work: Callable[[Item], None], item: Item) -> str | None:
    """The error as text, or ``None``."""
    try:
        work(item)
    except Exception as error:  # one job must not take the others with it
        return f"{type(error).__name__}: {error}"
    return None


class _Here(Executor):
    """Does at once, in this process, what it is given."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*args, **options))
        return future


def _processes(jobs: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // jobs)
    given = threads, context.Value("i", 0)
    return ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=given)


def _start_worker(threads: int, started: Any) -> None:
    """Set up a new process: its share of the cores, its GPU, and its exit when its parent exits."""
    torch.set_num_threads(threads)
    with started.get_lock():
        number, started.value = started.value, started.value + 1
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(number % torch.cuda.device_count())
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def _exit_with(sentinel: int) -> None:
    """Exit with the parent: no child may go on training and write into the files of a successor."""
    wait_for([sentinel])
    os._exit(1)
