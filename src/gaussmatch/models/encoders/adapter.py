"""Frozen encoders with learned heads: uncertainty for the embeddings people already have.

Both sides are an embedding e of a published encoder, made comparable by the statistics of the
training embeddings, z = scale · (e − m)/s / |(e − m)/s|, and a two-layer head. The mean is the
head's output, or e itself; the log-variance is a head of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.files import read_json, write_json
from gaussmatch.models.encoders.base import ImageTransform, Reading, TextEncoder
from gaussmatch.models.encoders.onnx import accelerate
from gaussmatch.models.encoders.pretrained import ImageTower, TextTower, image_tower, text_tower
from gaussmatch.models.encoders.probabilistic import Probabilistic
from gaussmatch.models.encoders.vocabulary import Vocabulary

ARRAYS = "arrays"
"""Stands for an encoder that is not known: its embeddings exist already."""


class Named(NamedTuple):
    """A published encoder: its name, the width of its embeddings, the SHA-256 of its weights."""

    name: str
    width: int
    sha256: str = ""

    @staticmethod
    def of(name: str, tower: ImageTower | TextTower) -> Named:
        return Named(name, tower.width, tower.sha256())

    def check(self, tower: Any) -> None:
        if tower.sha256() != self.sha256:
            raise ValueError(
                f"the weights of {self.name} are others than those that this model was trained "
                f"with (SHA-256 {self.sha256}); give those as {self.name.split('@')[0]}@PLACE"
            )


class Encoders:
    """The published encoders of a model, loaded at first use. As a tokenizer it is that of the
    text encoder; a run keeps their names and hashes in place of a vocabulary."""

    file = Vocabulary.file

    def __init__(self, text: Named, image: Named | None = None) -> None:
        self.text, self.image = text, image

    @property
    def reads_text(self) -> bool:
        """Whether its text encoder is known."""
        return self.text.name != ARRAYS

    @cached_property
    def text_tower(self) -> TextTower:
        if not self.reads_text:
            raise ValueError(
                "this model was trained on ready embeddings and its text encoder is not known: "
                "give embeddings instead of texts, or adapt again with --text-encoder NAME"
            )
        tower = text_tower(self.text.name)
        self.text.check(tower)
        accelerate(tower)
        return tower

    @cached_property
    def image_tower(self) -> ImageTower:
        assert self.image is not None
        tower = image_tower(self.image.name)
        self.image.check(tower)
        accelerate(tower)
        return tower

    def __len__(self) -> int:
        return len(self.text_tower.tokenizer)

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        return self.text_tower.tokenizer.rows(texts)

    def read(self, texts: Iterable[str]) -> list[Reading]:
        return self.text_tower.tokenizer.read(texts)

    def known_share(self, texts: Sequence[str]) -> float:
        return 1.0

    @property
    def example(self) -> str:
        return self.text_tower.tokenizer.example if self.reads_text else ""

    def save(self, path: Path) -> None:
        image = None if self.image is None else self.image._asdict()
        write_json(path, {"text": self.text._asdict(), "image": image})

    @staticmethod
    def load(path: Path) -> Encoders:
        content = read_json(path)
        try:
            image = None if content["image"] is None else Named(**content["image"])
            return Encoders(Named(**content["text"]), image)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: names no encoders of an adapted model ({error})") from error


class Standardise(nn.Module):
    """e → scale · unit((e − m)/s). m and s are learned by ``fit`` and saved with the weights.

    >>> norm = Standardise(3, scale=20.0)
    >>> norm.fit(torch.tensor([[1.0, 0.0, 5.0], [3.0, 0.0, 5.0]]))
    >>> norm(torch.tensor([[3.0, 0.0, 5.0]]))       # a constant feature has no part
    tensor([[20.,  0.,  0.]])
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))

    def fit(self, embeddings: Float[Tensor, "n w"], center_only: bool = False) -> None:
        """Mean and standard deviation of embeddings, or the mean alone."""
        self.mean.copy_(embeddings.mean(0))
        if not center_only:
            spread = embeddings.std(0, correction=0)
            self.deviation.copy_(torch.where(spread > 0, spread, 1.0))

    def forward(self, embeddings: Float[Tensor, "n w"]) -> Float[Tensor, "n w"]:
        return self.scale * normalize((embeddings - self.mean) / self.deviation, dim=-1)


def head(width: int, dim: int, hidden: int, dropout: float) -> nn.Sequential:
    """Two layers: dropout → linear → GELU → dropout → linear."""
    return nn.Sequential(
        nn.Dropout(dropout),
        nn.Linear(width, hidden),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, dim),
    )


class ImageAdapter(nn.Module):
    """Image embeddings (n, width) → points (n, D).

    Args:
        encoders: whose embeddings they are; pictures go through its image encoder.
        width, dim, hidden, dropout: of the head.
        scale: length of the standardised embedding.
        center_only: subtract the mean, and do not divide by the deviation.
    """

    part = "head"

    def __init__(
        self,
        encoders: Encoders,
        width: int,
        dim: int,
        hidden: int,
        dropout: float,
        scale: float,
        center_only: bool = False,
    ) -> None:
        super().__init__()
        self.encoders, self.dim, self._center_only = encoders, dim, center_only
        self.width = width
        self.standardise = Standardise(width, scale)
        self.head = head(width, dim, hidden, dropout)

    def fit(self, embeddings: Float[Tensor, "n w"]) -> None:
        """Learn the statistics of the training embeddings."""
        self.standardise.fit(embeddings, self._center_only)

    @property
    def transform(self) -> ImageTransform | None:
        """Pictures → embeddings by the published encoder, or ``None`` where it has no name."""
        if self.encoders.image is None:
            return None
        return lambda pictures: self.encoders.image_tower.encode(pictures).numpy()

    def embedding(self, inputs: Any) -> Float[Tensor, "n w"]:
        """The published embedding of a batch."""
        given: Tensor = inputs
        return given

    def forward(self, inputs: Any) -> Float[Tensor, "n d"]:
        return normalize(self.head(self.standardise(self.embedding(inputs))), dim=-1)


class TextAdapter(ImageAdapter, TextEncoder):
    """Texts, or their embeddings (n, width), → points (n, D); see ``ImageAdapter``."""

    def __init__(self, encoders: Encoders, *sizes: Any, **settings: Any) -> None:
        super().__init__(encoders, *sizes, **settings)
        self.tokenizer = encoders

    @property
    def tower(self) -> TextTower:
        return self.encoders.text_tower

    def prepare(self, texts: Sequence[str]) -> Sequence[Any]:
        """The embedding of each text."""
        return list(self.tower.encode(texts).numpy())

    def embedding(self, inputs: Any) -> Float[Tensor, "n w"]:
        if isinstance(inputs, Tensor):
            return inputs
        tower = self.tower.to(self.standardise.mean.device)
        with torch.no_grad():
            return tower.run(inputs).float()


class GivenMean(Probabilistic):
    """The published embedding itself is the mean; only the log-variance is learned. Whoever ranks
    by the mean gets what the published encoders give, bit for bit."""

    def __init__(self, encoder: ImageAdapter, **settings: Any) -> None:
        super().__init__(encoder, "head", **settings)
        encoder.head = nn.Sequential()  # its copy is all that learns

    def _mean_and_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, tuple[tuple[Any, ...], dict[str, Any]]]:
        adapter = self.encoder
        assert isinstance(adapter, ImageAdapter)
        mean = adapter.embedding(*args)
        return mean, ((adapter.standardise(mean),), {})
