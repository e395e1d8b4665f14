"""From cells to a table: mean ± std over seeds, the best of each group, the published figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from gaussmatch.experiments.experiment import Column, Experiment, Row, value_of
from gaussmatch.experiments.reproduce import Cell, Outcome
from gaussmatch.metrics import paired_test


@dataclass(frozen=True)
class Figure:
    """A place in a table.

    Args:
        mean: over the runs; ``None`` where nothing was measured.
        std: sample standard deviation, zero for one run.
        published: as printed in the paper.
        true: the same, put right where it is a slip.
        best: whether it is the best of its group.
    """

    mean: float | None
    std: float
    published: float | None
    true: float | None
    best: bool = False

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.true is None else self.mean - self.true


@dataclass(frozen=True)
class Line:
    """A row with its figures, how many runs they come from, and what went wrong."""

    row: Row
    runs: int
    asked: int
    figures: Mapping[str, Figure]
    errors: Sequence[str]

    @property
    def state(self) -> str:
        """Empty when every run is done."""
        if self.errors:
            return "failed" if self.runs == 0 else f"{self.asked - self.runs} failed"
        return "" if self.runs == self.asked else f"{self.runs} of {self.asked} runs"


@dataclass(frozen=True)
class Test:
    """A row against its point model on the same queries; values are means over the seeds."""

    ours: str
    theirs: str
    runs: int
    measures: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Table:
    """What an experiment found.

    Args:
        papers_data: whether the published figures are of the same data.
        columns: those that were measured.
    """

    experiment: Experiment
    papers_data: bool
    columns: Sequence[Column]
    lines: Sequence[Line]
    tests: Sequence[Test]

    @property
    def complete(self) -> bool:
        return all(not line.state for line in self.lines)


def table(one: Experiment, outcome: Outcome, records: Sequence[Mapping[str, Any]]) -> Table:
    """The table of one experiment.

    Args:
        records: of all cells of the plan, in its order (``save_cells``).
    """
    pairs = [
        (cell, record)
        for cell, record in zip(outcome.plan.cells, records, strict=True)
        if cell.experiment.name == one.name
    ]
    measured = {key for _, record in pairs for key in record["measures"]}
    columns = [column for column in one.columns if column.key in measured]
    lines = [
        _line(row, columns, [record for cell, record in pairs if cell.row == row])
        for row in one.rows
    ]
    tests = [
        test
        for row in one.rows
        if row.against is not None and (test := _test(one, row, columns, outcome, pairs))
    ]
    papers = one.data == outcome.plan.setting.data
    return Table(one, papers, columns, _with_best(one, columns, lines), tests)


def _line(row: Row, columns: Sequence[Column], records: Sequence[Mapping[str, Any]]) -> Line:
    done = [record["measures"] for record in records if record["state"] == "done"]
    figures = {}
    for column in columns:
        values = [v for one in done if (v := value_of(one, column.key)) is not None]
        figures[column.key] = Figure(
            statistics.fmean(values) if values else None,
            statistics.stdev(values) if len(values) > 1 else 0.0,
            row.published.get(column.key),
            row.true_figure(column.key),
        )
    errors = [
        f"seed {record['seed']}: {record['error']}"
        for record in records
        if record["state"] == "failed"
    ]
    return Line(row, len(done), len(records), figures, errors)


def _with_best(one: Experiment, columns: Sequence[Column], lines: Sequence[Line]) -> list[Line]:
    """The best of each group as it is shown: equal digits are equally good."""
    best: set[tuple[str, str]] = set()
    by_row = {line.row.title: line for line in lines}
    for group in one.groups:
        for column in columns:
            if column.lower is None:
                continue
            means = {row.title: by_row[row.title].figures[column.key].mean for row in group}
            shown = {t: round(m, column.digits) for t, m in means.items() if m is not None}
            if len(shown) > 1:
                top = min(shown.values()) if column.lower else max(shown.values())
                best |= {(title, column.key) for title, m in shown.items() if m == top}
    return [
        Line(
            line.row, line.runs, line.asked,
            {
                key: Figure(f.mean, f.std, f.published, f.true, (line.row.title, key) in best)
                for key, f in line.figures.items()
            },
            line.errors,
        )
        for line in lines
    ]  # fmt: skip


def _test(
    one: Experiment,
    row: Row,
    columns: Sequence[Column],
    outcome: Outcome,
    pairs: Sequence[tuple[Cell, Mapping[str, Any]]],
) -> Test | None:
    """Paired over queries; each query's value is its mean over the seeds that both rows have."""
    store = outcome.plan.store
    files = {
        title: {
            cell.seed: store.each(cell.run, one.split)
            for cell, record in pairs
            if cell.row.title == title and cell.run is not None and record["state"] == "done"
        }
        for title in (row.title, row.against or "")
    }
    ours, theirs = files.values()
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    a = [load_file(theirs[seed]) for seed in seeds]
    b = [load_file(ours[seed]) for seed in seeds]
    shown = [c.key for c in columns if c.key in a[0] and c.key in b[0]]
    if one.name == "stability":
        shown = [k for k in a[0] if k in b[0] and k.split("_", 1)[1] in ("r1", "r5", "r10")]
    measures = {}
    for key in shown:
        before, now = _mean([each[key] for each in a]), _mean([each[key] for each in b])
        found = paired_test(before, now)
        measures[key] = {
            "ours": float(now.nanmean()),
            "theirs": float(before.nanmean()),
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "p": found.p,
        }
    return Test(row.title, row.against or "", len(seeds), measures) if measures else None


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack([v.double() for v in values]).mean(0)
