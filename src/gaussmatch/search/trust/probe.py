"""Is the uncertainty of a model right? Judged against people, truth and edits of known effect.

Every figure stands beside what needs no variances at all: the number of words, the best score in
the gallery, and the perplexity of the posterior over the gallery.
"""

from __future__ import annotations

import csv
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch import Tensor

from gaussmatch.core import metrics
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance
from gaussmatch.data.flickr import read_judgements, read_tokens
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.data.pictures import SUFFIXES, open_picture
from gaussmatch.data.scenes import SIZES, balanced, make_split
from gaussmatch.data.scenes.world import draw
from gaussmatch.data.stored import read_lines
from gaussmatch.learn.evaluation.reliability import evenly, thinned
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.search.trust import wording
from gaussmatch.search.trust.calibration import TOP, Calibration, Gallery
from gaussmatch.search.trust.familiarity import CLEARLY

GALLERY = 1000
"""Images of the split that queries are scored with, at most."""
QUERIES = 5000
"""Captions whose searches are judged, at most."""
CASES = 300
"""Captions and photos that each edit is tried on, at most."""
MOVED = 3.0
"""Points of the percentile that a filler may move a query."""

LEAST = {
    ("fitting_photos", "rho_given_length"): 0.2,
    ("true_counts", "rho_given_length"): 0.3,
    ("chains", "steps"): 0.7,
    ("edits", "truncation"): 0.8,
    ("edits", "hypernyms"): 0.7,
    ("edits", "fillers"): 0.9,
}
"""What each figure must reach, where it was measured, for the gauge of captions to be shown."""
LEAST_PHOTOS = 0.6
"""Mean share of edited photos that must be less sure for the gauge of images to be shown."""
LEAST_HALF = 1.05
"""R@1 of the surest half over all that a side must reach which cannot be edited: ready embeddings,
or features without their photos."""


@dataclass(frozen=True, eq=False)
class Gauges:
    """What each way of being unsure says of some queries; higher is less sure.

    Args:
        sigma: log det Σ; ``None`` of a point model.
        words: minus the number of words.
        best_score: minus the best score in the gallery.
        perplexity: of the posterior over the gallery.
        probability: minus the match probability of the first result.
    """

    sigma: Tensor | None
    words: Tensor
    best_score: Tensor
    perplexity: Tensor
    probability: Tensor

    def named(self) -> dict[str, Tensor]:
        return {name: values for name, values in vars(self).items() if values is not None}


class Prober:
    """A model, the images that queries are scored with, and what its calibration says."""

    def __init__(self, model: Model, gallery: Gaussian, calibration: Calibration) -> None:
        self.model, self.gallery, self.calibration = model, gallery, calibration

    def texts(self, texts: Sequence[str], *, as_typed: bool = False) -> Gaussian:
        """Queries as a search reads them: in canonical form, unless ``as_typed``."""
        read = texts if as_typed else [wording.canonical(text) for text in texts]
        return self.model.encode_texts(read, allow_unknown=True)

    def sigma(self, texts: Sequence[str], *, as_typed: bool = False) -> Tensor | None:
        g = self.texts(texts, as_typed=as_typed)
        return None if g.is_point else g.uncertainty().double()

    def captions(self, texts: Sequence[str], *, as_typed: bool = False) -> Gauges:
        words = torch.tensor([-float(len(wording.words_of(text))) for text in texts]).double()
        return self.gauges(self.texts(texts, as_typed=as_typed), self.gallery, "images", words)

    @torch.no_grad()
    def gauges(
        self, queries: Gaussian, items: Gaussian, gallery: Gallery, words: Tensor | None = None
    ) -> Gauges:
        """Gauges of queries among items of a gallery of the other side."""
        parts: list[tuple[Tensor, ...]] = []
        s = self.model.matcher.similarity
        unsure = None if items.is_point else items.uncertainty().double()
        side: Gallery = "captions" if gallery == "images" else "images"
        for start in range(0, len(queries), 1000):
            some = queries[start : start + 1000]
            scores = query_scores(s, some, items, gallery).double()
            best = scores.topk(min(TOP, len(items)))
            of_items = None if unsure is None else unsure[best.indices].numpy()
            judged = self.calibration.judge(
                s, some, side, gallery, best.values.numpy(), of_items, len(items)
            )
            first = torch.zeros(len(some)).double()
            if judged.probability is not None:
                first = torch.from_numpy(judged.probability[:, 0]).nan_to_num(0.0)
            parts.append((-best.values[:, 0], self._entropy(scores, gallery), -first))
        best_score, perplexity, probability = (torch.cat(p) for p in zip(*parts, strict=True))
        sigma = None if queries.is_point else queries.uncertainty().double()
        none = torch.zeros_like(best_score) if words is None else words
        return Gauges(sigma, none, best_score, perplexity, probability)

    def takes_pictures(self, picture: Image.Image) -> bool:
        """Whether the model reads pictures. One that takes ready embeddings does not; a library or
        file that is missing is written as a warning."""
        if self.model.recipe.data.name == "arrays" and self.model.matcher.image_transform is None:
            return False
        try:
            self.model.encode_images([picture])
        except (ImportError, OSError) as error:
            warnings.warn(f"photos are not probed: {error}", stacklevel=3)
            return False
        return True

    def _entropy(self, scores: Tensor, gallery: Gallery) -> Tensor:
        way = self.calibration.ways.get(gallery)
        return metrics.log_perplexity(scores, way.temperature if way else 1.0)


def probe(
    model: Model,
    data: DataSet,
    calibration: Calibration,
    *,
    split: str = "test",
    fitting: Path | None = None,
    chains: Path | None = None,
    crowd: Path | None = None,
    unfamiliar: Path | None = None,
    photos: Path | None = None,
) -> dict[str, Any]:
    """Everything that can be judged about the uncertainty of a model, as JSON. Captions that are
    given as ready embeddings have no text to edit: what needs one is left out.

    Args:
        split: whose images are the gallery and whose captions are edited.
        fitting: JSON lines with ``caption`` and ``fits``, the number of photos that it fits.
        chains: CSV of captions from general (``level_1``) to specific.
        crowd: Flickr8k's judgements of captions with other photos.
        unfamiliar: a text file, one query of another domain a line; a list of our own if not given.
        photos: a folder of pictures of another kind than the model's; drawn scenes if not given,
            for a model of photos.
    """
    pairs = data.split(split)
    worded = pairs.texts is None
    images, captions = model.encode_pairs(pairs)
    gallery = images[: min(GALLERY, len(images))]
    prober = Prober(model, gallery, calibration)
    found: dict[str, Any] = {"data": pairs.name, "gallery": len(gallery)}
    if fitting is not None:
        found["fitting_photos"] = fitting_photos(prober, *read_fitting(fitting))
    if worded and pairs.relevance is not None:
        counts = pairs.relevance.counts.double()
        name = "true_counts" if pairs.exhaustive else "judged_counts"
        found[name] = fitting_photos(prober, pairs.captions, counts)
    if pairs.name == f"scenes/{split}":
        found["balanced"] = balanced_captions(prober, model.recipe.data, split)
    if chains is not None:
        found["chains"] = ordered_chains(prober, read_chains(chains))
    if crowd is not None:
        found["crowd"] = fitting_photos(prober, *read_crowd(crowd))
    if worded:
        found["edits"] = edits(prober, _some(pairs.captions))
    known = captions[evenly(len(captions), GALLERY)]
    if edited := photo_edits(prober, pairs, known):
        found["photo_edits"] = edited
    found["surest_half"] = surest_half(prober, images, captions, pairs)
    if worded:
        strange = other_domains(model, split)
        if unfamiliar is not None:
            strange = [line for line in read_lines(unfamiliar) if line.strip()]
        found["unfamiliar"] = unfamiliar_queries(prober, _some(pairs.captions), strange)
    elif unfamiliar is not None:
        raise ValueError(f"{unfamiliar}: {pairs.name} is ready embeddings, without texts")
    if strange_photos := unfamiliar_photos(prober, images, known, photos):
        found["unfamiliar_photos"] = strange_photos
    found["verdict"] = verdict(found)
    return found


# ---- how many photos fit ----


def fitting_photos(
    prober: Prober, texts: Sequence[str], fits: Tensor, *, as_typed: bool = False
) -> dict[str, Any]:
    """Spearman's ρ of each gauge with the number of photos that a caption fits; of the variance
    also with the number of words held fixed."""
    known = fits > 0
    chosen = [text for text, keep in zip(texts, known.tolist(), strict=True) if keep]
    target, gauges = fits[known].double().log(), prober.captions(chosen, as_typed=as_typed)
    rho = {
        f"rho_{name}": metrics.spearman(values, target)
        for name, values in gauges.named().items()
        if name != "probability"
    }
    rho["rho_length"] = rho.pop("rho_words")
    if gauges.sigma is not None:
        rho["rho"] = rho.pop("rho_sigma")
        rho["rho_given_length"] = metrics.partial_spearman(gauges.sigma, target, gauges.words)
    known_rho = {name: None if math.isnan(value) else value for name, value in rho.items()}
    return {"captions": len(chosen), **known_rho}


def balanced_captions(prober: Prober, data: DataRecipe, split: str) -> dict[str, Any]:
    """The same on captions of scenes whose length says nothing (``scenes.balanced``), read as they
    are: their canonical form would leave out the words that make them equally long."""
    made = balanced(make_split(split, SIZES[data.size][split], data.seed).scenes)
    counts = made.relevance.counts.double()
    return fitting_photos(prober, made.captions, counts, as_typed=True)


def read_fitting(path: Path) -> tuple[list[str], Tensor]:
    texts, fits = [], []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
            texts.append(str(row["caption"]))
            fits.append(float(row["fits"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: not JSON with 'caption' and 'fits' ({error})"
            ) from error
    return texts, torch.tensor(fits)


def read_crowd(path: Path) -> tuple[list[str], Tensor]:
    """Captions judged with other photos, and the mean share of Yes of each. Flickr8k's file names a
    caption by its photo and number; its text is read from Flickr8k.token.txt beside the file."""
    tokens = path.with_name("Flickr8k.token.txt")
    texts = {c.id: c.text for captions in read_tokens(tokens).values() for c in captions}
    shares: dict[str, list[float]] = {}
    for photo, caption, share in read_judgements(path):
        if not caption.startswith(photo):
            shares.setdefault(caption, []).append(share)
    judged = {c: float(np.mean(s)) for c, s in shares.items() if c in texts and len(s) >= 5}
    if not judged:
        raise ValueError(f"{path}: no caption of {tokens.name} has five judgements or more")
    return [texts[c] for c in judged], torch.tensor([1e-3 + v for v in judged.values()])


# ---- from general to specific ----


def ordered_chains(prober: Prober, chains: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The share of steps, and of whole chains, along which a gauge falls."""
    depth = len(chains[0])
    gauges = prober.captions([text for chain in chains for text in chain]).named()
    gauges.pop("probability")
    found: dict[str, Any] = {"chains": len(chains)}
    for name, values in gauges.items():
        levels = values.reshape(-1, depth)
        falls = (levels[:, 1:] < levels[:, :-1]).double()
        figures = {"steps": float(falls.mean()), "whole": float(falls.amin(1).mean())}
        found |= figures if name == "sigma" else {name: figures}
    return found


def read_chains(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        levels = [name for name in reader.fieldnames or () if name.startswith("level_")]
        if len(levels) < 2:
            raise ValueError(f"{path}: needs the columns level_1, level_2, … from general on")
        chains = [[row[name] for name in levels] for row in reader]
    return [chain for chain in chains if all(text and text.strip() for text in chain)]


# ---- edits of known effect ----

EDITS: dict[str, Callable[[str], str | None]] = {
    "truncation": wording.truncated,
    "adjectives": wording.without_adjectives,
    "hypernyms": wording.generalised,
}


def edits(prober: Prober, texts: Sequence[str]) -> dict[str, Any]:
    """The share of edited captions that are less sure than the original, by each gauge; and of
    those with fillers and repetitions the share whose percentile stays within ``MOVED`` points,
    read in canonical form (``fillers``) and as typed."""
    found: dict[str, Any] = {}
    others: dict[str, dict[str, float]] = {}
    for name, edit in EDITS.items():
        cases = [(text, new) for text in texts if (new := edit(text))][:CASES]
        if not cases:
            continue
        before, after = (prober.captions(column).named() for column in zip(*cases, strict=True))
        shares = _less_sure(before, after)
        if "sigma" in shares:
            found[name] = shares.pop("sigma")
        others[name] = {"cases": len(cases), **shares}
    plain = [text.strip().rstrip(".") for text in texts[:CASES]]
    frames = wording.FILLERS
    padded = [frames[i % len(frames)].replace("{}", text) for i, text in enumerate(plain)]
    for name, as_typed in (("fillers", False), ("fillers_as_typed", True)):
        moved = [prober.sigma(column, as_typed=as_typed) for column in (plain, padded)]
        shares_of = [_percentiles(prober.calibration, m) for m in moved if m is not None]
        if shares_of:
            found[name] = float((np.abs(shares_of[0] - shares_of[1]) <= MOVED).mean())
    return {**found, "by_others": others}


def _less_sure(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, float]:
    """Gauge → the share of cases that it finds less sure than before."""
    gauges = [name for name in before if name != "probability"]
    return {name: float((after[name] > before[name]).double().mean()) for name in gauges}


def _percentiles(calibration: Calibration, sigma: Tensor) -> np.ndarray:
    """Percentiles whatever the probe has found."""
    known = Calibration(calibration.quantiles, gauges={"captions": True})
    share = known.percentile("captions", sigma.numpy())
    if share is None:
        raise ValueError("no percentiles to compare: calibrate the run first")
    return share


def photo_edits(prober: Prober, pairs: Pairs, captions: Gaussian) -> dict[str, Any]:
    """The share of blurred, cropped, covered and joined photos that are less sure than the photo,
    by each gauge; empty where there are no photos, or the model takes none.

    Args:
        captions: the gallery that the photos are scored with.
    """
    photos = [pairs.images.picture(int(i)) for i in evenly(len(pairs.images), CASES // 3)]
    pictures = [photo.convert("RGB") for photo in photos if photo is not None]
    if len(pictures) < len(photos) or not prober.takes_pictures(pictures[0]):
        return {}

    def gauges(edited: Sequence[Image.Image]) -> dict[str, Tensor]:
        read = prober.model.encode_images(list(edited))
        named = prober.gauges(read, captions, "captions").named()
        named.pop("words")
        return named

    others = [*pictures[1:], pictures[0]]
    changes = {
        "blur": [p.filter(ImageFilter.GaussianBlur(max(p.size) / 25)) for p in pictures],
        "crop": [_cropped(p) for p in pictures],
        "occlusion": [_covered(p) for p in pictures],
        "collage": [_joined(p, q) for p, q in zip(pictures, others, strict=True)],
    }
    before = gauges(pictures)
    found: dict[str, Any] = {"cases": len(pictures), "by_others": {}}
    for name, changed in changes.items():
        shares = _less_sure(before, gauges(changed))
        if "sigma" in shares:
            found[name] = shares.pop("sigma")
        found["by_others"][name] = shares
    return found


def _cropped(picture: Image.Image) -> Image.Image:
    """The lower left quarter."""
    width, height = picture.size
    return picture.crop((0, height // 2, width // 2, height)).resize(picture.size)


def _covered(picture: Image.Image) -> Image.Image:
    """Half of it under a grey square."""
    width, height = picture.size
    covered = picture.copy()
    box = (width * 0.15, height * 0.15, width * 0.85, height * 0.85)
    ImageDraw.Draw(covered).rectangle(box, fill=(127, 127, 127))
    return covered


def _joined(left: Image.Image, right: Image.Image) -> Image.Image:
    """Two photos side by side, at the size of the first."""
    width, height = left.size
    both = left.copy()
    both.paste(left.resize((max(1, width // 2), height)), (0, 0))
    both.paste(right.resize((width - width // 2, height)), (width // 2, 0))
    return both


# ---- does it help to act on it? ----


def surest_half(
    prober: Prober, images: Gaussian, captions: Gaussian, pairs: Pairs
) -> dict[str, dict[str, Any]]:
    """R@1 of the surest half of the queries over R@1 of all (1 knows nothing), and the area under
    the risk–coverage curve, by each gauge. Any true match counts, where truth is known."""
    found: dict[str, dict[str, Any]] = {}
    some = evenly(len(captions), QUERIES)
    own = pairs.pairs() if pairs.relevance is None else pairs.relevance
    sides: tuple[tuple[Gallery, Gallery, Gaussian, Gaussian, Relevance], ...] = (
        ("captions", "images", captions[some], images, own.subset(some, torch.arange(len(images)))),
        ("images", "captions", images, captions, own.transpose()),
    )
    for side, gallery, queries, items, truth in sides:
        right = _first_right(prober.model, queries, items, gallery, truth)
        words = None
        if side == "captions" and pairs.texts is None:
            chosen = [pairs.captions[int(i)] for i in some]
            words = torch.tensor([-float(len(wording.words_of(text))) for text in chosen]).double()
        gauges = prober.gauges(queries, items, gallery, words).named()
        if words is None:
            gauges.pop("words")
        curves = {name: metrics.risk_coverage(right, values) for name, values in gauges.items()}
        all_right = float(right.mean())
        found[side] = {"r1": 100 * all_right, "aurc_random": 1 - all_right} | {
            name: {
                "ratio": curve.accuracy_at(0.5) / (100 * all_right) if all_right else None,
                "aurc": curve.aurc,
                "curve": thinned(curve.coverage, curve.risk),
            }
            for name, curve in curves.items()
        }
    return found


@torch.no_grad()
def _first_right(
    model: Model, queries: Gaussian, items: Gaussian, gallery: Gallery, truth: Relevance
) -> Tensor:
    first = [
        query_scores(
            model.matcher.similarity, queries[start : start + 1000], items, gallery
        ).argmax(1)
        for start in range(0, len(queries), 1000)
    ]
    return truth.dense().gather(1, torch.cat(first)[:, None])[:, 0].double()


# ---- other domains ----


def other_domains(model: Model, split: str) -> list[str]:
    """Queries of other domains than the model's: one list to choose by, another for tests."""
    strange = wording.OTHER_DOMAINS_DEV if split == "dev" else wording.OTHER_DOMAINS
    return [*strange, *(wording.EVERYDAY if model.recipe.data.name == "scenes" else ())]


def unfamiliar_queries(
    prober: Prober, familiar: Sequence[str], strange: Sequence[str]
) -> dict[str, Any]:
    """AUROC of separating queries of other domains from captions of the split, by familiarity and
    by each gauge; and the share that is called unfamiliar of either."""
    sides = [list(familiar), list(strange)]
    unlike = [
        torch.tensor([1 - wording.known_share(t, prober.model.unknown_words(t)) for t in texts])
        for texts in sides
    ]
    gauges = [prober.captions(texts).named() for texts in sides]
    found: dict[str, Any] = {"queries": len(strange)}
    near = prober.calibration.familiarity.get("captions")
    if near is not None:
        far = [near.distance(prober.texts(texts)) for texts in sides]
        found["auroc_distance"] = metrics.auroc(far[1], far[0])
        p = [torch.from_numpy(near.p_value(d)) * (1 - u) for d, u in zip(far, unlike, strict=True)]
        ranked = [d + 1e3 * u for d, u in zip(far, unlike, strict=True)]
        found["auroc"] = metrics.auroc(ranked[1], ranked[0])
        found["called_unfamiliar"] = float((p[1] < CLEARLY).double().mean())
        found["called_unfamiliar_wrongly"] = float((p[0] < CLEARLY).double().mean())
    baselines = {f"auroc_{n}": metrics.auroc(gauges[1][n], v) for n, v in gauges[0].items()}
    return found | {"auroc_unknown_words": metrics.auroc(unlike[1], unlike[0])} | baselines


def unfamiliar_photos(
    prober: Prober, familiar: Gaussian, captions: Gaussian, folder: Path | None
) -> dict[str, Any]:
    """The same for photos of another kind: those of a folder, or drawn scenes for a photo model.
    Empty where there are none, or the model takes none.

    Args:
        familiar: the images of the split.
        captions: the gallery that photos are scored with.
    """
    near = prober.calibration.familiarity.get("images")
    drawn = prober.model.recipe.data.name == "scenes"
    if near is None or (drawn and folder is None):
        return {}
    if folder is not None:
        names = sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)[:CASES]
        if not names:
            raise ValueError(f"{folder}: no photos ({', '.join(SUFFIXES)})")
        pictures = [open_picture(name) for name in names]
    else:
        pictures = [draw(scene) for scene in make_split("test", CASES // 3).scenes]
    if not prober.takes_pictures(pictures[0]):
        return {}
    strange = prober.model.encode_images(pictures)
    sides = [familiar[evenly(len(familiar), 5 * CASES)], strange]
    far = [near.distance(g) for g in sides]
    gauges = [prober.gauges(g, captions, "captions").named() for g in sides]
    called = [float((near.p_value(d) < CLEARLY).mean()) for d in far]
    return {
        "photos": len(strange),
        "auroc": metrics.auroc(far[1], far[0]),
        "called_unfamiliar": called[1],
        "called_unfamiliar_wrongly": called[0],
    } | {
        f"auroc_{name}": metrics.auroc(gauges[1][name], values)
        for name, values in gauges[0].items()
        if name not in ("words", "probability")
    }


# ---- the verdict ----


def verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the gauges of captions and of images may be shown, and why not."""
    values = {place: found.get(place[0], {}).get(place[1]) for place in LEAST}
    judged = {place: value for place, value in values.items() if value is not None}
    failed = [
        f"{' '.join(place)} {value:.2f} < {LEAST[place]}"
        for place, value in judged.items()
        if value < LEAST[place]
    ]
    judgements: dict[str, Any] = {}
    if judged:
        judgements["captions"] = {"passed": not failed, "failed": failed}
    edited = found.get("photo_edits", {})
    photos = [v for name, v in edited.items() if name not in ("cases", "by_others")]
    if photos:
        mean = float(np.mean(photos))
        failed = [] if mean >= LEAST_PHOTOS else [f"photo edits {mean:.2f} < {LEAST_PHOTOS}"]
        judgements["images"] = {"passed": not failed, "failed": failed}
    for side, half in found.get("surest_half", {}).items():
        ratio = half.get("sigma", {}).get("ratio")
        if side not in judgements and ratio is not None:
            failed = [] if ratio >= LEAST_HALF else [f"surest half {ratio:.2f} < {LEAST_HALF}"]
            judgements[side] = {"passed": not failed, "failed": failed}
    return judgements


def gauges_of(found: Mapping[str, Any]) -> dict[str, bool]:
    """Side → passed, as ``Calibration.gauges`` holds it."""
    return {side: bool(judged["passed"]) for side, judged in found["verdict"].items()}


def _some(texts: Sequence[str]) -> list[str]:
    """Captions, evenly spread, enough for ``CASES`` of each edit."""
    return [texts[int(i)] for i in evenly(len(texts), 5 * CASES)]
