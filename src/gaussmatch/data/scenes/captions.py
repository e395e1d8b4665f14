"""Five captions for a scene, each by another annotator with habits of its own.

From the most to the least specific: the thorough one names everything; the pointer one thing in
detail, the lister a few things in little; the surveyor relations and places; the painter looks at
colours, sizes and patterns and never names a shape; the counter counts; the dreamer is vague.
What the captions mean is in ``forms.py``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from gaussmatch.data.scenes.forms import (
    RELATIONS,
    Count,
    Exists,
    Form,
    Kind,
    On,
    Related,
    all_of,
    related,
)
from gaussmatch.data.scenes.words import (
    COLOUR_WORDS,
    NOUNS,
    NUMBERS,
    RELATION_WORDS,
    ground,
    listed,
    phrase,
    plural,
    word,
)
from gaussmatch.data.scenes.world import ATTRIBUTES, COLOURS, PLACES, SHAPES, Dice, Scene, Thing


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
    ways = [(a, how, b) for a in scene.things for b in scene.things if a is not b
            for how in RELATIONS[:-1] if related(a, how, b)]  # fmt: skip
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
