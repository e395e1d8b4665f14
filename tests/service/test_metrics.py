"""Counters of one process; those of several workers are tested with them."""

from __future__ import annotations

from gaussmatch.apps.service.logs import Metrics


def test_gauges_are_read_on_demand() -> None:
    metrics, waiting = Metrics(), 3
    metrics.watch(metrics.waiting, lambda: waiting)
    metrics.in_flight = 2
    assert "gaussmatch_queries_waiting 3.0" in metrics.text().decode()
    waiting, metrics.in_flight = 0, 1
    exposed = metrics.text().decode()
    assert "gaussmatch_queries_waiting 0.0" in exposed
    assert "gaussmatch_requests_in_flight 1.0" in exposed


def test_requests_are_counted_by_route_and_status() -> None:
    metrics = Metrics()
    for status in (200, 200, 404):
        metrics.answered("/api/x", status, 0.02)
    exposed = metrics.text().decode()
    assert 'gaussmatch_requests_total{route="/api/x",status="200"} 2.0' in exposed
    assert 'gaussmatch_requests_total{route="/api/x",status="404"} 1.0' in exposed
    assert 'gaussmatch_request_seconds_bucket{le="0.025",route="/api/x"} 3.0' in exposed
    assert 'gaussmatch_request_seconds_bucket{le="0.01",route="/api/x"} 0.0' in exposed
