"""What Prometheus is told. Each app has a registry of its own, so several live in one process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PERCENTILES = (5, 10, 25, 50, 75, 90, 95, 99)


class Metrics:
    """Counters of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "gaussmatch_requests",
            "Requests by route and status.",
            ("route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "gaussmatch_request_seconds",
            "Time to answer, by route.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "gaussmatch_requests_in_flight", "Requests being answered.", registry=self.registry
        )
        self.batch = Histogram(
            "gaussmatch_batch_size",
            "Queries that were encoded together.",
            buckets=SIZES,
            registry=self.registry,
        )
        self.waiting = Gauge(
            "gaussmatch_queries_waiting", "Queries in the queue.", registry=self.registry
        )
        self.percentile = Histogram(
            "gaussmatch_query_uncertainty_percentile",
            "How vague queries are, as a percentile of what the model has seen: a drift upwards "
            "means that people ask for what the model was not trained on.",
            ("kind",),
            buckets=PERCENTILES,
            registry=self.registry,
        )
        self.items = Gauge(
            "gaussmatch_index_items", "Items in the index.", ("gallery",), registry=self.registry
        )
        self._percentile: dict[str, Callable[[float], None]] = {}
        self._seconds: dict[str, Callable[[float], None]] = {}
        self._requests: dict[tuple[str, int], Callable[[], None]] = {}

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Note one request; its route is a pattern of the app, never a path from outside."""
        key = route, status
        if key not in self._requests:
            self._requests[key] = self.requests.labels(route, str(status)).inc
        if route not in self._seconds:
            self._seconds[route] = self.seconds.labels(route).observe
        self._requests[key]()
        self._seconds[route](seconds)

    def asked(self, kind: str, percentile: float) -> None:
        """Note how vague a query is."""
        if kind not in self._percentile:
            self._percentile[kind] = self.percentile.labels(kind).observe
        self._percentile[kind](percentile)

    def text(self) -> bytes:
        return generate_latest(self.registry)
