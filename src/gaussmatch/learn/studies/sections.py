"""The report of a reproduction: one self-contained page with a section for each experiment, whose
table, plots and pictures are written as files too."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw
from torch import Tensor

from gaussmatch.core.metrics.measures import heading
from gaussmatch.data.pairs import Box, Pairs
from gaussmatch.files import write_json, write_text
from gaussmatch.learn.evaluation.triplets import cut, cut_at_scale, triplets
from gaussmatch.learn.plot import bars, lines, save
from gaussmatch.learn.studies import report, tables
from gaussmatch.learn.studies.crops import SCENES_THRESHOLDS, crop_pairs
from gaussmatch.learn.studies.experiment import Column, Experiment
from gaussmatch.learn.studies.reproduce import Outcome, fields_of, save_cells
from gaussmatch.learn.studies.results import Line, Table, Value, Verdict, table, verdicts
from gaussmatch.learn.training.loop import read_log
from gaussmatch.models.features import load_data
from gaussmatch.models.run import LOG, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEADLINE = ("rsum", "t2i_r_precision")
"""The measure of a table's bar chart: the first that was measured."""


@dataclass(frozen=True)
class Gallery:
    """Both ends of one model's uncertainty, of captions and of images."""

    title: str
    note: str
    captions: Mapping[str, Sequence[report.Item]]
    images: Mapping[str, Sequence[report.Item]]


@dataclass(frozen=True)
class Example:
    """A triplet of crops: the whole picture with boxes, and what the model is shown."""

    threshold: str
    whole: str
    crops: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Section:
    """One experiment on the page."""

    table: Table
    verdicts: Sequence[Verdict]
    plots: Mapping[str, str]
    commands: Sequence[str]
    galleries: Sequence[Gallery] = ()
    examples: Sequence[Example] = ()
    remarks: Sequence[str] = field(default_factory=tuple)

    @property
    def experiment(self) -> Experiment:
        return self.table.experiment


def write_all(outcome: Outcome) -> list[Section]:
    """The files of every experiment of a plan."""
    records = save_cells(outcome)
    return [write_section(one, outcome, records) for one in outcome.plan.experiments]


def write_section(
    one: Experiment, outcome: Outcome, records: Sequence[Mapping[str, Any]]
) -> Section:
    """Write ``table.md``, ``.tex`` and ``.json`` and the plots of an experiment."""
    found = table(one, outcome, records)
    folder = outcome.plan.out / one.name
    mine = [record for record in records if record["experiment"] == one.name]
    looked = _look(one, outcome) if one.display == "galleries" else []
    figures, remarks = _figures(found, outcome, mine, looked)
    notes = [note for record in mine for note in record["measures"].get("notes", [])]
    remarks += list(dict.fromkeys(notes))
    plots = {name: save(figure, folder / name) for name, figure in figures.items()}
    said = verdicts(found)
    write_text(folder / "table.md", tables.markdown(found))
    write_text(folder / "table.tex", tables.latex(found))
    write_json(
        folder / "table.json",
        {
            "lines": [asdict(line) for line in found.lines],
            "tests": [asdict(test) for test in found.tests],
            "claims": [
                {"claim": v.claim.text, "state": v.state, "difference": v.difference, "why": v.why}
                for v in said
            ],
        },
    )
    return Section(
        found,
        said,
        plots,
        _commands(one, outcome),
        [_gallery(one, look) for look in looked],
        _examples(outcome) if one.name == "area" else (),
        remarks,
    )


def _figures(
    found: Table, outcome: Outcome, records: Sequence[Mapping[str, Any]], looked: Sequence[Look]
) -> tuple[dict[str, Axes], list[str]]:
    one = found.experiment
    if one.name == "area":
        return _area_figures(found, records)
    if one.name == "selection":
        return _selection_figures(found, records)
    if one.display == "galleries":
        return _ambiguity_figures(one, looked), []
    figures: dict[str, Axes] = {}
    shown = {column.key: column for column in found.columns}
    key = next((key for key in HEADLINE if key in shown), None)
    if key is not None and any(line.runs for line in found.lines):
        values = {
            line.row.title: [
                float(r["measures"][key])
                for r in records
                if r["row"] == line.row.title and key in r["measures"]
            ]
            for line in found.lines
        }
        groups = {line.row.title: line.row.group for line in found.lines}
        label = heading(key)
        title = "Mean over the runs" if len(records) > len(one.rows) else "One run each"
        figures["bars"] = bars(values, groups, title, label)
    if one.name == "coco":
        figures |= _training(one, outcome)
    return figures, []


def _training(one: Experiment, outcome: Outcome) -> dict[str, Axes]:
    """Curves of the first seed of every row."""
    store = outcome.plan.store
    folders = {
        cell.row.title: store.folder(cell.run)
        for cell in outcome.plan.cells
        if cell.experiment.name == one.name and cell.seed == 0 and cell.run is not None
    }
    done = {title: folder for title, folder in folders.items() if (folder / LOG).exists()}
    return report.training_curves(done) if done else {}


def _over_thresholds(
    records: Sequence[Mapping[str, Any]], row: str, ending: str, prefix: str = ""
) -> dict[float, float]:
    """Threshold in percent → mean over the runs of a measure, where it was measured."""
    found: dict[float, list[float]] = {}
    for record in records:
        for key, value in record["measures"].items():
            share, _, name = key.removeprefix(prefix).partition("_")
            if record["row"] == row and key.startswith(prefix) and name == ending and "%" in share:
                found.setdefault(float(share.rstrip("%")), []).append(float(value))
    return {x: sum(values) / len(values) for x, values in sorted(found.items())}


def _area_figures(
    found: Table, records: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Axes], list[str]]:
    figures = {}
    magnified = False
    for line in found.lines:
        for side, word in (("crop", "Images"), ("caption", "Captions")):
            kinds = {"": "", "magnified_": ", magnified"} if side == "crop" else {"": ""}
            series = {
                f"{side} {name.upper()}{note}": values
                for prefix, note in kinds.items()
                for name in "ac"
                if (
                    values := _over_thresholds(
                        records, line.row.title, f"{side}_{name}_uncertainty", prefix
                    )
                )
            }
            if not series:
                continue
            dashed = [name for name in series if "magnified" in name]
            magnified = magnified or bool(dashed)
            title = f"{word}: {line.row.title}"
            slug = f"{line.row.slug}-{word.lower()}"
            figures[slug] = _by_threshold(series, title, "mean log det Σ", dashed)
    return figures, [MAGNIFIED] if magnified else []


def _by_threshold(
    series: Mapping[str, Mapping[float, float]], title: str, what: str, dashed: Sequence[str]
) -> Axes:
    """Lines over the area that a crop keeps; all series have the same thresholds."""
    xs = sorted(next(iter(series.values())))
    drawn = {name: [values[x] for x in xs] for name, values in series.items()}
    return lines(xs, drawn, title, "area threshold, % of the picture", what, dashed)


MAGNIFIED = (
    "Crops of scenes keep the scale of their picture, as size is a word of its captions. Dashed: "
    "the same crops magnified to a whole picture, as crops of photos are; nothing in "
    "training looks like that."
)


def _selection_figures(
    found: Table, records: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Axes], list[str]]:
    figures, magnified = {}, False
    for prefix, note in (("", ""), ("magnified_", ", magnified crops")):
        for side, word in (("crop", "image-to-text"), ("caption", "text-to-image")):
            series = {
                f"{line.row.title}, {side} {name.upper()}": values
                for line in found.lines
                for name in "ac"
                if (values := _over_thresholds(records, line.row.title, f"{side}_{name}", prefix))
            }
            if not series:
                continue
            magnified = magnified or bool(prefix)
            title = f"Right choices, {word}{note}"
            dashed = [name for name in series if name.endswith("A")]
            slug = f"{prefix.replace('_', '-')}{word}"
            figures[slug] = _by_threshold(series, title, "% right", dashed)
    return figures, [MAGNIFIED.replace(" Dashed: the", " Apart: the")] if magnified else []


@dataclass(frozen=True, eq=False)
class Look:
    """The uncertainty of everything in the test split, by one row's first run."""

    title: str
    pairs: Pairs
    images: Tensor
    captions: Tensor


def _look(one: Experiment, outcome: Outcome) -> list[Look]:
    store, looks, pairs = outcome.plan.store, [], None
    for cell in outcome.plan.cells:
        run = cell.run
        if cell.experiment.name != one.name or cell.seed or run is None or not store.trained(run):
            continue
        pairs = pairs or load_data(run.recipe.data).test
        images, captions = load(store.folder(run)).encode_pairs(pairs)
        looks.append(Look(cell.row.title, pairs, images.uncertainty(), captions.uncertainty()))
    return looks


def _ambiguity_figures(one: Experiment, looked: Sequence[Look]) -> dict[str, Axes]:
    figures = {}
    for look in looked:
        title = f"{look.title}: uncertainty against true ambiguity"
        figure = report.caption_ambiguity(look.pairs, look.captions, title)
        if figure is not None:
            figures[f"{one.row(look.title).slug}-ambiguity"] = figure
    return figures


def _gallery(one: Experiment, look: Look) -> Gallery:
    pairs = look.pairs
    return Gallery(
        look.title,
        one.row(look.title).note,
        report.drawn_ends(look.captions, lambda i: report.caption(pairs, i, look.captions)),
        report.drawn_ends(look.images, lambda i: report.image(pairs, i, look.images, plausible=3)),
    )


def _examples(outcome: Outcome) -> list[Example]:
    """How a triplet is cut, once for each of three thresholds."""
    recipes = [cell.run.recipe.data for cell in outcome.plan.cells if cell.run is not None]
    folder = outcome.plan.setting.visual_genome
    if not recipes:
        return []
    try:
        pairs = crop_pairs(recipes[0], None if folder is None else Path(folder))
    except (ValueError, OSError) as error:
        warnings.warn(f"no examples of crops: {error}", stacklevel=2)
        return []
    small = recipes[0].name == "scenes"
    limits, crop = (SCENES_THRESHOLDS, cut_at_scale) if small else ((0.1, 0.3, 0.5), cut)
    examples = []
    for n, limit in enumerate(limits[:: len(limits) // 2]):
        found = triplets(pairs, limit, most=n + 1)
        if len(found) > n:
            one = found[n]
            picture = pairs.images.picture(one.image)
            assert picture is not None
            boxes = {"A": one.a, "B": one.b, "C": one.c}
            crops = {k: (report.address(crop(picture, r.box)), r.caption) for k, r in boxes.items()}
            whole = report.address(_boxed(picture, {k: r.box for k, r in boxes.items()}), 256)
            examples.append(Example(f"{limit:.0%}", whole, crops))
    return examples


def _boxed(picture: Image.Image, boxes: Mapping[str, Box]) -> Image.Image:
    """The picture, enlarged if small, with its boxes drawn."""
    scale = max(1, 256 // min(picture.size))
    size = picture.width * scale, picture.height * scale
    large = picture.resize(size, Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(large)
    for (name, box), colour in zip(boxes.items(), ("#3b82d6", "#e0703a", "#3fa66b"), strict=False):
        place = [round(side * scale) for side in box]
        draw.rectangle(place, outline=colour, width=3)
        draw.text((place[0] + 4, place[1] + 2), name, fill=colour)
    return large


def _commands(one: Experiment, outcome: Outcome) -> list[str]:
    """What to type to make it again: all of it, then each row by itself."""
    setting, made = outcome.plan.setting, outcome.plan
    words = [f"gaussmatch reproduce {one.name} --data {setting.data}"]
    words += ["--fast"] * setting.fast
    words += [f"--seeds {setting.seeds}"] if setting.seeds is not None else []
    words += [f"--rows '{pattern}'" for pattern in setting.rows]
    for name in ("visual_genome", "pooled", "regions", "weights"):
        given = getattr(setting, name)
        words += [f"--{name.replace('_', '-')} {given}"] if given else []
    words += ["--checkpointing"] * setting.checkpointing
    words += [f"--imported '{row}={folder}'" for row, folder in setting.imported]
    whole = " ".join([*words, f"--out {made.out}", *setting.overrides])
    rows = []
    for cell in made.cells:
        if cell.experiment.name == one.name and cell.seed == 0 and cell.run is not None:
            fields = fields_of(cell.row.recipe, cell.row, 0, setting)
            command = ["gaussmatch train", f"{setting.data}/{cell.row.recipe}", *fields]
            rows.append(" ".join([*command, f"--out runs/{cell.row.slug}"]))
    return [whole, *rows]


def write_page(outcome: Outcome, sections: Sequence[Section]) -> Path:
    """Write ``report.html`` into the folder of the reproduction."""
    made = outcome.plan
    trained = [run for run in made.runs if made.store.trained(run)]
    seconds = sum(
        record["seconds"]
        for run in trained
        for record in read_log(made.store.folder(run))
        if record["event"] == "epoch"
    )
    page = report.template("reproduce.html.j2").render(
        setting=made.setting,
        sections=sections,
        runs=len(trained),
        cells=len(made.cells),
        failed=sum(bool(line.errors) for s in sections for line in s.table.lines),
        minutes=seconds / 60,
        bar=bar,
        tables=tables,
    )
    path = made.out / "report.html"
    write_text(path, page)
    return path


def bar(table: Table, line: Line, column: Column) -> float | None:
    """How full the bar behind a sum of recalls is: 0 for the lowest of the table, 1 the highest."""
    if not column.key.endswith("rsum"):
        return None
    figures: list[Value] = [one.figures[column.key] for one in table.lines]
    means = [f.mean for f in figures if f.mean is not None]
    mine: Any = line.figures[column.key].mean
    if mine is None or max(means) == min(means):
        return None
    return float((mine - min(means)) / (max(means) - min(means)))
