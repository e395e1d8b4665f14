"""What every encoder has: a text encoder owns its tokenizer, an image encoder its transform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor, nn

ImageTransform = Callable[[Sequence[Image.Image]], np.ndarray]
"""Pictures → the inputs of an image encoder, (n, …) float32. An encoder that contains its network,
or names it, has its own; for features made beforehand, their folder says how."""


class Tokens(NamedTuple):
    """A batch of texts: token ids (n, T), padded on the right, and true lengths (n)."""

    ids: Int[Tensor, "n t"]
    lengths: Int[Tensor, "n"]

    def to(self, *args: object, **kwargs: object) -> Tokens:
        return Tokens(self.ids.to(*args, **kwargs), self.lengths.to(*args, **kwargs))  # type: ignore[call-overload]


def pad(rows: Sequence[list[int]], padding: int = 0) -> Tokens:
    """Lists of token ids as one padded batch.

    >>> pad([[5, 6], [7]])
    Tokens(ids=tensor([[5, 6],
            [7, 0]]), lengths=tensor([2, 1]))
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    full = np.array([row + [padding] * (longest - len(row)) for row in rows], dtype=np.int64)
    return Tokens(torch.from_numpy(full), torch.tensor(lengths))


class Reading(NamedTuple):
    """A text as an encoder reads it.

    Args:
        text: as written.
        row: what the encoder was given of it, see ``TextEncoder.prepare``.
        unknown: its words that the encoder does not know, as written; none for sub-word encoders.
        known: whether the encoder knows anything of it.
        cut: its words that a sub-word encoder has no token for and reads in parts.
        truncated: whether it is longer than the encoder reads.
    """

    text: str
    row: Any
    unknown: list[str]
    known: bool
    cut: Sequence[str] = ()
    truncated: bool = False


class Tokenizer(Protocol):
    """Texts → token ids."""

    def __len__(self) -> int:
        """How many tokens there are."""

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, with start and end."""

    def read(self, texts: Iterable[str]) -> list[Reading]:
        """Token ids and unknown words of each text."""

    @property
    def example(self) -> str:
        """A text that is known, such as a word."""


UNREAD = (
    "this model was trained on ready embeddings and its text encoder is not known: give embeddings "
    "instead of texts, or adapt again with --text-encoder NAME"
)


class TextEncoder(nn.Module):
    """Texts → points (n, D) or Gaussians, in three steps.

    ``prepare`` turns texts into rows, once for a data set; ``collate`` makes a batch of some rows;
    ``forward`` encodes the batch. ``part`` names the submodule that ``Probabilistic`` duplicates.
    """

    tokenizer: Tokenizer
    dim: int

    @property
    def reads_text(self) -> bool:
        """Whether it takes words: not if it was made for embeddings of an unknown encoder."""
        return True

    def prepare(self, texts: Sequence[str]) -> Sequence[Any]:
        """One row for each text; ``len(row)`` is its length, if texts are sorted by it."""
        return self.tokenizer.rows(texts)

    def read(self, texts: Iterable[str]) -> list[Reading]:
        """Rows of a few texts, with their unknown words."""
        return self.tokenizer.read(texts)

    @staticmethod
    def collate(rows: Any) -> Any:
        """Rows as the batch that ``forward`` takes, with ``to(device)``: token ids as ``Tokens``,
        ready embeddings as one tensor."""
        if isinstance(rows[0], list):
            return pad(rows)
        return torch.from_numpy(np.stack(rows).astype(np.float32, copy=False))
