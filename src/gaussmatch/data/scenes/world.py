"""What a scene is: one to six things on a plain background, and how one is drawn at random."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from PIL import Image, ImageChops, ImageDraw

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

#: Where a thing's center lies: (least x, most x, least y, most y), ends included, y downwards.
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
        shape: one of ``SHAPES``; color, size and pattern likewise.
        x: center, pixels from the left; y: center, pixels from the top.
        radius: half of the box's side in pixels.
        tilt: degrees that the shape is turned by. No caption speaks of it.
        shade: −1 darker, 0, +1 lighter than the color's usual tone. No caption speaks of it.
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
        """Whether the center lies in one of ``PLACES``."""
        left, right, top, bottom = PLACES[place]
        return left <= self.x <= right and top <= self.y <= bottom


@dataclass(frozen=True)
class Scene:
    """Things on a background, in the order in which they are drawn."""

    things: tuple[Thing, ...]
    background: str


def sample_scene(dice: Dice) -> Scene:
    """A random scene: one to six things whose circles do not overlap.

    A third of the things share shape or color with one that is there already, so that there is
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


# ---- draw ----
# A scene as a picture.


_FINE = 4  # drawn this many times larger, then averaged down, for clean edges

_TONES = {
    "red": (208, 38, 38),
    "orange": (240, 132, 30),
    "yellow": (240, 208, 40),
    "green": (44, 150, 62),
    "blue": (40, 84, 204),
    "purple": (128, 52, 164),
    "pink": (240, 130, 180),
    "brown": (128, 82, 48),
}
_GROUNDS = {
    "white": (250, 250, 250),
    "grey": (150, 150, 152),
    "black": (22, 22, 26),
    "sky": (178, 214, 240),
    "cream": (244, 228, 196),
}


def draw(scene: Scene) -> Image.Image:
    """The scene as a 64×64 RGB picture.

    >>> from gaussmatch.data.scenes.world import Dice, sample_scene
    >>> draw(sample_scene(Dice("a"))).size
    (64, 64)
    """
    side = WIDTH * _FINE
    canvas = Image.new("RGB", (side, side), _GROUNDS[scene.background])
    for thing in scene.things:
        mask = _silhouette(thing)
        at = ((thing.x - thing.radius) * _FINE, (thing.y - thing.radius) * _FINE)
        canvas.paste(_fill(thing), at, mask)
    return canvas.reduce(_FINE)


def _silhouette(thing: Thing) -> Image.Image:
    """Where the thing's box is covered, as a mask of the box at the fine scale."""
    mask = _filled(thing, 1.0)
    if thing.pattern == "hollow":
        mask = ImageChops.subtract(mask, _filled(thing, 0.58))
    return mask


def _filled(thing: Thing, scale: float) -> Image.Image:
    """The whole shape, shrunk toward its center by ``scale``."""
    half = thing.radius * _FINE
    mask = Image.new("L", (2 * half, 2 * half), 0)
    pen = ImageDraw.Draw(mask)
    if thing.shape in ("circle", "moon"):
        r = half * scale * 0.98
        pen.ellipse((half - r, half - r, half + r, half + r), fill=255)
        if thing.shape == "moon":  # a second disc bites the crescent out
            r, shift = r * 0.8, half * 0.5 + (1 - scale) * half * 0.22
            turn = math.radians(thing.tilt)
            x, y = half + shift * math.cos(turn), half + shift * math.sin(turn)
            pen.ellipse((x - r, y - r, x + r, y + r), fill=0)
        return mask
    turn = math.radians(thing.tilt)
    cos, sin = math.cos(turn) * half * scale, math.sin(turn) * half * scale
    corners = [
        (half + x * cos - y * sin, half + x * sin + y * cos) for x, y in _OUTLINES[thing.shape]
    ]
    pen.polygon(corners, fill=255)
    return mask


def _fill(thing: Thing) -> Image.Image:
    """The thing's paint over its whole box: one tone, stripes or dots."""
    half = thing.radius * _FINE
    tone = tuple(max(0, min(255, c + 14 * thing.shade)) for c in _TONES[thing.colour])
    paint = Image.new("RGB", (2 * half, 2 * half), tone)
    light = tuple((c + 3 * 255) // 4 for c in tone)
    pen = ImageDraw.Draw(paint)
    step = max(3 * _FINE, half // 2)
    if thing.pattern == "striped":
        for top in range(step // 2, 2 * half, step):
            pen.rectangle((0, top, 2 * half, top + step * 0.42), fill=light)
    elif thing.pattern == "dotted":
        r = step * 0.27
        for row, y in enumerate(range(half % step, 2 * half, step)):
            for x in range((half + row % 2 * step // 2) % step, 2 * half, step):
                pen.ellipse((x - r, y - r, x + r, y + r), fill=light)
    return paint


def _star() -> list[tuple[float, float]]:
    return [
        (r * math.sin(k * math.pi / 5), -r * math.cos(k * math.pi / 5))
        for k in range(10)
        for r in ((1.0, 0.42)[k % 2],)
    ]


def _heart() -> list[tuple[float, float]]:
    points = []
    for k in range(40):
        t = 2 * math.pi * k / 40
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((x / 17, -(y + 2) / 17))
    return points


# Corners in a box from −1 to 1, y downwards.
_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)],
    "triangle": [(0.0, -0.95), (0.92, 0.75), (-0.92, 0.75)],
    "diamond": [(0.0, -1.0), (0.7, 0.0), (0.0, 1.0), (-0.7, 0.0)],
    "star": _star(),
    "cross": [
        (x * a, y * b)
        for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
        for a, b in (((0.95, 0.32), (0.32, 0.32), (0.32, 0.95)) if x * y > 0 else
                     ((0.32, 0.95), (0.32, 0.32), (0.95, 0.32)))
    ],
    "heart": _heart(),
}  # fmt: skip
