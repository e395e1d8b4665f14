"""Losses over the score matrix of a batch. Each returns its named terms; the total is their sum.

Beside them, losses of the embeddings themselves: ``diversity``, ``mean_discrepancy``,
``bottleneck``, ``inclusion``; and of a caption told word by word: ``generation_loss``.
"""

from gaussmatch.losses.base import Reduction, ScoreLoss
from gaussmatch.losses.bottleneck import bottleneck
from gaussmatch.losses.discrepancy import mean_discrepancy
from gaussmatch.losses.diversity import diversity
from gaussmatch.losses.fitting import disorder
from gaussmatch.losses.generation import generation_loss, lesson
from gaussmatch.losses.inclusion import inclusion, log_inclusion
from gaussmatch.losses.infonce import InfoNCE
from gaussmatch.losses.sigmoid import PairwiseSigmoid
from gaussmatch.losses.soft_contrastive import SoftContrastive
from gaussmatch.losses.triplet import Mining, TripletLoss, negatives

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
    "lesson",
    "log_inclusion",
    "mean_discrepancy",
    "negatives",
]
