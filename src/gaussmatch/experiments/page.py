"""The report of a reproduction: one self-contained page with a section for each experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gaussmatch.experiments.experiment import Column
from gaussmatch.experiments.report import template
from gaussmatch.experiments.reproduce import Outcome
from gaussmatch.experiments.results import Line, Table, Value
from gaussmatch.experiments.sections import Section
from gaussmatch.experiments.tables import (
    context,
    notes,
    number,
    printed,
    published_columns,
    signed,
    test_columns,
)
from gaussmatch.files import write_text
from gaussmatch.training.log import read_log


def write_page(outcome: Outcome, sections: Sequence[Section]) -> Path:
    """Write ``report.html`` into the folder of the reproduction."""
    made = outcome.plan
    trained = [run for run in made.runs if made.store.trained(run)]
    seconds = sum(
        record["seconds"]
        for run in trained
        for record in read_log(made.store.folder(run))
        if record["event"] == "epoch"
    )
    page = template("reproduce.html.j2").render(
        setting=made.setting,
        sections=sections,
        runs=len(trained),
        cells=len(made.cells),
        failed=sum(bool(line.errors) for s in sections for line in s.table.lines),
        minutes=seconds / 60,
        heads=heads,
        bar=bar,
        number=number,
        signed=signed,
        notes=notes,
        context=context,
        printed=printed,
        published_columns=published_columns,
        test_columns=test_columns,
    )
    path = made.out / "report.html"
    write_text(path, page)
    return path


def heads(columns: Sequence[Column]) -> list[list[tuple[str, int]]]:
    """The headings above the columns: for each level (name, columns below it).

    >>> heads([Column("a", "A", ("x",)), Column("b", "B", ("x",)), Column("c", "C")])
    [[('x', 2), ('', 1)]]
    """
    levels = []
    for level in range(max((len(c.group) for c in columns), default=0)):
        spans: list[tuple[str, int]] = []
        paths: list[tuple[str, ...]] = []
        for column in columns:
            path = column.group[: level + 1]
            if paths and paths[-1] == path:
                spans[-1] = (spans[-1][0], spans[-1][1] + 1)
            else:
                spans.append((path[level] if level < len(path) else "", 1))
            paths.append(path)
        levels.append(spans)
    return levels


def bar(table: Table, line: Line, column: Column) -> float | None:
    """How full the bar behind a sum of recalls is: 0 for the lowest of the table, 1 the highest."""
    if not column.key.endswith("rsum"):
        return None
    figures: list[Value] = [one.figures[column.key] for one in table.lines]
    means = [f.mean for f in figures if f.mean is not None]
    mine: Any = line.figures[column.key].mean
    if mine is None or max(means) == min(means):
        return None
    return float((mine - min(means)) / (max(means) - min(means)))
