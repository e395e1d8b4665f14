"""A small index for the tests of the service: random weights, real pictures and captions."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from gaussmatch.data import scenes
from gaussmatch.index import Index
from gaussmatch.index.fill import index_pairs
from gaussmatch.recipe import load_recipe
from gaussmatch.training.loop import train
from gaussmatch.trust import calibrate


def make_index(folder: Path, recipe: str = "scenes/vsepp-kl") -> Index:
    """Train for one epoch on the tiny scenes and index their test split."""
    words = ["--data.size", "tiny", "--training.epochs", "1"]
    data = scenes.load("tiny", progress=False)
    train(load_recipe(recipe, words), folder / "run", data=data)
    from gaussmatch.run import load

    calibration = calibrate(load(folder / "run"), data)
    index = Index.create(folder / "index", folder / "run", calibration=calibration)
    index_pairs(index, data.test, "test", progress=False)
    return index


def jpeg(size: tuple[int, int] = (64, 64), colour: tuple[int, int, int] = (220, 30, 30)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "JPEG")
    return file.getvalue()
