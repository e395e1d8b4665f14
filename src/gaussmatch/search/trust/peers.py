"""One row of the table of peers: how a run ranks, what its uncertainty is worth, and what it costs.

Every figure goes by the run's own uncertainty, log det Σ; a point model has none, and its cells
stay empty. Costs are CPU seconds of one thread, so that they do not depend on what else is running.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core import metrics
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics.conformal import RiskControl
from gaussmatch.core.similarities import Similarity
from gaussmatch.data import DataSet
from gaussmatch.data.pairs import Pairs
from gaussmatch.files import atomic, cache_root
from gaussmatch.learn.evaluation.evaluate import Evaluation, provenance
from gaussmatch.learn.evaluation.retrieval import Truth, evenly, measures_of, selective
from gaussmatch.learn.evaluation.scores import best_scores, blocks_of, query_scores
from gaussmatch.models.features import prepared
from gaussmatch.models.model import Model
from gaussmatch.models.run import LOG, load, model_files
from gaussmatch.search.trust.probe import (
    other_domains,
    read_chains,
    read_fitting,
    read_specificity,
)

IMAGES = 1000
"""Test images that everything is measured on, with their captions, at most."""
ASKED = 2000
"""Captions with people's counts, at most."""
LEVEL, GROUPS = 0.9, 3
"""Of the guaranteed sets: what they hold, and in how many groups by uncertainty it is learned."""


def measure(folder: Path, data: DataSet, *, judgments: Mapping[str, str] = {}) -> Evaluation:
    """All columns of the table for one run.

    Args:
        judgments: ``fitting``, ``chains`` and ``specificity`` → file, see ``trust.probe``.
    """
    model, pairs = load(folder), data.test
    s, few = model.matcher.similarity, pairs.first(IMAGES)
    images, captions = model.encode_pairs(few)
    chosen = (pairs.image_of < len(images)).nonzero().flatten()
    truth = Truth.of(pairs).part(torch.arange(len(images)), chosen)
    found: dict[str, Any] = {"data": pairs.name, "images": len(images), "captions": len(captions)}
    ranking, each = measures_of(s, images, captions, truth)
    best = dict(zip(("i2t", "t2i"), best_scores(blocks_of(s, images, captions)), strict=True))
    for way, queries in (("i2t", images), ("t2i", captions)):
        right = each[f"{way}_r1"] / 100
        if not queries.is_point:
            ranking |= selective(way, right, queries.uncertainty().double())
        ranking |= selective(way, right, -best[way], "score_")
    found |= {name: value for name, value in ranking.items() if isinstance(value, float)}
    found |= sets(s, model.encode_pairs(data.dev.first(IMAGES)), data.dev, (images, captions), few)
    if not captions.is_point:
        found |= judged_texts(model, captions, judgments)
        if "specificity" in judgments:
            found |= judged_photos(model, Path(judgments["specificity"]))
    found |= costs(model, folder, s, images, few)
    found["provenance"] = provenance(model.recipe, pairs, folder / model_files(folder)[-1])
    return Evaluation(found, {**each, "image_of": few.image_of})


def sets(
    s: Similarity,
    held_out: tuple[Gaussian, Gaussian],
    dev: Pairs,
    items: tuple[Gaussian, Gaussian],
    test: Pairs,
) -> dict[str, float]:
    """Sets that hold a caption's own image with a probability of ``LEVEL``: all images that score
    within a gap of the best one. The gap is learned on validation, apart for thirds of captions by
    uncertainty; of as many images as test has. Gives the mean size, and what they hold."""
    size = min(len(held_out[0]), len(items[0]))
    gaps, unsure, sizes = [], [], []
    for (images, captions), pairs in ((held_out, dev), (items, test)):
        image_of = pairs.image_of[: len(captions)]
        asked = (image_of < size).nonzero().flatten()
        asked = asked[evenly(len(asked), 2 * IMAGES)]
        scores = query_scores(s, captions[asked], images[:size], "images").double()
        below = scores - scores.amax(1, keepdim=True)
        gaps.append(below.gather(1, image_of[asked][:, None])[:, 0].numpy())
        unsure.append(
            np.zeros(len(asked)) if captions.is_point else captions[asked].uncertainty().numpy()
        )
        sizes.append(below)
    apart = float(np.ptp(unsure[0])) > 0
    bounds = np.quantile(unsure[0], np.arange(1, GROUPS) / GROUPS) if apart else np.empty(0)
    known, asked_in = (np.searchsorted(bounds, u, "right") for u in unsure)
    least = np.array(
        [
            RiskControl.fit([gaps[0][[q]] for q in np.flatnonzero(known == g)]).threshold(LEVEL)
            for g in range(len(bounds) + 1)
        ]
    )[asked_in]
    inside = sizes[1].numpy() >= least[:, None]
    return {
        "set_size": float(inside.sum(1).mean()),
        "set_holds": float((gaps[1] >= least).mean()),
    }


def judged_texts(model: Model, captions: Gaussian, judgments: Mapping[str, str]) -> dict[str, Any]:
    """The uncertainty of texts with people's counts, along chains, and of other domains."""
    found: dict[str, float] = {}
    if "fitting" in judgments:
        texts, fits = read_fitting(Path(judgments["fitting"]))
        some = evenly(len(texts), ASKED)
        unsure = _unsure(model, [texts[i] for i in some.tolist()])
        found["people_rho"] = metrics.spearman(unsure, fits[some].double().log())
    if "chains" in judgments:
        chains = read_chains(Path(judgments["chains"]))
        levels = _unsure(model, [text for chain in chains for text in chain])
        levels = levels.reshape(len(chains), -1)
        found["chain_steps"] = float((levels[:, 1:] < levels[:, :-1]).double().mean())
    strange = _unsure(model, other_domains(model, "test"))
    found["ood_auroc"] = metrics.auroc(strange, captions.uncertainty().double())
    return {name: value for name, value in found.items() if not math.isnan(value)}


def judged_photos(model: Model, path: Path) -> dict[str, Any]:
    """Spearman's ρ of the uncertainty of photos with how little alike people describe them."""
    files, target = read_specificity(path, model)["specificity"]
    g = model.encode_images(_features(model, path, files))
    rho = math.nan if g.is_point else metrics.spearman(g.uncertainty().double(), target)
    return {} if math.isnan(rho) else {"specificity_rho": rho}


def _unsure(model: Model, texts: Sequence[str]) -> Tensor:
    rows = prepared(texts, model.matcher.text_encoder)
    return model.encode_rows(rows).uncertainty().double()


def _features(model: Model, path: Path, files: Sequence[Path]) -> np.ndarray:
    """What the image network makes of judged photos, once for all runs on it."""
    data, adapter = model.recipe.data, model.recipe.model.adapter
    about = [str(path.resolve()), path.stat().st_mtime_ns, data.backbone, data.weights]
    about += [data.features, data.view, adapter.image_encoder, adapter.image_sha256]
    name = hashlib.sha256(json.dumps(about, default=str).encode()).hexdigest()[:24]
    kept = cache_root() / "peers" / f"{name}.npy"
    if not kept.is_file():
        features = np.concatenate(
            [model.featurize(files[start : start + 64]) for start in range(0, len(files), 64)]
        )
        with atomic(kept) as temporary, open(temporary, "wb") as file:
            np.save(file, features)
    stored: np.ndarray = np.load(kept)
    return stored


def costs(
    model: Model, folder: Path, s: Similarity, images: Gaussian, pairs: Pairs
) -> dict[str, float]:
    """CPU milliseconds of a training step, bytes of a stored item, and captions that a CPU second
    embeds by the heads and scores with all images; features are ready."""
    log = [json.loads(line) for line in (folder / LOG).read_text().splitlines()]
    made = [record for record in log if record["event"] in ("epoch", "fit")]
    seconds, steps = sum(r["cpu_seconds"] for r in made), made[-1]["step"]
    width = images.dim + (0 if images.log_var is None else images.log_var.shape[-1])
    rows = prepared(pairs.captions, model.matcher.text_encoder) if pairs.texts is None else (
        pairs.texts
    )  # fmt: skip
    some = [rows[i] for i in range(min(1000, len(rows)))]
    started = time.process_time()
    query_scores(s, model.encode_rows(some), images, "images").topk(min(10, len(images)))
    spent = max(1e-4, time.process_time() - started)
    found = {"item_bytes": 4.0 * width, "queries_per_s": len(some) / spent}
    return found | ({"step_ms": 1000 * seconds / steps} if steps else {"fit_seconds": seconds})
