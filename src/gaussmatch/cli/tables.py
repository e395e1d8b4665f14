"""Measures as plain text tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COLUMNS = {
    "i2t_r1": "i2t R@1",
    "i2t_r5": "R@5",
    "i2t_r10": "R@10",
    "t2i_r1": "t2i R@1",
    "t2i_r5": "R@5",
    "t2i_r10": "R@10",
    "rsum": "rsum",
    "i2t_r_precision": "i2t R-P",
    "t2i_r_precision": "t2i R-P",
    "caption_rho": "ρ captions",
    "image_rho": "ρ images",
}
"""What a table shows, in this order, where it was measured."""


def measures_table(rows: Sequence[tuple[str, Mapping[str, float | str]]]) -> str:
    """One row for each model; a measure that a model does not have is left blank.

    >>> print(measures_table([("point", {"rsum": 300.0}), ("ours", {"rsum": 310.5})]))
    model      rsum
    point     300.0
    ours      310.5
    """
    shown = [key for key in COLUMNS if any(key in measures for _, measures in rows)]
    cells = [["model", *(COLUMNS[key] for key in shown)]]
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
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:.3f}" if key.endswith("_rho") else f"{value:.1f}"
