"""``gaussmatch evaluate RUN [RUN …] [--split test] [--against RUN] [--similarity cosine]
[--data.field value]``."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.core.similarities import SIMILARITIES
from gaussmatch.data import DataSet
from gaussmatch.data.pairs import SPLITS
from gaussmatch.files import claim_folder, write_json, write_text
from gaussmatch.learn.evaluation.evaluate import Evaluation, against, file_stem, measure_run
from gaussmatch.learn.evaluation.tables import comparison, measures_table, plain_table, rows
from gaussmatch.learn.plot import deciles, svg
from gaussmatch.models.features import load_data
from gaussmatch.models.run import CALIBRATION, is_shipped, load, locate, read_listed, read_recipe
from gaussmatch.search.trust.learn import fits_table, measure_kept


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "evaluate",
        "Measure runs on a split: everything that the data allows, with 95 % intervals by "
        "bootstrap over queries. Written beside each run as JSON, Markdown and LaTeX.",
        notes="Fields of the recipe's data can be given too: --data.seed 1 is another data set.",
        examples=[
            "gaussmatch evaluate runs/mine --against runs/demo/point",
            "gaussmatch evaluate runs/mine --split dev --similarity cosine --data.seed 1",
            "gaussmatch evaluate photos --data.name flickr8k --data.root FLICKR8K --out figures",
        ],
        fields=("data",),
        computes=True,
    )
    parser.add_argument("runs", nargs="+", type=locate, help="run folders, or photos")
    parser.add_argument("--split", default="test", choices=SPLITS, help="the split to measure")
    parser.add_argument("--against", type=locate, help="a run to test each of the others against")
    parser.add_argument(
        "--similarity",
        choices=list(SIMILARITIES),
        help="rank by this instead of the model's own; cosine compares the means only",
    )
    parser.add_argument(
        "--fitting",
        type=Path,
        metavar="FILE",
        help="photos that people say captions fit (JSON lines), to judge what is said by",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write into FOLDER/RUN instead of into the run"
    )
    options = parser.parse(argv)
    overrides = options.overrides
    stem = file_stem(options.split, overrides, options.similarity)
    table, found = [], {}
    folders = list(dict.fromkeys([*options.runs, *filter(None, [options.against])]))
    if options.out is not None and len({f.name for f in folders}) < len(folders):
        parser.error("two runs have the same name, so one --out cannot hold both")
    for folder in folders:
        if _target(options, folder).resolve() != folder.resolve():
            claim_folder(_target(options, folder))
    for folder in folders:
        name = load(folder).recipe.title or folder.name
        data = load_data(read_recipe(folder, overrides).data)
        out = _target(options, folder)
        if out.resolve() != folder.resolve():
            claim_folder(out, names=_names(stem))
        measured = measure_run(folder, options.split, data, overrides, options.similarity, out=out)
        found[folder] = (data, measured)
        _show(name, out, stem, measured)
        _show_fits(folder, out, stem, options, data)
        table.append((name, measured.measures))
    print(measures_table(table))
    if options.against is not None:
        _compare(options, _against(stem), found)


def _names(stem: str) -> list[str]:
    """All files that an evaluation may write."""
    plots = [stem, *(f"{stem}-reliability-{way}" for way in ("images", "captions"))]
    tables = [f"{stem}.{ending}" for ending in ("json", "md", "tex")]
    return [*tables, *(f"{plot}.svg" for plot in plots), f"{_against(stem)}.json"]


def _against(stem: str) -> str:
    return stem.replace("evaluation", "against", 1)


def _show_fits(folder: Path, out: Path, stem: str, options: Namespace, data: DataSet) -> None:
    """What the calibration that the run has says of this data, which it has not seen."""
    if read_listed(folder, CALIBRATION) is None:
        return
    rows = measure_kept(folder, data, options.split, options.fitting)
    print("\nWhat is said after a search, by the calibration of the run:\n")
    print(plain_table(fits_table(rows)))
    if not is_shipped(out):
        write_json(out / f"{stem.replace('evaluation', 'fits', 1)}.json", {"fits": rows})


def _target(options: Namespace, folder: Path) -> Path:
    """Where the figures of a run are written."""
    return folder if options.out is None else options.out / folder.name


def _show(name: str, folder: Path, stem: str, measured: Evaluation) -> None:
    measures = measured.measures
    about = f"{measures['images']} images, {measures['captions']} captions"
    print(f"{name} on {measures['data']}: {about}\n")
    print(plain_table([("measure", "images", "captions"), *rows(measures)]))
    for note in measures.get("notes", []):
        print(f"note: {note}")
    if is_shipped(folder):
        print("\nnothing is written into the package; --out FOLDER keeps these figures\n")
        return
    written = [f"{stem}.{ending}" for ending in ("json", "md", "tex")]
    try:
        for picture, axes in _plots(stem, measured).items():
            write_text(folder / f"{picture}.svg", svg(axes))
            written.append(f"{picture}.svg")
    except ImportError as error:
        print(f"no plots: {error}")
    print(f"\nwritten in {folder}: {', '.join(written)}\n")


def _plots(stem: str, measured: Evaluation) -> dict[str, Any]:
    """File name → recall by uncertainty."""
    return {stem: deciles(measured.measures)} if "t2i_deciles" in measured.measures else {}


def _compare(
    options: Namespace, stem: str, found: Mapping[Path, tuple[DataSet, Evaluation]]
) -> None:
    data, theirs = found[options.against]
    for folder in options.runs:
        if folder == options.against:
            continue
        ours_data, ours = found[folder]
        same = ours_data.split(options.split), data.split(options.split)
        result = against(ours, theirs, same)
        print(f"\n{folder} (ours) against {options.against} (theirs), paired over queries:")
        print(plain_table(comparison(result)))
        out = _target(options, folder)
        if is_shipped(out):
            continue
        path = out / f"{stem}.json"
        write_json(path, {"ours": str(folder), "theirs": str(options.against), "measures": result})
        print(f"written: {path}")
