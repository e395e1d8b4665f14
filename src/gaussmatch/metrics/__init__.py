"""Measures: pure functions of scores, ranks or ranked ids and a relevance relation."""

from gaussmatch.metrics.bootstrap import bootstrap, paired_test
from gaussmatch.metrics.calibration import (
    MatchProbability,
    ResultProbability,
    calibration_error,
)
from gaussmatch.metrics.correlation import average_ranks, spearman
from gaussmatch.metrics.folds import Fold, contiguous_folds, over_folds, restrict
from gaussmatch.metrics.plausible import pmrp, pmrp_each
from gaussmatch.metrics.ranked import (
    first_hits,
    map_at_r,
    map_at_r_each,
    r_precision,
    r_precision_each,
    recall_at_k,
)
from gaussmatch.metrics.ranking import first_ranks, over_queries, precision_at_r
from gaussmatch.metrics.recall import median_rank, recall_at, summary
from gaussmatch.metrics.relevance import Relevance
from gaussmatch.metrics.selection import binary_selection
from gaussmatch.metrics.uncertainty import accuracy_by_bin, risk_coverage

__all__ = [
    "Fold",
    "MatchProbability",
    "Relevance",
    "ResultProbability",
    "accuracy_by_bin",
    "average_ranks",
    "binary_selection",
    "bootstrap",
    "calibration_error",
    "contiguous_folds",
    "first_hits",
    "first_ranks",
    "map_at_r",
    "map_at_r_each",
    "median_rank",
    "over_folds",
    "over_queries",
    "paired_test",
    "pmrp",
    "pmrp_each",
    "precision_at_r",
    "r_precision",
    "r_precision_each",
    "recall_at",
    "recall_at_k",
    "restrict",
    "risk_coverage",
    "spearman",
    "summary",
]
