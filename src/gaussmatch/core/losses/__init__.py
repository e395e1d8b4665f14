"""Losses over the score matrix of a batch. Each returns its named terms; the total is their sum.

Beside them, losses of the embeddings themselves: ``diversity``, ``mean_discrepancy``,
``bottleneck``, ``inclusion``; and of a generated caption: ``generation_loss``.
"""

from gaussmatch.core.losses.base import Reduction, ScoreLoss
from gaussmatch.core.losses.generation import generation_loss, teacher_forcing
from gaussmatch.core.losses.infonce import InfoNCE
from gaussmatch.core.losses.regularisers import (
    bottleneck,
    disorder,
    diversity,
    inclusion,
    log_inclusion,
    log_rivals,
    mean_discrepancy,
)
from gaussmatch.core.losses.sigmoid import PairwiseSigmoid
from gaussmatch.core.losses.soft_contrastive import SoftContrastive
from gaussmatch.core.losses.triplet import Mining, TripletLoss, negatives

__all__ = [
    "InfoNCE",
    "Mining",
    "PairwiseSigmoid",
    "Reduction",
    "ScoreLoss",
    "SoftContrastive",
    "TripletLoss",
    "bottleneck",
    "disorder",
    "diversity",
    "generation_loss",
    "inclusion",
    "log_inclusion",
    "log_rivals",
    "mean_discrepancy",
    "negatives",
    "teacher_forcing",
]
