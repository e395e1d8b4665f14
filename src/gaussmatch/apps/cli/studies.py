"""Rows × seeds: ``gaussmatch compare RECIPE …``, ``gaussmatch tune SEARCH`` and ``gaussmatch
reproduce NAME … --data DATA``; and ``gaussmatch demo``: a point model, its probabilistic twin and
the recommended recipe on the same data, compared and reported."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.core.metrics.measures import heading, shown
from gaussmatch.data import DataSet
from gaussmatch.files import claim_folder
from gaussmatch.learn.evaluation.evaluate import evaluate_run
from gaussmatch.learn.evaluation.tables import measures_table, plain_table
from gaussmatch.learn.studies import study as studies
from gaussmatch.learn.studies.estimate import estimate
from gaussmatch.learn.studies.paper import NAMES, NUMBERED, PAPER
from gaussmatch.learn.studies.report import (
    Entrant,
    Section,
    write_page,
    write_report,
    write_sections,
)
from gaussmatch.learn.studies.results import mean_std
from gaussmatch.learn.training.loop import CollapseWarning, train
from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import load_recipe, recipe_folder, typed
from gaussmatch.models.run import is_run, load
from gaussmatch.search import Index, index_pairs
from gaussmatch.search.index import existing_index
from gaussmatch.search.trust import kept_calibration
from gaussmatch.search.trust.peers import measure

RESULT = "comparison.json"
SHOWN = ("rsum", "i2t_r_precision", "t2i_r_precision", "caption_rho", "image_rho")


def run_compare(argv: Sequence[str]) -> None:
    parser = Parser(
        "compare",
        "Train recipes over several seeds, each chosen on validation, and print their test "
        "measures as mean ± std. Finished runs are kept: run it again to continue.",
        notes="Any field of the recipes can be given too, for all of them.",
        examples=[
            "scenes/vsepp scenes/vsepp-kl --seeds 5 --jobs 2",
            "scenes/vsepp-kl --seeds 2 --data.size tiny --training.epochs 2",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.take("recipes", "YAML files or names such as scenes/vsepp-kl", nargs="+")
    parser.take("--seeds", "runs per recipe", 5)
    parser.take("--out", "the output folder", Path("runs/compare"))
    parser.take("--jobs", "parallel runs, which share the cores", 1)
    o = parser.parse(argv)
    rows = studies.compare(o.recipes, o.seeds, o.out, o.overrides, o.jobs)
    print(seeds_table(rows))
    print(f"written: {o.out / RESULT}")
    failed = [f"{row['title']}, {error}" for row in rows for error in row["errors"]]
    if failed:
        raise ValueError("some runs failed:\n  " + "\n  ".join(failed))


def seeds_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Mean ± std over the seeds, one row for each recipe."""
    keys = [key for key in SHOWN if any(key in run for row in rows for run in row["runs"])]
    cells = [["model", "runs", *(heading(key) for key in keys)]]
    for row in rows:
        cells.append([row["title"], str(len(row["runs"]))])
        for key in keys:
            mean, std = mean_std([float(run[key]) for run in row["runs"] if key in run])
            cells[-1].append("" if mean is None else f"{shown(key, mean)} ± {shown(key, std)}")
    return plain_table(cells)


def run_tune(argv: Sequence[str]) -> None:
    parser = Parser(
        "tune",
        "Search the fields of recipes on validation: every row gets the same number of trials, the "
        "best validation rsum wins, and test is never looked at. Run it again to continue.",
        notes="Any field of the recipes can be given too, for all trials.",
        examples=[
            "coco_real --data.root COCO --out runs/tune --jobs 2",
            "flickr8k --data.root FLICKR8K --budget 3 --training.epochs 3",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.take("search", "a YAML file, or a name in recipes/search")
    parser.take("--out", "the output folder", Path("runs/tune"))
    parser.take("--budget", "trials per row (default: as the search says)", type=int)
    parser.take("--jobs", "parallel trials, which share the cores", 1)
    options = parser.parse(argv)
    search = studies.load_search(options.search)
    if options.budget is not None:
        search = replace(search, budget=options.budget)
    found = studies.tune(search, options.out, options.overrides, options.jobs)
    cells = [["row", "trials", "dev rsum", "epoch", "fields"]]
    for row, best in found["best"].items():
        done = sum(t["row"] == row and t["error"] is None for t in found["trials"])
        fields = ", ".join(f"{key} {value}" for key, value in best["fields"].items())
        cells.append([row, str(done), f"{best['dev_rsum']:.1f}", str(best["epoch"]), fields])
    print(plain_table(cells))
    print(f"written: {options.out / 'trials.json'}, {options.out / 'best'}")
    failed = [
        f"{t['row']}, trial {t['trial']}: {t['error']}" for t in found["trials"] if t["error"]
    ]
    if failed:
        raise ValueError("some trials failed:\n  " + "\n  ".join(failed))


DATA = sorted(path.parent.name for path in recipe_folder().glob("*/vsepp.yaml"))
"""Folders of recipes that name the rows of the experiments."""


JUDGEMENTS = {
    "fitting": "captions with the number of photos that people say they fit",
    "chains": "captions from general to specific",
    "specificity": "photos and how alike people describe them",
}
"""Option → what people said in its file."""


def run_reproduce(argv: Sequence[str]) -> None:
    options = _parser().parse(argv)
    known = {name: file for name in JUDGEMENTS if (file := getattr(options, name)) is not None}
    given: dict[str, Any] = {
        f.name: getattr(options, f.name) for f in fields(studies.Setting) if f.name != "judgments"
    }
    setting = studies.Setting(**given | {"imported": dict(options.imported), "judgments": known})
    if options.data == "scenes" and "data.root" in setting.overrides:
        others = ", ".join(name for name in DATA if name != "scenes")
        raise ValueError(f"scenes are drawn and have no data.root; name the data: --data {others}")
    out = options.out or Path("runs/reproduce") / f"{options.data}{'-fast' * options.fast}"
    jobs = options.jobs or (2 if options.data == "scenes" else 1)
    named = dict.fromkeys(NUMBERED.get(name, name) for name in options.names)
    names = PAPER if "all" in named else tuple(named)
    study = studies.reproduction(names, setting, out)
    study.check()
    if options.dry_run:
        print(estimate(study, jobs))
        return
    started = time.perf_counter()
    studies.claim(out, setting, names)
    try:
        study.run(jobs, trust=partial(measure, judgments=known))
    finally:  # interrupted or not, show what is there
        sections = write_sections(study)
        page = write_page(study, [*sections, *_earlier(study)])
    print(_summary(sections))
    print(f"\n{(time.perf_counter() - started) / 60:.1f} minutes. Open the report: {page}")
    failed = [f"{run.folder.name}: {error}" for run, error in study.errors.items()]
    if failed:
        raise ValueError(
            "some runs failed; the same command tries them again:\n  " + "\n  ".join(failed)
        )


def _parser() -> Parser:
    parser = Parser(
        "reproduce",
        "Reproduce tables and figures of the paper on any data set: train what is missing, "
        "measure, and write tables, plots and one HTML report. Run it again to continue.",
        notes="Any field of the recipes can be given too, for all rows.",
        examples=[
            "all --data scenes --fast",
            "coco cxc --data coco --data.root COCO --dry-run",
            "ablation --rows 'VSE++ *' --seeds 2 --training.epochs 2",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.take(
        "names",
        f"{', '.join(NAMES)}; a number, such as table1 or figure2; or all, the paper's nine",
        nargs="+",
        choices=(*NAMES, "all", *NUMBERED),
        metavar="NAME",
    )
    parser.take("--data", "the data set", "scenes", choices=DATA)
    parser.path("--out", "default: runs/reproduce/DATA, or DATA-fast")
    parser.flag("--fast", "small runs on scenes: all in under half an hour on two cores")
    parser.take("--seeds", "runs per row (default: as in the paper)", type=int)
    parser.many(
        "--rows", "only rows whose title fits, such as 'VSE++ *' (repeatable)", metavar="PATTERN"
    )
    parser.take("--jobs", "parallel runs (default: 2 on scenes, else 1)", type=int)
    parser.take("--visual-genome", "folder of Visual Genome, for area and selection on photos")
    for name, what in JUDGEMENTS.items():
        parser.take(f"--{name}", f"for peers: {what}, as 'gaussmatch probe' takes")
    parser.take("--pooled", "pooled features made by 'gaussmatch extract'")
    parser.take("--regions", "region features, for VSRN, PVSE and PCME")
    parser.take("--weights", "image network weights, for extraction and fine-tuning")
    parser.flag("--checkpointing", "fine-tune with less memory")
    parser.many(
        "--imported",
        "measure this run for a row instead of training it, such as 'VSRN=runs/imported'",
        type=row_and_folder,
        metavar="ROW=RUN",
    )
    parser.flag("--dry-run", "only print the plan, with time and disk space")
    return parser


def row_and_folder(text: str) -> tuple[str, str]:
    row, equals, folder = text.partition("=")
    if not equals or not is_run(folder):
        raise ArgumentTypeError(f"{text!r} is not ROW=RUN, the title of a row and a run folder")
    return row, folder


def _earlier(study: studies.Reproduction) -> list[Section]:
    """Experiments that were made in this folder before belong to its report too."""
    shown = {one.name for one in study.experiments}
    before = {name: s for name, s in studies.made_before(study.out).items() if name not in shown}
    made = [studies.reproduction([name], setting, study.out) for name, setting in before.items()]
    return [section for one in made for section in write_sections(one)]


def _summary(sections: Sequence[Section]) -> str:
    cells = [("experiment", "rows", "runs", "holds", "does not", "unclear", "failed")]
    for s in sections:
        states = [v.state for v in s.verdicts]
        lines = s.table.lines
        counts = (len(lines), sum(line.runs for line in lines),
                  *(states.count(k) for k in ("holds", "does not hold", "unclear")),
                  sum(bool(line.errors) for line in lines))  # fmt: skip
        cells.append((s.experiment.name, *map(str, counts)))  # type: ignore[arg-type]
    return plain_table(cells)


# ---- the demo ----


def run_demo(argv: Sequence[str]) -> None:
    parser = Parser(
        "demo",
        "Make scenes, train VSE++ as points and as Gaussians with the same budget, then by the "
        "recommended recipe, compare them and write a report. What is already trained in the "
        "folder is used.",
        notes="Any field of the recipes can be given too.",
        examples=["", "--out runs/quick --data.size tiny --training.epochs 2", "--threads 1"],
        fields=SECTIONS,
        computes=True,
    )
    parser.take("--out", "the output folder", Path("runs/demo"))
    options = parser.parse(argv)
    started = time.perf_counter()
    entrants, report, index = make_demo(options.out, options.overrides)
    print(measures_table([(e.name, e.measures) for e in entrants]))
    rho = entrants[-1].measures["caption_rho"]
    print(
        f"\nρ captions = {rho:.2f}: how well a caption's uncertainty follows the number of images "
        "it is true of (1 = same order).\n"
        + ("" if entrants[0].measures["images"] >= 1000 else "Small data: a look, not a result.\n")
        + f"{(time.perf_counter() - started) / 60:.1f} minutes. Open the report: {report}\n"
        f"Search the pictures in your browser: {_command()} serve {index}"
    )


def _command() -> str:
    """As the user can type it: the command in an environment that is not active has a path."""
    here = Path(sys.argv[0])
    if here.name != "gaussmatch" or shutil.which("gaussmatch") is not None:
        return "gaussmatch"
    return os.path.relpath(here)


RUNS = {
    "point": "scenes/vsepp",
    "probabilistic": "scenes/vsepp-kl",
    "recommended": "scenes/recommended",
}
"""Run name → recipe. The first two have the same budget, loss and network: the paper's claim. The
last has the uncertainty to rely on (docs/uncertainty.md), and is the one to search with."""


def make_demo(out: Path, overrides: Mapping[str, Any] = {}) -> tuple[list[Entrant], Path, Path]:
    """Train, measure and report all, then index the test split to search it; finished runs in
    ``out`` are used as they are. Gives all with their measures, the report, the index."""
    recipes = {name: load_recipe(recipe, overrides) for name, recipe in RUNS.items()}
    claim_folder(out, names=[*RUNS, "report.html", "index"])
    data = load_data(recipes["point"].data)
    entrants = []
    for name, recipe in recipes.items():
        with _collapse_explained(recipe.title):
            train(recipe, out / name, resume=True, data=data)
        entrants.append(Entrant(recipe.title, out / name, evaluate_run(out / name, data=data)))
    report = out / "report.html"
    commands = [
        " ".join(["gaussmatch train", recipe, "--out", str(out / name), *typed(overrides)])
        for name, recipe in RUNS.items()
    ]
    write_report(report, entrants, load(out / "recommended"), data.test, commands)
    return entrants, report, _index(out, data)


@contextmanager
def _collapse_explained(title: str) -> Iterator[None]:
    """The point model's loss is stuck for a while; here that needs no action."""
    shown = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, CollapseWarning):
            shown(message, category, *where, **more)
            return
        tqdm.write(
            f"note: the loss of {title} stays at the margin for some epochs. That is expected "
            "here: captions of scenes fit many pictures, so the hardest negative is often a true "
            "match. The best epoch on validation is kept; docs/results.md compares other mining.",
            file=sys.stderr,
        )

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _index(out: Path, data: DataSet) -> Path:
    """The pictures and captions of the test split, found by the model just trained. An index of
    an earlier demo is made again, as it takes seconds and the model may be another."""
    run, folder = out / "recommended", out / "index"
    if (old := existing_index(folder)) is not None:
        old.drop()
    index = Index.create(folder, run, calibration=kept_calibration(run))
    index_pairs(index, data.test, "test")
    return folder
