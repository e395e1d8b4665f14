"""One runner for every experiment: plan the cells, train and measure what is missing.

Cells of different experiments that are the same run share it (``store``). What is finished is
never done again, so a killed reproduction continues where it stopped and ends with the same tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from gaussmatch.data import DataSet
from gaussmatch.data.pairs import Pairs
from gaussmatch.files import claim_folder, read_json, save_tensors, write_json
from gaussmatch.learn.evaluation.evaluate import measure_run
from gaussmatch.learn.evaluation.triplets import Features
from gaussmatch.learn.studies.crops import choose, crop_pairs
from gaussmatch.learn.studies.experiment import Experiment, TableRow
from gaussmatch.learn.studies.paper import NAMES, experiment
from gaussmatch.learn.studies.pool import run_all
from gaussmatch.learn.studies.store import EVALUATION, Run, Store, merged
from gaussmatch.learn.training.loop import train
from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import DataRecipe, Recipe, load_recipe
from gaussmatch.models.run import drop_checkpoints, load, read_recipe


@dataclass(frozen=True)
class Setting:
    """On what, and how much of it.

    Args:
        data: which recipes, ``recipes/{data}/``.
        fast: the small setting of scenes, for half an hour on two cores.
        seeds: runs of each row; none for what each experiment sets.
        rows: patterns of the titles of rows, if not all.
        overrides: fields for every recipe, as on the command line.
        visual_genome: the folder of boxes for the experiments on crops of photos.
        pooled: features of photos for all models that take one vector (``data.extracted``).
        regions: the same for all that take regions; the published {split}_ims.npy will do.
        weights: a local file of the image network's weights, for extraction and fine-tuning.
        checkpointing: fine-tune with less memory and more time.
        imported: (row title, run folder): rows that are measured as they are, not trained, such as
            imported official checkpoints.
    """

    data: str
    fast: bool = False
    seeds: int | None = None
    rows: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    visual_genome: str | None = None
    pooled: str | None = None
    regions: str | None = None
    weights: str | None = None
    checkpointing: bool = False
    imported: tuple[tuple[str, str], ...] = ()

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
        overrides, words = [], iter(self.overrides)
        for word in words:
            name = word.partition("=")[0].removeprefix("--data.")
            if word.startswith("--data.") and name in EVALUATION:
                next(words, None) if "=" not in word else None
            else:
                overrides.append(word)
        return replace(self, seeds=None, rows=(), visual_genome=None, overrides=tuple(overrides))

    def seeds_of(self, one: Experiment) -> int:
        if self.seeds is not None:
            return self.seeds
        return min(one.seeds, FAST_SEEDS) if self.fast else one.seeds


FAST_SEEDS = 3
"""Runs of each row of ``stability`` in the fast setting."""
FAST: dict[str, tuple[str, ...]] = {
    "": ("--data.size", "small"),
    "vsepp-ft": ("--training.epochs", "3", "--training.steps", "15", "--training.decay_epoch", "2"),
    "vsrn": ("--training.epochs", "6", "--training.decay_epoch", "4", "--loss.warmup_epochs", "4"),
    "pvse": ("--training.epochs", "6", "--training.decay_epoch", "5"),
}
"""The fast setting, all nine experiments on scenes within half an hour on two cores: start of a
recipe's name → fields; the longest start that fits counts, after those for all. The figures show
how everything works, not how well."""


def fast_overrides(recipe: str) -> tuple[str, ...]:
    """Fields of a recipe in the fast setting.

    >>> fast_overrides("vsepp-kl")[:2]
    ('--data.size', 'small')
    """
    fitting = max((start for start in FAST if recipe.startswith(start)), key=len)
    return FAST[""] + (FAST[fitting] if fitting else ())


@dataclass(frozen=True)
class Cell:
    """A row of an experiment with a seed: its run, or why there can be none."""

    experiment: Experiment
    row: TableRow
    seed: int
    run: Run | None
    problem: str | None = None

    def file(self, out: Path) -> Path:
        name = f"{self.row.slug}-seed-{self.seed}.json"
        return out / self.experiment.name / "cells" / name


@dataclass(frozen=True)
class Plan:
    """All cells of the chosen experiments, and the runs behind them."""

    setting: Setting
    out: Path
    cells: tuple[Cell, ...]

    @property
    def store(self) -> Store:
        return Store(self.out / "runs")

    @property
    def runs(self) -> list[Run]:
        return merged(cell.run for cell in self.cells if cell.run is not None)

    @property
    def todo(self) -> list[Run]:
        return [run for run in self.runs if not self.store.finished(run)]

    @property
    def experiments(self) -> list[Experiment]:
        return list({cell.experiment.name: cell.experiment for cell in self.cells}.values())


def plan(names: Sequence[str], setting: Setting, out: Path) -> Plan:
    """Every cell, seed by seed so that early results cover every row."""
    cells = []
    for name in names:
        one = experiment(name, setting.data).only(setting.rows)
        for seed in range(setting.seeds_of(one)):
            cells += [_cell(one, row, seed, setting) for row in one.rows]
    titles = dict.fromkeys(cell.row.title for cell in cells)
    for title, _ in setting.imported:
        if title not in titles:
            raise ValueError(f"--imported: no row {title!r}; choose from {', '.join(titles)}")
    return Plan(setting, out, tuple(cells))


def check_plan(made: Plan) -> None:
    """Refuse a plan of which no cell can run, with the reasons."""
    if not made.runs:
        names = ", ".join(one.name for one in made.experiments)
        problems = dict.fromkeys(str(cell.problem) for cell in made.cells)
        raise ValueError(f"{names}: nothing can run; {'; '.join(problems)}")


def _cell(one: Experiment, row: TableRow, seed: int, setting: Setting) -> Cell:
    try:
        if row.title in dict(setting.imported):
            made = _imported(dict(setting.imported)[row.title], seed, setting)
        else:
            made = _run(f"{setting.data}/{row.recipe}", row, seed, setting)
    except ValueError as error:  # no such recipe for this data: the table says so
        return Cell(one, row, seed, None, str(error).split(": neither")[0])
    data = made.recipe.data
    if one.name == "cxc" and data.name == "coco" and data.cxc is None:
        return Cell(one, row, seed, None, NO_CXC)
    return Cell(one, row, seed, replace(made, wants=frozenset({one.split})))


NO_CXC = (
    "the judgements of Crisscrossed Captions are not given: add --data.cxc FOLDER "
    "('gaussmatch data where cxc'); nothing is trained again for it"
)


def _run(name: str, row: TableRow, seed: int, setting: Setting) -> Run:
    """A recipe with all its fields; one that starts from another has that as a run of its own,
    with the same fields, so that it is shared like any other."""
    recipe = _loaded(name, tuple(fields_of(name, row, 0, setting)))
    frozen = recipe.training.start_from
    start = None if frozen is None else _run(frozen, row, seed, setting)
    data, model, training = recipe.data, recipe.model, recipe.training
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
    training = replace(training, seed=training.seed + seed, start_from=None)
    return Run(replace(recipe, title="", data=data, model=model, training=training), start)


def _imported(folder: str, seed: int, setting: Setting) -> Run:
    """A run that is there already; only where its data lies may be given."""
    if seed:
        raise ValueError(f"{folder} is one run, and there is no other with this seed")
    words: list[str] = []
    for word in setting.overrides:
        words += word.split("=", 1) if word.startswith("--") else [word]
    given = [
        f"{name}={value}"
        for name, value in zip(words[::2], words[1::2], strict=False)
        if name in ("--data.root", "--data.cxc", "--data.coco", "--data.extracted")
    ]
    return Run(read_recipe(Path(folder), given), folder=folder)


@lru_cache(maxsize=256)
def _loaded(name: str, fields: tuple[str, ...]) -> Recipe:
    return load_recipe(name, fields)


def fields_of(name: str, row: TableRow, seed: int, setting: Setting) -> list[str]:
    """All fields given to a row's recipe, as one would type them; the user's come last."""
    fast = fast_overrides(name.rpartition("/")[2]) if setting.fast else ()
    own = ["--training.seed", str(seed)] if seed else []
    return [*row.overrides, *fast, *own, *setting.overrides]


@dataclass
class Outcome:
    """What became of a plan: run → what went wrong."""

    plan: Plan
    errors: dict[Run, str] = field(default_factory=dict)


def execute(made: Plan, jobs: int = 1) -> Outcome:
    """Train and measure all that is missing."""
    todo = made.todo
    after = {run: run.start for run in todo if run.start in todo and run.start is not None}
    work = partial(
        finish, store=made.store, visual_genome=made.setting.visual_genome, bar=jobs == 1
    )
    return Outcome(made, run_all(todo, work, jobs, "run", lambda run: run.name, after))


def finish(run: Run, store: Store, visual_genome: str | None = None, bar: bool = False) -> None:
    """Train a run and measure what is wanted of it; what is there stays as it is."""
    folder = store.folder(run)
    if not store.trained(run):
        recipe = run.trained_recipe
        if run.start is not None:
            origin = str(store.folder(run.start))
            recipe = replace(recipe, training=replace(recipe.training, start_from=origin))
        train(recipe, folder, resume=True, data=_data(run.recipe.data), progress_bar=bar)
    for split in store.missing(run):
        if split == "crops":
            model = load(folder)
            model.recipe = replace(model.recipe, data=run.recipe.data)  # how photos are seen
            pairs, features = _crops(run.recipe.data, visual_genome)
            frozen = run.recipe.model.backbone is None  # else it sees with a network of its own
            found = choose(model, pairs, run.recipe.data, features if frozen else None)
            write_json(store.result(run, split), found)
            continue
        data = _without_regions(_data(run.recipe.data))
        fields = [
            f"--data.{name}={v}" for name in EVALUATION if (v := getattr(run.recipe.data, name))
        ]
        measured = measure_run(folder, split, data, fields, stem=f"evaluation-{split}")
        values = {**measured.each, "image_of": data.split(split).image_of}
        save_tensors(store.each(run, split), values)
    if run.folder is None:
        drop_checkpoints(folder)


def save_cells(outcome: Outcome) -> list[dict[str, Any]]:
    """Write one JSON for each cell, and give them all in the order of the plan."""
    made, records = outcome.plan, []
    for cell in made.cells:
        record = _record(cell, outcome)
        write_json(cell.file(made.out), record)
        records.append(record)
    return records


def _record(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    store, run = outcome.plan.store, cell.run
    record: dict[str, Any] = {
        "experiment": cell.experiment.name,
        "row": cell.row.title,
        "seed": cell.seed,
        "split": cell.experiment.split,
        "state": "failed",
        "error": cell.problem,
        "run": None if run is None else f"runs/{run.name}",
        "recipe": None if run is None else asdict(run.recipe),
        "measures": {},
    }
    if run is None:
        return record
    result = store.result(run, cell.experiment.split)
    error = outcome.errors.get(run)
    if error is None and result.exists():
        measures = {k: v for k, v in read_json(result).items() if k != "provenance"}
        return {**record, "state": "done", "measures": measures}
    return {**record, "state": "not run" if error is None else "failed", "error": error}


@lru_cache(maxsize=3)
def _data(recipe: DataRecipe) -> DataSet:
    return load_data(recipe)


@lru_cache(maxsize=1)
def _crops(recipe: DataRecipe, visual_genome: str | None) -> tuple[Pairs, Features]:
    """Pictures to cut crops from, and what the frozen network of this data has seen of them."""
    return crop_pairs(recipe, None if visual_genome is None else Path(visual_genome)), {}


def _without_regions(data: DataSet) -> DataSet:
    """Crops have a pass of their own; they need not be measured with every run."""
    return replace(data, dev=replace(data.dev, regions=None), test=replace(data.test, regions=None))


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
    found = {}
    for name in NAMES:
        path = out / name / SETTING_FILE
        if path.exists():
            fields = read_json(path)
            fields["overrides"] = tuple(fields["overrides"])
            fields["rows"] = tuple(fields.get("rows", ()))
            fields["imported"] = tuple((row, run) for row, run in fields.get("imported", ()))
            found[name] = Setting(**fields)
    return found
