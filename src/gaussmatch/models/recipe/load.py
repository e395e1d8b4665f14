"""Recipes from YAML files and the command line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from gaussmatch.checks import did_you_mean
from gaussmatch.models.recipe.migrations import flat, migrated
from gaussmatch.models.recipe.whole import Recipe


def load_recipe(recipe: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by path, or by name (``scenes/vsepp-kl``), and apply command-line overrides.

    >>> load_recipe("scenes/vsepp-kl", ["--training.epochs", "3"]).training.epochs
    3
    """
    path = find_recipe(recipe)
    content = yaml.safe_dump(_read(path), sort_keys=False, allow_unicode=True)
    for word in overrides:
        if word.startswith("--"):
            _check_key(word[2:].partition("=")[0], "command line")
    parser = recipe_parser()
    try:
        made = parser.instantiate(parser.parse_args(["--config", content, *overrides]))
        return Recipe(made.title, made.data, made.model, made.loss, made.training)
    except (ArgumentError, ValueError) as error:
        raise ValueError(f"recipe {path}: {' '.join(str(error).split())}") from error


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


def recipe_parser() -> ArgumentParser:
    """The parser of all recipe fields, for YAML and the command line alike."""
    parser = ArgumentParser(
        usage="any field of the recipe:", add_help=False, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action="config", help="a YAML file with these fields")
    parser.add_class_arguments(Recipe, nested_key=None)
    return parser


def _read(path: Path) -> dict[str, Any]:
    """The content of a recipe; a misspelt key is refused with the nearest right one.

    The parser then checks the types.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(
            f"recipe {path}: not valid YAML ({' '.join(str(error).split())})"
        ) from error
    except RecursionError:
        raise ValueError(f"recipe {path}: nested too deeply; a recipe has three levels") from None
    if not isinstance(content, dict):
        raise ValueError(
            f"recipe {path}: must be a mapping with title, data, model, loss, training"
        )
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
    known = sorted(_keys(asdict(Recipe())))
    if key not in known and not key.startswith(MAPPINGS):
        hint = did_you_mean(key, known) or f"known are {', '.join(known)}"
        raise ValueError(f"{where}: unknown key {key!r}; {hint}")


def _keys(mapping: dict[str, Any], prefix: str = "") -> set[str]:
    """All keys of a nested mapping, dotted."""
    keys = set()
    for key, value in mapping.items():
        keys.add(f"{prefix}{key}")
        if isinstance(value, dict):
            keys |= _keys(value, f"{prefix}{key}.")
    return keys
