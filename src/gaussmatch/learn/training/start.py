"""Where a run starts: with fresh weights, a pretrained backbone, the best model of another run, or
its own checkpoint.

The paper's fine-tuned rows continue from the best model on frozen features, at a lower rate. Such a
start must lose nothing: the first validation of the new run should equal that of the old one. A
resumed run ends with the same bits as one that was never interrupted.
"""

from __future__ import annotations

import math
import random
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from gaussmatch.data.pairs import Pairs, read_images
from gaussmatch.data.scenes.backbone import WEIGHTS
from gaussmatch.files import load_tensors
from gaussmatch.models import run
from gaussmatch.models.encoders.adapter import ARRAYS, ImageAdapter, TextAdapter
from gaussmatch.models.encoders.backbone import Backbone, pretrained
from gaussmatch.models.encoders.base import Vocabulary
from gaussmatch.models.encoders.pretrained import GAUSSIAN, Spec, image_tower, text_tower
from gaussmatch.models.encoders.probabilistic import Probabilistic
from gaussmatch.models.encoders.systems import SYSTEMS
from gaussmatch.models.features import prepared_texts
from gaussmatch.models.features.photos import pixel_transform
from gaussmatch.models.model import Matcher, Model, build
from gaussmatch.models.recipe import AdapterRecipe, Recipe, load_recipe
from gaussmatch.models.recipe.fields import checkpoint_interval

SAMPLE = 20_000
"""Embeddings of each side that their statistics are taken from."""
KNOWN = 0.5
"""A vocabulary that knows a smaller share of the training words was made for other data."""
LOST = 0.9
"""Below this share of the other run's validation rsum, a start is reported with a warning."""

NOTHING_TO_ADAPT = (
    "{} gives means and variances already, so there is nothing to adapt: make a run of it with "
    "'gaussmatch import'"
)


class StartWarning(UserWarning):
    """A run starts well below the run it was started from."""


def origin_folder(recipe: Recipe, out: Path) -> Path:
    """The run that ``training.start_from`` means, for a run in ``out``."""
    assert recipe.training.start_from is not None
    start_from = recipe.training.start_from
    return Path(start_from).expanduser() if run.is_run(start_from) else out / run.FROZEN


def report_start(origin: Path, rsum: float) -> None:
    """Report the validation rsum a run starts at; warn if it is well below that of its origin.

    On other validation data the two cannot be compared. On the same data a loss means that the
    pictures or the network are not those the features were made with.
    """
    before = float(run.read_metrics(origin).get("dev", {}).get("rsum", math.nan))  # imported: none
    tqdm.write(f"starts at a validation rsum of {rsum:.1f}; {origin}: {before:.1f}", sys.stderr)
    if rsum < LOST * before:
        warnings.warn(
            f"validation rsum {rsum:.1f} before the first step, but {before:.1f} in {origin}: do "
            "model.backbone, its weights and data.crop match the features used there?",
            StartWarning,
            stacklevel=3,
        )


def frozen_recipe(recipe: Recipe) -> Recipe:
    """The recipe of the run that comes first: this model on frozen features of its backbone.

    ``training.start_from`` names a recipe that gives the title, the loss and the schedule; data,
    model and seed are those of ``recipe``, so that whatever is overridden holds for both.
    """
    assert recipe.training.start_from is not None
    try:
        named = load_recipe(recipe.training.start_from)
    except ValueError as error:
        raise ValueError(
            f"training.start_from: {recipe.training.start_from} is not the folder of a run, "
            f"and as a recipe: {error}"
        ) from error
    if named.training.start_from is not None or named.model.backbone is not None:
        raise ValueError(
            f"training.start_from: {recipe.training.start_from} is not a recipe on frozen "
            "features; train it first and give its folder"
        )
    data, model, training = recipe.data, recipe.model, recipe.training
    if model.backbone is not None:
        data = replace(data, features=named.data.features)
        if model.backbone != "scenenet":
            data = replace(data, backbone=model.backbone, weights=model.backbone_weights)
        model = replace(
            model,
            backbone=None,
            backbone_weights=None,
            checkpointing=False,
            normalize_features=normalizes_features(recipe),
        )
    schedule = replace(
        named.training, seed=training.seed, device=training.device, workers=training.workers
    )
    return Recipe(named.title, data, model, named.loss, schedule)


def initial_model(recipe: Recipe, pairs: Pairs, origin: Model | None) -> Model:
    """The model before the first step, on the CPU."""
    if not SYSTEMS[recipe.model.system].trained:
        raise ValueError(
            f"model.system {recipe.model.system} has nothing to train: its encoders are published "
            "ones; 'gaussmatch import' makes a run of them"
        )
    model = _untrained(recipe, _vocabulary(recipe, pairs, origin))
    backbone = model.matcher.backbone
    had = None if origin is None else origin.recipe.model.backbone
    if backbone is not None and had != recipe.model.backbone:
        load_backbone_weights(backbone, recipe.model.backbone_weights)
    if recipe.model.ranks_by_mean and origin is None and recipe.model.adapter.mean != "given":
        raise ValueError(
            "model.posthoc leaves the means as they are, and there are none: name the run whose "
            "means they are in training.start_from, or set model.adapter.mean to given"
        )
    if origin is not None:
        transfer(origin, model)
    elif recipe.model.system == "adapter":
        _fit(model.matcher, pairs)
    return model


def _vocabulary(recipe: Recipe, pairs: Pairs, origin: Model | None) -> Vocabulary | None:
    """The words of the training captions, or of the other run; ``None`` if the text encoder comes
    with its own tokenizer."""
    if not SYSTEMS[recipe.model.system].vocabulary:
        return None
    if origin is not None:
        return same_vocabulary(recipe, pairs, origin)
    return Vocabulary.build(pairs.captions, recipe.data.min_count, recipe.data.words)


def vocabulary_of(model: Model) -> Vocabulary | None:
    """The words that a model has learned, if any."""
    if not SYSTEMS[model.recipe.model.system].vocabulary:
        return None
    words = model.matcher.text_encoder.tokenizer
    assert isinstance(words, Vocabulary)
    return words


def _fit(matcher: Matcher, pairs: Pairs) -> None:
    """The statistics of the training embeddings, from an even sample of them."""
    image, text = matcher.part("image"), matcher.text_encoder
    assert isinstance(image, ImageAdapter)
    assert isinstance(text, TextAdapter)
    rows = prepared_texts(pairs, text)
    image.fit(read_images(pairs, _even(len(pairs.images))))
    text.fit(text.embedding(text.collate([rows[i] for i in _even(len(rows))])))


def _even(total: int) -> list[int]:
    chosen: list[int] = np.linspace(0, total - 1, min(total, SAMPLE)).astype(int).tolist()
    return chosen


def resumed_model(recipe: Recipe, out: Path) -> Model:
    """The model of a run whose weights a checkpoint holds."""
    words = run.read_vocabulary(recipe, out)
    if words is not None:
        run.verify(out, run.VOCABULARY)
    return _untrained(recipe, words)


def _untrained(recipe: Recipe, words: Vocabulary | None) -> Model:
    pixels = pixel_transform(recipe.data)
    return Model(recipe, build(recipe.model, words, recipe.loss, pixels))


def load_backbone_weights(backbone: Backbone, weights: str | None) -> None:
    """Pretrained weights: of a local file, or those that come with the network."""
    if backbone.name == "scenenet":
        path = Path(weights) if weights is not None else WEIGHTS
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file of weights (model.backbone_weights)")
        given = {k: v.float() for k, v in load_tensors(path).items()}
    else:
        given = pretrained(backbone.name, weights).state_dict()
    own = backbone.net.state_dict()
    wrong = [k for k, v in own.items() if k not in given or given[k].shape != v.shape]
    if wrong:
        raise ValueError(
            f"{weights}: not the weights of {backbone.name}; {wrong[0]} is missing or of another "
            "shape (model.backbone_weights)"
        )
    backbone.net.load_state_dict({k: given[k] for k in own})  # without the classifier


# ---- from another run ----


def transfer(origin: Model, model: Model) -> None:
    """Copy all weights that both models have; an error names the field that does not fit."""
    _check_same(origin.recipe, model.recipe, _width(origin.matcher), _width(model.matcher))
    for side in ("image", "text"):
        _copy(origin.matcher.part(side), model.matcher.part(side))
        old, new = (m.matcher.get_submodule(side) for m in (origin, model))
        if isinstance(old, Probabilistic) and isinstance(new, Probabilistic):
            _copy(old.variance, new.variance)
            if old.scalar is not None and new.scalar is not None:
                _copy(old.scalar, new.scalar)
    if not model.recipe.model.ranks_by_mean:  # otherwise it is trained with another loss
        _copy(origin.matcher.heads, model.matcher.heads)


def _copy(old: nn.Module, new: nn.Module) -> None:
    """Copy what both have; the rest of ``new``, such as a backbone, stays as it is."""
    have: dict[str, Tensor] = old.state_dict()
    own: dict[str, Tensor] = new.state_dict()
    for name, value in own.items():
        if name in have and have[name].shape != value.shape:
            raise ValueError(
                f"{name} of the model is {tuple(value.shape)}, but {tuple(have[name].shape)} in "
                "the run of training.start_from; use the same model fields for both"
            )
    new.load_state_dict({name: have.get(name, value) for name, value in own.items()})


def _width(matcher: Matcher) -> int | None:
    embed = getattr(matcher.part("image"), "embed", None)
    return getattr(embed, "in_features", None)


def normalizes_features(recipe: Recipe) -> bool:
    """Whether the features are L2-normalized before the projection, set or official."""
    chosen = recipe.model.normalize_features
    return recipe.model.backbone is not None if chosen is None else chosen


def _check_same(old: Recipe, new: Recipe, old_width: int | None, new_width: int | None) -> None:
    where = new.training.start_from
    fields = ["system", "dim", "word_dim", "normalize"]
    if old.model.probabilistic and new.model.probabilistic:
        fields.append("shape")
    pinned = ("adapter.text_sha256", "adapter.image_sha256")
    for name in (*fields, *pinned):
        before, now = (attrgetter(name)(recipe.model) for recipe in (old, new))
        if before != now:
            raise ValueError(
                f"model.{name} is {now}, but {where} (training.start_from) has {before}; "
                "set both to the same value"
            )
    if old_width != new_width:
        raise ValueError(
            f"model.backbone {new.model.backbone} gives features of width {new_width}, but "
            f"{where} (training.start_from) was trained on features of width {old_width}; name "
            "the network that those were extracted with"
        )
    before, now = normalizes_features(old), normalizes_features(new)
    if before != now:
        raise ValueError(
            f"model.normalize_features: this model {'takes' if now else 'does not take'} the "
            f"L2-norm of its features, but {where} (training.start_from) "
            f"{'did' if before else 'did not'}; set it to {str(before).lower()}"
        )


def same_vocabulary(recipe: Recipe, pairs: Pairs, origin: Model) -> Vocabulary:
    """The words of the other run, if they fit the recipe and the captions."""
    where = recipe.training.start_from
    for name in ("words", "min_count"):
        before, now = getattr(origin.recipe.data, name), getattr(recipe.data, name)
        if before != now:
            raise ValueError(
                f"data.{name} is {now}, but the vocabulary comes from {where} "
                f"(training.start_from), where it is {before}; set both to the same value"
            )
    words = vocabulary_of(origin)
    if words is None:
        raise ValueError(f"{where} (training.start_from) has no vocabulary to start with")
    known = words.known_share(pairs.captions)
    if known < KNOWN:
        raise ValueError(
            f"the vocabulary of {where} (training.start_from) knows only {known:.0%} of the words "
            f"of {pairs.name}; start from a run on captions of the same style"
        )
    return words


def resolved(recipe: Recipe, pairs: Pairs) -> Recipe:
    """The recipe with what its data and its encoders say filled in, or checked: the width of the
    features, and of published encoders the width and the SHA-256."""
    if recipe.model.backbone is not None:
        return recipe
    width = int(np.asarray(pairs.images[0]).shape[-1])
    if recipe.model.feature_dim not in (None, width):
        raise ValueError(
            f"model.feature_dim is {recipe.model.feature_dim}, but {pairs.name} has {width}"
        )
    model = recipe.model
    if model.system == "adapter":
        model = replace(model, adapter=_pinned(model.adapter, pairs, width))
    return replace(recipe, model=replace(model, feature_dim=width))


def _pinned(own: AdapterRecipe, pairs: Pairs, image_width: int) -> AdapterRecipe:
    """The published encoders of an adapter, known by their hashes."""
    for encoder in (own.text_encoder, own.image_encoder):
        if encoder not in (None, ARRAYS) and Spec.of(str(encoder)).library in GAUSSIAN:
            raise ValueError(NOTHING_TO_ADAPT.format(encoder))
    given = None if pairs.texts is None else len(pairs.texts[0])
    width, name = own.text_width, own.text_encoder
    if name == ARRAYS:
        if given is None:
            raise ValueError(
                f"model.adapter.text_encoder is {ARRAYS}, but {pairs.name} has no text "
                "embeddings: name an encoder, such as st:all-MiniLM-L6-v2"
            )
        width = width or given
    elif width is None or own.text_sha256 is None:
        text = text_tower(name)
        width, own = text.width, replace(own, text_sha256=own.text_sha256 or text.sha256())
    if given not in (None, width):
        raise ValueError(
            f"{name} makes embeddings of {width} dimensions, but the texts of {pairs.name} have "
            f"{given}: name the encoder that made them"
        )
    if own.image_encoder is not None and own.image_sha256 is None:
        image = image_tower(own.image_encoder)
        if image.width != image_width:
            raise ValueError(
                f"{own.image_encoder} makes embeddings of {image.width} dimensions, but the images "
                f"of {pairs.name} have {image_width}: name the encoder that made them"
            )
        own = replace(own, image_sha256=image.sha256())
    return replace(own, text_width=width)


@dataclass
class Progress:
    """Where a run stands: epochs and steps done, the best validation result so far, and of an
    unfinished epoch the batches done and the sum of their losses."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_rsum: float = -1.0
    batch: int = 0
    summed: float = 0.0


@dataclass
class TrainingState:
    """All that changes while a run trains."""

    matcher: Matcher
    optimizer: torch.optim.Optimizer
    rates: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler
    progress: Progress = field(default_factory=Progress)
    data: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint of what it is trained on, see ``Pairs.fingerprint``."""

    @property
    def _parts(self) -> dict[str, Any]:
        """All that keep a state of their own."""
        parts: tuple[Any, ...] = (self.matcher, self.optimizer, self.rates, self.scaler)
        return dict(zip(("matcher", "optimizer", "schedule", "scaler"), parts, strict=True))

    def save(self, folder: Path) -> None:
        state = {name: part.state_dict() for name, part in self._parts.items()}
        state |= {"progress": vars(self.progress), "data": dict(self.data)}
        state["random"] = _random_states()
        with run.replacing(folder, run.CHECKPOINT, keep=run.PREVIOUS) as temporary:
            torch.save(state, temporary)

    def load(self, folder: Path, accept_changed_data: bool = False) -> None:
        """Put everything back as it was; nothing in the file is executed. Other data than before
        are refused, unless they are accepted."""
        path = folder / run.CHECKPOINT
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            for name, part in self._parts.items():  # a scaler that is off ignores its state
                part.load_state_dict(state[name])
            _restore_random_states(state["random"])
            self.progress = Progress(**state["progress"])
            before = dict(state["data"])
        except FileNotFoundError:
            raise
        except Exception as error:  # torch, zipfile and pickle raise many types for a damaged file
            raise ValueError(
                f"{path}: damaged, truncated, or of another recipe "
                f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); "
                "train again into another folder"
            ) from error
        changed = [k for k in {**before, **self.data} if before.get(k) != self.data.get(k)]
        if changed and not accept_changed_data:
            raise ValueError(
                f"{folder} was trained on other data: the {', the '.join(changed)} are not those "
                "of its last checkpoint; give the same data, train into another folder, or go on "
                "with --accept-changed-data"
            )


class CheckpointWarning(UserWarning):
    """The newest checkpoint is damaged; an older one takes its place."""


def find_checkpoint(folder: Path) -> bool:
    """Whether a run has a checkpoint to continue from: the newest, or the one before it.

    A damaged one is never used; if both are damaged, that is an error.
    """
    there = [name for name in (run.CHECKPOINT, run.PREVIOUS) if (folder / name).exists()]
    intact = [name for name in there if run.is_intact(folder, name)]
    if not there:
        return False
    if not intact:
        raise ValueError(
            f"{folder / there[0]} is damaged: its SHA-256 is not the one in {run.MANIFEST}, and "
            "there is no other checkpoint; restore it from a copy, or train into another folder"
        )
    if intact[0] == run.PREVIOUS:
        warnings.warn(
            f"{folder / run.CHECKPOINT} is damaged or missing: continuing from the older "
            f"{run.PREVIOUS}",
            CheckpointWarning,
            stacklevel=2,
        )
        run.restore_previous(folder)
    return True


def _random_states() -> dict[str, Any]:
    algorithm, keys, position, gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (algorithm, torch.from_numpy(np.asarray(keys, np.int64)), position, gauss, cached),
        "python": random.getstate(),
    }


def _restore_random_states(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    algorithm, keys, position, gauss, cached = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        (algorithm, keys.numpy().astype(np.uint32), position, gauss, cached)
    )
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))


class CheckpointTimer:
    """Says when a checkpoint within an epoch is due: after some steps, or after some minutes.

    >>> interval = CheckpointTimer("2 steps")
    >>> [step for step in range(1, 7) if interval.due(step)]
    [2, 4, 6]
    """

    def __init__(self, every: str | None) -> None:
        self._number, self._unit = checkpoint_interval(every) if every else (math.inf, "minutes")
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether to save after this step."""
        if self._unit == "steps":
            return step % self._number == 0
        now = time.monotonic()
        if now - self._last < 60 * self._number:
            return False
        self._last = now
        return True
