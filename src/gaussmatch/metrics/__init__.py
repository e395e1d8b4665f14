"""Measures: pure functions of scores or ranks and a relevance relation."""

from gaussmatch.metrics.correlation import average_ranks, spearman
from gaussmatch.metrics.ranking import first_ranks, over_queries, precision_at_r
from gaussmatch.metrics.recall import median_rank, recall_at, summary
from gaussmatch.metrics.relevance import Relevance

__all__ = [
    "Relevance",
    "average_ranks",
    "first_ranks",
    "median_rank",
    "over_queries",
    "precision_at_r",
    "recall_at",
    "spearman",
    "summary",
]
