"""The weights and the tokenizer of one run in the model of another, or what prevents it."""

from __future__ import annotations

from torch import Tensor, nn

from gaussmatch.data.pairs import Pairs
from gaussmatch.encoders import Probabilistic, Tokenizer
from gaussmatch.matcher import Matcher
from gaussmatch.model import Model
from gaussmatch.recipe import Recipe

KNOWN = 0.5
"""A vocabulary that knows a smaller share of the training words was made for other data."""


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
