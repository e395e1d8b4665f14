"""Which scenes a caption is true of: ``form.holds(scene)`` for all pairs at once, exactly.

A scene has at most six things, so that a set of them fits the bits of a byte: a kind becomes one
byte for each scene, and every form a few byte operations over all scenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from gaussmatch.core.metrics.ranking import Relevance
from gaussmatch.data.scenes.captions import (
    COLOUR_WORDS,
    NOUNS,
    RELATIONS,
    Both,
    Count,
    Exists,
    Form,
    Kind,
    On,
    Related,
    all_of,
    ground,
    kind_of,
    listed,
    phrase,
)
from gaussmatch.data.scenes.world import ATTRIBUTES, MOST, PLACES, Dice, Scene

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
                    for how, holds in RELATIONS.items():
                        if j != k and holds(thing, other):
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


# ---- balanced ----
# Captions whose length says nothing about how many scenes they fit.
#
# Annotators write more when they say more, so on their captions counting words goes a long way.
# Here a vague caption is as long as a specific one: what it says is drawn first, its number of
# words independently of that, and the rest is filled up with words that say nothing.


LENGTHS = (9, 10)
"""Words of a caption, drawn independently of what it says."""

FILLERS = {
    0: ("",),
    2: ("there is", "look at"),
    3: ("a picture of", "I can see"),
    5: ("there is a picture of", "look at a picture of"),
    6: ("I can see a picture of",),
}
"""Words before a noun phrase that add nothing, all of them annotators' own."""


@dataclass(frozen=True)
class Balanced:
    """Captions of equal length on average, and which scenes each is true of.

    Args:
        captions: as text.
        relevance: captions × scenes; ``relevance.counts`` is how many each fits.
    """

    captions: list[str]
    relevance: Relevance


def balanced(scenes: list[Scene], captions: int = 1000, seed: int = 0) -> Balanced:
    """Captions, each true of at least one of the scenes.

    >>> from gaussmatch.data.scenes import make_split
    >>> made = balanced(make_split("test", images=20).scenes, captions=4)
    >>> made.captions[1], int(made.relevance.counts[1])
    ('I can see a picture of a blue thing, clearly', 7)
    """
    dice = Dice(f"balanced-{seed}")
    texts: list[str] = []
    forms: list[Form] = []
    while len(texts) < captions:
        text, form = _said(dice, dice.pick(scenes))
        missing = dice.pick(LENGTHS) - len(text.split())
        if missing < 0 or len(text.split()) < 3:
            continue
        texts.append(_filled(dice, text, missing))
        forms.append(form)
    return Balanced(texts, true_of(forms, scenes))


def _said(dice: Dice, scene: Scene) -> tuple[str, Form]:
    """From one attribute, or a family of them, to two things in detail and the background."""
    thing = dice.pick(scene.things)
    if dice.chance(0.25):
        families = [Kind(shapes=s) for s in NOUNS if len(s) > 1 and thing.shape in s]
        families += [Kind(colours=c) for c in COLOUR_WORDS if len(c) > 1 and thing.colour in c]
        kinds = [dice.pick(families)] if families else [kind_of(thing, "colour")]
    else:
        things = dice.some(scene.things, min(len(scene.things), dice.pick((1, 1, 2))))
        kinds = [kind_of(t, *dice.some(ATTRIBUTES, dice.between(1, 4))) for t in things]
    text, parts = listed([phrase(dice, kind) for kind in kinds]), [Exists(tuple(kinds))]
    if dice.chance(0.3):
        return f"{text} {ground(dice, scene.background)}", all_of([*parts, On(scene.background)])
    return text, all_of(parts)


def _filled(dice: Dice, text: str, missing: int) -> str:
    """With this many more words."""
    tail = missing not in FILLERS
    before = dice.pick(FILLERS[missing - tail])
    return f"{before} {text}{', clearly' if tail else ''}".strip()
