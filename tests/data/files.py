"""Small files in the publishers' true formats, written by the tests themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def photo(path: Path, seed: int = 0, size: tuple[int, int] = (40, 30)) -> Path:
    """A JPEG of noise, so that cutting it short shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, quality=95)
    return path


def own_photos(root: Path, photos: int = 30) -> Path:
    """A folder of photos, with two captions each in a table."""
    rows = ["image,caption"]
    for i in range(photos):
        photo(root / f"{i}.jpg", i)
        rows += [f"{i}.jpg,a dog number {i % 3}", f'{i}.jpg,"Ein Hund, Nummer {i % 5} 🐕"']
    (root / "captions.csv").write_text("\n".join(rows), encoding="utf-8")
    return root


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def flickr8k(root: Path, train: int = 6, photos: bool = True) -> Path:
    """``train`` + 2 + 2 photos with two captions each, one judged pair, one orphan."""
    splits = {"train": range(train), "dev": range(train, train + 2)}
    splits["test"] = range(train + 2, train + 4)
    lines = ["orphan.jpg.1#0\tA photo that is not there ."]
    for split, numbers in splits.items():
        names = [f"{i}.jpg" for i in numbers]
        root.mkdir(parents=True, exist_ok=True)
        (root / f"Flickr_8k.{split}Images.txt").write_text("".join(f"{n}\n" for n in names))
        for i, name in zip(numbers, names, strict=True):
            lines += [f"{name}#{k}\tA dog number {i} runs , the {k} ." for k in range(2)]
            if photos:
                photo(root / "images" / name, i)
    (root / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    a, b = (f"{i}.jpg" for i in splits["test"])
    (root / "CrowdFlowerAnnotations.txt").write_text(
        f"{a}\t{a}#0\t1\t3\t0\n{a}\t{b}#1\t0.5\t2\t2\n{b}\t{a}#1\t0.25\t1\t3\n"
    )
    return root


def features(root: Path, name: str, names: list[str], width: int = 8) -> Path:
    """``{name}.npy`` with the names of its rows beside it."""
    array = np.random.default_rng(0).random((len(names), width), dtype=np.float32)
    np.save(root / f"{name}.npy", array.astype(np.float16))
    (root / f"{name}_files.txt").write_text("".join(f"{n}\n" for n in names))
    return root / f"{name}.npy"
