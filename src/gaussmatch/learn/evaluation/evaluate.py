"""Everything that can be measured of a run on a split."""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gaussmatch import __version__
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import bootstrap, paired_test
from gaussmatch.core.similarities import Similarity, similarity
from gaussmatch.data import DataSet
from gaussmatch.data.pairs import Pairs
from gaussmatch.files import sha256, write_json, write_text
from gaussmatch.learn.evaluation import retrieval
from gaussmatch.learn.evaluation.retrieval import Each, Truth
from gaussmatch.learn.evaluation.scores import best_scores, blocks_of
from gaussmatch.learn.evaluation.tables import latex, markdown
from gaussmatch.learn.evaluation.triplets import selection
from gaussmatch.models.features import load_data
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import Recipe
from gaussmatch.models.run import is_shipped, load, model_files, read_recipe


@dataclass(frozen=True)
class Evaluation:
    """The measures of a model on a split, and the values that they are means of."""

    measures: dict[str, Any]
    each: Each


def evaluate_run(run: Path, split: str = "test", data: DataSet | None = None) -> dict[str, Any]:
    """Measure the best model of a run; write ``evaluation-{split}.json``, ``.md`` and ``.tex``."""
    return measure_run(run, split, data).measures


def measure_run(
    run: Path,
    split: str = "test",
    data: DataSet | None = None,
    overrides: Mapping[str, Any] = {},
    by: str | None = None,
    stem: str | None = None,
    out: Path | None = None,
) -> Evaluation:
    """As ``evaluate_run``, with the values of each query.

    Args:
        overrides: fields of the recipe's data, as ``{"data.seed": 1}``; they become part of the
            file names, so that the results are not mistaken for the run's own.
        by: another similarity than the model's own, such as cosine for the distance of the means;
            it becomes part of the file names too.
        stem: the name of the files, instead of one made from these.
        out: where they are written; by default the run's folder, unless it is in the package.
    """
    model = load(run)
    s = similarity_of(model, by)
    given = read_recipe(run, overrides).data
    data = data if data is not None else load_data(given)
    found = measure(model, data, split, s)
    recipe = replace(model.recipe, data=given)
    made = provenance(recipe, data.split(split), run / model_files(run)[-1])
    found.measures["provenance"] = {**made, "similarity": s.name}
    title = (model.recipe.title or run.name) + (f", by {s.name}" if by else "")
    target = (out or run) / (stem or file_stem(split, overrides, by))
    if not is_shipped(target.parent):
        write_text(Path(f"{target}.md"), markdown(title, found.measures))
        write_text(Path(f"{target}.tex"), latex(title, found.measures))
        write_json(Path(f"{target}.json"), found.measures)  # last: it means "done"
    return found


def provenance(recipe: Recipe, pairs: Pairs, weights: Path | None = None) -> dict[str, Any]:
    """What is needed to identify or reproduce what was measured."""
    known = pairs.relevance
    return {
        "recipe": json.loads(json.dumps(asdict(recipe))),  # as it will be read again
        "weights_sha256": None if weights is None else sha256(weights),
        "data": {
            "name": pairs.name,
            "images": len(pairs.images),
            "captions": len(pairs.captions),
            "true_pairs": None if known is None else len(known.items),
            "images_with_classes": None
            if pairs.classes is None
            else int(pairs.classes.any(1).sum()),
            "regions": None if pairs.regions is None else sum(len(r) for r in pairs.regions),
        },
        "versions": {
            "gaussmatch": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def file_stem(split: str, overrides: Mapping[str, Any] = {}, by: str | None = None) -> str:
    """The name of what is written, without its ending.

    >>> file_stem("test"), file_stem("test", {"data.seed": 1}, by="cosine")
    ('evaluation-test', 'evaluation-test-data.seed-1-similarity-cosine')
    """
    given = {**overrides, **({"similarity": by} if by else {})}
    words = "-".join(f"{name}-{value}" for name, value in given.items())
    return "-".join(filter(None, ["evaluation", split, re.sub(r"[^\w.-]", "_", words)]))


def similarity_of(model: Model, name: str | None = None) -> Similarity:
    """The model's own similarity, or another by name if that needs no training."""
    own = model.matcher.similarity
    if name is None or name == own.name:
        return own
    other = similarity(name)
    if isinstance(other, nn.Module):
        raise ValueError(
            f"{name} has weights of its own, which this model, trained with {own.name}, lacks"
        )
    return other


def evaluate(model: Model, data: DataSet, split: str = "test") -> dict[str, Any]:
    """All measures that the data and the model allow."""
    return measure(model, data, split).measures


def measure(
    model: Model, data: DataSet, split: str = "test", s: Similarity | None = None
) -> Evaluation:
    """Retrieval always; R-Precision and mAP@R where true matches are known, and on ECCV Caption;
    PMRP where classes are; five folds (1K) of a large split; selective answering; ρ where there are
    variances too; binary selection where there are regions. What the run's calibration says is
    measured by ``trust.judged``."""
    pairs = data.split(split)
    images, captions = model.encode_pairs(pairs)
    s, truth = s or model.matcher.similarity, Truth.of(pairs)
    measures: dict[str, Any] = {
        "data": pairs.name,
        "images": len(images),
        "captions": len(captions),
    }
    found, each = retrieval.measures_of(s, images, captions, truth)
    measures |= found | retrieval.eccv(s, images, captions, pairs)
    notes = list(data.notes)
    if len(images) >= retrieval.FOLDED_FROM:
        measures |= retrieval.folded(s, images, captions, truth)
        if len(images) != retrieval.FOLDS * 1000:
            size = len(images) // retrieval.FOLDS
            notes.append(f"1K: means over {retrieval.FOLDS} folds of about {size} images")
    if notes:
        measures["notes"] = notes
    measures |= _selective(s, images, captions, each)
    if pairs.relevance is not None and not captions.is_point:
        measures |= retrieval.ambiguity(images, captions, pairs.relevance)
    if pairs.regions is not None and pairs.images.picture(0) is not None:
        measures["selection"] = selection(model, pairs, s=s)
    measures["intervals"] = _intervals(each)
    return Evaluation(measures, each)


def against(
    ours: Evaluation, theirs: Evaluation, same: tuple[Pairs, Pairs]
) -> dict[str, dict[str, float]]:
    """For each measure that both have: ours, theirs, ours − theirs, its interval and p."""
    a, b = same
    if list(a.captions) != list(b.captions) or a.image_of.tolist() != b.image_of.tolist():
        raise ValueError(
            f"{a.name} and {b.name} do not hold the same queries; measure both on the same data"
        )
    return {
        name: paired(values, theirs.each[name])
        for name, values in ours.each.items()
        if name in theirs.each and not bool((values + theirs.each[name]).isnan().all())
    }


def paired(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """A measure of both on the same queries: means, ours − theirs, its 95 % interval and p."""
    means = {"ours": float(ours.nanmean()), "theirs": float(theirs.nanmean())}
    found = paired_test(theirs, ours)
    return means | {"difference": found.mean, "low": found.low, "high": found.high, "p": found.p}


def _selective(s: Similarity, images: Gaussian, captions: Gaussian, each: Each) -> dict[str, Any]:
    """What is gained by answering the surest queries only: by variance, by the best score."""
    best = dict(zip(("i2t", "t2i"), best_scores(blocks_of(s, images, captions)), strict=True))
    measures: dict[str, Any] = {}
    for way, queries in (("i2t", images), ("t2i", captions)):
        correct = each[f"{way}_r1"] / 100
        if not queries.is_point:
            measures |= retrieval.selective(way, correct, queries.uncertainty().double())
        measures |= retrieval.selective(way, correct, -best[way], "score_")
    return measures


def _intervals(each: Each) -> Mapping[str, list[float]]:
    """95 % bootstrap intervals over queries."""
    known = {name: v for name, v in each.items() if not math.isnan(float(v.nanmean()))}
    intervals = {name: bootstrap(values) for name, values in known.items()}
    return {name: [i.low, i.high] for name, i in intervals.items()}
