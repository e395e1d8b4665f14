"""What a run starts with: fresh weights, a pretrained backbone, or the best model of another run.

The paper's fine-tuned rows continue from the best model on frozen features, at a lower rate. Such a
start must lose nothing: the first validation of the new run should equal that of the old one.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.torch import load_file
from tqdm import tqdm

from gaussmatch.data.batches import prepared_texts, read_images
from gaussmatch.data.pairs import Pairs
from gaussmatch.data.pixels import pixel_transform
from gaussmatch.data.scenes.backbone import WEIGHTS
from gaussmatch.encoders import Tokenizer
from gaussmatch.encoders.adapter import ImageAdapter, TextAdapter
from gaussmatch.encoders.backbone import Backbone, pretrained
from gaussmatch.matcher import Matcher, build, learn_tokenizer
from gaussmatch.model import Model
from gaussmatch.recipe import Recipe, load_recipe
from gaussmatch.run import FROZEN, is_run, read_metrics, read_tokenizer
from gaussmatch.training.transfer import normalises_features, same_tokenizer, transfer

SAMPLE = 20_000
"""Embeddings of each side that their statistics are taken from."""
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
        given = {k: v.float() for k, v in load_file(os.fspath(path)).items()}
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
