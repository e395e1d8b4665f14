"""What published encoders have in common: frozen, known by the hash of their weights."""

from __future__ import annotations

import hashlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from gaussmatch.encoders.base import Reading, Tokens, pad


class Tower(nn.Module):
    """A frozen encoder. ``width`` is that of its embeddings, ``name`` is for messages."""

    name: str
    width: int

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def freeze(self) -> None:
        self.eval().requires_grad_(False)

    def sha256(self) -> str:
        """Of the weights: two encoders with the same hash give the same embeddings."""
        return weights_sha256(self.name, self)


class ImageTower(Tower, ABC):
    """Pictures → embeddings (n, width)."""

    @abstractmethod
    def transform(self, picture: Image.Image, crop: bool = True) -> Float[Tensor, "3 h w"]:
        """A picture as ``forward`` takes it."""

    @abstractmethod
    def forward(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n width"]: ...

    @torch.inference_mode()
    def encode(self, pictures: Sequence[Image.Image], batch: int = 16) -> Float[Tensor, "n width"]:
        chunks = (pictures[i : i + batch] for i in range(0, len(pictures), batch))
        inputs = (torch.stack([*map(self.transform, chunk)]) for chunk in chunks)
        return torch.cat([self(given.to(self.device)).float().cpu() for given in inputs])


class TextTower(Tower, ABC):
    """Texts → embeddings (n, width), by its own tokenizer."""

    tokenizer: Subwords

    @abstractmethod
    def forward(self, tokens: Tokens) -> Float[Tensor, "n width"]: ...

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], batch: int = 64) -> Float[Tensor, "n width"]:
        """Texts of like length go together, which changes the time and not the result."""
        rows = self.tokenizer.rows(texts)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        out = torch.empty(len(rows), self.width)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            out[chosen] = self(pad([rows[i] for i in chosen]).to(self.device)).float().cpu()
        return out


class Subwords:
    """A tokenizer that comes with its encoder. It cuts words into known parts, so that no word is
    unknown, and is not saved in a run."""

    file = ""

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], size: int) -> None:
        self._encode, self._size = encode, size

    def __len__(self) -> int:
        return self._size

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(list(texts))

    def read(self, texts: Iterable[str]) -> list[Reading]:
        return [Reading(t, self.rows([t])[0], [], bool(t.strip())) for t in texts]

    def known_share(self, texts: Sequence[str]) -> float:
        return 1.0

    @property
    def example(self) -> str:
        return "a photo"

    def save(self, path: Path) -> None:
        """Nothing: it is named by the encoder's name and hash."""


def weights_sha256(name: str, module: nn.Module) -> str:
    """The hash of all weights of a module, and of its name."""
    digest = hashlib.sha256(name.encode())
    for key, value in sorted(module.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def files_sha256(files: Iterable[Path]) -> str:
    """The hash of a file; of several, that of their hashes in the order of their names."""
    found = []
    for path in sorted(files):
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def carried(package: str, file: str) -> Path | None:
    """A file or folder inside an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / file


def needs(package: str, extra: str, error: ImportError) -> ImportError:
    """A missing library, and how to install it."""
    return ImportError(
        f"this encoder needs {package} ({error}); install it with: "
        f"pip install 'gaussmatch[{extra}]'"
    )


def as_tensor(output: Any) -> Tensor:
    """The embedding in what a network of transformers returns."""
    found: Tensor = output if isinstance(output, Tensor) else output.pooler_output
    return found
