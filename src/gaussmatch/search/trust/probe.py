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
from gaussmatch.core.metrics.fitting import TOP
from gaussmatch.data import language
from gaussmatch.data.flickr import read_judgments, read_tokens
from gaussmatch.data.pairs import DataSet, Pairs, read_images
from gaussmatch.data.pictures import SUFFIXES, open_picture
from gaussmatch.data.scenes import SIZES, balanced, make_split
from gaussmatch.data.scenes.world import draw
from gaussmatch.data.stored import read_lines
from gaussmatch.learn.evaluation.retrieval import evenly, thinned
from gaussmatch.learn.evaluation.scores import query_scores
from gaussmatch.learn.evaluation.triplets import crops_a_and_c
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.search.trust.calibration import Calibration, Gallery
from gaussmatch.search.trust.familiarity import CLEARLY, Features
from gaussmatch.search.trust.gauges import disagreement, disagreements, near_captions

GALLERY = 1000
"""Images of the split that queries are scored with, at most."""
QUERIES = 5000
"""Captions whose searches are judged, at most."""
CASES = 300
"""Captions and photos that each edit is tried on, at most."""
CROPS = 400
"""Photos that crops are cut from at each area threshold, at most."""
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
LEAST_GAUGES = {
    "fits_many": {("crowd_images", "fits_many"): 0.3, ("own_captions", "fits_many"): 0.2},
    "many_ways": {
        ("specificity", "many_ways"): 0.1,
        ("agreement", "many_ways"): 0.2,
        ("own_captions", "many_ways"): 0.1,
    },
}
"""The same for each gauge of images: the least correlation with what people said, or with the
captions of images that were held out."""
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
        probability: minus the match probability of the first result. These three are ``None``
            without a gallery.
    """

    sigma: Tensor | None
    words: Tensor
    best_score: Tensor | None = None
    perplexity: Tensor | None = None
    probability: Tensor | None = None

    def named(self) -> dict[str, Tensor]:
        return {name: values for name, values in vars(self).items() if values is not None}


class Prober:
    """A model, the images that queries are scored with, and what its calibration says."""

    def __init__(self, model: Model, gallery: Gaussian | None, calibration: Calibration) -> None:
        self.model, self.gallery, self.calibration = model, gallery, calibration

    def texts(self, texts: Sequence[str], *, as_typed: bool = False) -> Gaussian:
        """Queries as a search reads them: in canonical form, unless ``as_typed``."""
        read = texts if as_typed else [language.canonical(text) for text in texts]
        return self.model.encode_texts(read, allow_unknown=True)

    def sigma(self, texts: Sequence[str], *, as_typed: bool = False) -> Tensor | None:
        g = self.texts(texts, as_typed=as_typed)
        return None if g.is_point else g.uncertainty().double()

    def captions(self, texts: Sequence[str], *, as_typed: bool = False) -> Gauges:
        words = torch.tensor([-float(len(language.words_of(text))) for text in texts]).double()
        if self.gallery is None:
            return Gauges(self.sigma(texts, as_typed=as_typed), words)
        return self.gauges(self.texts(texts, as_typed=as_typed), self.gallery, "images", words)

    @torch.no_grad()
    def gauges(
        self, queries: Gaussian, items: Gaussian, gallery: Gallery, words: Tensor | None = None
    ) -> Gauges:
        """Gauges of queries among items of a gallery of the other side."""
        parts: list[tuple[Tensor, ...]] = []
        s = self.model.matcher.similarity
        side: Gallery = "captions" if gallery == "images" else "images"
        for start in range(0, len(queries), 1000):
            some = queries[start : start + 1000]
            scores = query_scores(s, some, items, gallery).double()
            best = scores.topk(min(TOP, len(items)))
            judged = self.calibration.judge(
                some, side, gallery, best.values.numpy(), scores.numpy(), len(items)
            )
            first = torch.zeros(len(some)).double()
            if judged.probability is not None:
                first = torch.from_numpy(judged.probability[:, 0]).nan_to_num(0.0)
            parts.append((-best.values[:, 0], self._entropy(scores, gallery), -first))
        best_score, perplexity, probability = (torch.cat(p) for p in zip(*parts, strict=True))
        sigma = None if queries.is_point else queries.uncertainty().double()
        none = torch.zeros_like(best_score) if words is None else words
        return Gauges(sigma, none, best_score, perplexity, probability)

    def familiar(self, texts: Sequence[str]) -> np.ndarray | None:
        """p-values of queries as a search reads them, see ``Calibration.familiar``."""
        plain = [language.canonical(text) for text in texts]
        rows = self.model.featurize_texts(plain, allow_unknown=True)
        return self.calibration.familiar(
            "captions", Features.of(rows, self.model.encode_rows(rows)), plain
        )

    def known(self, texts: Sequence[str]) -> Tensor:
        """(n), the share of the content words of each text that the model knows."""
        read = self.model.read(texts)
        unknown = [self.calibration.unknown_words(reading) for reading in read]
        return torch.tensor(
            [language.known_share(t, u) for t, u in zip(texts, unknown, strict=True)]
        ).double()

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
    specificity: Path | None = None,
    unfamiliar: Path | None = None,
    photos: Path | None = None,
    crops: Pairs | None = None,
) -> dict[str, Any]:
    """Everything that can be judged about the uncertainty of a model, as JSON. Captions that are
    given as ready embeddings have no text to edit: what needs one is left out.

    Args:
        split: whose images are the gallery and whose captions are edited.
        fitting: JSON lines with ``caption`` and ``fits``, the number of photos that it fits.
        chains: CSV of captions from general (``level_1``) to specific.
        crowd: Flickr8k's judgments of captions with other photos; if the photos are in ``images``
            beside the file, they are judged too.
        specificity: JSON lines with ``image``, a file beside it, and ``specificity``, how alike
            people find its descriptions, or else ``sentences`` that describe it.
        unfamiliar: a text file, one query of another domain a line; a list of our own if not given.
        photos: a folder of pictures of another kind than the model's; drawn scenes if not given,
            for a model of photos.
        crops: photos with boxes, for pictures of one thing and of two.
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
    found |= images_like(prober, images, captions, pairs, known)
    if crowd is not None and (judged := read_crowd_images(crowd)):
        found["crowd_images"] = ambiguous_photos(prober, *judged, known)
    if specificity is not None:
        for name, (files, target) in read_specificity(specificity, model).items():
            found[name] = ambiguous_photos(prober, files, target, known)
    if crops is not None:
        found["crops"] = crop_gaps(prober, crops, known)
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
    if strange_photos := unfamiliar_photos(prober, pairs, images, known, photos):
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
    for photo, caption, share in read_judgments(path):
        if not caption.startswith(photo):
            shares.setdefault(caption, []).append(share)
    judged = {c: float(np.mean(s)) for c, s in shares.items() if c in texts and len(s) >= 5}
    if not judged:
        raise ValueError(f"{path}: no caption of {tokens.name} has five judgments or more")
    return [texts[c] for c in judged], torch.tensor([1e-3 + v for v in judged.values()])


# ---- how ambiguous an image is ----


def image_gauges(prober: Prober, images: Gaussian, captions: Gaussian) -> dict[str, Tensor]:
    """What each gauge says of images: log det Σ, those learned from captions, and what needs no
    variances, by the scores with some captions."""
    known = prober.gauges(images, captions, "captions").named()
    for name in ("words", "probability"):
        known.pop(name)
    learned = prober.calibration.image_gauges.items()
    return known | {name: torch.from_numpy(gauge(images)) for name, gauge in learned}


def _with(target: Tensor, gauges: Mapping[str, Tensor]) -> dict[str, Any]:
    """Spearman's ρ of each gauge with a target."""
    rho = {name: metrics.spearman(values, target) for name, values in gauges.items()}
    return {"images": len(target)} | {n: None if math.isnan(v) else v for n, v in rho.items()}


def images_like(
    prober: Prober, images: Gaussian, captions: Gaussian, pairs: Pairs, known: Gaussian
) -> dict[str, Any]:
    """Gauges of images with what their own captions say, which were held out: how far they
    disagree, and how many captions of other images say the same. Empty for images with few
    captions, and for items of several embeddings."""
    if prober.model.matcher.similarity.several:
        return {}
    some = evenly(len(images), GALLERY)
    row = torch.full((len(images),), -1)
    row[some] = torch.arange(len(some))
    own = row[pairs.image_of]
    said, image_of = captions.mean[own >= 0], own[own >= 0]
    several, apart = disagreements(said, image_of, len(some))
    with_captions, count = near_captions(said, image_of, len(some))
    if len(several) < 10:
        return {}
    gauges = image_gauges(prober, images[some], known)
    ways = _with(apart, {name: values[several] for name, values in gauges.items()})
    fits = _with(count, {name: values[with_captions] for name, values in gauges.items()})
    return {
        "own_disagreement": ways,
        "near_captions": fits,
        "own_captions": {"many_ways": ways.get("many_ways"), "fits_many": fits.get("fits_many")},
    }


def ambiguous_photos(
    prober: Prober, files: Sequence[Path], target: Tensor, captions: Gaussian
) -> dict[str, Any]:
    """The same for photos that people judged; ``target`` is high for ambiguous ones."""
    return _with(target, image_gauges(prober, prober.model.encode_images(files), captions))


def crop_gaps(prober: Prober, pairs: Pairs, captions: Gaussian) -> dict[str, Any]:
    """How much more ambiguous the crop of two things (C) is than that of one (A), at each area
    threshold: the mean of C − A in standard deviations of the gauge, and the share of C above A."""
    found: dict[str, Any] = {}
    for threshold, (a, c) in crops_a_and_c(prober.model, pairs, CROPS).items():
        first, both = (image_gauges(prober, crops, captions) for crops in (a, c))
        found[threshold] = {"triplets": len(a)}
        for name, values in first.items():
            apart, scale = both[name] - values, torch.cat([values, both[name]]).std()
            found[threshold][name] = {
                "gap": float(apart.mean() / scale.clamp_min(1e-12)),
                "above": float((apart > 0).double().mean()),
            }
    return found


def read_crowd_images(path: Path) -> tuple[list[Path], Tensor] | None:
    """The photos that were judged with other photos' captions, and the mean share of Yes of each;
    ``None`` if they are not in ``images`` beside the file."""
    shares: dict[str, list[float]] = {}
    for photo, caption, share in read_judgments(path):
        if not caption.startswith(photo):
            shares.setdefault(photo, []).append(share)
    files = {path.parent / "images" / photo: float(np.mean(s)) for photo, s in shares.items()}
    there = {file: share for file, share in files.items() if file.is_file()}
    return (list(there), torch.tensor(list(there.values())).double()) if there else None


def read_specificity(path: Path, model: Model) -> dict[str, tuple[list[Path], Tensor]]:
    """``"specificity"``: photos and how little alike people find their descriptions; and
    ``"agreement"``: photos without that, and how far their sentences disagree."""
    people: dict[Path, float] = {}
    sentences: dict[Path, list[str]] = {}
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
            file = path.parent / str(row["image"])
            if "specificity" in row:
                people[file] = -float(row["specificity"])
            else:
                sentences[file] = [str(text) for text in row["sentences"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: not JSON with 'image' and 'specificity' or 'sentences' "
                f"({error})"
            ) from error
    found = {}
    if people:
        found["specificity"] = list(people), torch.tensor(list(people.values())).double()
    if sentences:
        apart = []
        for texts in sentences.values():
            rows = model.featurize_texts(texts, allow_unknown=True)
            said = Features.of(rows, model.encode_rows(rows)).values
            apart.append(disagreement(torch.from_numpy(said)))
        found["agreement"] = list(sentences), torch.tensor(apart).double()
    return found


# ---- from general to specific ----


def ordered_chains(prober: Prober, chains: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The share of steps, and of whole chains, along which a gauge falls."""
    depth = len(chains[0])
    gauges = prober.captions([text for chain in chains for text in chain]).named()
    gauges.pop("probability", None)
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
    "truncation": language.truncated,
    "adjectives": language.without_adjectives,
    "hypernyms": language.generalized,
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
    frames = language.FILLERS
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
    by each gauge; empty if there are no photos, or the model takes none.

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
    """Half of it under a gray square."""
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
            words = torch.tensor([-float(len(language.words_of(text))) for text in chosen]).double()
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
    strange = language.OTHER_DOMAINS_DEV if split == "dev" else language.OTHER_DOMAINS
    return [*strange, *(language.EVERYDAY if model.recipe.data.name == "scenes" else ())]


def unfamiliar_queries(
    prober: Prober, familiar: Sequence[str], strange: Sequence[str]
) -> dict[str, Any]:
    """AUROC of separating queries of other domains from captions of the split, by familiarity and
    by each gauge; and the share that is called unfamiliar of either."""
    sides = [list(familiar), list(strange)]
    gauges = [prober.captions(texts).named() for texts in sides]
    found: dict[str, Any] = {"queries": len(strange)}
    unlike = [1 - prober.known(texts) for texts in sides]
    p = [p for texts in sides if (p := prober.familiar(texts)) is not None]
    if len(p) == len(sides):
        ranked = [u - torch.from_numpy(q) for u, q in zip(unlike, p, strict=True)]
        called = [(u.numpy() > 0.5) | (q < CLEARLY) for u, q in zip(unlike, p, strict=True)]
        found["auroc"] = metrics.auroc(ranked[1], ranked[0])
        found["called_unfamiliar"] = float(called[1].mean())
        found["called_unfamiliar_wrongly"] = float(called[0].mean())
    baselines = {f"auroc_{n}": metrics.auroc(gauges[1][n], v) for n, v in gauges[0].items()}
    return found | baselines


def unfamiliar_photos(
    prober: Prober, pairs: Pairs, familiar: Gaussian, captions: Gaussian, folder: Path | None
) -> dict[str, Any]:
    """The same for photos of another kind: those of a folder, or drawn scenes for a photo model.
    Empty if there are none, or the model takes none.

    Args:
        familiar: the images of the split, ``pairs``.
        captions: the gallery that photos are scored with.
    """
    drawn = prober.model.recipe.data.name == "scenes"
    if "images" not in prober.calibration.familiarity or (drawn and folder is None):
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
    inputs = prober.model.featurize(pictures)
    strange = prober.model.encode_images(inputs)
    chosen = evenly(len(familiar), 5 * CASES).tolist()
    ordinary = read_images(pairs, chosen)
    p = [
        prober.calibration.familiar("images", Features.of(seen, g))
        for seen, g in ((ordinary, familiar[chosen]), (inputs, strange))
    ]
    if p[0] is None or p[1] is None:
        return {}
    gauges = [prober.gauges(g, captions, "captions").named() for g in (familiar[chosen], strange)]
    return {
        "photos": len(strange),
        "auroc": metrics.auroc(-torch.from_numpy(p[1]), -torch.from_numpy(p[0])),
        "called_unfamiliar": float((p[1] < CLEARLY).mean()),
        "called_unfamiliar_wrongly": float((p[0] < CLEARLY).mean()),
    } | {
        f"auroc_{name}": metrics.auroc(gauges[1][name], values)
        for name, values in gauges[0].items()
        if name not in ("words", "probability")
    }


# ---- the verdict ----


def verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the gauges of captions and of images, and each one learned from captions, may be
    shown; and why not."""
    values = {place: found.get(place[0], {}).get(place[1]) for place in LEAST}
    judged = {place: value for place, value in values.items() if value is not None}
    failed = [
        f"{' '.join(place)} {value:.2f} < {LEAST[place]}"
        for place, value in judged.items()
        if value < LEAST[place]
    ]
    judgments: dict[str, Any] = {}
    if judged:
        judgments["captions"] = {"passed": not failed, "failed": failed}
    edited = found.get("photo_edits", {})
    photos = [v for name, v in edited.items() if name not in ("cases", "by_others")]
    if photos:
        mean = float(np.mean(photos))
        failed = [] if mean >= LEAST_PHOTOS else [f"photo edits {mean:.2f} < {LEAST_PHOTOS}"]
        judgments["images"] = {"passed": not failed, "failed": failed}
    for name, least in LEAST_GAUGES.items():
        values = {place: found.get(place[0], {}).get(place[1]) for place in least}
        judged = {place: value for place, value in values.items() if value is not None}
        failed = [f"{p[0]} {v:.2f} < {least[p]}" for p, v in judged.items() if v < least[p]]
        if judged:
            judgments[name] = {"passed": not failed, "failed": failed}
    for side, half in found.get("surest_half", {}).items():
        ratio = half.get("sigma", {}).get("ratio")
        if side not in judgments and ratio is not None:
            failed = [] if ratio >= LEAST_HALF else [f"surest half {ratio:.2f} < {LEAST_HALF}"]
            judgments[side] = {"passed": not failed, "failed": failed}
    return judgments


def gauges_of(found: Mapping[str, Any]) -> dict[str, bool]:
    """Side → passed, as ``Calibration.gauges`` holds it."""
    return {side: bool(judged["passed"]) for side, judged in found["verdict"].items()}


def _some(texts: Sequence[str]) -> list[str]:
    """Captions, evenly spread, enough for ``CASES`` of each edit."""
    return [texts[int(i)] for i in evenly(len(texts), 5 * CASES)]
