"""A run folder: everything a training run leaves, loaded again by one call.

recipe.yaml          what was asked for, every field
vocabulary.json      the tokenizer of the text encoder: its words
model.safetensors    the best weights on validation
metrics.json         their validation measures, and whether training finished
log.jsonl            one line a step report and one an epoch
checkpoint.pt        what is needed to go on
tensorboard/         the same curves for TensorBoard
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gaussmatch.files import atomic
from gaussmatch.matcher import Matcher, build, load_tokenizer
from gaussmatch.model import Model
from gaussmatch.recipe import load_recipe


def load(run: str | os.PathLike[str], device: str | torch.device = "cpu") -> Model:
    """Load the best model of a run folder."""
    folder = Path(run)
    missing = [
        name
        for name in ("recipe.yaml", "vocabulary.json", "model.safetensors")
        if not (folder / name).is_file()
    ]
    if missing:
        raise FileNotFoundError(
            f"{folder} is not a finished run: {', '.join(missing)} missing; "
            "make one with 'gaussmatch train RECIPE --out DIR'"
        )
    recipe = load_recipe(folder / "recipe.yaml")
    matcher = build(recipe.model, load_tokenizer(recipe, folder), recipe.loss)
    load_weights(matcher, folder / "model.safetensors")
    return Model(recipe, matcher.to(device))


def save_weights(matcher: Matcher, path: Path) -> None:
    state = {name: t.detach().cpu().contiguous() for name, t in matcher.state_dict().items()}
    with atomic(path) as temporary:
        save_file(state, os.fspath(temporary))


def load_weights(matcher: Matcher, path: Path) -> None:
    try:
        matcher.load_state_dict(load_file(os.fspath(path)))
    except SafetensorError as error:
        raise ValueError(
            f"{path}: not a whole safetensors file ({error}); copy it again or train again"
        ) from error
    except RuntimeError as error:
        raise ValueError(f"{path}: does not fit recipe.yaml beside it: {error}") from error
