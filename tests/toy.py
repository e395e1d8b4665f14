"""A toy data set for fast tests: attribute vectors, captions that name some of the attributes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.learn.training import loop
from gaussmatch.models.encoders.base import SPECIALS, Vocabulary
from gaussmatch.models.encoders.vsepp import WordGRU

WORDS = [
    ["red", "blue", "green", "black"],
    ["cat", "dog", "bird", "fish"],
    ["small", "large", "tiny", "huge"],
    ["left", "right", "above", "below"],
]


class Rows:
    """Images that are rows of an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.array[index]

    def picture(self, index: int) -> Image.Image | None:
        return Image.new("RGB", (8, 8), (index % 256, 0, 0))


def toy_pairs(name: str, images: int, seed: int) -> Pairs:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 4, size=(images, 4))
    features = np.eye(4, dtype=np.float32)[values].reshape(images, 16)
    features += 0.05 * rng.normal(size=features.shape).astype(np.float32)
    captions, image_of = [], []
    for i, row in enumerate(values):
        for _ in range(2):
            named = np.sort(rng.choice(4, size=rng.integers(2, 5), replace=False))
            captions.append(" ".join(WORDS[a][row[a]] for a in named))
            image_of.append(i)
    return Pairs(f"toy/{name}", Rows(features), captions, torch.tensor(image_of))


def toy_data(images: int = 60) -> DataSet:
    return DataSet(
        "toy", toy_pairs("train", images, 0), toy_pairs("dev", 30, 1), toy_pairs("test", 30, 2)
    )


def toy_words(count: int) -> Vocabulary:
    """A vocabulary of ``count`` words, the special ones included."""
    return Vocabulary.of([*SPECIALS, *(f"w{i}" for i in range(count - len(SPECIALS)))])


def toy_encoder(captions: Sequence[str]) -> WordGRU:
    """A text encoder that knows every word of the captions."""
    return WordGRU(Vocabulary.build(captions, min_count=1), 4, word_dim=3)


@contextmanager
def killed_at(step: int) -> Iterator[None]:
    """A training inside ends at this step, as a kill would end it."""
    original = loop.Steps.step

    def killed(self: loop.Steps, *args: object) -> object:
        if self.progress.step == step:
            raise KeyboardInterrupt
        return original(self, *args)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop.Steps, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            yield
