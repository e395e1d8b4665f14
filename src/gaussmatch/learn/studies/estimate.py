"""What a reproduction would take: time and disk, from a few steps that are really made.

First it is checked that the data is there: runs whose data is not are listed, with the files, and
not timed. Of every class of the others (the same network on the same data), two short epochs are
trained and measured in a temporary folder; the second gives the time of a step, the files give the
disk. Features and scenes are taken as they are; photos without features yet have random ones of the
same shape. A batch that is large in memory is timed in part. Extraction and crops are counted by
the pictures that go through the image network.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from gaussmatch.checks import counted
from gaussmatch.data import scenes, source
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.data.stored import StoredFeatures
from gaussmatch.learn.evaluation.evaluate import measure_run
from gaussmatch.learn.studies.study import Reproduction, Run
from gaussmatch.learn.training.loop import read_log, train
from gaussmatch.models.encoders.backbone import Backbone
from gaussmatch.models.features import listed, load_data
from gaussmatch.models.recipe import DataRecipe, Recipe
from gaussmatch.models.run import drop_checkpoints

STEPS = 3
"""Steps of the short epochs."""
TIMED_BATCH = {"pooled": 128, "regions": 32, "pixels": 4}
"""Pairs in a step that is timed, at most; the time of a larger batch is in proportion."""
CROPS = 20_000
"""Crops of photos, at most: A and C of 2,000 triplets at five thresholds."""
WORDS = 11  # of an invented caption


@dataclass(frozen=True)
class Cost:
    """Measured: seconds of a step, of encoding a dev image with its captions, of measuring a test
    image; bytes of a run folder while it trains and when it is finished."""

    step: float
    encode: float
    measure: float
    peak: int
    kept: int


@dataclass(frozen=True)
class Size:
    """How much data there is: captions of train, images of dev and test, all photos, those of
    train."""

    captions: int
    dev: int
    test: int
    photos: int
    train: int


class WorkPart(NamedTuple):
    """A part of the work: a line about it, its seconds, bytes that stay, bytes while it runs, and
    how many runs could not be measured."""

    line: str
    seconds: float = 0.0
    kept: int = 0
    peak: int = 0
    unknown: int = 0


def estimate(study: Reproduction, jobs: int) -> str:
    """The plan in words: how many runs of which class, their time and disk. Refused at once where
    the data of every run is missing."""
    todo, runs = study.todo, study.runs
    text = [
        f"{counted(len(study.experiments), 'experiment')}, {counted(len(study.cells), 'cell')}: "
        f"{counted(len(runs), 'run')}, {len(runs) - len(todo)} of them finished"
    ]
    problems = Counter(cell.problem for cell in study.cells if cell.problem is not None)
    text += [f"cannot run: {problem} ({counted(n, 'cell')})" for problem, n in problems.items()]
    there = {data: look(data) for data in dict.fromkeys(run.recipe.data for run in todo)}
    sizes = {data: size for data, size in there.items() if isinstance(size, Size)}
    absent = Counter(p for run in todo if isinstance(p := there[run.recipe.data], str))
    if absent:
        text += [f"missing data: {problem} ({counted(n, 'run')})" for problem, n in absent.items()]
        names = dict.fromkeys(data.name for data in there if data not in sizes)
        text += [source(name).where for name in names]
        if not sizes:
            raise FileNotFoundError("\n".join(text))
        todo = [run for run in todo if run.recipe.data in sizes]
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // jobs))
    try:
        parts = [*_training(todo, sizes), *_extraction(todo, sizes, jobs)]
    finally:
        torch.set_num_threads(threads)
    seconds, unknown = sum(part.seconds for part in parts), sum(part.unknown for part in parts)
    disk = sum(part.kept for part in parts) + jobs * max((p.peak for p in parts), default=0)
    text += [part.line for part in parts]
    text.append(
        f"in all about {_time(seconds / jobs)} with {counted(jobs, 'job')}, and {_size(disk)} of "
        f"disk in {study.out}"
        + (f"; {counted(unknown, 'run')} could not be measured here" if unknown else "")
    )
    return "\n".join(text)


def _training(todo: Sequence[Run], sizes: Mapping[DataRecipe, Size]) -> Iterator[WorkPart]:
    """Training and measuring, by classes of runs that cost the same."""
    classes: dict[Recipe, list[Run]] = {}
    for run in todo:
        classes.setdefault(cost_class(run), []).append(run)
    for recipe, same in classes.items():
        size, what = sizes[same[0].recipe.data], f"  {len(same):3} × {_words(same[0])}"
        try:
            cost = measured(same[0])
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            yield WorkPart(f"{what}: not measured, {error}", unknown=len(same))
            continue
        steps = math.ceil(size.captions / recipe.training.batch_size)
        steps = min(steps, recipe.training.steps or steps)
        seconds = sum(
            (0 if run.trained else run.recipe.training.epochs)
            * (steps * cost.step + size.dev * cost.encode)
            + len(run.wants - {"crops"}) * size.test * cost.measure
            for run in same
        )
        pace = f"{1000 * cost.step:.0f} ms a step, {steps} steps an epoch"
        line = (
            f"{what}: {pace if cost.step else 'closed form'}, "
            f"{_time(seconds / len(same))} each, {_size(cost.kept)} kept"
        )
        yield WorkPart(line, seconds, len(same) * cost.kept, cost.peak)


def _extraction(
    todo: Sequence[Run], sizes: Mapping[DataRecipe, Size], jobs: int
) -> Iterator[WorkPart]:
    """What goes through an image network outside training."""
    for what, pictures, data in _pictures(todo, sizes, jobs):
        try:
            each = seconds_of_picture(data.backbone)
        except (ImportError, ValueError) as error:
            yield WorkPart(f"  {what}: {pictures:,} pictures, not measured, {error}")
            continue
        line = (
            f"  {what}: {pictures:,} pictures through {data.backbone}, {1000 * each:.0f} ms "
            f"each, {_time(pictures * each)}"
        )
        yield WorkPart(line, pictures * each)


def cost_class(run: Run) -> Recipe:
    """What decides the cost: not the seed, the title, the similarity or the number of epochs."""
    recipe = run.recipe
    own = recipe.model.similarity
    similarity = "kl" if recipe.model.probabilistic and own != "match_prob" else own
    return replace(
        recipe,
        title="",
        model=replace(recipe.model, similarity=similarity, shape="ellipsoidal"),
        training=replace(recipe.training, seed=0, epochs=1, decay_epoch=1),
    )


def look(data: DataRecipe) -> Size | str:
    """The size of a data set, or what of it is missing."""
    if data.name == "scenes":
        images = scenes.SIZES[data.size]
        return Size(5 * images["train"], images["dev"], images["test"], 0, 0)
    try:
        splits, problem = listed(data)
    except (ValueError, OSError) as error:
        return str(error)
    if problem is not None:
        return problem
    captions = sum(len(photo.captions) for photo in splits["train"])
    dev = min(len(splits["dev"]), data.dev_images or len(splits["dev"]))
    photos = sum(map(len, splits.values()))
    return Size(captions, dev, len(splits["test"]), photos, len(splits["train"]))


def _pictures(
    todo: Sequence[Run], there: Mapping[DataRecipe, Size], jobs: int
) -> Iterator[tuple[str, int, DataRecipe]]:
    """Features once; crops once in each job, and for each run with a network of its own."""
    extracted = set()
    for run in todo:
        data = run.recipe.data
        key = (data.backbone, data.features, data.view)
        given = data.name == "scenes" or data.extracted is not None or data.features == "pixels"
        if not given and key not in extracted:
            extracted.add(key)
            pictures = there[data].photos + data.crops * there[data].train
            yield f"extraction of {data.features} features", pictures, data
    crops = [run.recipe for run in todo if "crops" in run.wants]
    if crops and crops[0].data.name != "scenes":
        frozen = sum(recipe.model.backbone is None for recipe in crops)
        times = len(crops) - frozen + min(jobs, frozen)
        yield f"crops for {counted(len(crops), 'run')}, at most", CROPS * times, crops[0].data


def seconds_of_picture(backbone: str) -> float:
    """A picture through an image network with random weights, after one to warm up."""
    net = Backbone(backbone).eval()
    picture = net.transform(Image.new("RGB", (256, 256)))[None]
    with torch.inference_mode():
        net(picture)
        started = time.perf_counter()
        net(picture)
    return time.perf_counter() - started


def measured(run: Run) -> Cost:
    """Train two short epochs and measure the result.

    A run starts from nothing here, as that costs the same; only one that keeps the means of
    another run needs one, which is trained as shortly.
    """
    recipe = run.recipe
    batch = min(recipe.training.batch_size, TIMED_BATCH[recipe.data.features])
    scale = recipe.training.batch_size / batch
    short = replace(recipe.training, epochs=2, steps=None, batch_size=batch, start_from=None)
    images = math.ceil(STEPS * batch / 5)
    if recipe.data.name == "scenes" or recipe.data.extracted is not None:
        whole = load_data(recipe.data)
        splits = whole.train.first(images), whole.dev.first(50), whole.test.first(50)
        data = DataSet(whole.name, *splits)
    else:
        data = invented(shape_of(recipe), images)
    recipe = replace(recipe, data=replace(recipe.data, min_count=1), training=short)
    with tempfile.TemporaryDirectory(prefix="gaussmatch-estimate-") as temporary:
        folder, start = Path(temporary, "run"), Path(temporary, "start")
        if recipe.model.ranks_by_mean and run.start is not None:
            origin = replace(run.start.recipe, data=recipe.data, training=short)
            train(origin, start, data=data, progress_bar=False)
            recipe = replace(recipe, training=replace(short, start_from=str(start)))
        model = train(recipe, folder, data=data, progress_bar=False)
        step = _step_seconds(read_log(folder))
        peak = _bytes(folder)
        drop_checkpoints(folder)
        started = time.perf_counter()
        model.encode_pairs(data.dev)
        encoded = time.perf_counter()
        measure_run(folder, "test", data)
        measuring = time.perf_counter() - encoded
        return Cost(
            scale * step,
            (encoded - started) / len(data.dev.images),
            measuring / len(data.test.images),
            peak,
            _bytes(folder),
        )


def _step_seconds(log: Sequence[dict[str, Any]]) -> float:
    """A step of the last epoch, or of a method that is fitted; 0 for one in closed form."""
    last = [record for record in log if record["event"] in ("epoch", "fit")][-1]
    if last["event"] == "epoch":
        return float(last["seconds"]) / STEPS
    return float(last["cpu_seconds"]) / last["step"] if last["step"] else 0.0


def shape_of(recipe: Recipe) -> tuple[int, ...]:
    """What an image of a recipe is to its encoder."""
    if recipe.data.features == "pixels":
        return (3, recipe.data.crop, recipe.data.crop)
    width = Backbone(recipe.data.backbone).width
    return (width,) if recipe.data.features == "pooled" else (36, width)


def invented(shape: tuple[int, ...], train: int) -> DataSet:
    """Random features and words in the shape of a data set."""
    dice = np.random.default_rng(0)
    splits = []
    for name, n in (("train", train), ("dev", 32), ("test", 32)):
        words = dice.permutation(5 * n * WORDS).reshape(-1, WORDS)
        captions = [" ".join(f"w{word}" for word in row) for row in words]
        images = StoredFeatures(dice.random((n, *shape), dtype=np.float32), range(n))
        splits.append(Pairs(name, images, captions, torch.arange(5 * n) // 5))
    return DataSet("invented", *splits)


def _words(run: Run) -> str:
    model = run.recipe.model
    family = "probabilistic" if model.probabilistic else "point"
    if model.posthoc.method is not None:
        family = f"points + {model.posthoc.method}"
    elif run.start is not None:
        family = f"ft {family}"
    return f"{model.system} {family}, D = {model.dim}, {run.recipe.data.features}"


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _time(seconds: float) -> str:
    """
    >>> _time(30), _time(600), _time(36000)
    ('30 s', '10 min', '10.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    """
    >>> _size(3_000_000), _size(2_500_000_000)
    ('3 MB', '2.5 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
