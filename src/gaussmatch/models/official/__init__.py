"""Checkpoints of the official codes of VSE++, VSRN, PVSE, PCME, PCME++ and ProLIP become run
folders.

Files are read as data; nothing in them is executed (``checkpoint``, ``words``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gaussmatch.files import sha256
from gaussmatch.models.encoders.base import Vocabulary
from gaussmatch.models.encoders.pretrained import GAUSSIAN
from gaussmatch.models.official.checkpoint import read_checkpoint, read_words
from gaussmatch.models.official.gaussians import import_encoders, is_named
from gaussmatch.models.official.systems import SYSTEMS, Translation
from gaussmatch.models.recipe import Recipe, changed
from gaussmatch.models.run import claim_place, is_run, save_parts, save_weights, write_metrics


def import_checkpoint(
    checkpoint: Path,
    out: Path,
    vocabulary: Path | None = None,
    system: str | None = None,
    overrides: Mapping[str, Any] = {},
) -> Recipe:
    """Turn an official checkpoint into a run folder that loads and evaluates like any other.

    Args:
        checkpoint: the file that ``torch.save`` of the official code wrote; of ProLIP and PCME++
            also a folder in the layout of the hub, or the name of a repository there; or an encoder
            of both sides by name, such as ``open_clip:ViT-B-32/openai``.
        out: the run folder.
        vocabulary: its vocabulary file; PCME's checkpoints hold theirs.
        system: one of ``SYSTEMS`` or ``GAUSSIAN``; found from the file or folder when none.
        overrides: fields of the recipe's data, as ``{"data.root": "coco_precomp"}``.
    """
    if is_run(out):
        raise FileExistsError(f"{out} already holds a run; choose another folder with --out")
    claim_place(out)
    if system in GAUSSIAN or checkpoint.is_dir() or is_named(checkpoint):
        return _encoders(checkpoint, out, vocabulary, system, overrides)
    where, content = str(checkpoint), read_checkpoint(checkpoint)
    if system is None and "pytorch-lightning_version" in content:
        return _encoders(checkpoint, out, vocabulary, system, overrides)
    system = system or recognized(content, where)
    if not SYSTEMS[system].recognizes(content):
        raise ValueError(f"{where}: not a checkpoint of {system}; leave its name out to detect it")
    found = SYSTEMS[system].translate(content, where)
    words = Vocabulary.of(_words(found, vocabulary, where))
    recipe = changed(found.recipe, overrides)
    weights = found.weights.fitted(recipe.model, words, where)
    save_weights(weights, out)
    write_metrics(out, finished=True, dev={}, imported=_about(system, checkpoint, found))
    save_parts(out, recipe, words)
    if found.options.unread:
        warnings.warn(
            f"options of its training that are not known here: {', '.join(found.options.unread)}; "
            "where they change the model, its results differ",
            stacklevel=2,
        )
    return recipe


def _encoders(
    given: Path,
    out: Path,
    vocabulary: Path | None,
    system: str | None,
    overrides: Mapping[str, Any],
) -> Recipe:
    if system not in (None, *GAUSSIAN):
        raise ValueError(
            f"{given}: a folder, but {system} has files; folders are of {' and '.join(GAUSSIAN)}"
        )
    if vocabulary is not None:
        raise ValueError(f"{given}: comes with its tokenizer; leave --vocab out")
    return import_encoders(given, out, system, overrides)


def recognized(content: Mapping[str, Any], where: str) -> str:
    """The name of the official code that wrote a checkpoint."""
    for name, system in SYSTEMS.items():
        if system.recognizes(content):
            return name
    held = ", ".join(str(key) for key in list(content)[:10]) or "nothing"
    known = ", ".join((*SYSTEMS, *GAUSSIAN))
    raise ValueError(f"{where}: no checkpoint of {known}: it holds {held}")


def _words(found: Translation, vocabulary: Path | None, where: str) -> list[str]:
    """The words of the model, as many as it has vectors for."""
    if vocabulary is None and found.words is None:
        raise ValueError(
            f"{where}: holds no vocabulary; give the file it was trained with, --vocab"
        )
    words = found.words if vocabulary is None else read_words(vocabulary)
    assert words is not None
    if found.words is not None and words != found.words:
        raise ValueError(f"{vocabulary}: not the vocabulary that {where} holds; leave --vocab out")
    vectors = found.weights.size("text.words.weight", 0, where)
    if len(words) != vectors:
        raise ValueError(
            f"{vocabulary or where}: {len(words):,} words, but the model has {vectors:,} word "
            "vectors; give the vocabulary that it was trained with"
        )
    return words


def _about(system: str, checkpoint: Path, found: Translation) -> dict[str, Any]:
    """Where the run comes from, for metrics.json."""
    return {
        "system": system,
        "checkpoint": checkpoint.name,
        "sha256": sha256(checkpoint),
        "training": found.training,
        "ignored": found.weights.ignored,
        "unknown_options": found.options.unread,
    }
