"""Losses over the score matrix of a batch. Each returns its named terms; the total is their sum.

Beside them, losses of the embeddings themselves: ``diversity``, ``mean_discrepancy``,
``bottleneck``, ``inclusion``; and of a generated caption: ``generation_loss``.
"""

from collections.abc import Callable

from gaussmatch.core.losses.ranking import (
    InfoNCE,
    Mining,
    PairwiseSigmoid,
    PCMEPPLoss,
    ProLIPLoss,
    Reduction,
    ScoreLoss,
    SoftContrastive,
    TripletLoss,
    mixture_targets,
    negatives,
)
from gaussmatch.core.losses.regularizers import (
    bottleneck,
    disorder,
    diversity,
    generation_loss,
    inclusion,
    inclusion_as_published,
    log_inclusion,
    log_rivals,
    mean_discrepancy,
    teacher_forcing,
)

__all__ = [
    "LOSSES",
    "InfoNCE",
    "Mining",
    "PCMEPPLoss",
    "PairwiseSigmoid",
    "ProLIPLoss",
    "Reduction",
    "ScoreLoss",
    "SoftContrastive",
    "TripletLoss",
    "bottleneck",
    "disorder",
    "diversity",
    "generation_loss",
    "inclusion",
    "inclusion_as_published",
    "log_inclusion",
    "log_rivals",
    "mean_discrepancy",
    "mixture_targets",
    "negatives",
    "teacher_forcing",
]

LOSSES: dict[str, Callable[..., ScoreLoss]] = {
    "triplet": TripletLoss,
    "infonce": InfoNCE,
    "sigmoid": PairwiseSigmoid,
    "pcmepp": PCMEPPLoss,
    "prolip": ProLIPLoss,
    "soft-contrastive": SoftContrastive,
}
"""Every loss that ``loss.name`` of a recipe may name. Its arguments are fields of the same name in
that section, such as ``margin`` or ``scale``."""
