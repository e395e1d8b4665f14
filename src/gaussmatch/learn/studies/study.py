"""A study: rows × seeds × fields, planned as cells, whose runs are trained and measured once. What
is finished is never done again, so an interrupted study resumes.

Three verbs plan one: recipes × seeds (``compare``), rows × trials drawn from a grid (``tune``), and
the paper's tables × seeds on any data set (``reproduce``). A run's folder
(``gaussmatch.models.run``) holds also

evaluation-{split}.json        its measures
each-{split}.safetensors       and their values, query by query, for paired tests
crops.json                     choices between crops
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from tqdm import tqdm

from gaussmatch.checks import known
from gaussmatch.data import DataSet
from gaussmatch.data.pairs import Pairs
from gaussmatch.files import claim_folder, read_json, save_tensors, write_json
from gaussmatch.learn.evaluation.evaluate import Evaluation, measure_run
from gaussmatch.learn.evaluation.triplets import Features, choose, crop_pairs
from gaussmatch.learn.studies.paper import NAMES, Experiment, SplitName, TableRow, experiment, slug
from gaussmatch.learn.training.loop import train
from gaussmatch.models import run as runs
from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import DataRecipe, Recipe, identity, load_recipe
from gaussmatch.models.recipe.load import EVALUATION_ONLY, find_recipe, read_layers, recipe_folder

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
        if split in ("crops", "trust"):
            return result.exists()
        if not (result.exists() and self.each(split).exists()):
            return False
        before = read_json(result)["provenance"]["recipe"]
        same = all(before["data"][name] == getattr(recipe.data, name) for name in EVALUATION)
        return same and bool(before["training"]["epochs"] == recipe.training.epochs)

    @property
    def trained(self) -> bool:
        """Whether it is, and not before its recipe got more epochs."""
        if self.kind == "given":
            return True
        own = self.kind == "own"
        return runs.is_finished(self.folder) and not (
            own and runs.extends(self.recipe, runs.read_recipe(self.folder))
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
                found = trust(self.folder, _data(self.recipe.data))
                save_tensors(self.each(split), found.each)
                write_json(self.result(split), found.measures)
            else:
                self._measure(split)
        if self.kind == "shared":
            runs.drop_checkpoints(self.folder)

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
        model = runs.load(self.folder)
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
                runs.claim(run.folder, run.recipe, resume=True)
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


# ---- compare: recipes × seeds ----


def compare(
    recipes: Sequence[str], seeds: int, out: Path, overrides: Mapping[str, Any] = {}, jobs: int = 1
) -> list[dict[str, Any]]:
    """Train each recipe with each seed, seed by seed so that early results cover every recipe, and
    measure it on test. In the order given: title, the measures of each run, and errors."""
    if seeds < 1:
        raise ValueError(f"at least one seed is needed, got {seeds}")
    cells: dict[Run, Cell] = {}
    for seed, name in product(range(seeds), recipes):
        recipe = load_recipe(name, {**overrides, "training.seed": seed})
        stem = find_recipe(name).stem
        run = Run(recipe, out / stem / f"seed-{seed}", wants=frozenset({"test"}))
        cells[run] = Cell(TableRow(recipe.title or stem, name), seed, run)
    if len({run.folder for run in cells}) < seeds * len(recipes):
        raise ValueError("two recipes have the same file name; give each its own")
    stems = {run.folder.parent.name for run in cells}
    claim_folder(out, names=["comparison.json", *sorted(stems)])
    study = Study(out, list(cells.values()))
    study.run(jobs)
    rows: dict[str, dict[str, Any]] = {}
    for run, cell in cells.items():
        plain = {"title": cell.row.title, "runs": [], "errors": []}
        row = rows.setdefault(cell.row.recipe, plain)
        if run in study.errors:
            row["errors"].append(f"seed {cell.seed}: {study.errors[run]}")
        else:
            row["runs"].append(read_json(run.result("test")))
    write_json(out / "comparison.json", list(rows.values()))
    return list(rows.values())


# ---- tune: rows × trials, chosen on validation ----


@dataclass(frozen=True)
class Search:
    """A search for the fields of recipes on validation: one file of ``recipes/search``. Every row
    gets as many trials, and the one with the best validation rsum is its choice.

    ``grid`` is field → values, for every row. A value that is a mapping gives several fields at
    once (a loss with its own margin or scale); its key is then only a name.
    """

    title: str
    budget: int  #: trials of each row
    rows: Mapping[str, Mapping[str, Any]]  #: row → its recipe, and what may vary for it alone
    data: str = ""  #: the folder of the recipes; if not given, they are named in full
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)  #: that all trials share
    seed: int = 0  #: of the draw

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise ValueError(f"budget must be at least 1, got {self.budget}")
        for name, row in self.rows.items():
            if "recipe" not in row:
                raise ValueError(f"row {name!r}: names no recipe")
            for key in row:
                known(f"row {name!r}: key", key, ("recipe", "grid", "fields"))

    def draws(self, row: str) -> list[dict[str, Any]]:
        """The trials of a row: ``budget`` different points of its grid, the first of them the
        same for every budget.

        >>> search = Search("", 2, {"a": {"recipe": "x"}}, grid={"loss.margin": [0.1, 0.2]})
        >>> search.draws("a")
        [{'loss.margin': 0.2}, {'loss.margin': 0.1}]
        """
        grid = {**self.grid, **self.rows[row].get("grid", {})}
        points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
        if len(points) < self.budget:
            raise ValueError(
                f"row {row!r}: {len(points)} points in its grid, but a budget of {self.budget} "
                "trials; every row needs as many points as trials"
            )
        return random.Random(self.seed).sample(points, len(points))[: self.budget]


def load_search(name: str) -> Search:
    """A search by path, or by name in ``recipes/search``."""
    path = _find_search(name)
    try:
        return Search(**read_layers(path, "search", _find_search))
    except (TypeError, ValueError) as error:
        raise ValueError(f"search {path}: {' '.join(str(error).split())}") from error


def _find_search(name: str) -> Path:
    for path in (Path(name), recipe_folder() / "search" / f"{name}.yaml"):
        if path.is_file():
            return path
    there = sorted(p.stem for p in (recipe_folder() / "search").glob("*.yaml"))
    raise ValueError(f"unknown search {name}: neither a file nor one of {', '.join(there)}")


def trials(search: Search, out: Path, overrides: Mapping[str, Any] = {}) -> Study:
    """All trials, the first of every row before the second of any."""
    cells = []
    for name, row in search.rows.items():
        recipe = f"{search.data}/{row['recipe']}" if search.data else row["recipe"]
        for number, drawn in enumerate(search.draws(name)):
            chosen: dict[str, Any] = {}
            for key, value in drawn.items():
                chosen |= value if isinstance(value, Mapping) else {key: value}
            fields = {**search.fields, **row.get("fields", {}), **chosen, **overrides}
            folder = out / "trials" / f"{slug(name)}-{number:02}"
            run = Run(load_recipe(recipe, fields), folder)
            cells.append(Cell(TableRow(name, recipe, chosen), number, run))
    return Study(out, sorted(cells, key=lambda cell: cell.seed))


def tune(
    search: Search, out: Path, overrides: Mapping[str, Any] = {}, jobs: int = 1
) -> dict[str, Any]:
    """Run what is missing; write ``trials.json`` and the best recipe of each row in ``best/``. Test
    is never looked at."""
    claim_folder(out, names=["trials.json", "best", "trials"])
    study = trials(search, out, overrides)
    study.run(jobs, "trial")
    records: list[dict[str, Any]] = []
    best: dict[str, dict[str, Any]] = {}
    recipes = {}
    for cell in study.cells:
        assert cell.run is not None
        row, error = cell.row.title, study.errors.get(cell.run)
        record: dict[str, Any] = {"row": row, "trial": cell.seed, "fields": cell.row.overrides}
        record |= {"error": error, "dev_rsum": None}
        if error is None:
            found = runs.read_metrics(cell.run.folder)
            record |= {"dev_rsum": found["dev"]["rsum"], "epoch": found.get("epoch")}
            if row not in best or record["dev_rsum"] > best[row]["dev_rsum"]:
                best[row], recipes[row] = record, cell.run.recipe
        records.append(record)
    best = {row: best[row] for row in search.rows if row in best}
    for row in best:
        recipes[row].save(out / "best" / f"{slug(row)}.yaml")
    result = {"title": search.title, "budget": search.budget, "trials": records, "best": best}
    write_json(out / "trials.json", result)
    return result


# ---- reproduce: the paper's tables × seeds ----


@dataclass(frozen=True)
class Setting:
    """On what a reproduction is made, and how much of it.

    ``pooled`` and ``regions`` are features of photos (``data.extracted``) for all models that take
    one vector, or regions; the published {split}_ims.npy will do.
    """

    data: str  #: which recipes, ``recipes/{data}/``
    fast: bool = False  #: the small setting of scenes, for half an hour on two cores
    seeds: int | None = None  #: runs of each row; none for what each experiment sets
    rows: Sequence[str] = ()  #: patterns of the titles of rows, if not all
    overrides: Mapping[str, Any] = field(default_factory=dict)  #: fields for every recipe
    visual_genome: str | None = None  #: the folder of boxes for crops of photos
    pooled: str | None = None
    regions: str | None = None
    weights: str | None = None  #: of the image network, a local file
    checkpointing: bool = False  #: fine-tune with less memory and more time
    judgments: Mapping[str, str] = field(
        default_factory=dict
    )  #: what people said → file, for peers
    imported: Mapping[str, str] = field(
        default_factory=dict
    )  #: row title → run that is only measured

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise ValueError(f"at least one seed is needed, got {self.seeds}")
        if self.fast and self.data != "scenes":
            raise ValueError(
                f"--fast is a setting of scenes; for {self.data} give fields, such as "
                "--training.epochs 2"
            )

    @property
    def training(self) -> Setting:
        """What decides how the runs are trained, without rows, seeds and what is only measured
        with."""
        read = {name: v for name, v in self.overrides.items() if name not in EVALUATION_ONLY}
        plain: dict[str, Any] = {"seeds": None, "rows": (), "visual_genome": None, "judgments": {}}
        return replace(self, **plain, overrides=read)

    def seeds_of(self, one: Experiment) -> int:
        if self.seeds is not None:
            return self.seeds
        return min(one.seeds, FAST_SEEDS) if self.fast else one.seeds

    def fields_of(self, row: TableRow, recipe: str = "") -> dict[str, Any]:
        """All fields given to the recipe of a row, or to that it starts from; the user's last. What
        is put on a frozen model is not a field of that model."""
        own = row.overrides
        if recipe and not recipe.endswith(row.recipe):
            own = {k: v for k, v in own.items() if not k.startswith("model.posthoc.")}
        fast = fast_overrides((recipe or row.recipe).rpartition("/")[2]) if self.fast else {}
        return {**own, **fast, **self.overrides}


FAST_SEEDS = 3
"""Runs of each row of ``stability`` in the fast setting."""
FAST: dict[str, Mapping[str, Any]] = {
    "": {"data.size": "small"},
    "vsepp-ft": {"training.epochs": 3, "training.steps": 15, "training.decay_epoch": 2},
    "vsrn": {"training.epochs": 6, "training.decay_epoch": 4, "loss.warmup_epochs": 4},
    "pvse": {"training.epochs": 6, "training.decay_epoch": 5},
}
"""The fast setting, all nine experiments on scenes within half an hour on two cores: start of a
recipe's name → fields; the longest start that fits counts, after those for all. The figures show
how everything works, not how well."""


def fast_overrides(recipe: str) -> dict[str, Any]:
    """Fields of a recipe in the fast setting.

    >>> fast_overrides("vsepp-kl")
    {'data.size': 'small'}
    """
    return {**FAST[""], **FAST[max((start for start in FAST if recipe.startswith(start)), key=len)]}


@dataclass
class Reproduction(Study):
    """The cells of the chosen experiments. Those that are the same run share it."""

    setting: Setting = Setting("scenes")
    experiments: Sequence[Experiment] = ()

    def of(self, one: Experiment) -> list[Cell]:
        return [cell for cell in self.cells if cell.table == one.name]

    def check(self) -> None:
        """Refuse a plan of which no cell can run, with the reasons."""
        if not self.runs:
            names = ", ".join(one.name for one in self.experiments)
            problems = dict.fromkeys(str(cell.problem) for cell in self.cells)
            raise ValueError(f"{names}: nothing can run; {'; '.join(problems)}")

    def records(self, one: Experiment) -> list[dict[str, Any]]:
        """What became of each cell of an experiment, in order; written as one JSON each too."""
        records = [self._record(one, cell) for cell in self.of(one)]
        for record, cell in zip(records, self.of(one), strict=True):
            name = f"{cell.row.slug}-seed-{cell.seed}.json"
            write_json(self.out / one.name / "cells" / name, record)
        return records

    def _record(self, one: Experiment, cell: Cell) -> dict[str, Any]:
        run = cell.run
        record: dict[str, Any] = {
            "experiment": one.name,
            "row": cell.row.title,
            "seed": cell.seed,
            "split": one.split,
            "state": "failed",
            "error": cell.problem,
            "run": None,
            "recipe": None,
            "measures": {},
        }
        if run is None:
            return record
        inside = run.folder.is_relative_to(self.out)
        record["run"] = str(run.folder.relative_to(self.out) if inside else run.folder)
        record["recipe"] = asdict(run.recipe)
        error = self.errors.get(run)
        if error is None and run.result(one.split).exists():
            measures = read_json(run.result(one.split))
            measures.pop("provenance", None)
            return {**record, "state": "done", "measures": measures}
        return {**record, "state": "not run" if error is None else "failed", "error": error}


def reproduction(names: Sequence[str], setting: Setting, out: Path) -> Reproduction:
    """Every cell, seed by seed so that early results cover every row."""
    tables = [experiment(name, setting.data).only(setting.rows) for name in names]
    titles = dict.fromkeys(row.title for one in tables for row in one.rows)
    for title in setting.imported:
        if title not in titles:
            raise ValueError(f"--imported: no row {title!r}; choose from {', '.join(titles)}")

    cells = []
    for one in tables:
        firsts = [(row, _first(one, row, setting, out)) for row in one.rows]
        for seed, (row, made) in product(range(setting.seeds_of(one)), firsts):
            if isinstance(made, Run) and seed and made.kind == "given":
                made = f"{made.folder} is one run, and there is no other with this seed"
            if isinstance(made, str):
                cells.append(Cell(row, seed, None, made, one.name))
            else:
                run = replace(_seeded(made, seed), wants=frozenset({one.split}))
                cells.append(Cell(row, seed, run, None, one.name))
    return Reproduction(out, cells, setting.visual_genome, {}, setting, tables)


NO_CXC = (
    "the judgments of Crisscrossed Captions are not given: add --data.cxc FOLDER "
    "('gaussmatch data where cxc'); nothing is trained again for it"
)


def _first(one: Experiment, row: TableRow, setting: Setting, out: Path) -> Run | str:
    """The first run of a row, or why there can be none."""
    try:
        if row.title in setting.imported:
            run = _imported(Path(setting.imported[row.title]), setting)
        else:
            run = _run(f"{setting.data}/{row.recipe}", row, setting, out / "runs")
    except ValueError as error:  # no such recipe for this data: the table says so
        return str(error).split(": neither")[0]
    data = run.recipe.data
    return NO_CXC if one.name == "cxc" and data.name == "coco" and data.cxc is None else run


def _seeded(run: Run, seed: int) -> Run:
    """The same with another seed, as what it starts from."""
    training = run.recipe.training
    recipe = replace(run.recipe, training=replace(training, seed=training.seed + seed))
    return replace(run, recipe=recipe, start=run.start and _seeded(run.start, seed))


def _run(name: str, row: TableRow, setting: Setting, place: Path) -> Run:
    """A recipe with all its fields; one that starts from another has that as a run of its own,
    with the same fields, so that it is shared like any other."""
    recipe = load_recipe(name, setting.fields_of(row, name))
    frozen = recipe.training.start_from
    start = None if frozen is None else _run(frozen, row, setting, place)
    data, model = recipe.data, recipe.model
    network = model.backbone
    if network is not None and network != "scenenet":
        model = replace(
            model,
            backbone_weights=setting.weights or model.backbone_weights,
            checkpointing=setting.checkpointing or model.checkpointing,
        )
        if start is not None:  # frozen and fine-tuned stage see with the same network
            of = start.recipe
            seen = replace(of.data, backbone=network, weights=model.backbone_weights)
            start = replace(start, recipe=replace(of, data=replace(seen, view=data.view)))
    elif data.name != "scenes":
        data = replace(data, weights=setting.weights or data.weights)
    if data.extracted is None:
        given = {"pooled": setting.pooled, "regions": setting.regions}
        data = replace(data, extracted=given.get(data.features))
    training = replace(recipe.training, start_from=None)
    recipe = replace(recipe, title="", data=data, model=model, training=training)
    return Run(recipe, place, "shared", start)


PLACES = ("data.root", "data.cxc", "data.coco", "data.extracted")


def _imported(folder: Path, setting: Setting) -> Run:
    """A run that exists; only the place of its data may be given."""
    given = {name: value for name, value in setting.overrides.items() if name in PLACES}
    return Run(runs.read_recipe(folder, given), folder, "given")


SETTING_FILE = "setting.json"


def claim(out: Path, setting: Setting, names: Sequence[str]) -> None:
    """Note the setting of each experiment; a folder with anything else in it, another data set or
    other fields are refused."""
    claim_folder(out, names=["runs", "report.html", *names])
    for name, before in made_before(out).items():
        if before.training != setting.training:
            raise ValueError(
                f"{out / name}: was made with another setting ({before}); choose another --out"
            )
    for name in names:
        write_json(out / name / SETTING_FILE, asdict(setting))


def made_before(out: Path) -> dict[str, Setting]:
    """The experiments of a folder, in the order of the paper, with their settings."""
    files = {name: out / name / SETTING_FILE for name in NAMES}
    return {name: Setting(**read_json(path)) for name, path in files.items() if path.exists()}
