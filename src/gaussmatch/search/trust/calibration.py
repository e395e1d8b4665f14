"""What numbers mean for one model: how vague, how familiar, a match or not, and with what
guarantee. ``learn`` makes one from training and validation data; it is kept with the run."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.metrics import Guarantee, ResultProbability, evidence, log_perplexity
from gaussmatch.core.similarities import Similarity
from gaussmatch.core.similarities.base import SIDES, Side, other_side
from gaussmatch.files import read_json, write_json
from gaussmatch.models.encoders.base import Reading
from gaussmatch.search.trust.familiarity import CLEARLY, Familiarity

Gallery = Side
GALLERIES = SIDES

TOP = 10
"""Results of a query that its match probabilities are computed from."""
ANNOTATED_PAIRS, TRUE_PAIRS = "annotated pairs", "true pairs"
"""What a calibration takes for matches."""


@dataclass(frozen=True)
class Way:
    """What scores mean when a gallery is searched with queries of the other side.

    Args:
        temperature, weight: of the evidence of a result, see ``metrics.evidence``.
        probability: p(match) of a result from its evidence, that of its rivals, the size of the
            gallery, the strangeness of the query and both uncertainties (``match_features``).
        nothing: the best evidence of validation queries whose matches were removed, ascending.
        size: items in the validation gallery, and ``growth``: by how much the best evidence without
            a match rises when ln of the size does by one.
        guarantee: conformal thresholds on evidence.
    """

    temperature: float
    weight: float
    probability: ResultProbability
    nothing: tuple[float, ...]
    size: int
    growth: float
    guarantee: Guarantee

    def absent(self, best: np.ndarray, size: int) -> np.ndarray:
        """p-value of "nothing matches" from the best evidence in a gallery of so many items."""
        at_home = best - self.growth * np.log(size / self.size)
        below = np.searchsorted(self._nothing, at_home, "left")
        return np.asarray((1 + len(self.nothing) - below) / (1 + len(self.nothing)))

    @cached_property
    def _nothing(self) -> np.ndarray:
        return np.asarray(self.nothing)


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a calibration says about n queries and their k results; ``None`` where not known.

    Args:
        uncertainty: (n), log det Σ of the queries.
        percentile: (n), the share (0–100) of training items that are surer than the query; texts
            are compared with whole captions and shortened ones in equal parts.
        familiar: (n), p-value: the share of validation queries at least as far from training.
        evidence: (n, k), see ``metrics.evidence``.
        probability: (n, k), that a result is a match, never increasing; NaN for an unfamiliar
            query, about which the model cannot know.
        absent: (n), p-value of "nothing in this gallery matches": the share of such queries whose
            best result looks as good. Small where there is a match.
        p_value: (n, k), conformal p-value of "this is the match", never increasing; NaN for an
            unfamiliar query. See ``metrics.Guarantee``.
    """

    uncertainty: np.ndarray | None = None
    percentile: np.ndarray | None = None
    familiar: np.ndarray | None = None
    evidence: np.ndarray | None = None
    probability: np.ndarray | None = None
    absent: np.ndarray | None = None
    p_value: np.ndarray | None = None


@dataclass(frozen=True)
class Calibration:
    """Learned once from a run's own data, kept with the run and with every index of it.

    Args:
        quantiles: side → the uncertainties of training items at 0 %, 0.1 %, …, 100 %.
        reference: side → some training items.
        familiarity: side → how far held-out items lie from the reference.
        ways: gallery → what scores mean in it.
        gauges: side → whether ``probe`` found that uncertainty means ambiguity. One that it did
            not judge is left out, and shown no more than one that failed.
        about: what it was learned from and how good it is, for people.
        words: of the words that a sub-word encoder reads in parts, those of training captions.
    """

    quantiles: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    reference: Mapping[str, Gaussian] = field(default_factory=dict)
    familiarity: Mapping[str, Familiarity] = field(default_factory=dict)
    ways: Mapping[str, Way] = field(default_factory=dict)
    gauges: Mapping[str, bool] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    words: frozenset[str] = frozenset()

    def unknown_words(self, reading: Reading) -> list[str]:
        """The words of a text that the model does not know. A sub-word encoder can read any, also
        "qwer"; one that it has no token for is known if training captions hold it."""
        unseen = [word for word in reading.cut if word.lower() not in self.words]
        return [*reading.unknown, *unseen] if self.words else reading.unknown

    def percentile(
        self, side: Gallery, uncertainty: np.ndarray, familiar: np.ndarray | None = None
    ) -> np.ndarray | None:
        """The share (0–100) of training items that are surer; ``None`` where it is not known or
        where no probe has found that it means something. NaN where the model does not know such
        items (``familiar``, their p-values): the unknown is not vague."""
        if side not in self.quantiles or not self.gauges.get(side, False):
            return None
        values = self._values[side]
        share = np.linspace(0, 100, len(values))
        low = np.searchsorted(values, uncertainty, "left")
        first = np.minimum(low, len(values) - 1)  # of those that are equal: ties are not surer
        tied = values[first] == uncertainty
        inside = np.where(tied, share[first], np.interp(uncertainty, values, share))
        found = np.where(low == 0, 0.0, np.where(low == len(values), 100.0, inside))
        return found if familiar is None else np.where(familiar < CLEARLY, np.nan, found)

    @property
    def exhaustive(self) -> bool:
        """Whether it was learned from every true match, and not from annotated pairs only."""
        return self.about.get("matches_are") == TRUE_PAIRS

    @cached_property
    def _values(self) -> dict[str, np.ndarray]:
        return {side: np.asarray(known) for side, known in self.quantiles.items()}

    def judge(
        self,
        similarity: Similarity,
        queries: Gaussian | ArrayGaussian,
        side: Gallery,
        gallery: Gallery,
        scores: np.ndarray,
        uncertainty: np.ndarray | None,
        size: int,
    ) -> Judgement:
        """Everything that is known about queries and their results.

        Args:
            side: what the queries are.
            scores: (n, k), best first; k should be at least ``TOP`` where the gallery has as many,
                as fewer rivals make a result look better than it is.
            uncertainty: (n, k), of the results; ``None`` for a point model.
            size: items in the gallery.
        """
        own = queries.numpy() if isinstance(queries, Gaussian) else queries
        unsure = None if own.is_point else own.uncertainty().astype(np.float64)
        near = self.familiarity.get(side)
        far = None if near is None else near.distance(own.gaussian())
        familiar = None if near is None or far is None else near.p_value(far)
        share = None if unsure is None else self.percentile(side, unsure, familiar)
        way = self.ways.get(gallery)
        if way is None or side == gallery or not scores.shape[1]:
            return Judgement(unsure, share, familiar)
        if far is None:
            far = torch.zeros(len(queries), dtype=torch.float64)
        with torch.no_grad():  # a similarity may have learned parameters
            reference = self._reference_scores(similarity, gallery)(own.gaussian())
        found = evidence(torch.from_numpy(scores), reference, way.temperature, way.weight)
        spread = log_perplexity(reference, way.temperature)
        sure = [] if unsure is None or uncertainty is None else [unsure, uncertainty]
        features = match_features(found, size, far, spread, *map(torch.from_numpy, sure))
        learned = len(way.probability.weights)
        if features.shape[-1] == learned + 1:  # of an earlier version: without the last one
            features = features[..., :-1]
        if features.shape[-1] != learned:
            return Judgement(unsure, share, familiar, found.numpy())
        chance = never_rising(way.probability, features)
        absent = way.absent(found[:, 0].numpy(), size)
        group = np.zeros(len(queries)) if unsure is None else unsure
        probability = chance.numpy()
        fits = way.guarantee.p_value(found.numpy(), group)
        if familiar is not None:
            probability[familiar < CLEARLY] = fits[familiar < CLEARLY] = np.nan
        return Judgement(unsure, share, familiar, found.numpy(), probability, absent, fits)

    @torch.no_grad()
    def needed_score(
        self,
        similarity: Similarity,
        queries: Gaussian,
        gallery: Gallery,
        coverage: float,
        missed: float = 0.0,
    ) -> np.ndarray:
        """(n), the least score of a result in the set that holds the match with a probability of
        at least ``coverage``, see ``Guarantee``."""
        way = self.ways.get(gallery)
        if way is None:
            raise ValueError(
                f"no guarantee: nothing is known about scores among {gallery}; "
                "run 'gaussmatch calibrate RUN' and make the index again"
            )
        own = np.zeros(len(queries)) if queries.is_point else queries.uncertainty().double().numpy()
        needed = way.guarantee.threshold(own, coverage, missed)
        reference = self._reference_scores(similarity, gallery)(queries)
        zero = evidence(reference[:, :1] * 0, reference, way.temperature, way.weight)[:, 0]
        return np.asarray((needed - zero.numpy()) * way.temperature)

    def _reference_scores(
        self, similarity: Similarity, gallery: Gallery
    ) -> Callable[[Gaussian], Tensor]:
        """Queries → their scores with the reference of a gallery, (n, r), which is lifted once."""
        held = self._lifted.get(gallery)
        if held is None or held[0] is not similarity:
            way = similarity.for_query(other_side(gallery))
            held = similarity, way.against(self.reference[gallery], gallery)
            self._lifted[gallery] = held
        return held[1]

    @cached_property
    def _lifted(self) -> dict[Gallery, tuple[Similarity, Callable[[Gaussian], Tensor]]]:
        return {}

    def save(self, path: Path) -> None:
        """One JSON file; the reference is kept in float16."""
        write_json(
            path,
            {
                "quantiles": self.quantiles,
                "reference": {
                    side: [_packed(t.half()) for t in (g.mean, g.log_var) if t is not None]
                    for side, g in self.reference.items()
                },
                "familiarity": {
                    side: {name: _packed(t) for name, t in f.tensors().items()}
                    for side, f in self.familiarity.items()
                },
                "ways": {gallery: asdict(way) for gallery, way in self.ways.items()},
                "gauges": self.gauges,
                "about": self.about,
                "words": sorted(self.words),
            },
        )

    @staticmethod
    def load(path: Path) -> Calibration:
        """Read what ``save`` wrote; of a file of version 0.1 only the percentiles."""
        content = read_json(path)
        try:
            return Calibration(
                {side: tuple(values) for side, values in content["quantiles"].items()},
                {
                    side: _gaussian([_unpacked(t).float() for t in tensors], side)
                    for side, tensors in content.get("reference", {}).items()
                },
                {
                    side: Familiarity.from_tensors({n: _unpacked(t) for n, t in tensors.items()})
                    for side, tensors in content.get("familiarity", {}).items()
                },
                {gallery: _way_from(way) for gallery, way in content.get("ways", {}).items()},
                content.get("gauges", {}),
                content["about"],
                frozenset(content.get("words", ())),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: not a calibration ({error})") from error


def match_features(
    e: Tensor,
    size: int,
    far: Tensor,
    spread: Tensor,
    query: Tensor | None = None,
    item: Tensor | None = None,
) -> Tensor:
    """What the match probability goes by, (n, k, 8), or (n, k, 6) of a point model: the evidence of
    a result and of the others of the best ``TOP`` together, ln of the gallery's size, the query's
    distance from training, its perplexity over the reference, both uncertainties, and the
    perplexity over the best ``TOP``."""
    e = e.double().clamp_min(-1e4)
    best = e[:, :TOP]
    own = torch.eye(best.shape[1], dtype=torch.bool)
    others = best.logsumexp(1, keepdim=True).expand_as(e).clone()
    others[:, :TOP] = best[:, None].masked_fill(own, -torch.inf).logsumexp(2)
    rivals = torch.logaddexp(others, torch.zeros_like(others))
    columns = [e, rivals, torch.full_like(e, float(np.log(size)))]
    columns += [each[:, None].expand_as(e) for each in (far, spread)]
    if query is not None and item is not None:
        columns += [query[:, None].expand_as(e), item.double()]
    columns.append(log_perplexity(best, 1.0)[:, None].expand_as(e))
    return torch.stack(columns, -1)


def never_rising(probability: ResultProbability, features: Tensor) -> Tensor:
    """(n, k), p(match) of results in their order: none is likelier than one above it."""
    chance = probability(features.flatten(0, 1)).reshape(features.shape[:2])
    return chance.cummin(1).values


# ---- files ----


def _way_from(content: Mapping[str, Any]) -> Way:
    fit, sets = content["probability"], content["guarantee"]
    weights, centre, scale = (tuple(fit[name]) for name in ("weights", "centre", "scale"))
    held_out = tuple(tuple(part) for part in sets["held_out"])
    return Way(
        content["temperature"],
        content["weight"],
        ResultProbability(weights, fit["bias"], centre, scale),
        tuple(content["nothing"]),
        content["size"],
        content["growth"],
        Guarantee(tuple(sets["bounds"]), held_out),
    )


def _gaussian(tensors: Sequence[Tensor], side: Side) -> Gaussian:
    return Gaussian(tensors[0], tensors[1] if len(tensors) > 1 else None, side)


def _packed(values: Tensor) -> dict[str, Any]:
    array = values.numpy()
    data = base64.b64encode(array.tobytes()).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "base64": data}


def _unpacked(content: Mapping[str, Any]) -> Tensor:
    array = np.frombuffer(base64.b64decode(content["base64"]), content["dtype"])
    return torch.from_numpy(array.reshape(content["shape"]).copy())
