"""Measures as tables: plain text of several runs; Markdown and LaTeX of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from gaussmatch.core.metrics.measures import MEASURES, heading, shown

SIDES = ("crop", "caption")
SHOWN = (
    *(f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)),
    *("rsum", "i2t_r_precision", "t2i_r_precision", "caption_rho", "image_rho"),
)
"""What a table shows, in this order, if it was measured."""


def measures_table(rows: Sequence[tuple[str, Mapping[str, float | str]]]) -> str:
    """One row for each model; a measure that a model does not have is left blank.

    >>> print(measures_table([("point", {"rsum": 300.0}), ("ours", {"rsum": 310.5})]))
    model      rsum
    point     300.0
    ours      310.5
    """
    keys = [key for key in SHOWN if any(key in measures for _, measures in rows)]
    cells = [["model", *(heading(key) for key in keys)]]
    cells += [[name, *(_value(key, measures.get(key)) for key in keys)] for name, measures in rows]
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


def _value(key: str, value: float | str | None) -> str:
    return value or "" if value is None or isinstance(value, str) else shown(key, value)


# ---- one run ----


def rows(measures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Every measure that was taken: its name, then of images and of captions as queries, each with
    its 95 % interval."""
    found: list[tuple[str, str, str]] = []
    for prefix, note in (("", ""), ("1k_", " (1K)")):
        for entry in MEASURES.values():
            i2t, t2i = (_cell(measures, f"{prefix}{way}_{entry.key}") for way in ("i2t", "t2i"))
            if i2t or t2i:
                found.append((entry.label + note, i2t, t2i))
        if f"{prefix}rsum" in measures:
            found.append((f"rsum{note}", _cell(measures, f"{prefix}rsum"), ""))
    if "image_rho" in measures or "caption_rho" in measures:
        images, captions = (_cell(measures, key) for key in ("image_rho", "caption_rho"))
        found.append(("ρ of uncertainty with ambiguity", images, captions))
    for limit, chosen in measures.get("selection", {}).items():
        threshold = f"{limit} ({chosen['triplets']:.0f} triplets)"
        for name, ending in product("ac", ("", "_uncertainty")):
            crop, caption = (_cell(chosen, f"{side}_{name}{ending}") for side in SIDES)
            if crop or caption:
                what = "uncertainty of" if ending else "selection by"
                found.append((f"{what} {name.upper()}, area < {threshold}", crop, caption))
    return found


def markdown(title: str, measures: Mapping[str, Any]) -> str:
    """One table; the second column is about images as queries, the third about captions."""
    lines = [
        f"# {title}",
        "",
        _about(measures),
        "",
        "| measure | images | captions |",
        "|---|--:|--:|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows(measures)]
    lines += (
        ["", *(f"- {note}" for note in measures.get("notes", []))] if "notes" in measures else []
    )
    return "\n".join(lines) + "\n"


def latex(title: str, measures: Mapping[str, Any]) -> str:
    """A ``tabular`` that needs no package."""
    lines = [f"% {title}: {_about(measures)}", r"\begin{tabular}{lrr}", r"\hline"]
    lines += [r"measure & images & captions \\", r"\hline"]
    lines += [" & ".join(tex(cell) for cell in row) + r" \\" for row in rows(measures)]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def comparison(result: Mapping[str, Mapping[str, float]]) -> list[Sequence[str]]:
    """Rows of a paired test, for a plain table."""
    cells: list[Sequence[str]] = [("measure", "ours", "theirs", "difference", "95 %", "p")]
    for name, r in result.items():
        interval = f"[{r['low']:+.2f}, {r['high']:+.2f}]"
        cells.append(
            (name, f"{r['ours']:.2f}", f"{r['theirs']:.2f}", f"{r['difference']:+.2f}", interval,
             f"{r['p']:.4f}")
        )  # fmt: skip
    return cells


def _about(measures: Mapping[str, Any]) -> str:
    return f"{measures['data']}: {measures['images']} images, {measures['captions']} captions"


def _cell(measures: Mapping[str, Any], key: str) -> str:
    if key not in measures:
        return ""
    text = shown(key, measures[key])
    interval = measures.get("intervals", {}).get(key)
    return text if interval is None else f"{text} [{interval[0]:.1f}, {interval[1]:.1f}]"


def tex(text: str) -> str:
    """Text with what LaTeX would take for a command written out.

    >>> tex("ρ < 5 %")
    '$\\\\rho$ $<$ 5 \\\\%'
    """
    return "".join(_MARKS.get(character, character) for character in text)


_MARKS = {
    "%": r"\%",
    "ζ": r"$\zeta$",
    "ρ": r"$\rho$",
    "†": r"$^\dagger$",
    "²": r"$^2$",
    "<": "$<$",
    "±": r"$\pm$",
}
