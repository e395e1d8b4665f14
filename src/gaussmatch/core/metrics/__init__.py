"""Measures: pure functions of scores, ranks or ranked ids and a relevance relation."""

from gaussmatch.core.metrics.bootstrap import bootstrap, paired_test
from gaussmatch.core.metrics.calibration import (
    IsotonicProbability,
    MatchProbability,
    ResultProbability,
    brier,
    calibration_error,
)
from gaussmatch.core.metrics.conformal import (
    Guarantee,
    conformal_threshold,
    coverage_over_splits,
    fit_evidence,
    learn_guarantee,
    tertiles,
)
from gaussmatch.core.metrics.evidence import evidence, fit_temperature, log_perplexity
from gaussmatch.core.metrics.plausible import pmrp, pmrp_each
from gaussmatch.core.metrics.ranked import (
    Fold,
    contiguous_folds,
    first_hits,
    map_at_r,
    map_at_r_each,
    over_folds,
    r_precision,
    r_precision_each,
    recall_at_k,
    restrict,
)
from gaussmatch.core.metrics.ranking import (
    first_ranks,
    median_rank,
    over_queries,
    precision_at_r,
    recall_at,
    summary,
)
from gaussmatch.core.metrics.relevance import Relevance
from gaussmatch.core.metrics.selection import binary_selection
from gaussmatch.core.metrics.uncertainty import (
    accuracy_by_bin,
    auroc,
    average_ranks,
    partial_spearman,
    risk_coverage,
    spearman,
)

__all__ = [
    "Fold",
    "Guarantee",
    "IsotonicProbability",
    "MatchProbability",
    "Relevance",
    "ResultProbability",
    "accuracy_by_bin",
    "auroc",
    "average_ranks",
    "binary_selection",
    "bootstrap",
    "brier",
    "calibration_error",
    "conformal_threshold",
    "contiguous_folds",
    "coverage_over_splits",
    "evidence",
    "first_hits",
    "first_ranks",
    "fit_evidence",
    "fit_temperature",
    "learn_guarantee",
    "log_perplexity",
    "map_at_r",
    "map_at_r_each",
    "median_rank",
    "over_folds",
    "over_queries",
    "paired_test",
    "partial_spearman",
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
    "tertiles",
]
