"""What a run begins with: fresh weights, a pretrained backbone, or the best model of another run.

The paper's fine-tuned rows go on from the best model on frozen features, at a lower rate. Such a
start must lose nothing: the first validation of the new run should be that of the old one.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn
from tqdm import tqdm

from gaussmatch.data.pairs import Pairs
from gaussmatch.data.scenes.backbone import WEIGHTS
from gaussmatch.data.vocabulary import SPECIALS, Vocabulary
from gaussmatch.encoders import Probabilistic
from gaussmatch.encoders.backbone import Backbone
from gaussmatch.encoders.timm_backbone import pretrained
from gaussmatch.files import read_json
from gaussmatch.model import Matcher, build
from gaussmatch.recipe import Recipe, load_recipe
from gaussmatch.run import Model

LOST = 0.9
"""A start below this share of the other run's validation rsum is warned of."""

KNOWN = 0.5
"""A vocabulary that knows a smaller share of the training words is of other data."""


class StartWarning(UserWarning):
    """A run begins well below the run that it started from."""


def is_run(start_from: str) -> bool:
    """Whether ``training.start_from`` is the folder of a run, and not the name of a recipe."""
    return Path(start_from).expanduser().is_dir()


def origin_folder(recipe: Recipe, out: Path) -> Path:
    """The run that ``training.start_from`` means, for a run in ``out``."""
    assert recipe.training.start_from is not None
    start_from = recipe.training.start_from
    return Path(start_from).expanduser() if is_run(start_from) else out / "frozen"


def tell_start(origin: Path, rsum: float) -> None:
    """Say where a run begins, and warn where that is well below the run that it started from.

    On other validation data the two cannot be compared; on the same, a loss means that the
    pictures or the network are not those that the features were made with.
    """
    metrics = origin / "metrics.json"
    before = float(read_json(metrics)["dev"]["rsum"]) if metrics.is_file() else math.nan
    tqdm.write(f"starts at a validation rsum of {rsum:.1f}; {origin}: {before:.1f}", sys.stderr)
    if rsum < LOST * before:
        warnings.warn(
            f"validation rsum {rsum:.1f} before the first step, but {before:.1f} in {origin}: are "
            "model.backbone, its weights and data.crop those of the features there?",
            StartWarning,
            stacklevel=3,
        )


def frozen_recipe(recipe: Recipe) -> Recipe:
    """The recipe of the run that comes first: this model on frozen features of its backbone.

    ``training.start_from`` names a recipe that gives the title, the loss and the schedule; data,
    model and seed are those of ``recipe``, so that whatever is overridden holds for both.
    """
    assert recipe.training.start_from is not None
    named = load_recipe(recipe.training.start_from)
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
            normalise_features=_normalises_features(recipe),
        )
    schedule = replace(
        named.training, seed=training.seed, device=training.device, workers=training.workers
    )
    return Recipe(named.title, data, model, named.loss, schedule)


def begin(recipe: Recipe, pairs: Pairs, origin: Model | None) -> Model:
    """The model before the first step, on the CPU."""
    if origin is None:
        words = Vocabulary.build(pairs.captions, recipe.data.min_count, recipe.data.words)
    else:
        words = _same_words(recipe, pairs, origin)
    model = Model(recipe, words, build(recipe.model, len(words)))
    backbone = getattr(_point(model.matcher.image), "backbone", None)
    had = None if origin is None else origin.recipe.model.backbone
    if backbone is not None and had != recipe.model.backbone:
        load_backbone_weights(backbone, recipe.model.backbone_weights)
    if origin is not None:
        transfer(origin, model)
    return model


def resumable(recipe: Recipe, out: Path) -> Model:
    """The model of a run whose weights a checkpoint holds."""
    words = Vocabulary.load(out / "vocabulary.json")
    return Model(recipe, words, build(recipe.model, len(words)))


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


def transfer(origin: Model, model: Model) -> None:
    """Copy all weights that both models have; a difference that cannot be is named by its field."""
    _check_same(origin.recipe, model.recipe, _width(origin.matcher), _width(model.matcher))
    for side in ("image", "text"):
        old, new = (m.matcher.get_submodule(side) for m in (origin, model))
        _copy(_point(old), _point(new))
        if isinstance(old, Probabilistic) and isinstance(new, Probabilistic):
            _copy(old.variance, new.variance)
            if old.scalar is not None and new.scalar is not None:
                _copy(old.scalar, new.scalar)
    _copy(origin.matcher.heads, model.matcher.heads)


def _copy(old: nn.Module, new: nn.Module) -> None:
    have: dict[str, Tensor] = old.state_dict()
    new.load_state_dict({k: have.get(k, v) for k, v in new.state_dict().items()})


def _point(encoder: nn.Module) -> nn.Module:
    return encoder.encoder if isinstance(encoder, Probabilistic) else encoder


def _width(matcher: Matcher) -> int | None:
    embed = getattr(_point(matcher.image), "embed", None)
    return getattr(embed, "in_features", None)


def _normalises_features(recipe: Recipe) -> bool:
    asked = recipe.model.normalise_features
    return recipe.model.backbone is not None if asked is None else asked


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
                "set it to the same"
            )
    if old_width != new_width:
        raise ValueError(
            f"model.backbone {new.model.backbone} gives features of width {new_width}, but "
            f"{where} (training.start_from) was trained on features of width {old_width}; name "
            "the network that those were extracted with"
        )
    before, now = _normalises_features(old), _normalises_features(new)
    if before != now:
        raise ValueError(
            f"model.normalise_features: this model {'takes' if now else 'does not take'} the "
            f"L2-norm of its features, but {where} (training.start_from) "
            f"{'did' if before else 'did not'}; set it to {str(before).lower()}"
        )


def _same_words(recipe: Recipe, pairs: Pairs, origin: Model) -> Vocabulary:
    where = recipe.training.start_from
    for name in ("words", "min_count"):
        before, now = getattr(origin.recipe.data, name), getattr(recipe.data, name)
        if before != now:
            raise ValueError(
                f"data.{name} is {now}, but the vocabulary comes from {where} "
                f"(training.start_from), where it is {before}; set it to the same"
            )
    unknown = SPECIALS.index("<unk>")
    rows = origin.vocabulary.rows(pairs.captions)
    total = sum(len(row) - 2 for row in rows)  # without start and end
    known = 1 - sum(row.count(unknown) for row in rows) / max(1, total)
    if known < KNOWN:
        raise ValueError(
            f"the vocabulary of {where} (training.start_from) knows only {known:.0%} of the words "
            f"of {pairs.name}; start from a run on captions of the same kind"
        )
    return origin.vocabulary
