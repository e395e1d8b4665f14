"""Results that show nearly the same: copies, and the pictures of a burst."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

import numpy as np

SAME = 0.97
"""Cosine of two means from which on two pictures are taken for one."""
ALIKE = 0.8
"""The same for two that were taken within ``SECONDS`` of each other, or are named as copies."""
SECONDS = 10.0
_COPY = re.compile(r"(?:[\s_-]*(?:\(\d+\)|copy|edited|kopie|~\d+))+$", re.IGNORECASE)


def grouped(means: np.ndarray, metas: Sequence[Mapping[str, Any]]) -> list[int]:
    """For each result the position of the best one that shows nearly the same: its own, where there
    is none before it.

    Means alone cannot tell a copy from another photo of the same scene: those of unlike photos
    reach 0.95 among thousands. So a date or a name must agree, unless they are almost equal.

    Args:
        means: (n, D) of the results, best first.
        metas: their metadata, of which the date (``taken``) and the ``file`` are read.

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
    same = (alike >= SAME) | ((alike >= ALIKE) & near)
    first = np.arange(len(means))
    for at in range(len(means)):
        before = np.flatnonzero(same[at, :at] & (first[:at] == np.arange(at)))
        if len(before):
            first[at] = before[0]
    groups: list[int] = first.tolist()
    return groups


def _stem(file: object, at: int) -> str:
    """A file's name without its ending and what marks a copy; one of its own where there is none.

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
