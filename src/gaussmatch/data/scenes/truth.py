"""Which scenes a caption is true of: ``form.holds(scene)`` for all pairs at once, exactly.

A scene has at most six things, so that a set of them fits the bits of a byte: a kind becomes one
byte for each scene, and every form a few byte operations over all scenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch

from gaussmatch.core.metrics.relevance import Relevance
from gaussmatch.data.scenes.forms import (
    RELATIONS,
    Both,
    Count,
    Exists,
    Form,
    Kind,
    On,
    Related,
    related,
)
from gaussmatch.data.scenes.world import ATTRIBUTES, MOST, PLACES, Scene

_SIZE_OF_SET = np.array([b.bit_count() for b in range(256)], dtype=np.uint8)


def true_of(forms: Sequence[Form], scenes: Sequence[Scene]) -> Relevance:
    """Captions × images: every scene that a form is true of.

    >>> from gaussmatch.data.scenes.world import Thing
    >>> one = Scene((Thing("star", "red", "small", "plain", 9, 9, 5),), "white")
    >>> true_of([On("white"), Count(Kind(), 2)], [one]).counts
    tensor([1, 0])
    """
    table = _Table(scenes)
    rows = [np.flatnonzero(table.holds(form)) for form in forms]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    items = np.concatenate(rows) if rows else np.zeros(0)
    return Relevance(
        torch.from_numpy(starts.astype(np.int64)),
        torch.from_numpy(items.astype(np.int64)),
        len(scenes),
    )


class _Table:
    """All scenes, thing k of a scene being bit k."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        n = len(scenes)
        self.backgrounds = np.array([scene.background for scene in scenes])
        self.anything = np.zeros(n, np.uint8)
        self.values: dict[tuple[str, str], np.ndarray] = {}
        self.others = {how: np.zeros((n, MOST), np.uint8) for how in RELATIONS}
        self.kinds: dict[Kind, np.ndarray] = {}
        for i, scene in enumerate(scenes):
            for k, thing in enumerate(scene.things):
                bit = 1 << k
                self.anything[i] |= bit
                seen = [(name, getattr(thing, name)) for name in ATTRIBUTES]
                seen += [("place", place) for place in PLACES if thing.at(place)]
                for value in seen:
                    self.values.setdefault(value, np.zeros(n, np.uint8))[i] |= bit
                for j, other in enumerate(scene.things):
                    for how in RELATIONS:
                        if j != k and related(thing, how, other):
                            self.others[how][i, k] |= 1 << j

    def of(self, kind: Kind) -> np.ndarray:
        """The set of things of a kind, one byte for each scene."""
        if kind not in self.kinds:
            found = self.anything.copy()
            allowed = (kind.shapes, kind.colours, kind.sizes, kind.patterns)
            for name, wanted in zip(ATTRIBUTES, allowed, strict=True):
                if wanted:
                    found &= self._any_of([(name, value) for value in wanted])
            if kind.place:
                found &= self._any_of([("place", kind.place)])
            self.kinds[kind] = found
        return self.kinds[kind]

    def holds(self, form: Form) -> np.ndarray:
        """True or false for each scene."""
        match form:
            case On(background):
                return self.backgrounds == background
            case Count(kind, low, high):
                count = _SIZE_OF_SET[self.of(kind)]
                return (count >= low) & (count <= high)
            case Exists(kinds):
                return self._different(kinds)
            case Related(first, how, second):
                a = (self.of(first)[:, None] >> np.arange(MOST, dtype=np.uint8)) & 1
                b = self.others[how] & self.of(second)[:, None]
                return ((a > 0) & (b > 0)).any(1)
            case Both(parts):
                return np.logical_and.reduce([self.holds(part) for part in parts])
        raise TypeError(f"not a form: {form!r}")

    def _different(self, kinds: Sequence[Kind]) -> np.ndarray:
        """Hall's theorem: different things can be chosen if and only if every m of the kinds
        together have at least m things."""
        sets = [self.of(kind) for kind in kinds]
        found = np.ones(len(self.anything), bool)
        for m in range(1, len(sets) + 1):
            for chosen in combinations(sets, m):
                found &= _SIZE_OF_SET[np.bitwise_or.reduce(chosen)] >= m
        return found

    def _any_of(self, values: Sequence[tuple[str, str]]) -> np.ndarray:
        none = np.zeros_like(self.anything)
        return np.bitwise_or.reduce([self.values.get(value, none) for value in values])
