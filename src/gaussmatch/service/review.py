"""The findings of ``gaussmatch audit`` for people to decide about: read once, never changed."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

from gaussmatch.service.responses import FindingResponse, ReviewResponse
from gaussmatch.trust.audit import ISSUES
from gaussmatch.trust.audit_report import FIELDS, PICTURES, TABLE


def read_review(place: Path) -> ReviewResponse:
    """What an audit has found.

    Args:
        place: the folder that ``gaussmatch audit --out`` wrote, or the table in it.
    """
    table = place / TABLE if place.is_dir() else place
    if not table.is_file():
        raise FileNotFoundError(f"{table}: no findings; make them with 'gaussmatch audit'")
    findings = []
    with table.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames is None or not set(FIELDS) <= set(rows.fieldnames):
            raise ValueError(f"{table}: not the table of an audit: it needs {', '.join(FIELDS)}")
        for line, row in enumerate(rows, start=2):
            try:
                findings.append(_finding(row))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{table}, line {line}: {error}") from error
    mark = hashlib.sha256(table.read_bytes()).hexdigest()[:16]
    return ReviewResponse(mark, ISSUES, findings)


def _finding(row: dict[str, str]) -> FindingResponse:
    if row["issue"] not in ISSUES:
        raise ValueError(f"no issue {row['issue']!r}; there are {', '.join(ISSUES)}")
    image, caption, other = (
        int(row[name]) if row[name] else None for name in ("image", "caption", "other")
    )
    if image is None:
        raise ValueError("no image is named")
    severity = float(row["severity"])
    return FindingResponse(
        row["issue"], severity, image, caption, other, row["reason"], row["text"]
    )


def review_picture(place: Path, number: int) -> bytes | None:
    """The small picture of an image, if the audit could make one."""
    folder = place if place.is_dir() else place.parent
    path = folder / PICTURES / f"{number}.jpg"
    return path.read_bytes() if path.is_file() else None
