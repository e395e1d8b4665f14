"""The OpenAPI description is true: generated requests get only answers that it describes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from service.served import Served, make_index

from gaussmatch.apps.service import Settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
from schemathesis import checks  # noqa: E402

EXAMPLES = int(os.environ.get("GAUSSMATCH_API_EXAMPLES", "6"))
"""Requests for each of the operations; more examples find more faults."""
TRUE = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]


def test_every_answer_is_described(tmp_path: Path) -> None:
    with Served(make_index(tmp_path), Settings(timeout=60)) as address:
        schema = schemathesis.openapi.from_url(f"{address}openapi.json", timeout=60)
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) > 15
        for operation in operations:
            examine(operation)


def examine(operation: schemathesis.APIOperation) -> None:
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def valid(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=TRUE, timeout=60)

    valid()
