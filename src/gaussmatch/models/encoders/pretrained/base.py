"""What published encoders have in common: frozen, known by the hash of their weights."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn

from gaussmatch.models.encoders.base import Tokens, pad
from gaussmatch.models.texts import Subwords


@dataclass(frozen=True)
class Transform:
    """A picture → values (3, size, size), as a network takes them: resized, center crop, then
    (x − mean)/std of each channel.

    Args:
        size: side of the square.
        resize: the short side before the crop; ``None`` squeezes the whole picture into the square.
        interpolation: of Pillow.
    """

    size: int
    mean: Sequence[float] = (0.0, 0.0, 0.0)
    std: Sequence[float] = (1.0, 1.0, 1.0)
    resize: int | None = None
    interpolation: str = "bicubic"

    def __call__(self, picture: Image.Image) -> Float[Tensor, "3 size size"]:
        if self.resize is None:
            return self.of_size(picture, (self.size, self.size))
        short = min(picture.size)
        wide, high = (int(self.resize * side / short) for side in picture.size)
        left, top = (round((side - self.size) / 2) for side in (wide, high))
        box = (left, top, left + self.size, top + self.size)
        return self.of_size(picture, (wide, high), box)

    def of_size(
        self,
        picture: Image.Image,
        size: tuple[int, int],
        box: tuple[int, int, int, int] | None = None,
    ) -> Float[Tensor, "3 h w"]:
        """The values of a picture, or of a box of it, after a resize to (width, height)."""
        how = Image.Resampling[self.interpolation.upper()]
        picture = picture if picture.mode == "RGB" else picture.convert("RGB")
        picture = picture.resize(size, how)
        picture = picture if box is None else picture.crop(box)
        planes = np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))  # while still bytes
        values = planes.astype(np.float32)
        values /= np.float32(255)
        mean, std = (np.asarray(v, np.float32).reshape(3, 1, 1) for v in (self.mean, self.std))
        values -= mean
        values /= std
        return torch.from_numpy(values)

    def batch(self, pictures: Sequence[Image.Image]) -> np.ndarray:
        """Pictures → (n, 3, size, size)."""
        return np.stack([self(picture).numpy() for picture in pictures])


class Tower(nn.Module):
    """A frozen encoder. ``width`` is that of its embeddings, ``name`` is for messages.

    ``fast`` is the same network in onnxruntime, which ``run`` prefers on a CPU. If that is
    installed, ``encoders.onnx.accelerate`` sets it for the classes that are ``accelerated``.
    """

    name: str
    width: int
    accelerated: ClassVar[bool] = False
    _hash: str = ""
    fast: Callable[..., Sequence[Tensor]] | None = None

    @property
    def device(self) -> torch.device:
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def run(self, batch: Any) -> Float[Tensor, "n width"]:
        """``forward``, by the fastest way that there is here."""
        if self.fast is None or self.device.type != "cpu":
            return self(batch)
        return self.fast(*([batch] if isinstance(batch, Tensor) else batch))[0]

    def freeze(self) -> None:
        self.eval().requires_grad_(False)

    def sha256(self) -> str:
        """Of the weights: two encoders with the same hash give the same embeddings."""
        return self._hash or weights_sha256(self.name, self)


class ImageTower(Tower, ABC):
    """Pictures → embeddings (n, width).

    ``whole`` (``NAME+whole``, ``data.view whole``): it looks at the whole picture, squeezed into a
    square, instead of a center crop.
    """

    whole: bool = False
    published: Transform | None = None
    """The published transform, if it is data."""

    def transform(self, picture: Image.Image, whole: bool | None = None) -> Float[Tensor, "3 h w"]:
        """A picture as ``forward`` takes it; ``whole`` is that of the encoder if not given. Several
        threads call it."""
        return self.view(whole)(picture)

    def view(self, whole: bool | None = None) -> Transform:
        """The transform as data, which an export holds."""
        published = self.described()
        whole = self.whole if whole is None else whole
        return replace(published, resize=None) if whole else published

    def described(self) -> Transform:
        """The published transform as data; refused if it is code."""
        if self.published is None:
            raise ValueError(
                f"{self.name}: its transform is code, which cannot be changed or exported"
            )
        return self.published

    @abstractmethod
    def forward(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n width"]: ...

    @property
    def at_once(self) -> int:
        """Pictures that go through it together: on a CPU few are fastest, in onnxruntime one for
        each thread."""
        if self.device.type != "cpu":
            return 64
        return 2 if self.fast is None else max(2, torch.get_num_threads())

    @torch.inference_mode()
    def encode(self, pictures: Sequence[Image.Image]) -> Float[Tensor, "n width"]:
        """Threads transform the pictures. In onnxruntime each also runs the network on its own, one
        picture after the other, so that none waits for another."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            if self.fast is not None and self.device.type == "cpu":
                return torch.cat([*pool.map(lambda p: self.run(self.transform(p)[None]), pictures)])
            step = self.at_once
            chunks = (pictures[i : i + step] for i in range(0, len(pictures), step))
            inputs = (stacked(pool.map(self.transform, chunk)) for chunk in chunks)
            return torch.cat([self.run(given.to(self.device)).float().cpu() for given in inputs])


def stacked(planes: Iterable[Float[Tensor, "3 h w"]]) -> Float[Tensor, "n 3 h w"]:
    """Transformed pictures as a batch. By numpy: the threads of torch would go on spinning while
    those of onnxruntime work."""
    return torch.from_numpy(np.stack([p.numpy() for p in planes]))


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
            tokens = pad([rows[i] for i in chosen]).to(self.device)
            out[chosen] = self.run(tokens).float().cpu()
        return out


def filled(
    tokens: Tokens, length: int, padding: int, left: bool = False
) -> Int[Tensor, "n length"]:
    """Token ids padded to a fixed length, on the right or on the left, as some networks were
    trained.

    >>> filled(pad([[5, 6], [7]]), 3, 9)
    tensor([[5, 6, 9],
            [7, 9, 9]])
    """
    lengths = tokens.lengths[:, None]
    at = torch.arange(length, device=tokens.ids.device) - (length - lengths if left else 0)
    taken = tokens.ids.gather(1, at.clamp(min=0).minimum(lengths - 1))
    return torch.where((at >= 0) & (at < lengths), taken, padding)


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


def weights_file(place: Path, *names: str) -> Path:
    """The file of weights that a user names, or the one in the folder that a user names.

    Args:
        names: of files that a folder is searched for, the likeliest first; else its only one.
    """
    if not place.is_dir():
        if not place.is_file():
            raise FileNotFoundError(f"{place}: no such file of weights, nor a folder")
        return place
    found = [place / name for name in names if (place / name).is_file()]
    found = found or sorted(place.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError(f"{place}: no .safetensors; only those are loaded")
    if found[0].name not in names and len(found) > 1:
        listed = ", ".join(path.name for path in found)
        raise ValueError(f"{place}: several files of weights ({listed}); name one of them")
    return found[0]


def carried(package: str, file: str) -> Path | None:
    """A file or folder inside an installed package, which is not imported."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / file


_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []  # a library lives as long as it is referred to


def make_importable() -> None:
    """Let torchvision be imported beside a torch of another build; call before its first import.

    Its wheel from PyPI beside a CPU build of torch fails at import (``operator torchvision::nms
    does not exist``), and timm with it. The two schemas that it registers Python code for are
    declared here first; if torchvision is healthy, nothing is done. We call neither operator.
    """
    if "torchvision" in sys.modules or _kept:
        return
    try:
        importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + _SCHEMA)
        _kept.append(library)
