"""A calibration is learned from the training and validation data of a run, and kept in its folder
with the verdict of its probe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance
from gaussmatch.core.similarities import Similarity
from gaussmatch.data.fits import Fits, by_boxes, by_pairs, by_people, by_words
from gaussmatch.data.language import canonical, content_words
from gaussmatch.data.pairs import DataSet, Pairs, joined, read_images, read_texts
from gaussmatch.data.queries import shortened
from gaussmatch.files import write_json
from gaussmatch.learn.evaluation.retrieval import evenly
from gaussmatch.models.encoders.adapter import TextAdapter
from gaussmatch.models.features import load_data, prepared
from gaussmatch.models.model import Model
from gaussmatch.models.run import CALIBRATION, PROBE, keeping, load, read_listed, read_recipe
from gaussmatch.search.trust.calibration import IMAGE, WHOLE, Calibration, Gallery, Way
from gaussmatch.search.trust.familiarity import CENTERS, Familiarity, Features, Words
from gaussmatch.search.trust.gauges import FEWEST_CAPTIONS, Gauge, learn_gauges
from gaussmatch.search.trust.judged import ALL, Judged, learn_way, measure
from gaussmatch.search.trust.probe import Prober, edits, gauges_of, probe, verdict

QUANTILES = 1001
MOST = 20_000
"""Training items of each side that percentiles and familiarity are taken from, at most."""
REFERENCE = 64
"""Training items of each side that are kept."""
ASKED = 250
"""Images of a split whose captions are asked for, at most."""
QUERIES = 4000
"""Judged queries of one source, at most."""
TYPED = 1500
"""Training and validation captions, at most, that familiarity knows whole and shortened, as people
type queries."""
DESCRIBED = 10_000
"""Training images with captions that the gauges of images are learned from, at most."""
FEWEST = 10
"""Validation images, and captions, without which nothing is learned."""


Say = Callable[[str], None]


def _quiet(_: str) -> None:
    pass


def calibrate(
    model: Model,
    data: DataSet,
    judged_on: Sequence[DataSet] = (),
    fitting: Path | None = None,
    say: Say = _quiet,
) -> Calibration:
    """Percentiles and reference from the training split; what fits from validation, or with
    people's judgments from training and validation photos together.

    Args:
        judged_on: the data sets to learn what fits from, one by one, as data sets that are joined
            for training have no boxes and no ids; ``data`` if not given. Of several, short queries
            are asked among the validation photos of all, too.
        fitting: the photos that people say captions fit, see ``data.fits.by_people``.
        say: called with the name of each step.
    """
    _check_enough(len(data.dev.images), len(data.dev.captions), data.dev.name)
    judged: dict[Gallery, list[Judged]] = {"images": [], "captions": []}
    for one in judged_on or (data,):
        say(f"queries of {one.name}")
        for gallery, found in judged_searches(model, one, "dev", fitting).items():
            judged[gallery] += found
    if len(judged_on) > 1 and all(one.dev.texts is None for one in judged_on):
        apart = _all([one.dev for one in judged_on])  # more photos at once that no training saw
        say(f"queries of {apart.name}")
        judged["images"] += _short(model, apart, _images(apart, model))
    learned = _calibrated(
        model.matcher.similarity,
        judged,
        {"images": _images(data.dev, model), "captions": _captions(data.dev, model)},
        _sample(data.train, model),
        {
            "percentiles_from": data.train.name,
            "learned_from": ", ".join(
                dict.fromkeys(one.name for side in judged.values() for one in side)
            ),
        },
        say,
    )
    return with_inputs(learned, model, data, say)


def with_inputs(
    calibration: Calibration, model: Model, data: DataSet, say: Say = _quiet
) -> Calibration:
    """A calibration that also knows what is learned from the inputs of a model and not from its
    Gaussians alone: the words of training captions, how familiar pictures and texts are by their
    features, the gauges of images; and the percentiles of whole captions in canonical form."""
    say("familiarity")
    quantiles = dict(calibration.quantiles)
    if data.train.texts is not None:  # ready embeddings: no words to count
        words, usual = Words(), None
        typed = _embeddings(data.train), _embeddings(data.dev)
    else:
        words, typed, usual, whole = _of_texts(model, data.train.captions, data.dev.captions)
        quantiles |= whole
    seen = _image_features(model, data.train), _image_features(model, data.dev)
    familiarity = {
        "images": Familiarity.fit(*seen, CENTERS["images"]),
        "captions": Familiarity.fit(*typed, CENTERS["captions"], usual),
    }
    say("gauges of images")
    return replace(
        calibration,
        quantiles=quantiles,
        familiarity=familiarity,
        words=words,
        image_gauges=_image_gauges(model, data.train),
    )


def judged_searches(
    model: Model, data: DataSet, split: str, fitting: Path | None = None
) -> dict[Gallery, list[Judged]]:
    """Everything that a data set knows of what fits. With people's judgments the gallery is of
    all photos up to the split: of training and validation, or of all three."""
    pairs = data.split(split)
    images, texts = _images(pairs, model), pairs.texts is None
    asked = torch.isin(pairs.image_of, evenly(len(pairs.images), ASKED)).nonzero()[:, 0]
    queries = _captions(pairs, model, asked.tolist())
    fits = by_pairs(pairs).some(asked)
    own = pairs.pairs().subset(asked, torch.arange(len(images)))
    name = f"{pairs.name} {fits.truth}"
    answered = (own.transpose().counts > 0).nonzero()[:, 0]  # the images of these captions
    truth, mine = (
        r.transpose().subset(answered, torch.arange(len(asked))) for r in (fits.relevance, own)
    )
    answer = Judged.of_pairs(name, images[answered], queries, truth, mine, IMAGE)
    whole = Judged.of_pairs(name, queries, images, fits.relevance, own, WHOLE)
    if not texts:
        return {"images": [whole], "captions": [answer]}
    whole = replace(whole, kinds=fits.lengths)
    found = [*_short(model, pairs, images)]
    if found and fits.truth == "pairs":  # of the short ones more is known by their words
        kept = [q for q, kind in enumerate(whole.kinds) if kind == WHOLE]
        whole = whole.some(torch.tensor(kept).long())
    if fitting is not None:
        every = _all([data.train, data.dev, *([data.test] if split == "test" else [])])
        photos = _images(every, model)
        found += _short(model, every, photos, seen=True)
        for part, gallery, seen in ((pairs, images, False), (every, photos, True)):
            if part.ids is not None:
                judged = by_people(fitting, {id: at for at, id in enumerate(part.ids[0])})
                if len(judged.relevance.items):
                    found.append(_judged(model, part, judged, gallery, seen))
    return {"images": [whole, *found], "captions": [answer]}


def _short(model: Model, pairs: Pairs, images: Gaussian, seen: bool = False) -> Iterator[Judged]:
    """Short queries: out of the words of captions, and the names of classes."""
    if (fits := by_words(pairs.captions, pairs.image_of, len(pairs.images))) is not None:
        yield _judged(model, pairs, fits, images, seen)
    if pairs.classes is not None and pairs.class_names:
        fits = by_boxes(pairs.classes, pairs.class_names)
        yield _judged(model, pairs, fits, images, seen)


def _judged(model: Model, pairs: Pairs, fits: Fits, images: Gaussian, seen: bool) -> Judged:
    some = fits.some(evenly(len(fits), QUERIES)) if len(fits) > QUERIES else fits
    return Judged.of_fits(pairs.name, some, _read(model, some.texts), images, seen)


def _all(parts: Sequence[Pairs]) -> Pairs:
    """Several splits as one, with their classes and the names of their photos."""
    every = joined(parts)
    classes = [part.classes for part in parts if part.classes is not None]
    ids = [part.ids for part in parts if part.ids is not None]
    if len(classes) == len(parts):
        every = replace(every, classes=torch.cat(classes), class_names=parts[0].class_names)
    if len(ids) == len(parts):
        names = [id for photos, _ in ids for id in photos], [id for _, said in ids for id in said]
        every = replace(every, ids=names)
    return every


@torch.no_grad()
def calibrate_gaussians(
    similarity: Similarity,
    images: Gaussian,
    captions: Gaussian,
    truth: Relevance,
    *,
    own: Relevance | None = None,
    seen: Mapping[str, Gaussian] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Calibration:
    """From Gaussians alone: for an encoder of your own (examples/own_search.py).

    Args:
        images, captions: held out from training.
        truth: which images fit each caption.
        own: the image that each caption was written for, which the guarantee of the one that is
            meant is about; ``truth`` if not given.
        seen: ``"images"`` and ``"captions"`` as the model has seen them. Without it percentiles and
            reference are taken from what is held out, and familiarity is not known. Familiarity
            goes by the means; ``with_inputs`` knows better ones.
        about: what it was learned from, for people.
    """
    _check_enough(len(images), len(captions), "validation")
    own = own or truth
    for name, relation in (("truth", truth), ("own", own)):
        if (relation.queries, relation.gallery) != (len(captions), len(images)):
            raise ValueError(
                f"{name} relates {relation.queries} captions to {relation.gallery} images, but "
                f"there are {len(captions)} and {len(images)}"
            )
    judged: dict[Gallery, list[Judged]] = {
        "images": [Judged.of_pairs("pairs", captions, images, truth, own, WHOLE)],
        "captions": [
            Judged.of_pairs("pairs", images, captions, truth.transpose(), own.transpose(), IMAGE)
        ],
    }
    held_out = {"images": images, "captions": captions}
    return _calibrated(similarity, judged, held_out, seen, about or {})


def _calibrated(
    similarity: Similarity,
    judged: Mapping[Gallery, Sequence[Judged]],
    held_out: Mapping[str, Gaussian],
    seen: Mapping[str, Gaussian] | None,
    about: Mapping[str, Any],
    say: Say = _quiet,
) -> Calibration:
    known = held_out if seen is None else seen
    quantiles = {k: _quantiles(known[k]) for k in held_out if not known[k].is_point}
    reference = {
        k: known[k][evenly(len(known[k]), REFERENCE)].to(torch.float16).to(torch.float32).numpy()
        for k in held_out
    }  # as it is stored
    familiarity = {}
    if seen is not None:
        familiarity = {
            k: Familiarity.fit(Features.of_gaussians(seen[k]), Features.of_gaussians(g), CENTERS[k])
            for k, g in held_out.items()
        }
    notes: dict[str, Any] = {**about, "items": {k: len(g) for k, g in known.items()}}
    ways: dict[str, Way] = {}
    for gallery, searched in judged.items():
        say(f"what fits among {gallery}")
        ways[gallery] = learn_way(similarity, gallery, [one.part(False) for one in searched])
        users = [one for one in searched if not one.seen] or searched  # a user's photos are new
        apart = [one.part(True) for one in users]
        say(f"queries that were set aside, among {gallery}")
        notes[gallery] = _summary(measure(ways[gallery], similarity, gallery, apart))
    return Calibration(quantiles, reference, familiarity, ways, {}, notes)


SUMMARY = ("ece", "softmax_ece", "in_interval", "recall", "one", "absent_auroc")


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """QueryKind → means over queries that were set aside, in galleries of all sizes."""
    found: dict[str, dict[str, float]] = {}
    pooled = [row for row in rows if row["source"] == ALL]
    for kind in dict.fromkeys(row["kind"] for row in pooled):
        same = [row for row in pooled if row["kind"] == kind]
        for name in SUMMARY:
            rows_with = [row for row in same if row[name] is not None]
            if rows_with:
                queries = [row["queries"] for row in rows_with]
                mean = np.average([row[name] for row in rows_with], weights=queries)
                found.setdefault(kind, {})[name] = round(float(mean), 4)
    return found


# ---- kept with a run ----


def calibrate_run(
    run: Path,
    overrides: Mapping[str, Any] = {},
    fitting: Path | None = None,
    out: Path | None = None,
    say: Say = _quiet,
) -> Calibration:
    """Learn what the numbers of a run mean, judge its uncertainty on validation unless a probe has
    done so, and keep both in its folder.

    Args:
        overrides: fields of other data than the run's own, as on the command line. The model is
            judged on that then, whatever a probe has found elsewhere. What fits is learned from
            the data sets of ``data.also`` too.
        fitting: people's judgments, see ``calibrate``.
        out: a file for the calibration, instead of the run's own; no probe then.
        say: called with the name of each step.
    """
    model = load(run)
    recipe = read_recipe(run, overrides).data
    alone = [(recipe.name, recipe.root), *recipe.also.items()] if recipe.also else []
    judged_on = [load_data(replace(recipe, name=n, root=root, also={})) for n, root in alone]
    calibration = calibrate(model, load_data(recipe), judged_on, fitting, say)
    if out is not None:
        calibration.save(out)
        return calibration
    say("probe")
    before = None if overrides else read_listed(run, PROBE)
    found = before or probe(model, load_data(recipe), calibration, split="dev")
    try:
        with keeping(run, CALIBRATION) as temporary:
            calibration.save(temporary)
        keep_probe(run, found)
    except OSError as error:
        warnings.warn(f"the calibration is not kept in {run}: {error}", stacklevel=2)
    return replace(calibration, gauges=gauges_of(found))


def calibrate_captions(
    run: Path, captions: Sequence[str], held_out: Sequence[str], source: str
) -> dict[str, Any]:
    """Keep what captions alone can teach of a run: how vague and how familiar texts are, and
    whether that vagueness passes the edits of the probe, whose findings are returned."""
    model = load(run)
    words, (seen, apart), usual, quantiles = _of_texts(model, captions, held_out)
    familiarity = {"captions": Familiarity.fit(seen, apart, CENTERS["captions"], usual)}
    about = {"percentiles_from": source, "items": {"captions": len(captions)}}
    calibration = Calibration(quantiles, familiarity=familiarity, about=about, words=words)
    found: dict[str, Any] = {
        "data": source,
        "edits": edits(Prober(model, None, calibration), held_out),
    }
    found["verdict"] = verdict(found)
    with keeping(run, CALIBRATION) as temporary:
        calibration.save(temporary)
    keep_probe(run, found)
    return found


def keep_probe(run: Path, found: Mapping[str, Any]) -> None:
    """Keep the findings of a probe in the folder of a run."""
    with keeping(run, PROBE) as temporary:
        write_json(temporary, found)


def kept_calibration(run: Path) -> Calibration:
    """The calibration of a run with the verdict of its probe; made now if there is none, or with a
    warning empty if the run's own data cannot be read any more or is too little."""
    if read_listed(run, CALIBRATION) is not None:
        calibration = Calibration.load(run / CALIBRATION)
        found = read_listed(run, PROBE) or {"verdict": {}}
        return replace(calibration, gauges=gauges_of(found))
    try:
        return calibrate_run(run)
    except (OSError, ValueError) as error:
        warnings.warn(
            f"searches will show neither percentiles nor P(fits): {error}",
            stacklevel=2,
        )
        return Calibration()


# ---- measure ----


def measure_kept(
    run: Path, data: DataSet, split: str = "test", fitting: Path | None = None
) -> list[dict[str, Any]]:
    """What the calibration kept in a run says of a split, see ``judged.measure``. With people's
    judgments the photos of all splits are searched, and only with queries that are set aside
    (``judged.set_aside``); without, photos of the split alone, which it has not seen, and with all
    queries, some of which it may know from other photos."""
    calibration, model = kept_calibration(run), load(run)
    found = []
    for gallery, searched in judged_searches(model, data, split, fitting).items():
        way = calibration.ways.get(gallery)
        if way is not None:
            unseen = [one.part(True) if fitting else one for one in searched]
            rows = measure(way, model.matcher.similarity, gallery, unseen)
            found += [{"gallery": gallery, **row} for row in rows]
    return found


COLUMNS = {
    "queries": "queries",
    "ece": "ECE",
    "softmax_ece": "softmax",
    "brier": "Brier",
    "softmax_brier": "softmax",
    "constant_brier": "constant",
    "count_ratio": "said/true",
    "within_3": "in 3×",
    "in_interval": "80 %",
    "narrow": "number",
    "recall": "recall",
    "one": "one",
    "false_nothing": "nothing?",
    "false_number": "number?",
    "absent_auroc": "absent",
    "aurc": "AURC",
    "softmax_aurc": "softmax",
}


def fits_table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The figures of ``measure`` as a table."""

    def cell(value: float | int | None) -> str:
        return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"

    head = ("source, kind of query, size of gallery", *COLUMNS.values())
    return [
        head,
        *(
            (
                f"{row['source']}, {row['kind']}, {row['size']:,}",
                *(cell(row[name]) for name in COLUMNS),
            )
            for row in rows
        ),
    ]


# ---- samples ----


def _sample(pairs: Pairs, model: Model) -> dict[str, Gaussian]:
    """Training items of each side, evenly spread; of texts only the reference, as percentiles are
    taken from those that familiarity is learned from."""
    most = REFERENCE if pairs.texts is None else MOST // 2
    captions = evenly(len(pairs.captions), most).tolist()
    return {
        "images": _images(pairs, model, evenly(len(pairs.images), MOST)),
        "captions": _captions(pairs, model, captions),
    }


def _images(pairs: Pairs, model: Model, numbers: Tensor | None = None) -> Gaussian:
    """Images, or some of them."""
    chosen = torch.arange(len(pairs.images)) if numbers is None else numbers
    parts = [
        model.encode_images(read_images(pairs, chosen[k : k + 256].tolist()))
        for k in range(0, len(chosen), 256)
    ]
    return Gaussian.cat(parts)


def _captions(pairs: Pairs, model: Model, numbers: Sequence[int] | None = None) -> Gaussian:
    """Captions as a search reads them: in canonical form, or their ready embeddings."""
    texts = read_texts(pairs, range(len(pairs.captions)) if numbers is None else numbers)
    if isinstance(texts, np.ndarray):
        return model.encode_texts(texts, allow_unknown=True)
    return _read(model, texts)


def _read(model: Model, texts: Sequence[str]) -> Gaussian:
    """Queries, in canonical form."""
    return model.encode_rows(_rows(model, [canonical(text) for text in texts]))


def _rows(model: Model, texts: Sequence[str]) -> Any:
    """What the text encoder takes; of a frozen one computed once and cached, as a model that is
    trained again reads the same queries."""
    if isinstance(model.matcher.text_encoder, TextAdapter):
        return prepared(texts, model.matcher.text_encoder)
    return model.featurize_texts(texts, allow_unknown=True)


# ---- inputs ----


def _of_texts(
    model: Model, train: Sequence[str], held_out: Sequence[str]
) -> tuple[Words, tuple[Features, Features], list[float], dict[str, tuple[float, ...]]]:
    """What captions say of texts: their words, their features and those of held-out ones, how usual
    the words of these are, and the percentiles of whole captions."""
    words, (whole, short), apart = Words.of(train), _queries(train), _queries(held_out)
    (seen, g), (others, _) = (
        _text_features(model, [*texts, *cut]) for texts, cut in ((whole, short), apart)
    )
    quantiles = {} if g.is_point else {"captions": _quantiles(g[: len(whole)])}
    return words, (seen, others), [words.usual(t) for texts in apart for t in texts], quantiles


def _queries(captions: Sequence[str]) -> tuple[list[str], list[str]]:
    """Captions, evenly spread, whole and shortened, in canonical form; none without a content word,
    which a search refuses anyway ("on a")."""
    whole = [captions[int(at)] for at in evenly(len(captions), TYPED)]
    short = [shortened(text, np.random.default_rng(at)) for at, text in enumerate(whole)]
    named, cut = (
        [c for t in texts if content_words(c := canonical(t))] for texts in (whole, short)
    )
    return named, cut


def _embeddings(pairs: Pairs) -> Features:
    texts = read_texts(pairs, evenly(len(pairs.captions), 2 * TYPED).tolist())
    return Features(np.asarray(texts, np.float32), of_means=False)


def _text_features(model: Model, texts: Sequence[str]) -> tuple[Features, Gaussian]:
    rows = _rows(model, texts)
    g = model.encode_rows(rows)
    return Features.of(rows, g), g


def _image_features(model: Model, pairs: Pairs) -> Features:
    parts = []
    numbers = evenly(len(pairs.images), MOST)
    for start in range(0, len(numbers), 256):
        inputs = read_images(pairs, numbers[start : start + 256].tolist())
        parts.append(Features.of(inputs, model.encode_images(inputs)))
    return Features(np.concatenate([part.values for part in parts]), parts[0].of_means)


def _image_gauges(model: Model, pairs: Pairs) -> dict[str, Gauge]:
    """From images with as many captions as there are, evenly spread; none of a model whose items
    have several embeddings."""
    if model.matcher.similarity.several:
        return {}
    times = torch.bincount(pairs.image_of, minlength=len(pairs.images))
    several = (times >= FEWEST_CAPTIONS).nonzero()[:, 0]
    chosen = several[evenly(len(several), DESCRIBED)]
    if not len(chosen):
        return {}
    row = torch.full((len(pairs.images),), -1)
    row[chosen] = torch.arange(len(chosen))
    numbers = (row[pairs.image_of] >= 0).nonzero()[:, 0]
    some: Any = read_texts(pairs, numbers.tolist())
    if pairs.texts is None:
        some = _rows(model, some)
    captions = model.encode_rows(some)
    said = torch.from_numpy(Features.of(some, captions).values)
    images = [model.encode_images(read_images(pairs, part.tolist())) for part in chosen.split(256)]
    return learn_gauges(
        model.matcher.similarity, Gaussian.cat(images), captions, row[pairs.image_of[numbers]], said
    )


def _check_enough(images: int, captions: int, name: str) -> None:
    if min(images, captions) < FEWEST:
        raise ValueError(
            f"{name} has {images} images and {captions} captions; a calibration needs at least "
            f"{FEWEST} of each"
        )


def _quantiles(g: Gaussian) -> tuple[float, ...]:
    values = g.uncertainty().double().numpy()
    return tuple(float(v) for v in np.quantile(values, np.linspace(0, 1, QUANTILES)))
