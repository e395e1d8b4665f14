"""What a caption says, as a small logical form that can be checked against a scene.

A caption may be true of many scenes. The rules, which ``truth.py`` follows bit for bit:

- A description is *existential*: "a red circle and a star" is true wherever there are a red circle
  and a star, whatever else there is. Things named side by side are different things.
- A number is *exact*: "two stars" means that two stars are there and no third. "At least", "a few"
  (three or four), "several" (three or more) and "many" (five or more) say so.
- "Left of", "above" and so on compare centres and want a margin of 6 pixels; "next to" wants at
  most 6 pixels between the two circles around the things; "bigger" compares small < medium < large.
- A place such as "on the left" is where the centre lies (``world.PLACES``).
- What a caption leaves out, it leaves open: "a circle" may have any colour, size and pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

from gaussmatch.data.scenes.world import MOST, SIZES, Scene, Thing

MARGIN = 6  #: pixels by which "left of" and its like must hold


@dataclass(frozen=True)
class Kind:
    """A kind of thing: for each attribute the values allowed, none given meaning any.

    >>> dot = Thing("circle", "red", "small", "plain", 10, 10, 5)
    >>> Kind(colours=("red",)).fits(dot), Kind(("star",), place="left").fits(dot)
    (True, False)
    """

    shapes: tuple[str, ...] = ()
    colours: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    place: str = ""

    def fits(self, thing: Thing) -> bool:
        return (
            (not self.shapes or thing.shape in self.shapes)
            and (not self.colours or thing.colour in self.colours)
            and (not self.sizes or thing.size in self.sizes)
            and (not self.patterns or thing.pattern in self.patterns)
            and (not self.place or thing.at(self.place))
        )


@dataclass(frozen=True)
class Exists:
    """There are different things, one of each kind."""

    kinds: tuple[Kind, ...]

    def holds(self, scene: Scene) -> bool:
        return any(
            all(kind.fits(thing) for kind, thing in zip(self.kinds, chosen, strict=True))
            for chosen in permutations(scene.things, len(self.kinds))
        )


@dataclass(frozen=True)
class Count:
    """The number of things of a kind lies in [low, high]."""

    kind: Kind
    low: int
    high: int = MOST

    def holds(self, scene: Scene) -> bool:
        return self.low <= sum(map(self.kind.fits, scene.things)) <= self.high


@dataclass(frozen=True)
class Related:
    """There are two different things, one of each kind, and the first is ``how`` to the second."""

    first: Kind
    how: str
    second: Kind

    def holds(self, scene: Scene) -> bool:
        return any(
            self.first.fits(a) and self.second.fits(b) and related(a, self.how, b)
            for a, b in permutations(scene.things, 2)
        )


@dataclass(frozen=True)
class On:
    """The background is of this colour."""

    background: str

    def holds(self, scene: Scene) -> bool:
        return scene.background == self.background


@dataclass(frozen=True)
class Both:
    """All parts hold; each by itself, so that parts may speak of the same thing."""

    parts: tuple[Form, ...]

    def holds(self, scene: Scene) -> bool:
        return all(part.holds(scene) for part in self.parts)


Form = Exists | Count | Related | On | Both

RELATIONS = ("left of", "right of", "above", "below", "next to", "bigger than", "coloured like")


def related(a: Thing, how: str, b: Thing) -> bool:
    """Whether ``a`` stands in one of ``RELATIONS`` to ``b``.

    >>> a, b = (Thing("star", "red", "small", "plain", x, 20, 5) for x in (10, 40))
    >>> [how for how in RELATIONS if related(a, how, b)]
    ['left of', 'coloured like']
    """
    match how:
        case "left of":
            return b.x - a.x >= MARGIN
        case "right of":
            return a.x - b.x >= MARGIN
        case "above":
            return b.y - a.y >= MARGIN
        case "below":
            return a.y - b.y >= MARGIN
        case "next to":
            reach = a.radius + b.radius + MARGIN
            return (a.x - b.x) ** 2 + (a.y - b.y) ** 2 <= reach**2
        case "bigger than":
            return SIZES.index(a.size) > SIZES.index(b.size)
        case "coloured like":
            return a.colour == b.colour
    raise ValueError(f"unknown relation {how!r}; choose from {', '.join(RELATIONS)}")


def all_of(parts: Sequence[Form]) -> Form:
    """The parts together; a single one as it is."""
    return parts[0] if len(parts) == 1 else Both(tuple(parts))
