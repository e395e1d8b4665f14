"""The best-known failure of hardest-negative training, caught while it happens."""

from __future__ import annotations

from gaussmatch.core.losses import ScoreLoss, TripletLoss
from gaussmatch.models.recipe import LossRecipe

TOLERANCE = 0.02  # share by which a loss may differ from that value


class CollapseWarning(UserWarning):
    """The loss is stuck at the value of a model that maps everything to one point."""


class CollapseWatch:
    """Watches for a loss that is stuck at the value of a model that scores all pairs alike because
    it maps everything to one point: 2·B·margin for the hinge. With hardest negatives from the first
    step this can last for epochs; a first epoch with the sum of all violations prevents it.

    >>> watch = CollapseWatch(patience=3)
    >>> loss = TripletLoss(margin=0.2)
    >>> [watch.update(loss, value=51.2, batch=128) for _ in range(3)]
    [False, False, True]
    """

    def __init__(self, patience: int = 50) -> None:
        self.patience = patience
        self._stuck = 0
        self._warned = False

    def update(self, loss: ScoreLoss, value: float, batch: int) -> bool:
        """Take one step's loss; true once, when it has been stuck for ``patience`` steps."""
        target = loss.collapsed_value(batch)
        near = target > 0 and abs(value / target - 1) < TOLERANCE
        self._stuck = self._stuck + 1 if near else 0
        if self._stuck < self.patience or self._warned:
            return False
        self._warned = True
        return True

    @staticmethod
    def advice(loss: ScoreLoss, value: float, recipe: LossRecipe) -> str:
        if not isinstance(loss, TripletLoss):
            return (
                f"the loss is stuck at {value:.1f}, that of a guess: all pairs score alike. To "
                "cure it, change training.learning_rate or loss.scale."
            )
        cure = (
            f"raise loss.warmup_epochs (now {recipe.warmup_epochs}) or lower training.learning_rate"
            if recipe.warmup_epochs
            else "set loss.warmup_epochs to 1"
        )
        return (
            f"the loss is stuck at {value:.1f}, its collapsed value (every violation is the "
            f"margin; all pairs score alike). To cure it, {cure}. Where captions fit many images, "
            "the hardest negative is often a true match: loss.mining semi-hard leaves those out."
        )
