"""What keeps old runs alive when recipes change, and which fields decide what a run becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gaussmatch.models.recipe.whole import Recipe

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
    for old, new in RENAMED.items():
        *sections, name = old.split(".")
        holder: Any = content
        for section in sections:
            holder = holder.get(section) if isinstance(holder, dict) else None
        if not isinstance(holder, dict) or name not in holder:
            continue
        value = holder.pop(name)
        *sections, name = new.split(".")
        holder = content
        for section in sections:
            holder = holder.setdefault(section, {})
        if name in holder:
            raise ValueError(f"{old} is the old name of {new}: give one of them")
        holder[name] = value
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
