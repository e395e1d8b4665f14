"""A kind of thing in words: synonyms, and where the adjectives go.

Text is always made *from* the logical form, so that the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

from gaussmatch.data.scenes.forms import Kind
from gaussmatch.data.scenes.world import Dice

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
