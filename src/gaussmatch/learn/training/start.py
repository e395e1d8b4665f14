"""What a run starts with: fresh weights, a pretrained backbone, or the best model of another run.

The paper's fine-tuned rows continue from the best model on frozen features, at a lower rate. Such a
start must lose nothing: the first validation of the new run should equal that of the old one.
"""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from tqdm import tqdm

from gaussmatch.data.pairs import Pairs, read_images
from gaussmatch.data.scenes.backbone import WEIGHTS
from gaussmatch.files import load_tensors
from gaussmatch.models.encoders import Probabilistic, Tokenizer
from gaussmatch.models.encoders.adapter import ImageAdapter, TextAdapter
from gaussmatch.models.encoders.backbone import Backbone, pretrained
from gaussmatch.models.features.pixels import pixel_transform
from gaussmatch.models.features.texts import prepared_texts
from gaussmatch.models.matcher import Matcher, build, learn_tokenizer
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import Recipe, load_recipe
from gaussmatch.models.run import FROZEN, is_run, read_metrics, read_tokenizer

SAMPLE = 20_000
"""Embeddings of each side that their statistics are taken from."""
KNOWN = 0.5
"""A vocabulary that knows a smaller share of the training words was made for other data."""
LOST = 0.9
"""Below this share of the other run's validation rsum, a start is reported with a warning."""


class StartWarning(UserWarning):
    """A run starts well below the run it was started from."""


def origin_folder(recipe: Recipe, out: Path) -> Path:
    """The run that ``training.start_from`` means, for a run in ``out``."""
    assert recipe.training.start_from is not None
    start_from = recipe.training.start_from
    return Path(start_from).expanduser() if is_run(start_from) else out / FROZEN


def report_start(origin: Path, rsum: float) -> None:
    """Report the validation rsum a run starts at; warn if it is well below that of its origin.

    On other validation data the two cannot be compared. On the same data a loss means that the
    pictures or the network are not those the features were made with.
    """
    before = float(read_metrics(origin).get("dev", {}).get("rsum", math.nan))  # imported: none
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
            normalise_features=normalises_features(recipe),
        )
    schedule = replace(
        named.training, seed=training.seed, device=training.device, workers=training.workers
    )
    return Recipe(named.title, data, model, named.loss, schedule)


def initial_model(recipe: Recipe, pairs: Pairs, origin: Model | None) -> Model:
    """The model before the first step, on the CPU."""
    if origin is None:
        tokenizer = learn_tokenizer(recipe, pairs)
    else:
        tokenizer = same_tokenizer(recipe, pairs, origin)
    model = _untrained(recipe, tokenizer)
    backbone = model.matcher.backbone
    had = None if origin is None else origin.recipe.model.backbone
    if backbone is not None and had != recipe.model.backbone:
        load_backbone_weights(backbone, recipe.model.backbone_weights)
    if origin is not None:
        transfer(origin, model)
    elif recipe.model.system == "adapter":
        _fit(model.matcher, pairs)
    return model


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
    return _untrained(recipe, read_tokenizer(recipe, out))


def _untrained(recipe: Recipe, tokenizer: Tokenizer) -> Model:
    pixels = pixel_transform(recipe.data)
    return Model(recipe, build(recipe.model, tokenizer, recipe.loss, pixels))


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


def normalises_features(recipe: Recipe) -> bool:
    """Whether the features are L2-normalised before the projection, set or official."""
    chosen = recipe.model.normalise_features
    return recipe.model.backbone is not None if chosen is None else chosen


def _check_same(old: Recipe, new: Recipe, old_width: int | None, new_width: int | None) -> None:
    where = new.training.start_from
    fields = ["system", "dim", "word_dim", "normalise"]
    if old.model.probabilistic and new.model.probabilistic:
        fields.append("shape")
    for name in fields:
        before, now = getattr(old.model, name), getattr(new.model, name)
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
    before, now = normalises_features(old), normalises_features(new)
    if before != now:
        raise ValueError(
            f"model.normalise_features: this model {'takes' if now else 'does not take'} the "
            f"L2-norm of its features, but {where} (training.start_from) "
            f"{'did' if before else 'did not'}; set it to {str(before).lower()}"
        )


def same_tokenizer(recipe: Recipe, pairs: Pairs, origin: Model) -> Tokenizer:
    """The tokenizer of the other run, if it fits the recipe and the captions."""
    where = recipe.training.start_from
    for name in ("words", "min_count"):
        before, now = getattr(origin.recipe.data, name), getattr(recipe.data, name)
        if before != now:
            raise ValueError(
                f"data.{name} is {now}, but the vocabulary comes from {where} "
                f"(training.start_from), where it is {before}; set both to the same value"
            )
    tokenizer = origin.matcher.text_encoder.tokenizer
    known = tokenizer.known_share(pairs.captions)
    if known < KNOWN:
        raise ValueError(
            f"the vocabulary of {where} (training.start_from) knows only {known:.0%} of the words "
            f"of {pairs.name}; start from a run on captions of the same style"
        )
    return tokenizer
