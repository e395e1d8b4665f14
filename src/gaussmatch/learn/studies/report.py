"""Pages that need no other file: the demo's, about a point model and its probabilistic twin, and
that of a reproduction, whose tables and plots are written as files too."""

from __future__ import annotations

import base64
import io
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw
from torch import Tensor

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics.measures import heading
from gaussmatch.data.pairs import Box, Pairs
from gaussmatch.files import write_json, write_text
from gaussmatch.learn.evaluation import triplets
from gaussmatch.learn.plot import ambiguity, bars, curves, ellipses, lines, save, svg
from gaussmatch.learn.studies import results
from gaussmatch.learn.studies.paper import Column, Experiment
from gaussmatch.learn.studies.results import Line, Table, Verdict, table, verdicts
from gaussmatch.learn.studies.study import Reproduction
from gaussmatch.learn.training.loop import read_log
from gaussmatch.models.features import load_data
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import typed
from gaussmatch.models.run import LOG, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Records = Sequence[Mapping[str, Any]]

# ---- the demo ----


@dataclass(frozen=True)
class Entrant:
    """A model in the demo: its name, run folder and test measures."""

    name: str
    folder: Path
    measures: dict[str, Any]


def write_report(
    path: Path, entrants: Sequence[Entrant], model: Model, pairs: Pairs, commands: Sequence[str]
) -> None:
    """Write the page; ``model`` is the probabilistic one, whose uncertainty is shown."""
    images, captions = model.encode_pairs(pairs)
    unsure, images_unsure = captions.uncertainty(), images.uncertainty()
    folders = {entrant.name: entrant.folder for entrant in entrants}
    drawn, texts = plane(pairs, images, captions)
    page = results.template(
        "report.html.j2",
        entrants=entrants,
        pairs=pairs,
        figures=[svg(axes) for axes in training_curves(folders).values()],
        ambiguity=None if (axes := caption_ambiguity(pairs, unsure)) is None else svg(axes),
        plane=svg(drawn),
        on_plane=texts,
        rho=entrants[-1].measures.get("caption_rho"),
        similarity=model.recipe.model.similarity,
        captions=ends(unsure, lambda i: caption(pairs, i, unsure)),
        images=ends(images_unsure, lambda i: image(pairs, i, images_unsure)),
        commands=commands,
    )
    write_text(path, page)


def training_curves(folders: Mapping[str, Path]) -> dict[str, Axes]:
    """Loss and validation recall over the epochs, one line for each run: name → folder."""
    logs = {
        name: [r for r in read_log(folder) if r["event"] == "epoch"]
        for name, folder in folders.items()
    }
    recall = {
        name: [sum(r[f"{way}_r{k}"] for way in ("i2t", "t2i") for k in (1, 5, 10)) / 6 for r in log]
        for name, log in logs.items()
    }
    losses = {name: [r["loss"] for r in log] for name, log in logs.items()}
    return {
        "loss": curves(losses, "Training loss", "mean loss of a step", log=True),
        "recall": curves(recall, "Validation recall", "mean of the six R@K, %"),
    }


def caption_ambiguity(
    pairs: Pairs, uncertainty: Tensor, title: str = "Caption uncertainty against true ambiguity"
) -> Axes | None:
    """Uncertainty of captions over the number of images that each is true of, where known."""
    if pairs.relevance is None:
        return None
    return ambiguity(pairs.relevance.counts, uncertainty, title)


def plane(pairs: Pairs, images: Gaussian, captions: Gaussian) -> tuple[Axes, list[str]]:
    """The two vaguest captions, A and B, and the two sharpest, C and D, on one plane with their
    images, a to d; and the captions."""
    chosen = captions.uncertainty().argsort(descending=True)[[0, 1, -2, -1]]
    groups = {"captions": captions[chosen], "their images": images[pairs.image_of[chosen]]}
    axes = ellipses(groups, "ABCDabcd", "Vague and sharp captions in the joint space")
    return axes, [pairs.captions[i] for i in chosen.tolist()]


# ---- galleries ----

SIDE = 128
"""A picture's shorter side on a page, at most."""


@dataclass(frozen=True)
class Item:
    """A caption or an image in a gallery."""

    text: list[str]
    pictures: list[str]
    uncertainty: float
    matches: int | None


def ends(
    uncertainty: Tensor, make: Callable[[int], Item], drawn: bool = False
) -> dict[str, list[Item]]:
    """The six vaguest and sharpest items; or as in the paper's galleries five of each, drawn by lot
    from the least and the most sure twentieth. A caption that was written twice is shown once."""
    order = uncertainty.argsort(descending=True).tolist()
    parts = {"vaguest": order, "sharpest": order[::-1]}
    if drawn:
        enough = max(15, round(len(order) / 20))
        parts = {name: part[:enough] for name, part in parts.items()}
        for part in parts.values():
            random.Random(0).shuffle(part)
    found: dict[str, list[Item]] = {}
    for name, part in parts.items():
        items: dict[str, Item] = {}
        for index in part:
            if len(items) == (5 if drawn else 6):
                break
            item = make(index)
            items.setdefault(item.text[0], item)
        found[name] = list(items.values())
    return found


def caption(pairs: Pairs, index: int, uncertainty: Tensor) -> Item:
    """A caption with its own picture, then others that it is true of."""
    own, known = int(pairs.image_of[index]), pairs.relevance
    true = [own] if known is None else known.of(index).tolist()
    shown = [own, *(i for i in true if i != own)][:4]
    pictures = [p for i in shown if (p := picture_of(pairs, i))]
    matches = None if known is None else len(true)
    return Item([pairs.captions[index]], pictures, float(uncertainty[index]), matches)


def image(pairs: Pairs, index: int, uncertainty: Tensor, plausible: int = 0) -> Item:
    """An image with the captions written for it, and some others that are true of it."""
    own = (pairs.image_of == index).nonzero().flatten().tolist()
    picture, more, true = picture_of(pairs, index), list[int](), None
    if pairs.relevance is not None:
        captions = pairs.relevance.query_of[pairs.relevance.items == index].tolist()
        true, more = len(captions), [i for i in captions if i not in own][:plausible]
    texts = [pairs.captions[i] for i in [*own, *more]]
    return Item(texts, [picture] if picture else [], float(uncertainty[index]), true)


def picture_of(pairs: Pairs, index: int) -> str | None:
    """A small picture as a data address, so that a page needs no other file."""
    picture = pairs.images.picture(index)
    return None if picture is None else address(picture)


def address(picture: Image.Image, side: int = SIDE) -> str:
    """A picture as a data address; small ones as they are, large ones made small."""
    buffer = io.BytesIO()
    if min(picture.size) > side:
        scale = side / min(picture.size)
        size = (round(picture.width * scale), round(picture.height * scale))
        picture.resize(size, Image.Resampling.LANCZOS).save(buffer, "WEBP", quality=85)
    else:
        picture.save(buffer, "WEBP", lossless=True)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


# ---- a reproduction ----


@dataclass(frozen=True)
class Section:
    """One experiment on the page: its table, what became of the claims, plots as SVG, commands to
    make it again, both ends of the models' uncertainty, crops as they are cut, and remarks."""

    table: Table
    verdicts: Sequence[Verdict]
    plots: Mapping[str, str]
    commands: Sequence[str]
    galleries: Records
    examples: Records
    remarks: Sequence[str]

    @property
    def experiment(self) -> Experiment:
        return self.table.experiment


def write_sections(study: Reproduction) -> list[Section]:
    """Write ``table.md``, ``.tex`` and ``.json``, the plots and the cells of every experiment."""
    return [_section(one, study) for one in study.experiments]


def _section(one: Experiment, study: Reproduction) -> Section:
    records = study.records(one)
    found = table(one, study, records)
    folder = study.out / one.name
    galleries: Records = ()
    examples: Records = ()
    if one.display == "galleries":
        figures, galleries = _galleries(one, study)
    elif one.display == "area":
        figures = _over_area(found, records)
        examples = _examples(study) if one.name == "area" else ()
    else:
        figures = _bars(found, records) | (_training(one, study) if one.name == "coco" else {})
    remarks = [note for record in records for note in record["measures"].get("notes", [])]
    if any(key.startswith("magnified") for record in records for key in record["measures"]):
        remarks.insert(0, MAGNIFIED.format("Dashed" if one.name == "area" else "Apart"))
    plots = {name: save(figure, folder / name) for name, figure in figures.items()}
    said = verdicts(found)
    write_text(folder / "table.md", results.markdown(found))
    write_text(folder / "table.tex", results.latex(found))
    content = {
        "lines": [asdict(line) for line in found.lines],
        "tests": [asdict(test) for test in found.tests],
        "claims": [
            {"claim": v.claim.text, "state": v.state, "difference": v.difference, "why": v.why}
            for v in said
        ],
    }
    write_json(folder / "table.json", content)
    remarks = list(dict.fromkeys(remarks))
    return Section(found, said, plots, _commands(one, study), galleries, examples, remarks)


def _bars(found: Table, records: Records) -> dict[str, Axes]:
    """The first of rsum and R-Precision that was measured, run by run."""
    measured = {column.key for column in found.columns}
    key = next((key for key in ("rsum", "t2i_r_precision") if key in measured), None)
    if key is None or not any(line.runs for line in found.lines):
        return {}
    titles = {line.row.title: line.row.group for line in found.lines}
    values = {
        title: [
            float(r["measures"][key]) for r in records if r["row"] == title and key in r["measures"]
        ]
        for title in titles
    }
    title = "Mean over the runs" if len(records) > len(titles) else "One run each"
    return {"bars": bars(values, titles, title, heading(key))}


def _training(one: Experiment, study: Reproduction) -> dict[str, Axes]:
    """Curves of the first seed of every row."""
    first = {cell.row.title: cell.run for cell in study.of(one) if cell.seed == 0}
    folders = {title: run.folder for title, run in first.items() if run is not None}
    done = {title: folder for title, folder in folders.items() if (folder / LOG).exists()}
    return training_curves(done) if done else {}


MAGNIFIED = (
    "Crops of scenes keep the scale of their picture, as size is a word of its captions. {}: "
    "the same crops magnified to a whole picture, as crops of photos are; nothing in "
    "training looks like that."
)


def _over_area(found: Table, records: Records) -> dict[str, Axes]:
    """Lines over the area that a crop keeps: uncertainty, a plot for each row and side; or right
    choices, a plot for each side."""
    figures: dict[str, Axes] = {}

    def draw(name: str, title: str, what: str, keys: Mapping[str, Sequence[str]], end: str) -> None:
        """``keys``: a line's name → row, measure; lines that end so are dashed."""
        series = {n: v for n, key in keys.items() if (v := _by_threshold(records, *key))}
        if series:
            xs = sorted(next(iter(series.values())))
            drawn = {name: [values[x] for x in xs] for name, values in series.items()}
            dashed = [name for name in series if name.endswith(end)]
            across = "area threshold, % of the picture"
            figures[name] = lines(xs, drawn, title, across, what, dashed)

    rows = [line.row for line in found.lines]
    notes = {"": "", "magnified_": ", magnified"}
    if found.experiment.name == "area":
        for row, (side, word) in product(rows, {"crop": "Images", "caption": "Captions"}.items()):
            keys = {
                f"{side} {a.upper()}{note}": (row.title, f"{prefix}*_{side}_{a}_uncertainty")
                for (prefix, note), a in product(notes.items(), "ac")
                if side == "crop" or not prefix
            }
            name, title = f"{row.slug}-{word.lower()}", f"{word}: {row.title}"
            draw(name, title, "mean log det Σ", keys, "magnified")
        return figures
    sides = {"crop": "image-to-text", "caption": "text-to-image"}
    for (prefix, note), (side, word) in product(notes.items(), sides.items()):
        keys = {
            f"{row.title}, {side} {a.upper()}": (row.title, f"{prefix}*_{side}_{a}")
            for row, a in product(rows, "ac")
        }
        title = f"Right choices, {word}{note}{' crops' if note else ''}"
        draw(f"{prefix.replace('_', '-')}{word}", title, "% right", keys, "A")
    return figures


def _by_threshold(records: Records, row: str, measure: str) -> dict[float, float]:
    """Threshold in percent, the star in a measure → mean over the runs that measured it."""
    start, _, ending = measure.partition("*")
    found: dict[float, list[float]] = {}
    for record in records:
        for key, value in record["measures"].items():
            share = key.removeprefix(start).removesuffix(ending)
            if record["row"] == row and re.fullmatch(rf"{start}[\d.]+%{ending}", key):
                found.setdefault(float(share.rstrip("%")), []).append(float(value))
    return {x: sum(values) / len(values) for x, values in sorted(found.items())}


def _galleries(one: Experiment, study: Reproduction) -> tuple[dict[str, Axes], Records]:
    """Uncertainty against true ambiguity, and both ends of it, by each row's first run."""
    figures, galleries, pairs = {}, [], None
    for cell in study.of(one):
        run, row = cell.run, cell.row
        if cell.seed or run is None or not run.trained:
            continue
        pairs = of = pairs or load_data(run.recipe.data).test
        images, captions = (side.uncertainty() for side in load(run.folder).encode_pairs(of))
        title = f"{row.title}: uncertainty against true ambiguity"
        if (figure := caption_ambiguity(of, captions, title)) is not None:
            figures[f"{row.slug}-ambiguity"] = figure
        both = {
            "captions": ends(captions, lambda i: caption(of, i, captions), True),  # noqa: B023
            "images": ends(images, lambda i: image(of, i, images, 3), True),  # noqa: B023
        }
        galleries.append({"title": row.title, "note": row.note, **both})
    return figures, galleries


def _examples(study: Reproduction) -> Records:
    """How a triplet is cut, once for each of three thresholds: the whole picture with boxes, and
    what the model is shown."""
    recipes = [cell.run.recipe.data for cell in study.cells if cell.run is not None]
    if not recipes:
        return []
    folder = study.visual_genome
    try:
        pairs = triplets.crop_pairs(recipes[0], None if folder is None else Path(folder))
    except (ValueError, OSError) as error:
        warnings.warn(f"no examples of crops: {error}", stacklevel=2)
        return []
    limits, crop = (0.1, 0.3, 0.5), triplets.cut
    if recipes[0].name == "scenes":
        limits, crop = triplets.SCENES_THRESHOLDS[::2], triplets.cut_at_scale
    examples = []
    for n, limit in enumerate(limits):
        found = triplets.triplets(pairs, limit, most=n + 1)
        if len(found) > n:
            one = found[n]
            picture = pairs.images.picture(one.image)
            assert picture is not None
            boxes = {"A": one.a, "B": one.b, "C": one.c}
            crops = {k: (address(crop(picture, r.box)), r.caption) for k, r in boxes.items()}
            whole = address(_boxed(picture, {k: r.box for k, r in boxes.items()}), 256)
            examples.append({"threshold": f"{limit:.0%}", "whole": whole, "crops": crops})
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


def _commands(one: Experiment, study: Reproduction) -> list[str]:
    """What to type to make it again: all of it, then each row by itself."""
    setting = study.setting
    words = [f"gaussmatch reproduce {one.name} --data {setting.data}"]
    words += ["--fast"] * setting.fast
    words += [f"--seeds {setting.seeds}"] if setting.seeds is not None else []
    words += [f"--rows '{pattern}'" for pattern in setting.rows]
    for name in ("visual_genome", "pooled", "regions", "weights"):
        given = getattr(setting, name)
        words += [f"--{name.replace('_', '-')} {given}"] if given else []
    words += ["--checkpointing"] * setting.checkpointing
    words += [f"--imported '{row}={folder}'" for row, folder in setting.imported.items()]
    commands = [[*words, f"--out {study.out}", *typed(setting.overrides)]]
    for cell in study.of(one):
        if cell.seed == 0 and cell.run is not None:
            fields = typed(setting.fields_of(cell.row))
            recipe = f"{setting.data}/{cell.row.recipe}"
            commands.append(["gaussmatch train", recipe, *fields, f"--out runs/{cell.row.slug}"])
    return [" ".join(command) for command in commands]


def write_page(study: Reproduction, sections: Sequence[Section]) -> Path:
    """Write ``report.html`` into the folder of the reproduction."""
    trained = [run for run in study.runs if run.trained]
    logs = [record for run in trained for record in read_log(run.folder)]
    page = results.template(
        "reproduce.html.j2",
        setting=study.setting,
        sections=sections,
        runs=len(trained),
        cells=len(study.cells),
        failed=sum(bool(line.errors) for s in sections for line in s.table.lines),
        minutes=sum(record["seconds"] for record in logs if record["event"] == "epoch") / 60,
        bar=bar,
    )
    path = study.out / "report.html"
    write_text(path, page)
    return path


def bar(table: Table, line: Line, column: Column) -> float | None:
    """How full the bar behind a sum of recalls is: 0 for the lowest of the table, 1 the highest."""
    means = [m for one in table.lines if (m := one.figures[column.key].mean) is not None]
    mine = line.figures[column.key].mean
    if not column.key.endswith("rsum") or mine is None or max(means) == min(means):
        return None
    return (mine - min(means)) / (max(means) - min(means))
