"""Results that show nearly the same: copies, and the pictures of a burst."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

SAME = 0.97
"""Cosine of two means from which on two pictures are taken for one."""
ALIKE = 0.8
"""The same for two that were taken within ``SECONDS`` of each other, are named as copies, or agree
in their details."""
SECONDS = 10.0
SIDE, BLUR, COPY = 16, 2, 0.9
"""Of a sketch: its pixels, the radius of what is too coarse, and the cosine of those of copies."""
_COPY = re.compile(r"(?:[\s_-]*(?:\(\d+\)|copy|edited|kopie|~\d+))+$", re.IGNORECASE)


def grouped(
    means: np.ndarray,
    metas: Sequence[Mapping[str, Any]],
    sketched: Callable[[int], np.ndarray | None] = lambda at: None,
) -> list[int]:
    """For each result the position of the best one that shows nearly the same: its own, where there
    is none before it.

    Means alone cannot tell a copy from another photo of the same scene: those of unlike photos
    reach 0.95 among thousands. So a date, a name or the details of the pictures must agree, unless
    they are almost equal.

    Args:
        means: (n, D) of the results, best first.
        metas: their metadata, of which the date (``taken``) and the ``file`` are read.
        sketched: position → ``sketch_in`` its thumbnail, requested only if one is alike.

    >>> means = np.array([[1.0, 0.0], [0.0, 1.0], [0.999, 0.01], [0.9, 0.4]])
    >>> grouped(means, [{}] * 4)
    [0, 1, 0, 3]
    >>> burst = [{"taken": f"2023-05-17T10:22:3{n}"} for n in range(4)]
    >>> grouped(means, burst), grouped(means, [{"file": "a.jpg"}, {}, {}, {"file": "b/a (2).jpg"}])
    ([0, 1, 0, 0], [0, 1, 0, 0])
    """
    unit = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
    when = np.array([_seconds(meta.get("taken")) for meta in metas])
    stems = np.array([_stem(meta.get("file"), at) for at, meta in enumerate(metas)])
    near = np.abs(when[:, None] - when[None, :]) <= SECONDS  # false where one is not known
    near |= stems[:, None] == stems[None, :]
    alike = unit @ unit.T
    for one, other in np.argwhere(np.triu((alike >= ALIKE) & (alike < SAME) & ~near, 1)):
        a, b = sketched(int(one)), sketched(int(other))
        near[one, other] = near[other, one] = a is not None and b is not None and a @ b >= COPY
    same = (alike >= SAME) | ((alike >= ALIKE) & near)
    first = np.arange(len(means))
    for at in range(len(means)):
        before = np.flatnonzero(same[at, :at] & (first[:at] == np.arange(at)))
        if len(before):
            first[at] = before[0]
    groups: list[int] = first.tolist()
    return groups


def sketch(picture: Image.Image) -> bytes:
    """The details of a picture in a square of 16 × 16 gray pixels, a signed byte each. Those of a
    resized or recompressed copy hardly differ; of 2,000 photos no two were alike."""
    small = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    details = np.asarray(small, float) - np.asarray(small.filter(ImageFilter.BoxBlur(BLUR)), float)
    return np.round(127 * details / max(np.abs(details).max(), 1.0)).astype(np.int8).tobytes()


def sketch_in(thumbnail: bytes | None) -> np.ndarray | None:
    """(256), the ``sketch`` in the comment of a JPEG, of length 1; ``None`` if there is none.

    >>> from gaussmatch.search import thumbnail
    >>> one, other = (Image.linear_gradient("L").rotate(angle, fillcolor=255) for angle in (10, 50))
    >>> a, b, c = (sketch_in(thumbnail(p)) for p in (one, one.resize((90, 60)), other))
    >>> bool(a @ b > COPY), bool(a @ c > COPY), sketch_in(None)
    (True, False, None)
    """
    at, held = 2, thumbnail or b""
    while held[at : at + 1] == b"\xff" and held[at : at + 2] != b"\xff\xda":  # the picture itself
        size, body = int.from_bytes(held[at + 2 : at + 4], "big"), held[at + 4 :][: SIDE * SIDE]
        if held[at : at + 2] == b"\xff\xfe" and size - 2 == len(body) == SIDE * SIDE:
            found = np.frombuffer(body, np.int8).astype(np.float32)
            return found / max(float(np.linalg.norm(found)), 1.0)
        at += 2 + size
    return None


def _stem(file: object, at: int) -> str:
    """A file's name without its ending and what marks a copy; one of its own if there is none.

    >>> _stem("2023/IMG_1 (2).jpg", 0), _stem("IMG_1-edited.jpg", 0), _stem(None, 7)
    ('IMG_1', 'IMG_1', '/7')
    """
    stem = _COPY.sub("", PurePosixPath(file).stem) if isinstance(file, str) else ""
    return stem or f"/{at}"


def _seconds(taken: object) -> float:
    """Seconds of a date with a time; NaN of anything else."""
    if not isinstance(taken, str) or len(taken) < len("2023-05-17T10:22:31"):
        return np.nan
    try:
        return datetime.fromisoformat(taken[:19]).timestamp()
    except (ValueError, OverflowError, OSError):
        return np.nan
