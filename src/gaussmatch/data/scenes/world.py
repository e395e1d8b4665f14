"""What a scene is: one to six things on a plain background, and how one is drawn at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

WIDTH = 64  #: of a picture and its height, in pixels
MOST = 6  #: things in a scene

SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "heart", "moon")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown")
SIZES = ("small", "medium", "large")
PATTERNS = ("plain", "striped", "dotted", "hollow")
BACKGROUNDS = ("white", "grey", "black", "sky", "cream")

ATTRIBUTES = ("shape", "colour", "size", "pattern")  #: what captions speak of

RADII = {"small": (5, 6), "medium": (8, 9), "large": (11, 13)}  #: pixels, both ends included

#: Where a thing's centre lies: (least x, most x, least y, most y), ends included, y downwards.
PLACES = {
    "left": (0, 24, 0, 64),
    "right": (40, 64, 0, 64),
    "top": (0, 64, 0, 24),
    "bottom": (0, 64, 40, 64),
    "middle": (23, 41, 23, 41),
    "top left": (0, 24, 0, 24),
    "top right": (40, 64, 0, 24),
    "bottom left": (0, 24, 40, 64),
    "bottom right": (40, 64, 40, 64),
}

_HOW_MANY = (1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6)
_HOW_LARGE = ("small", "small", "medium", "medium", "large")
_HOW_FILLED = ("plain", "plain", "striped", "dotted", "hollow")


class Dice:
    """Choices that are the same on every machine.

    Python promises the sequence of ``random.Random(seed).random()`` and of no other method, so
    everything is made of that one call.

    >>> dice = Dice("scenes")
    >>> [dice.below(10) for _ in range(6)]
    [8, 2, 6, 0, 0, 4]
    """

    def __init__(self, seed: str) -> None:
        self._next = random.Random(seed).random

    def chance(self, p: float) -> bool:
        """True with probability ``p``."""
        return self._next() < p

    def below(self, n: int) -> int:
        """A whole number in [0, n)."""
        return int(self._next() * n)

    def between(self, low: int, high: int) -> int:
        """A whole number in [low, high]."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def some(self, items: Sequence[T], k: int) -> list[T]:
        """``k`` different items, in a random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in range(k)]


@dataclass(frozen=True)
class Thing:
    """One object. Whole numbers throughout, so that equal scenes are equal everywhere.

    Args:
        shape: one of ``SHAPES``; colour, size and pattern likewise.
        x: centre, pixels from the left; y: centre, pixels from the top.
        radius: half of the box's side in pixels.
        tilt: degrees that the shape is turned by. No caption speaks of it.
        shade: −1 darker, 0, +1 lighter than the colour's usual tone. No caption speaks of it.
    """

    shape: str
    colour: str
    size: str
    pattern: str
    x: int
    y: int
    radius: int
    tilt: int = 0
    shade: int = 0

    @property
    def box(self) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) in pixels."""
        return (
            float(self.x - self.radius),
            float(self.y - self.radius),
            float(self.x + self.radius),
            float(self.y + self.radius),
        )

    def at(self, place: str) -> bool:
        """Whether the centre lies in one of ``PLACES``."""
        left, right, top, bottom = PLACES[place]
        return left <= self.x <= right and top <= self.y <= bottom


@dataclass(frozen=True)
class Scene:
    """Things on a background, in the order in which they are drawn."""

    things: tuple[Thing, ...]
    background: str


def sample_scene(dice: Dice) -> Scene:
    """A random scene: one to six things whose circles do not overlap.

    A third of the things share shape or colour with one that is there already, so that there is
    something to count and something to confuse.

    >>> sample_scene(Dice("a")) == sample_scene(Dice("a"))
    True
    """
    things: list[Thing] = []
    for _ in range(dice.pick(_HOW_MANY)):
        shape, colour = dice.pick(SHAPES), dice.pick(COLOURS)
        if things and dice.chance(0.35):
            like = dice.pick(things)
            share_shape, share_colour = dice.pick(((True, False), (False, True), (True, True)))
            shape = like.shape if share_shape else shape
            colour = like.colour if share_colour else colour
        thing = _place(dice, things, shape, colour)
        if thing is not None:
            things.append(thing)
    return Scene(tuple(things), dice.pick(BACKGROUNDS))


def _place(dice: Dice, others: Sequence[Thing], shape: str, colour: str) -> Thing | None:
    """A thing that touches no other, or ``None`` where the picture is too full for it."""
    size, pattern = dice.pick(_HOW_LARGE), dice.pick(_HOW_FILLED)
    radius = dice.between(*RADII[size])
    tilt, shade = dice.between(-12, 12), dice.between(-1, 1)
    for _ in range(40):
        x = dice.between(radius + 1, WIDTH - radius - 1)
        y = dice.between(radius + 1, WIDTH - radius - 1)
        if all((x - o.x) ** 2 + (y - o.y) ** 2 >= (radius + o.radius) ** 2 for o in others):
            return Thing(shape, colour, size, pattern, x, y, radius, tilt, shade)
    return None
