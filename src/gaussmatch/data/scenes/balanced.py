"""Captions whose length says nothing about how many scenes they fit.

Annotators write more when they say more, so on their captions counting words goes a long way. Here
a vague caption is as long as a specific one: what it says is drawn first, its number of words
independently of that, and the rest is filled up with words that say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from gaussmatch.core.metrics.relevance import Relevance
from gaussmatch.data.scenes.captions import kind_of
from gaussmatch.data.scenes.forms import Exists, Form, Kind, On, all_of
from gaussmatch.data.scenes.truth import true_of
from gaussmatch.data.scenes.words import COLOUR_WORDS, NOUNS, ground, listed, phrase
from gaussmatch.data.scenes.world import ATTRIBUTES, Dice, Scene

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
    """So many captions, each true of at least one of the scenes.

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
