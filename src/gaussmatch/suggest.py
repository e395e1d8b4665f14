"""The nearest name to a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"did you mean 'train'?"``, or an empty string where nothing is near.

    >>> did_you_mean("trian", ["train", "search"])
    "did you mean 'train'?"
    >>> did_you_mean("fly", ["train", "search"])
    ''
    """
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""
