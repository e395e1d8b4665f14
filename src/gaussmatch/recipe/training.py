"""How a model is trained: the sections ``loss`` and ``training`` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from gaussmatch.losses import Mining
from gaussmatch.recipe.checks import positive


@dataclass(frozen=True)
class LossRecipe:
    """Which loss.

    Args:
        margin: α of the hinge.
        mining: which negatives count.
        warmup_epochs: epochs with all negatives (sum) first; one of them prevents the collapse.
        same_image_negatives: count other captions of an image as its negatives (official VSE++).
    """

    margin: float = 0.2
    mining: Mining = "hardest"
    warmup_epochs: int = 0
    same_image_negatives: bool = False


@dataclass(frozen=True)
class TrainingRecipe:
    """How it is trained.

    Args:
        epochs: passes over the training captions.
        batch_size: pairs in a step.
        learning_rate: of Adam.
        decay_epoch: after this many epochs the rate is multiplied by decay.
        decay: the factor.
        clip: largest gradient norm.
        seed: of the weights and of the order of the data.
        workers: processes that read images; 0 reads in the training process.
        device: cpu, cuda, mps, or auto for the best there is.
        bucket: put captions of like length in a batch. Faster with long captions, but the
            negatives are then of like length too, so it is off unless asked for.
    """

    epochs: int = 30
    batch_size: int = 128
    learning_rate: float = 2e-4
    decay_epoch: int = 15
    decay: float = 0.1
    clip: float = 2.0
    seed: int = 0
    workers: int = 0
    device: str = "auto"
    bucket: bool = False

    def __post_init__(self) -> None:
        positive("training", self, "epochs", "learning_rate", "decay_epoch", "decay", "clip")
        if self.batch_size < 2:
            raise ValueError(f"training.batch_size must be at least 2, got {self.batch_size}")
