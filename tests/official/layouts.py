"""Small files in the layouts of the official codes, written by the tests themselves."""

from __future__ import annotations

import argparse
import io
import pickle
import sys
import types
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WORDS = ["<pad>", "<start>", "<end>", "<unk>", "dog", "a", ".", "n't", "café", "''", "``", "runs"]


class Python2(pickle._Pickler):
    """Writes text as Python 2 wrote its byte strings."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_text(self, text: str) -> None:
        if text.isascii() and len(text) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(text)]) + text.encode())
            self.memoize(text)
        else:
            pickle._Pickler.save_str(self, text)

    dispatch[str] = save_text


python2 = types.ModuleType("pickle")
python2.Pickler = Python2  # type: ignore[attr-defined]
python2.dump = lambda value, file, protocol=2: Python2(file, protocol).dump(value)  # type: ignore[attr-defined]


def save(path: Path, content: dict[str, Any], how: str = "zip") -> Path:
    """``torch.save`` of today (zip), before 1.6 (legacy), and of Python 2 (python2)."""
    more = {"pickle_module": python2} if how == "python2" else {}
    torch.save(content, path, _use_new_zipfile_serialization=how == "zip", **more)
    return path


def vocabulary_bytes(
    words: Iterable[str] = WORDS, module: str = "vocab", protocol: int = 2, old: bool = False
) -> bytes:
    """A pickled object of the class ``Vocabulary`` of a script; ``old`` as Python 2 wrote it."""
    there = sys.modules.get(module)
    home = there if module == "__main__" and there is not None else types.ModuleType(module)
    kind = type("Vocabulary", (), {"__module__": module})
    before = getattr(home, "Vocabulary", None)
    home.Vocabulary = kind  # type: ignore[attr-defined]
    sys.modules[module] = home
    try:
        value, numbers = kind(), {word: i for i, word in enumerate(words)}
        value.word2idx, value.idx = numbers, len(numbers)  # type: ignore[attr-defined]
        value.idx2word = {i: word for word, i in numbers.items()}  # type: ignore[attr-defined]
        file = io.BytesIO()
        (Python2 if old else pickle.Pickler)(file, protocol).dump(value)
        return file.getvalue()
    finally:
        if there is None:
            del sys.modules[module]
        elif before is None:
            del home.Vocabulary  # type: ignore[attr-defined]


def vocabulary(path: Path, words: Iterable[str] = WORDS) -> Path:
    path.write_bytes(vocabulary_bytes(words))
    return path


def zipped(program: bytes) -> bytes:
    """A pickle program in the place of the contents of a checkpoint of today."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return file.getvalue()


def legacy(program: bytes) -> bytes:
    """A pickle program in the place of the contents of a checkpoint before torch 1.6."""
    first = [
        torch.serialization.MAGIC_NUMBER,
        torch.serialization.PROTOCOL_VERSION,
        {"protocol_version": 1001, "little_endian": True, "type_sizes": {}},
    ]
    return b"".join(pickle.dumps(value, 2) for value in first) + program


def gru(inputs: int, width: int, both: bool = False, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(nn.GRU(inputs, width, batch_first=True, bidirectional=both).state_dict())


def named(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value.clone() for name, value in state.items()}


def linear(inputs: int, outputs: int) -> dict[str, Tensor]:
    return dict(nn.Linear(inputs, outputs).state_dict())


def vsepp(
    dim: int = 8,
    word_dim: int = 6,
    img_dim: int = 10,
    network: dict[str, Tensor] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What VSE++ saves, with the options of its command line."""
    chosen = {
        "data_path": "/w/data", "data_name": "coco_precomp", "vocab_path": "./vocab/",
        "margin": 0.2, "num_epochs": 30, "batch_size": 128, "word_dim": word_dim,
        "embed_size": dim, "grad_clip": 2.0, "crop_size": 224, "num_layers": 1,
        "learning_rate": 0.0002, "lr_update": 15, "workers": 10, "log_step": 10, "val_step": 500,
        "logger_name": "runs/runX", "resume": "", "max_violation": True, "img_dim": img_dim,
        "finetune": False, "cnn_type": "vgg19", "use_restval": False, "measure": "cosine",
        "use_abs": False, "no_imgnorm": False, "reset_train": False, "vocab_size": len(WORDS),
    } | options  # fmt: skip
    image = {**named("cnn.", network or {}), **named("fc.", linear(img_dim, dim))}
    text = {"embed.weight": torch.randn(len(WORDS), word_dim), **named("rnn.", gru(word_dim, dim))}
    return {
        "epoch": 27,
        "model": [image, text],
        "best_rsum": np.float64(431.5),
        "opt": argparse.Namespace(**chosen),
        "Eiters": 1234,
    }


def precomputed(root: Path, shape: tuple[int, ...], captions: Callable[[int], str]) -> Path:
    """Features in the layout that their data loaders read, five captions an image."""
    root.mkdir()
    for split, images in (("train", 3), ("dev", 2), ("test", 4)):
        rng = np.random.default_rng(images)
        np.save(root / f"{split}_ims.npy", rng.random((images, *shape), dtype=np.float32))
        lines = "".join(f"{captions(i)}\n" for i in range(5 * images))
        (root / f"{split}_caps.txt").write_text(lines, encoding="utf-8")
    return root
