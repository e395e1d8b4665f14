"""From cells to a table: mean ± std over seeds, the best of each group, the published figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from gaussmatch.experiments.experiment import Claim, Column, Experiment, TableRow, value_of
from gaussmatch.experiments.reproduce import Cell, Outcome
from gaussmatch.metrics import paired_test


@dataclass(frozen=True)
class Value:
    """A figure in a table.

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

    row: TableRow
    runs: int
    asked: int
    figures: Mapping[str, Value]
    errors: Sequence[str]

    @property
    def state(self) -> str:
        """Empty when every run is done."""
        if self.errors:
            return "failed" if self.runs == 0 else f"{self.asked - self.runs} failed"
        return "" if self.runs == self.asked else f"{self.runs} of {self.asked} runs"


@dataclass(frozen=True)
class PairedTest:
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
    tests: Sequence[PairedTest]

    @property
    def complete(self) -> bool:
        return all(not line.state for line in self.lines)


@dataclass(frozen=True)
class Verdict:
    """What the figures say to a claim: holds, does not hold, unclear, or not measured."""

    claim: Claim
    state: str
    difference: float | None
    digits: int
    why: str


def verdicts(table: Table) -> list[Verdict]:
    """Every claim of the experiment, judged by the means; unclear where a paired test or the
    spread over seeds does not tell the difference from zero."""
    return [_verdict(table, claim) for claim in table.experiment.claims]


def _verdict(table: Table, claim: Claim) -> Verdict:
    lines = {line.row.title: line for line in table.lines}
    column = next(c for c in table.experiment.columns if c.key == claim.higher[1])
    zero = Value(0.0, 0.0, None, None)
    high, low = (
        zero if place is None else lines[place[0]].figures.get(place[1], Value(None, 0, None, None))
        for place in (claim.higher, claim.lower)
    )
    if high.mean is None or low.mean is None:
        return Verdict(claim, "not measured", None, column.digits, "")
    difference = high.mean - low.mean
    state = "holds" if difference > 0 else "does not hold"
    why = f"difference of the means, {lines[claim.higher[0]].runs} run(s)"
    for test in table.tests:
        sides = {test.ours, test.theirs}
        same_key = claim.lower is not None and claim.lower[1] == claim.higher[1]
        if same_key and claim.lower and sides == {claim.higher[0], claim.lower[0]}:
            found = test.measures.get(claim.higher[1])
            if found is not None:
                why = f"paired over queries, p {found['p']:.4f}"
                state = "unclear" if found["low"] <= 0 <= found["high"] else state
    spread = (high.std**2 + low.std**2) ** 0.5
    if spread > abs(difference):
        state, why = "unclear", f"the seeds spread by ± {spread:.{column.digits}f}"
    return Verdict(claim, state, difference, column.digits, why)


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


def _line(row: TableRow, columns: Sequence[Column], records: Sequence[Mapping[str, Any]]) -> Line:
    done = [record["measures"] for record in records if record["state"] == "done"]
    figures = {}
    for column in columns:
        values = [v for one in done if (v := value_of(one, column.key)) is not None]
        figures[column.key] = Value(
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
                key: Value(f.mean, f.std, f.published, f.true, (line.row.title, key) in best)
                for key, f in line.figures.items()
            },
            line.errors,
        )
        for line in lines
    ]  # fmt: skip


def _test(
    one: Experiment,
    row: TableRow,
    columns: Sequence[Column],
    outcome: Outcome,
    pairs: Sequence[tuple[Cell, Mapping[str, Any]]],
) -> PairedTest | None:
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
    a, b = (
        {key: _mean([each[key] for each in found]) for key in set.intersection(*map(set, found))}
        for found in ([load_file(f[seed]) for seed in seeds] for f in (theirs, ours))
    )
    for values in (a, b):
        values["rsum"] = _rsum_each(values)
    shown = [c.key for c in columns if c.key in a and c.key in b]
    measures = {}
    for key in shown:
        found = paired_test(a[key], b[key])
        measures[key] = {
            "ours": float(b[key].nanmean()),
            "theirs": float(a[key].nanmean()),
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "p": found.p,
        }
    return PairedTest(row.title, row.against or "", len(seeds), measures) if measures else None


def _rsum_each(each: Mapping[str, Tensor]) -> Tensor:
    """What each image, with its captions, adds to rsum, so that rsum is their mean."""
    ways = {
        way: torch.stack([each[f"{way}_r{k}"] for k in (1, 5, 10)]).sum(0) for way in ("i2t", "t2i")
    }
    images, image_of = len(ways["i2t"]), each["image_of"].long()
    of_captions = torch.zeros(images).double().index_add(0, image_of, ways["t2i"])
    return ways["i2t"] + of_captions * images / len(image_of)


def _mean(values: Sequence[Tensor]) -> Tensor:
    return torch.stack([v.double() for v in values]).mean(0)
