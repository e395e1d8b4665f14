"""Metrics for Prometheus. Each app has a registry of its own, so several can live in one process.

Several workers share the folder that the variable PROMETHEUS_MULTIPROC_DIR names, in the way of
prometheus_client; each of them reports the sum. Counts of a worker that died stay in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

__all__ = ["CONTENT_TYPE_LATEST", "FOLDER", "Metrics"]

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that prometheus_client reads, once, when it is imported."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PERCENTILES = (5, 10, 25, 50, 75, 90, 95, 99)


class Metrics:
    """Counters of one app.

    ``in_flight`` is a plain number, for it changes with every request; gauges are set from what
    they ``watch`` when they are read, and those of workers once a second.
    """

    def __init__(self) -> None:
        self.folder = os.environ.get(FOLDER)
        self.registry = CollectorRegistry()
        self.in_flight = 0
        self._watched: list[tuple[Gauge, Callable[[], float]]] = []
        own: Any = {"namespace": "gaussmatch", "registry": self.registry}
        self.requests = Counter(
            "requests", "Requests by route and status.", ("route", "status"), **own
        )
        self.seconds = Histogram(
            "request_seconds", "Time to answer, by route.", ("route",), buckets=SECONDS, **own
        )
        self.batch = Histogram("batch_size", "Queries encoded together.", buckets=SIZES, **own)
        self.percentile = Histogram(
            "query_uncertainty_percentile",
            "How vague queries are, as a percentile of what the model has seen: a drift upwards "
            "means that people search for what the model was not trained on.",
            ("type",),
            buckets=PERCENTILES,
            **own,
        )
        total = {**own, "multiprocess_mode": "livesum"}
        last = {**own, "multiprocess_mode": "livemostrecent"}
        self.waiting = Gauge("queries_waiting", "Queries in the queue.", **total)
        self.items = Gauge("index_items", "Items in the index.", ("gallery",), **last)
        answering = Gauge("requests_in_flight", "Requests being answered.", **total)
        self.watch(answering, lambda: self.in_flight)
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

    def query(self, type: str, percentile: float) -> None:
        """Note how vague a query is."""
        if type not in self._percentile:
            self._percentile[type] = self.percentile.labels(type).observe
        self._percentile[type](percentile)

    def watch(self, gauge: Gauge, read: Callable[[], float]) -> None:
        """Set a gauge from now on to what ``read`` returns."""
        self._watched.append((gauge, read))

    def refresh(self) -> None:
        """Set all gauges."""
        for gauge, read in self._watched:
            gauge.set(read())

    def text(self) -> bytes:
        """All of it in Prometheus' format; the sum over the workers if there are several."""
        self.refresh()
        if self.folder is None:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=self.folder)
        return generate_latest(registry)

    def forget_the_dead(self) -> None:
        """Leave workers that are gone out of the gauges."""
        for file in Path(self.folder).glob("gauge_live*_*.db") if self.folder else ():
            pid = int(file.stem.rpartition("_")[2])
            if not _alive(pid):
                mark_process_dead(pid, self.folder)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
