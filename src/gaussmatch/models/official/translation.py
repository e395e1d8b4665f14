"""What official checkpoints hold becomes ours: options, names of weights, the recipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from gaussmatch.models.encoders.vocabulary import Vocabulary
from gaussmatch.models.matcher import build
from gaussmatch.models.recipe import ModelRecipe, Recipe

# ---- weights ----
# Their weights under our names: every one is used, or ignored for a stated reason.


Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Rule:
    """Where a weight goes.

    Args:
        theirs: a pattern of their whole name, without the ``module.`` of DataParallel.
        ours: our name, with the pattern's groups as ``\\1``; none to ignore it.
        why: it is ignored.
        change: its values or shape, where ours differ.
    """

    theirs: str
    ours: str | None = None
    why: str = ""
    change: Change | None = None


@dataclass
class Weights:
    """Weights under our names, with the name that each had, and those that are ignored."""

    values: dict[str, Tensor] = field(default_factory=dict)
    theirs: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)

    def take(self, state: object, rules: Sequence[Rule], where: str) -> None:
        """Sort the state dict of one of their networks in; a name without a rule is an error."""
        strange = []
        for name, value in state_of(state, where).items():
            plain = re.sub(r"(^|\.)module\.", r"\1", name)
            for rule in rules:
                match = re.fullmatch(rule.theirs, plain)
                if match is not None:
                    self._apply(rule, match, name, value, where)
                    break
            else:
                strange.append(name)
        if strange:
            raise ValueError(f"{where}: unknown weights {_listed(strange)}")

    def _apply(
        self, rule: Rule, match: re.Match[str], name: str, value: Tensor, where: str
    ) -> None:
        if rule.ours is None:
            self.ignored[name] = rule.why
            return
        ours = match.expand(rule.ours)
        if ours in self.theirs:
            raise ValueError(f"{where}: {name} and {self.theirs[ours]} are the same weight twice")
        self.values[ours] = value if rule.change is None else rule.change(value)
        self.theirs[ours] = name

    def size(self, ours: str, dim: int, where: str) -> int:
        """A width of the network, as its weights have it."""
        if ours not in self.values:
            raise ValueError(f"{where}: the weight that becomes {ours} is missing")
        if self.values[ours].ndim <= dim:
            raise ValueError(
                f"{where}: {self.theirs[ours]} has {self.values[ours].ndim} dimensions"
            )
        return self.values[ours].shape[dim]

    def fitted(self, recipe: ModelRecipe, words: Vocabulary, where: str) -> dict[str, Tensor]:
        """All weights of the recipe's model; a missing, spare or misshaped one is an error.

        The model is built without memory for its weights, so that a false size costs none.
        Counters of BatchNorm, which checkpoints before torch 0.4.1 do not have, become 0.
        """
        with torch.device("meta"):
            wanted = build(recipe, words).state_dict()
        counters = [n for n in wanted if n.endswith("num_batches_tracked") and n not in self.values]
        values = {**self.values, **{n: torch.zeros((), dtype=torch.int64) for n in counters}}
        if missing := [name for name in wanted if name not in values]:
            raise ValueError(f"{where}: there is nothing for our weights {_listed(missing)}")
        if spare := [self.theirs[name] for name in values if name not in wanted]:
            raise ValueError(f"{where}: a model with its options has no weights {_listed(spare)}")
        if wrong := [
            f"{self.theirs[name]} {tuple(values[name].shape)} instead of {tuple(like.shape)}"
            for name, like in wanted.items()
            if values[name].shape != like.shape
        ]:
            raise ValueError(f"{where}: weights of another shape: {_listed(wrong)}")
        return {
            name: values[name].to(like.dtype).contiguous().clone() for name, like in wanted.items()
        }


def state_of(state: object, where: str) -> dict[str, Tensor]:
    """The state dict, checked: plain tensors that lie within what the file holds."""
    if not isinstance(state, dict) or not state:
        raise ValueError(f"{where}: no state dict, but {type(state).__name__}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(f"{where}: {name!r} is a {type(value).__name__}, not a weight")
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise ValueError(f"{where}: {name} is not a plain tensor of numbers")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(f"{where}: {name} claims more numbers than the file holds")
    return state


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


OURS = "image.backbone.net."


def torchvision_rules(network: str, theirs: str, where: str) -> list[Rule]:
    """Where the weights of a ResNet or VGG of torchvision go, without its classifier.

    Args:
        network: torchvision's name, which is timm's too.
        theirs: a pattern of what their names begin with.
    """
    if re.fullmatch(r"resnet(18|34|50|101|152)", network):
        return [Rule(rf"{theirs}((?:conv1|bn1|layer\d)\..*)", rf"{OURS}\1")]
    if re.fullmatch(r"vgg(11|13|16|19)(_bn)?", network):
        return [
            Rule(rf"{theirs}features\.(.*)", rf"{OURS}features.\1"),
            # in torchvision before 2017 a dropout stood first and moved the numbers up
            Rule(rf"{theirs}classifier\.[01]\.weight", f"{OURS}pre_logits.fc1.weight", change=_map),
            Rule(rf"{theirs}classifier\.[34]\.weight", f"{OURS}pre_logits.fc2.weight", change=_dot),
            Rule(rf"{theirs}classifier\.[01]\.bias", f"{OURS}pre_logits.fc1.bias"),
            Rule(rf"{theirs}classifier\.[34]\.bias", f"{OURS}pre_logits.fc2.bias"),
        ]
    raise ValueError(f"{where}: its network {network!r} is not a ResNet or VGG of torchvision")


def _map(weight: Tensor) -> Tensor:
    """A layer over a flattened 7 × 7 map, as the convolution that timm has in its place."""
    return weight.reshape(len(weight), -1, 7, 7)


def _dot(weight: Tensor) -> Tensor:
    return weight[:, :, None, None]


# ---- translation ----
# An official model in our terms: what each system's module makes of a checkpoint.


@dataclass(frozen=True)
class Translation:
    """An official model in our terms.

    Args:
        recipe: what it is and how it was trained.
        weights: under our names.
        options: of their training, all read that we know.
        words: its vocabulary, where the checkpoint holds it.
        training: what their training recorded, such as its epoch and its score.
    """

    recipe: Recipe
    weights: Weights
    options: OfficialOptions
    words: list[str] | None
    training: dict[str, Any]


def plain(value: object) -> int | float | str | None:
    """A value for JSON, or none."""
    return value if isinstance(value, int | float | str) else None


T = TypeVar("T", int, float, str, bool)


class OfficialOptions:
    """The options of a checkpoint, read one by one.

    Args:
        values: by name.
        where: the checkpoint, for errors.
        harmless: names that change no result of a trained model: paths, logging, workers.
    """

    def __init__(self, values: object, where: str, harmless: Collection[str]) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where}: holds no options of its training")
        self._values: Mapping[str, Any] = values
        self._where, self._read = where, set(harmless)

    def get(self, name: str, default: T) -> T:
        """An option, or its default if the checkpoint is older than the option."""
        self._read.add(name)
        value = self._values.get(name, default)
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise ValueError(
                f"{self._where}: option {name} is {value!r}, which is no {_type_name(default)}"
            )
        return value

    def require(self, name: str, wanted: T, why: str) -> None:
        """Refuse a checkpoint with an option that we cannot reproduce."""
        if self.get(name, wanted) != wanted:
            raise ValueError(
                f"{self._where}: trained with {name} = {self._values[name]!r}, which cannot be "
                f"reproduced here: {why}"
            )

    def agree(self, name: str, found: int) -> int:
        """A width that the weights have; an option that says otherwise is an error."""
        if self.get(name, found) != found:
            raise ValueError(
                f"{self._where}: option {name} is {self._values[name]}, "
                f"but its weights have {found}"
            )
        return found

    @property
    def unread(self) -> list[str]:
        """Options that no system reads: perhaps of a fork, perhaps of consequence."""
        return sorted(str(name) for name in self._values if name not in self._read)


def _type_name(value: object) -> str:
    return {"bool": "truth value", "int": "whole number", "float": "number"}.get(
        type(value).__name__, "text"
    )
