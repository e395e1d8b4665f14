"""Recipes from YAML files and the command line; which of their fields decide what a run becomes."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from gaussmatch.checks import did_you_mean
from gaussmatch.models.recipe.fields import Recipe


def load_recipe(recipe: str | os.PathLike[str], overrides: Mapping[str, Any] = {}) -> Recipe:
    """Read a recipe by path, or by name (``scenes/vsepp-kl``), and change some of its fields.

    >>> load_recipe("scenes/vsepp-kl", {"training.epochs": 3}).training.epochs
    3
    """
    path = find_recipe(recipe)
    return _made(_read(path), overrides, f"recipe {path}")


def changed(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """A recipe with some of its fields changed: dotted name → value.

    >>> changed(Recipe(), {"data.size": "tiny"}).data.size
    'tiny'
    """
    return _made(asdict(recipe), overrides, "command line")


def _made(content: dict[str, Any], overrides: Mapping[str, Any], where: str) -> Recipe:
    for name, value in overrides.items():
        _check_key(name, "fields")
        holder, last = _holder(content, name)
        holder[last] = os.fspath(value) if isinstance(value, os.PathLike) else value
    parser = recipe_parser()
    try:
        made = parser.instantiate(parser.parse_object(content))
        return Recipe(made.title, made.data, made.model, made.loss, made.training)
    except (ArgumentError, ValueError) as error:
        raise ValueError(f"{where}: {' '.join(str(error).split())}") from error


def _holder(content: dict[str, Any], name: str) -> tuple[dict[str, Any], str]:
    """The mapping that holds a field, and the field's name in it."""
    *sections, last = name.split(".")
    for section in sections:
        content = content.setdefault(section, {})
    return content, last


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Fields as words of a command line → dotted name → value of the field's type.

    >>> parse_overrides(["--training.epochs", "3", "--data.size=tiny"])
    {'training.epochs': 3, 'data.size': 'tiny'}
    """
    names = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    for name in names:
        _check_key(name, "command line")
    try:
        parsed = recipe_parser().parse_args(list(words), defaults=False)
    except ArgumentError as error:
        raise ValueError(f"command line: {' '.join(str(error).split())}") from error
    fields = [next((m[:-1] for m in MAPPINGS if name.startswith(m)), name) for name in names]
    values = {name: parsed[name] for name in fields}
    return {n: list(v) if isinstance(v, tuple) else v for n, v in values.items()}  # as JSON has it


def typed(overrides: Mapping[str, Any]) -> list[str]:
    """The words that ``parse_overrides`` reads, for a command that people see.

    >>> typed({"data.root": "my photos", "loss.learn_scale": True, "model.backbone": None})
    ['--data.root', "'my photos'", '--loss.learn_scale', 'true', '--model.backbone', 'null']
    """
    return [
        word
        for name, value in overrides.items()
        for word in (
            f"--{name}",
            shlex.quote(value if isinstance(value, str) else json.dumps(value)),
        )
    ]


def find_recipe(recipe: str | os.PathLike[str]) -> Path:
    """The file of a recipe given by path or by name."""
    given = Path(recipe)
    named = recipe_folder() / f"{recipe}.yaml"
    for path in (given, named):
        if path.is_file():
            return path
    known = sorted(p.relative_to(recipe_folder()).as_posix()[:-5] for p in all_recipes())
    hint = did_you_mean(str(recipe), known) or f"known are {', '.join(known)}"
    raise ValueError(f"unknown recipe {recipe}: neither a file nor a known name; {hint}")


def recipe_folder() -> Path:
    """``recipes/``: inside the installed package, or beside ``src`` in a checkout."""
    installed = Path(str(resources.files("gaussmatch"))) / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[4] / "recipes"


def all_recipes() -> list[Path]:
    return sorted(p for p in recipe_folder().rglob("*.yaml") if p.parent.name != "search")


@cache
def recipe_parser() -> ArgumentParser:
    """The parser of all recipe fields, for YAML and the command line alike."""
    parser = ArgumentParser(
        usage="any field of the recipe:", add_help=False, exit_on_error=False, allow_abbrev=False
    )
    parser.add_class_arguments(Recipe, nested_key=None)
    return parser


def read_layers(
    path: Path, what: str, find: Callable[[str], Path], above: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """The mapping in a YAML file, laid over its ``base`` if it names one: a file beside it, or what
    ``find`` gives. Mappings merge key by key; anything else replaces what the base says.

    Args:
        what: recipe or search, for errors.
        above: the files that this one is a base of.
    """
    where = f"{what} {path}"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error
    except RecursionError:
        raise ValueError(f"{where}: nested too deeply; a {what} has three levels") from None
    if not isinstance(content, dict):
        raise ValueError(f"{where}: must be a mapping of sections, such as title: … or data: {{…}}")
    base = content.pop("base", None)
    if base is None:
        return content
    beside = path.parent / f"{base}.yaml"
    try:
        below = beside if beside.is_file() else find(str(base))
    except ValueError as error:
        raise ValueError(f"{where}: base: {error}") from error
    circle = (*above, path.resolve())
    if below.resolve() in circle:
        names = " → ".join(file.stem for file in (*circle, below))
        raise ValueError(f"{where}: its bases lead back to it ({names}); one must have no base")
    return _over(read_layers(below, what, find, circle), content)


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """
    >>> _over({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _over(old, value)
        merged[key] = value
    return merged


def _read(path: Path) -> dict[str, Any]:
    """The content of a recipe; a misspelled key is refused with the nearest right one.

    The parser then checks the types.
    """
    content = read_layers(path, "recipe", find_recipe)
    for section in ("data", "model", "loss", "training"):
        if not isinstance(content.get(section, {}), dict):
            raise ValueError(f"recipe {path}: {section!r} must hold fields, such as {{…: …}}")
    content = migrated(content)
    for key in _keys(content):
        _check_key(key, f"recipe {path}")
    default = flat(asdict(Recipe()))
    for key, value in flat(content).items():
        if value is None and default.get(key, {}) is not None:
            raise ValueError(f"recipe {path}: {key} has no value; is the file truncated?")
    return content


MAPPINGS = ("data.also.",)
"""Fields that are mappings: their keys are the user's."""


def _check_key(key: str, where: str) -> None:
    known = _known()
    if key not in known and not key.startswith(MAPPINGS):
        hint = did_you_mean(key, known) or f"known are {', '.join(known)}"
        raise ValueError(f"{where}: unknown key {key!r}; {hint}")


@cache
def _known() -> list[str]:
    return sorted(_keys(asdict(Recipe())))


def _keys(mapping: dict[str, Any], prefix: str = "") -> set[str]:
    """All keys of a nested mapping, dotted."""
    keys = set()
    for key, value in mapping.items():
        keys.add(f"{prefix}{key}")
        if isinstance(value, dict):
            keys |= _keys(value, f"{prefix}{key}.")
    return keys


RENAMED: dict[str, str] = {"model.normalise_features": "model.normalize_features"}
"""Old name → new name of a field, dotted. Recipes with the old name load, runs keep their
identity. Whoever changes a default needs a new field instead: old runs had the old value."""

INCIDENTAL = (
    "title",
    "training.device",
    "training.workers",
    "training.checkpoint_every",
    "training.micro_batch",
)
"""Fields that change where and how fast a run is made, not what it becomes."""

FOUND = (
    "model.feature_dim",
    "model.adapter.text_width",
    "model.adapter.text_sha256",
    "model.adapter.image_sha256",
)
"""Fields that training finds if they are not set, from the data and the encoders it names."""

EVALUATION_ONLY = ("data.cxc", "training.calibrate")
"""Fields that change what is measured of a run, not what it becomes."""


def migrated(content: dict[str, Any]) -> dict[str, Any]:
    """A recipe as read from a file, with the fields that were renamed under their new names."""
    for old in RENAMED.keys() & flat(content):
        new = RENAMED[old]
        (before, was), (after, name) = _holder(content, old), _holder(content, new)
        if name in after:
            raise ValueError(f"{old} is the old name of {new}: give one of them")
        after[name] = before.pop(was)
    return content


def identity(recipe: Recipe) -> dict[str, Any]:
    """What decides a run: field → value, without those at their default.

    It stays the same when a field is added, renamed, or only says where the work is done.

    >>> from gaussmatch.models.recipe import DataRecipe, TrainingRecipe
    >>> identity(Recipe("a title", DataRecipe(cxc="x"), training=TrainingRecipe(3, device="cpu")))
    {'training.epochs': 3}
    """
    first = {new: old for old, new in RENAMED.items()}
    default = flat(asdict(Recipe()))
    return {
        first.get(name, name): value
        for name, value in flat(asdict(recipe)).items()
        if (name not in default or value != default[name])
        and name not in (*INCIDENTAL, *EVALUATION_ONLY)
    }


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested mapping as dotted name → value.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found
