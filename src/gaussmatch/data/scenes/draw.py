"""A scene as a picture."""

from __future__ import annotations

import math

from PIL import Image, ImageChops, ImageDraw

from gaussmatch.data.scenes.world import WIDTH, Scene, Thing

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
    """The whole shape, shrunk towards its centre by ``scale``."""
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
