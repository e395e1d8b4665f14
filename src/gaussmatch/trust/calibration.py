"""What scores and uncertainties mean: percentiles of training items, and match probabilities."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from gaussmatch.data import load_data
from gaussmatch.data.batches import read_images
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.files import read_json, write_json
from gaussmatch.gaussian import Gaussian
from gaussmatch.metrics import Relevance, ResultProbability
from gaussmatch.model import Model
from gaussmatch.similarities import Similarity

Gallery = Literal["images", "captions"]
GALLERIES: tuple[Gallery, ...] = get_args(Gallery)
QUANTILES = 1001
MOST = 20_000
"""Training items of each kind that percentiles are taken from."""
TOP = 10
"""Results of each validation query that the match probability is fitted on."""


@dataclass(frozen=True)
class Calibration:
    """Learned once from a run's own data, kept in the index.

    Args:
        quantiles: kind → the uncertainties of training items at 0 %, 0.1 %, …, 100 %.
        probability: gallery → p(match | score, uncertainty of the query, uncertainty of the item).
            Fitted on the ten best results of each validation query, where it is known which of
            them match: so it is the chance that *this result* is a match, not that the first one
            is. It holds for galleries like the validation split; among a hundred times as many
            items more strangers come as close.
        about: what it was learned from, for people.
    """

    quantiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    probability: Mapping[str, ResultProbability] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def percentile(self, kind: Gallery, uncertainty: np.ndarray) -> np.ndarray | None:
        """The share (0–100) of training items that are surer; ``None`` where it is not known."""
        if kind not in self.quantiles:
            return None
        values = self._values[kind]
        share = np.linspace(0, 100, len(values))
        low = np.searchsorted(values, uncertainty, "left")
        inside = np.interp(uncertainty, values, share)
        return np.where(low == 0, 0.0, np.where(low == len(values), 100.0, inside))

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        return {kind: np.asarray(known) for kind, known in self.quantiles.items()}

    def match_probability(
        self,
        gallery: Gallery,
        scores: np.ndarray,
        query: np.ndarray | None,
        item: np.ndarray | None,
    ) -> np.ndarray | None:
        """p(match) of results in a gallery, for queries of the other kind.

        Args:
            scores: (n, k) of k results of n queries.
            query, item: the uncertainties, (n) and (n, k); ``None`` for a point model.
        """
        fitted = self.probability.get(gallery)
        if fitted is None:
            return None
        told = [torch.from_numpy(x) for x in (query, item) if x is not None]
        x = _features(torch.from_numpy(scores), *told)
        if x.shape[-1] != len(fitted.weights):
            return None  # fitted with uncertainties and asked without, or the other way
        return fitted(x).reshape(scores.shape).numpy()

    def save(self, path: Path) -> None:
        write_json(path, asdict(self))

    @staticmethod
    def load(path: Path) -> Calibration:
        content = read_json(path)
        try:
            return Calibration(
                {kind: tuple(values) for kind, values in content["quantiles"].items()},
                {g: _fit_from(fit) for g, fit in content["probability"].items()},
                content["about"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}: not a calibration ({error})") from error


def calibrate_run(model: Model) -> Calibration:
    """``calibrate`` with the data that a model was trained on; if that is not there any more, a
    warning and no percentiles and probabilities."""
    try:
        data = load_data(model.recipe.data)
    except (OSError, ValueError) as error:
        warnings.warn(
            "no percentiles and match probabilities, as the model's own data cannot be read: "
            f"{error}",
            stacklevel=2,
        )
        return Calibration()
    return calibrate(model, data)


def calibrate(model: Model, data: DataSet) -> Calibration:
    """Percentiles from the training split, match probabilities from validation."""
    images, captions = model.encode_pairs(data.dev)
    truth = data.dev.relevance
    about: dict[str, Any] = {
        "probability_from": data.dev.name,
        "matches_are": "annotated pairs" if truth is None else "true pairs",
    }
    seen: dict[str, Gaussian] = {}
    if not images.is_point:
        seen = _sample(data.train, model)
        about |= {"percentiles_from": data.train.name}
    return calibrate_gaussians(
        model.matcher.similarity,
        images,
        captions,
        data.dev.pairs() if truth is None else truth,
        seen=seen,
        about=about,
    )


def calibrate_gaussians(
    similarity: Similarity,
    images: Gaussian,
    captions: Gaussian,
    truth: Relevance,
    *,
    seen: Mapping[str, Gaussian] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Calibration:
    """From Gaussians alone: for an encoder of your own (examples/own_search.py).

    Args:
        images, captions: held out from training.
        truth: which images match each caption.
        seen: ``"images"`` and ``"captions"`` as the model has seen them, for percentiles; those
            held out if not given.
        about: what it was learned from, for people.
    """
    if (truth.queries, truth.gallery) != (len(captions), len(images)):
        raise ValueError(
            f"truth relates {truth.queries} captions to {truth.gallery} images, but there are "
            f"{len(captions)} and {len(images)}"
        )
    quantiles: dict[str, tuple[float, ...]] = {}
    told = {**(about or {}), "results_of_each_query": TOP}
    if not images.is_point:
        seen = seen or {"images": images, "captions": captions}
        quantiles = {kind: _quantiles(seen[kind]) for kind in GALLERIES}
        told["items"] = {kind: len(g) for kind, g in seen.items()}
    return Calibration(quantiles, _probabilities(similarity, images, captions, truth), told)


@torch.no_grad()
def _probabilities(
    s: Similarity, images: Gaussian, captions: Gaussian, truth: Relevance
) -> dict[str, ResultProbability]:
    found = {}
    for gallery, queries, relevance in (
        ("images", captions, truth),
        ("captions", images, truth.transpose()),
    ):
        items = images if gallery == "images" else captions
        by = s.for_query("captions" if gallery == "images" else "images")
        rows, scores = [], []
        for start in range(0, len(queries), 512):
            some = queries[start : start + 512]
            block = by.matrix(items, some).T if gallery == "images" else by.matrix(some, items)
            values, indices = block.topk(min(TOP, len(items)))
            rows.append(indices)
            scores.append(values)
        best_rows, best = torch.cat(rows), torch.cat(scores)
        unsure = [] if items.is_point else [queries.uncertainty(), items.uncertainty()[best_rows]]
        right = _right(relevance, best_rows)
        found[gallery] = ResultProbability.fit(_features(best, *unsure), right.flatten())
    return found


def _features(
    scores: torch.Tensor, query: torch.Tensor | None = None, item: torch.Tensor | None = None
) -> torch.Tensor:
    """What the probability goes by: (n · k, 3), or (n · k, 1) without uncertainties."""
    told = [scores]
    if query is not None and item is not None:
        told += [query[:, None].expand_as(scores), item]
    return torch.stack([t.double().flatten() for t in told], -1)


def _fit_from(content: Mapping[str, Any]) -> ResultProbability:
    weights, centre, scale = (tuple(content[name]) for name in ("weights", "centre", "scale"))
    return ResultProbability(weights, content["bias"], centre, scale)


def _right(relevance: Relevance, rows: torch.Tensor) -> torch.Tensor:
    """1 where a result is a match."""
    key = relevance.query_of * relevance.gallery + relevance.items
    asked = torch.arange(len(rows))[:, None] * relevance.gallery + rows
    return torch.isin(asked, key).double()


def _sample(pairs: Pairs, model: Model) -> dict[str, Gaussian]:
    """Training items of each kind, evenly spread."""
    chosen = {
        "images": _spread(len(pairs.images)),
        "captions": _spread(len(pairs.captions)),
    }
    parts = [
        model.encode_images(read_images(pairs, chosen["images"][k : k + 256].tolist()))
        for k in range(0, len(chosen["images"]), 256)
    ]
    texts = [pairs.captions[int(i)] for i in chosen["captions"]]
    return {
        "images": Gaussian.cat(parts),
        "captions": model.encode_texts(texts, allow_unknown=True),
    }


def _spread(total: int) -> np.ndarray:
    return np.unique(np.linspace(0, total - 1, min(total, MOST)).astype(np.int64))


def _quantiles(g: Gaussian) -> tuple[float, ...]:
    values = g.uncertainty().double().numpy()
    return tuple(float(v) for v in np.quantile(values, np.linspace(0, 1, QUANTILES)))
