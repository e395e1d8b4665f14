"""Who writes what about a scene: words, what is meant by them, and the annotators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

from gaussmatch.data.scenes.world import (
    ATTRIBUTES,
    COLOURS,
    MOST,
    PLACES,
    SHAPES,
    SIZES,
    Dice,
    Scene,
    Thing,
)

# ---- words ----
# A kind of thing in words: synonyms, and where the adjectives go.
#
# Text is always made *from* the logical form, so that the two cannot disagree.


# The first word is the usual one and comes two times in three.
NOUNS = {
    ("circle",): ("circle", "disc", "round shape", "ball"),
    ("square",): ("square", "box", "block"),
    ("triangle",): ("triangle", "three-sided shape"),
    ("diamond",): ("diamond", "rhombus", "lozenge"),
    ("star",): ("star", "five-pointed star"),
    ("cross",): ("cross", "plus sign", "plus"),
    ("heart",): ("heart", "love heart"),
    ("moon",): ("moon", "crescent", "half moon"),
    ("triangle", "diamond", "star"): ("pointy shape", "spiky thing"),
    ("circle", "heart", "moon"): ("curved shape", "curvy thing"),
    ("square", "diamond"): ("four-sided shape", "quadrilateral"),
    (): ("thing", "shape", "object", "figure"),
}
COLOUR_WORDS = {
    ("red",): ("red", "crimson", "scarlet"),
    ("orange",): ("orange",),
    ("yellow",): ("yellow", "golden"),
    ("green",): ("green",),
    ("blue",): ("blue",),
    ("purple",): ("purple", "violet"),
    ("pink",): ("pink", "rosy"),
    ("brown",): ("brown", "chocolate"),
    ("red", "orange", "yellow"): ("warm-coloured", "fiery"),
    ("blue", "purple", "green"): ("cool-coloured",),
    ("red", "pink"): ("reddish",),
}
SIZE_WORDS = {
    ("small",): ("small", "little", "tiny"),
    ("medium",): ("medium-sized", "mid-sized"),
    ("large",): ("large", "big", "huge"),
    ("medium", "large"): ("fairly big", "not so small"),
}
PATTERN_WORDS = {
    ("plain",): ("plain", "solid"),
    ("striped",): ("striped", "stripy"),
    ("dotted",): ("dotted", "spotted", "polka-dot"),
    ("hollow",): ("hollow", "outlined", "empty"),
    ("striped", "dotted"): ("patterned",),
}
PATTERN_TAILS = {
    ("striped",): ("with stripes", "with lines across"),
    ("dotted",): ("with dots", "with spots"),
    ("hollow",): ("with nothing inside", "drawn in outline"),
    ("striped", "dotted"): ("with a pattern",),
}
GROUND_WORDS = {
    "white": ("white",),
    "grey": ("grey", "gray"),
    "black": ("black", "dark"),
    "sky": ("light blue", "pale blue", "sky-blue"),
    "cream": ("cream", "beige", "sandy"),
}
PLACE_WORDS = {
    "left": ("on the left", "at the left side", "over on the left"),
    "right": ("on the right", "at the right side", "over on the right"),
    "top": ("at the top", "near the top", "in the upper part"),
    "bottom": ("at the bottom", "near the bottom", "in the lower part"),
    "middle": ("in the middle", "in the centre"),
    "top left": ("in the top left corner", "at the upper left"),
    "top right": ("in the top right corner", "at the upper right"),
    "bottom left": ("in the bottom left corner", "at the lower left"),
    "bottom right": ("in the bottom right corner", "at the lower right"),
}
RELATION_WORDS = {
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
    "above": ("above", "higher than", "over"),
    "below": ("below", "under", "beneath"),
    "next to": ("next to", "close to", "beside"),
    "bigger than": ("bigger than", "larger than"),
    "coloured like": ("of the same colour as",),
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")


def word(dice: Dice, synonyms: Sequence[str]) -> str:
    """One of the synonyms, the first one two times in three."""
    if len(synonyms) == 1 or dice.chance(0.67):
        return synonyms[0]
    return dice.pick(synonyms[1:])


def phrase(dice: Dice, kind: Kind, number: int = 1) -> str:
    """A noun phrase for ``number`` things of a kind.

    >>> phrase(Dice("x"), Kind(("star",), ("orange",)))
    'an orange star'
    >>> phrase(Dice("x"), Kind(("cross",)), number=2)
    'two crosses'
    """
    tail = [word(dice, PLACE_WORDS[kind.place])] if kind.place else []
    adjectives = [word(dice, SIZE_WORDS[kind.sizes])] if kind.sizes else []
    if kind.patterns in PATTERN_TAILS and dice.chance(0.3):
        tail.insert(0, word(dice, PATTERN_TAILS[kind.patterns]))
    elif kind.patterns:
        adjectives.append(word(dice, PATTERN_WORDS[kind.patterns]))
    if kind.colours:
        adjectives.append(word(dice, COLOUR_WORDS[kind.colours]))
    if number == 1 and not kind.shapes and adjectives and dice.chance(0.5):
        head = "something " + " and ".join(adjectives)
    else:
        noun = word(dice, NOUNS[kind.shapes])
        counted = " ".join([*adjectives, noun if number == 1 else plural(noun)])
        head = f"{article(counted)} {counted}" if number == 1 else f"{NUMBERS[number]} {counted}"
    return " ".join([head, *tail])


def ground(dice: Dice, background: str) -> str:
    """Where everything is, such as "on a grey background"."""
    colour = word(dice, GROUND_WORDS[background])
    return word(
        dice,
        (
            f"on a {colour} background",
            f"on {colour}",
            f"against a {colour} background",
            f"in front of a {colour} wall",
        ),
    )


def listed(parts: Sequence[str]) -> str:
    """
    >>> listed(["a star", "a cross", "a moon"])
    'a star, a cross and a moon'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def plural(noun: str) -> str:
    """
    >>> plural("box"), plural("crescent"), plural("rhombus")
    ('boxes', 'crescents', 'rhombuses')
    """
    return noun + ("es" if noun.endswith(("s", "x")) else "s")


def article(words: str) -> str:
    return "an" if words[0] in "aeiou" else "a"


# ---- forms ----
# What a caption says, as a small logical form that can be checked against a scene.
#
# A caption may be true of many scenes. The rules, which ``truth.py`` follows bit for bit:
#
# - A description is *existential*: "a red circle and a star" is true wherever there are a red
#   circle and a star, whatever else there is. Things named side by side are different things.
# - A number is *exact*: "two stars" means that two stars are there and no third. "At least", "a
#   few" (three or four), "several" (three or more) and "many" (five or more) say so.
# - "Left of", "above" and so on compare centers and want a margin of 6 pixels; "next to" wants at
#   most 6 pixels between the two circles around the things; "bigger" compares small < medium <
#   large.
# - A place such as "on the left" is where the center lies (``world.PLACES``).
# - What a caption leaves out, it leaves open: "a circle" may have any colour, size and pattern.


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

RELATIONS: dict[str, Callable[[Thing, Thing], bool]] = {
    "left of": lambda a, b: b.x - a.x >= MARGIN,
    "right of": lambda a, b: a.x - b.x >= MARGIN,
    "above": lambda a, b: b.y - a.y >= MARGIN,
    "below": lambda a, b: a.y - b.y >= MARGIN,
    "next to": lambda a, b: (
        (a.x - b.x) ** 2 + (a.y - b.y) ** 2 <= (a.radius + b.radius + MARGIN) ** 2
    ),
    "bigger than": lambda a, b: SIZES.index(a.size) > SIZES.index(b.size),
    "coloured like": lambda a, b: a.colour == b.colour,
}
"""How one thing stands to another."""


def related(a: Thing, how: str, b: Thing) -> bool:
    """Whether ``a`` stands in one of ``RELATIONS`` to ``b``.

    >>> a, b = (Thing("star", "red", "small", "plain", x, 20, 5) for x in (10, 40))
    >>> [how for how in RELATIONS if related(a, how, b)]
    ['left of', 'coloured like']
    """
    if how not in RELATIONS:
        raise ValueError(f"unknown relation {how!r}; choose from {', '.join(RELATIONS)}")
    return RELATIONS[how](a, b)


def all_of(parts: Sequence[Form]) -> Form:
    """The parts together; a single one as it is."""
    return parts[0] if len(parts) == 1 else Both(tuple(parts))


# ---- captions ----
# Five captions for a scene, each by another annotator with habits of its own.
#
# From the most to the least specific: the thorough one names everything; the pointer one thing in
# detail, the lister a few things in little; the surveyor relations and places; the painter looks at
# colours, sizes and patterns and never names a shape; the counter counts; the dreamer is vague.
# What the captions mean is above.


@dataclass(frozen=True)
class SceneCaption:
    """What an annotator wrote, and what it means."""

    text: str
    form: Form
    annotator: str


def annotate(dice: Dice, scene: Scene) -> tuple[SceneCaption, ...]:
    """Five captions, all true of the scene, by five different annotators."""
    one_or_few, vague = (
        dice.pick((pointer, pointer, lister)),
        dice.pick((counter, counter, counter, dreamer)),
    )
    panel = (thorough, one_or_few, surveyor, painter, vague)
    captions = []
    for annotator in panel:
        text, form = annotator(dice, scene)
        captions.append(SceneCaption(text, form, annotator.__name__))
    return tuple(captions)


def describe(dice: Dice, thing: Thing) -> str:
    """A caption of one thing by itself, for its box."""
    detail = dice.some(("size", "pattern"), dice.below(3))
    return phrase(dice, kind_of(thing, "shape", "colour", *detail))


def kind_of(thing: Thing, *attributes: str) -> Kind:
    """The kind of thing that shares these attributes with ``thing``."""
    shape, colour, size, pattern = (
        (str(getattr(thing, name)),) if name in attributes else () for name in ATTRIBUTES
    )
    return Kind(shape, colour, size, pattern)


# ---- the annotators: (dice, scene) → text and form ----


def thorough(dice: Dice, scene: Scene) -> tuple[str, Form]:
    """Everything, from left to right or in random order; the more there is, the less detail."""
    patience = dice.pick((0, 1, 1, 2)) if len(scene.things) <= 3 else 0
    detail = ["shape", "colour", *dice.some(("size", "pattern"), patience)]
    if dice.chance(0.5):
        things = sorted(scene.things, key=lambda t: (t.x, t.y))
    else:
        things = dice.some(scene.things, len(scene.things))
    groups = Counter(kind_of(thing, *detail) for thing in things)
    parts: list[Form] = [Exists(tuple(groups.elements()))]
    parts += [Count(kind, n, n) for kind, n in groups.items() if n > 1]
    what = listed([phrase(dice, kind, n) for kind, n in groups.items()])
    there = "there is" if next(iter(groups.values())) == 1 else "there are"
    if dice.chance(0.6):
        parts.append(On(scene.background))
        what = f"{what} {ground(dice, scene.background)}"
    text = word(
        dice, (what, f"{there} {what}", f"a picture of {what}", f"I can see {what}", f"{what}.")
    )
    if dice.chance(0.12):
        parts.append(Count(Kind(), len(things), len(things)))
        text = f"{text.rstrip('.')}, and nothing else"
    return _sentence(text), all_of(parts)


def pointer(dice: Dice, scene: Scene) -> tuple[str, Form]:
    """One thing, in detail; where it is, or what it is on."""
    thing = _striking(dice, scene)
    kind = kind_of(thing, "shape", "colour", *dice.some(("size", "pattern"), dice.pick((1, 1, 2))))
    if dice.chance(0.5):
        kind = replace(kind, place=_where(dice, thing))
    text = phrase(dice, kind)
    parts: list[Form] = [Exists((kind,))]
    if dice.chance(0.4):
        parts.append(On(scene.background))
        text = f"{text} {ground(dice, scene.background)}"
    return word(dice, (text, f"look at {text}", f"there is {text}", f"{text}, clearly")), all_of(
        parts
    )


def lister(dice: Dice, scene: Scene) -> tuple[str, Form]:
    """Two or three things by name, with few adjectives or none."""
    things = dice.some(scene.things, min(len(scene.things), dice.between(2, 3)))
    kinds = [kind_of(t, "shape", *dice.pick(((), ("colour",), ("colour",)))) for t in things]
    text = listed([phrase(dice, kind) for kind in kinds])
    if len(things) > 1:
        text = word(dice, (text, f"{text} together", f"some shapes: {text}"))
    return text, Exists(tuple(kinds))


def surveyor(dice: Dice, scene: Scene) -> tuple[str, Form]:
    """How two things lie to each other; alone in the picture, where the one thing is."""
    ways = [
        (a, how, b)
        for a, b in product(scene.things, repeat=2)
        for how, holds in RELATIONS.items()
        if a is not b and how != "coloured like" and holds(a, b)
    ]
    if not ways or dice.chance(0.2):
        thing = dice.pick(scene.things)
        kind = replace(kind_of(thing, *_few(dice)), place=_where(dice, thing))
        return word(dice, (phrase(dice, kind), f"I see {phrase(dice, kind)}")), Exists((kind,))
    a, how, b = dice.pick(ways)
    first, second = kind_of(a, *_few(dice)), kind_of(b, *_few(dice))
    relation = word(dice, RELATION_WORDS[how])
    joint = word(dice, (" ", " that is ", ", which is "))
    text = f"{phrase(dice, first)}{joint}{relation} {phrase(dice, second)}"
    return text, Related(first, how, second)


def painter(dice: Dice, scene: Scene) -> tuple[str, Form]:
    """Colours, sizes and patterns of one to three things; never a shape."""
    alike = Related(Kind(), "coloured like", Kind())
    if dice.chance(0.08) and alike.holds(scene):
        return word(dice, ("two things of the same colour", "a colour that comes twice")), alike
    things = dice.some(scene.things, min(len(scene.things), dice.pick((2, 2, 3))))
    habits = (("colour",), ("colour", "pattern"), ("size", "colour"), ("size", "colour", "pattern"))
    kinds = [kind_of(thing, *dice.pick(habits)) for thing in things]
    parts: list[Form] = [Exists(tuple(kinds))]
    text = listed([phrase(dice, kind) for kind in kinds])
    if dice.chance(0.4):
        parts.append(On(scene.background))
        text = f"{text} {ground(dice, scene.background)}"
    return text, all_of(parts)


def counter(dice: Dice, scene: Scene) -> tuple[str, Form]:
    """How many there are, of everything or of a kind, or of what there is none."""
    total = len(scene.things)
    thing = dice.pick(scene.things)
    kind = kind_of(thing, *dice.pick((("shape",), ("colour",), ("pattern",), ("shape", "colour"))))
    n = sum(map(kind.fits, scene.things))
    everything, those = Count(Kind(), total, total), Count(kind, n, n)
    many = phrase(dice, Kind(), total)
    match dice.below(6):
        case 0:
            return word(dice, (many, f"{many} in all", f"just {many}")), everything
        case 1 | 2:
            amount = phrase(dice, kind, n)
            if n == 1:
                return f"only one {_bare(amount)}", those
            return word(dice, (f"exactly {amount}", amount)), those
        case 3 | 4 if total > 1:
            colour = (thing.colour,)
            n = sum(t.colour == thing.colour for t in scene.things)
            which = "all" if n == total else NUMBERS[n]
            text = f"{many}, {which} of them {word(dice, COLOUR_WORDS[colour])}"
            return text, all_of([everything, Count(Kind(colours=colour), n, n)])
    absent = dice.pick([s for s in SHAPES if all(t.shape != s for t in scene.things)])
    missing = plural(word(dice, NOUNS[(absent,)]))
    if dice.chance(0.6):
        return f"{many} and no {missing}", all_of([everything, Count(Kind((absent,)), 0, 0)])
    colour = (dice.pick([c for c in COLOURS if all(t.colour != c for t in scene.things)]),)
    nothing = [Count(Kind((absent,)), 0, 0), Count(Kind(colours=colour), 0, 0)]
    return f"no {missing} and nothing {word(dice, COLOUR_WORDS[colour])}", all_of(nothing)


def dreamer(dice: Dice, scene: Scene) -> tuple[str, Form]:
    """Hardly anything: one attribute of one thing, a family of them, or a rough number."""
    thing, total = dice.pick(scene.things), len(scene.things)
    match dice.below(4):
        case 0:
            kind = kind_of(thing, dice.pick(("colour", "pattern", "size")))
            return phrase(dice, kind), Exists((kind,))
        case 1:
            kinds = [Kind(shapes=s) for s in NOUNS if len(s) > 1 and thing.shape in s]
            kinds += [Kind(colours=c) for c in COLOUR_WORDS if len(c) > 1 and thing.colour in c]
            kind = dice.pick(kinds or [Kind(shapes=(thing.shape,))])
            return word(dice, (phrase(dice, kind), f"maybe {phrase(dice, kind)}")), Exists((kind,))
        case 2 if total >= 3:
            low, high, amount = dice.pick(
                [
                    r
                    for r in ((3, 4, "a few"), (3, 6, "several"), (5, 6, "many"))
                    if r[0] <= total <= r[1]
                ]
            )
            return f"{amount} {plural(word(dice, NOUNS[()]))}", Count(Kind(), low, high)
    return f"{phrase(dice, Kind())} {ground(dice, scene.background)}", On(scene.background)


# ---- their habits ----


def _few(dice: Dice) -> tuple[str, ...]:
    """Which attributes to mention of a thing in passing."""
    return dice.pick(
        (("shape",), ("shape", "colour"), ("shape", "colour"), ("size",), ("colour", "pattern"),
         ("size", "shape", "colour"), ("pattern", "shape"))
    )  # fmt: skip


def _where(dice: Dice, thing: Thing) -> str:
    """A place that the thing is at, or none where it lies between them."""
    return dice.pick([place for place in PLACES if thing.at(place)] or [""])


def _striking(dice: Dice, scene: Scene) -> Thing:
    """Mostly the largest thing."""
    if dice.chance(0.6):
        return max(scene.things, key=lambda t: (t.radius, t.x, t.y))
    return dice.pick(scene.things)


def _bare(text: str) -> str:
    """A noun phrase without its article or "something"."""
    head, rest = text.split(" ", 1)
    return f"{rest} thing" if head == "something" else rest


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] if text.endswith(".") else text
