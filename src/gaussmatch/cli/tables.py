"""Measures as plain text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gaussmatch.metrics.measures import heading
from gaussmatch.metrics.measures import shown as shown_value

SHOWN = (
    *(f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)),
    *("rsum", "i2t_r_precision", "t2i_r_precision", "caption_rho", "image_rho"),
)
"""What a table shows, in this order, where it was measured."""


def measures_table(rows: Sequence[tuple[str, Mapping[str, float | str]]]) -> str:
    """One row for each model; a measure that a model does not have is left blank.

    >>> print(measures_table([("point", {"rsum": 300.0}), ("ours", {"rsum": 310.5})]))
    model      rsum
    point     300.0
    ours      310.5
    """
    shown = [key for key in SHOWN if any(key in measures for _, measures in rows)]
    cells = [["model", *(heading(key) for key in shown)]]
    cells += [[name, *(_cell(key, measures.get(key)) for key in shown)] for name, measures in rows]
    return plain_table(cells)


def plain_table(cells: Sequence[Sequence[str]]) -> str:
    """Columns lined up: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    widths = [widths[0], *(max(8, w) for w in widths[1:])]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _cell(key: str, value: float | str | None) -> str:
    return value or "" if value is None or isinstance(value, str) else shown_value(key, value)
