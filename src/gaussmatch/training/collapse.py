"""The best-known failure of hardest-negative training, caught while it happens."""

from __future__ import annotations

from gaussmatch.losses import TripletLoss


class CollapseWarning(UserWarning):
    """The loss stands at the value of a model that maps everything to one spot."""


class CollapseWatch:
    """Watches for a loss that stands at 2·B·margin: every pair scores alike, and the model has
    mapped everything to one spot. With hardest negatives from the first step this can last for
    epochs; one epoch of the sum loss first cures it.

    >>> watch = CollapseWatch(patience=3)
    >>> loss = TripletLoss(margin=0.2)
    >>> [watch.sees(loss, value=51.2, batch=128) for _ in range(3)]
    [False, False, True]
    """

    def __init__(self, patience: int = 50, tolerance: float = 0.02) -> None:
        self.patience, self.tolerance = patience, tolerance
        self._stuck = 0
        self._told = False

    def sees(self, loss: TripletLoss, value: float, batch: int) -> bool:
        """Note one step's loss; true once, when it has stood there for ``patience`` steps."""
        target = loss.collapsed_value(batch)
        near = target > 0 and abs(value / target - 1) < self.tolerance
        self._stuck = self._stuck + 1 if near else 0
        if self._stuck < self.patience or self._told:
            return False
        self._told = True
        return True

    @staticmethod
    def advice(value: float, warmup_epochs: int) -> str:
        cure = (
            f"raise loss.warmup_epochs (now {warmup_epochs}) or lower training.learning_rate"
            if warmup_epochs
            else "set loss.warmup_epochs to 1"
        )
        return (
            f"the loss stands at the collapsed value 2·B·margin ({value:.1f}): every pair scores "
            f"alike. To cure it, {cure}. Where captions fit many images the hardest negative is "
            "often a true match: loss.mining semi-hard leaves those out."
        )
