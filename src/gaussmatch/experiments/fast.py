"""The fast setting: all nine experiments on scenes within half an hour on two cores.

Smaller data and fewer epochs; the figures show how everything works, not how well.
"""

from __future__ import annotations

FAST: dict[str, tuple[str, ...]] = {
    "": ("--data.size", "small"),
    "vsepp-ft": ("--training.epochs", "3", "--training.steps", "15", "--training.decay_epoch", "2"),
    "vsrn": ("--training.epochs", "6", "--training.decay_epoch", "4", "--loss.warmup_epochs", "4"),
    "pvse": ("--training.epochs", "6", "--training.decay_epoch", "5"),
}
"""Start of a recipe's name → fields; the longest start that fits counts, after those for all."""


def fast_overrides(recipe: str) -> tuple[str, ...]:
    """Fields of a recipe in the fast setting.

    >>> fast_overrides("vsepp-kl")[:2]
    ('--data.size', 'small')
    """
    fitting = max((start for start in FAST if recipe.startswith(start)), key=len)
    return FAST[""] + (FAST[fitting] if fitting else ())
