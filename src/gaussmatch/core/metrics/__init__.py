"""Measures: pure functions of scores, ranks or ranked ids and a relevance relation."""

from typing import TYPE_CHECKING

from gaussmatch.core.metrics.conformal import QuantileLine, RiskControl
from gaussmatch.core.metrics.fitting import (
    ResultProbability,
    brier,
    calibration_error,
    fit_temperature,
    log_perplexity,
)
from gaussmatch.lazy import exported

if TYPE_CHECKING:
    from gaussmatch.core.metrics.ranking import (
        Fold,
        Relevance,
        contiguous_folds,
        first_hits,
        first_ranks,
        map_at_r,
        map_at_r_each,
        median_rank,
        over_folds,
        over_queries,
        pmrp,
        pmrp_each,
        precision_at_r,
        r_precision,
        r_precision_each,
        recall_at,
        recall_at_k,
        restrict,
        summary,
    )
    from gaussmatch.core.metrics.statistics import (
        accuracy_by_bin,
        auroc,
        average_ranks,
        binary_selection,
        bootstrap,
        paired_test,
        partial_spearman,
        risk_coverage,
        spearman,
    )

__getattr__ = exported(__name__, "ranking", "statistics")
