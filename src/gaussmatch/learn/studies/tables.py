"""What a table says in words and signs, for its templates: Markdown, LaTeX, and the page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from gaussmatch.files import rendered
from gaussmatch.learn.evaluation.tables import tex
from gaussmatch.learn.studies.experiment import Column
from gaussmatch.learn.studies.results import Line, PairedTest, Table

SHORT = {
    "image-to-text": "i2t",
    "text-to-image": "t2i",
    "1K (averaged over five folds)": "1K",
    "full test set": "",
    "mean of the thresholds": "mean",
}


def template(name: str, **values: Any) -> str:
    """A template of this package, with the functions of this module as ``tables``."""
    here = Path(__file__).parent / "templates"
    return rendered(here / name, tables=sys.modules[__name__], **values)


def markdown(table: Table) -> str:
    """The table, what the paper printed, the paired tests and the notes."""
    return template("table.md.j2", table=table)


def latex(table: Table) -> str:
    """A ``tabular`` with booktabs-free rules and headings in two rows."""
    groups = [list(lines) for _, lines in groupby(table.lines, lambda line: line.row.group)]
    return template("table.tex.j2", table=table, groups=groups, tex=tex)


def short(column: Column) -> str:
    """A heading in one line.

    >>> short(Column("1k_i2t_r1", "R@1", ("1K (averaged over five folds)", "image-to-text")))
    '1K i2t R@1'
    """
    return " ".join(filter(None, [*(SHORT.get(g, g) for g in column.group), column.label]))


def number(value: float, digits: int) -> str:
    """With a true minus, never a negative zero.

    >>> number(-1.25, 1), number(-0.01, 1)
    ('−1.2', '0.0')
    """
    text = f"{value:.{digits}f}"
    return text.replace("-", "") if float(text) == 0 else text.replace("-", "−")


def signed(value: float, digits: int) -> str:
    """With its sign, also for zero, and a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def shown(line: Line, column: Column) -> str:
    """``59.3`` or ``59.3 ± 0.4``; a dash where nothing was measured."""
    figure = line.figures[column.key]
    if figure.mean is None:
        return "–"
    text = number(figure.mean, column.digits)
    return f"{text} ± {figure.std:.{column.digits}f}" if line.runs > 1 else text


def beside(table: Table, line: Line, column: Column) -> str:
    """The published figure and ours less it, in brackets, where the data is the paper's."""
    figure, digits = line.figures[column.key], column.digits
    if not table.papers_data or figure.published is None:
        return ""
    less = "" if figure.difference is None else f", {signed(figure.difference, digits)}"
    return f" ({figure.published:.{digits}f}{less})"


def heads(columns: Sequence[Column]) -> list[list[tuple[str, int]]]:
    """The headings above the columns: for each level (name, columns below it).

    >>> heads([Column("a", "A", ("x",)), Column("b", "B", ("x",)), Column("c", "C")])
    [[('x', 2), ('', 1)]]
    """
    levels = []
    for level in range(1, 1 + max((len(c.group) for c in columns), default=0)):
        spans = groupby(c.group[:level] for c in columns)
        levels.append([(p[-1] if len(p) == level else "", len(list(same))) for p, same in spans])
    return levels


def context(table: Table) -> str:
    """Where it is in the paper, and how to read the published figures beside ours."""
    if not table.experiment.place:
        return "Not in the paper."
    where = f"{table.experiment.place} of the paper. "
    if table.papers_data:
        return where + "In brackets the published figure and ours less it."
    return (
        where + "Not the paper's data: its figures stand apart and no difference is taken. "
        "Only the order of the models can be compared."
    )


def notes(table: Table) -> list[str]:
    """What a reader must know about single rows."""
    found = [f"{line.row.title}: {line.row.note}" for line in table.lines if line.row.note]
    for line in table.lines:
        found += [f"{line.row.title}: {slip.why}" for slip in line.row.slips.values()]
        found += [f"{line.row.title} failed, {error}" for error in line.errors]
    return found


def published_columns(table: Table) -> list[Column]:
    """Columns that the paper has figures for, measured here or not."""
    printed = {key for line in table.lines for key in line.row.published}
    return [c for c in table.experiment.columns if c.key in printed]


def printed(line: Line, column: Column) -> str:
    """The paper's own figure; a slip is marked."""
    value = line.row.published.get(column.key)
    if value is None:
        return ""
    text = f"{value:.{column.digits}f}"
    if column.key in line.row.spread:
        text += f" ± {line.row.spread[column.key]:.{column.digits}f}"
    return text + ("*" if column.key in line.row.slips else "")


def test_columns(table: Table) -> list[Column]:
    """What was tested, with the table's own headings."""
    tested = {key for test in table.tests for key in test.measures}
    return [c for c in table.experiment.columns if c.key in tested]


def tested(test: PairedTest, key: str) -> str:
    """The difference with its interval and p."""
    if key not in test.measures:
        return ""
    r = test.measures[key]
    interval = f"[{signed(r['low'], 1)}, {signed(r['high'], 1)}]"
    return f"{signed(r['difference'], 1)} {interval} p {r['p']:.4f}"
