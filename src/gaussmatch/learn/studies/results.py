"""From cells to a table: mean ± std over seeds, the best of each group, the published figure;
and what a table says in words and signs, for its templates: Markdown, LaTeX, and the page."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gaussmatch.files import load_tensors, rendered
from gaussmatch.learn.evaluation.evaluate import paired
from gaussmatch.learn.evaluation.tables import tex
from gaussmatch.learn.studies.paper import Claim, Column, Experiment, Place, TableRow
from gaussmatch.learn.studies.study import Reproduction


def mean_std(values: Sequence[float]) -> tuple[float | None, float]:
    """Mean and sample standard deviation over runs: zero for one run, no mean of none.

    >>> mean_std([1.0, 3.0]), mean_std([1.0]), mean_std([])
    ((2.0, 1.4142135623730951), (1.0, 0.0), (None, 0.0))
    """
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else 0.0


def value_of(measures: Mapping[str, Any], key: str) -> float | None:
    """A measure by key, ``None`` if it was not measured.

    >>> value_of({"rsum": 3.0}, "rsum"), value_of({}, "rsum")
    (3.0, None)
    """
    value = measures.get(key)
    return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True)
class Value:
    """A figure in a table."""

    mean: float | None  #: over the runs; ``None`` if nothing was measured
    std: float  #: sample standard deviation, zero for one run
    published: float | None  #: as printed in the paper
    true: float | None  #: the same, put right if it is a slip
    best: bool = False  #: of its group

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.true is None else self.mean - self.true


@dataclass(frozen=True)
class Line:
    """A row with its figures, how many runs they come from, and what went wrong."""

    row: TableRow
    runs: int
    planned: int
    figures: Mapping[str, Value]
    errors: Sequence[str]

    @property
    def state(self) -> str:
        """Empty when every run is done."""
        if self.errors:
            return "failed" if self.runs == 0 else f"{self.planned - self.runs} failed"
        return "" if self.runs == self.planned else f"{self.runs} of {self.planned} runs"


@dataclass(frozen=True)
class PairedTest:
    """A row against its point model on the same queries; values are means over the seeds."""

    ours: str
    theirs: str
    runs: int
    measures: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Table:
    """What an experiment found."""

    experiment: Experiment
    papers_data: bool  #: whether the published figures are of the same data
    columns: Sequence[Column]  #: those that were measured
    lines: Sequence[Line]
    tests: Sequence[PairedTest]
    measures: Mapping[str, Sequence[Mapping[str, Any]]]  #: row title → those of each of its runs


@dataclass(frozen=True)
class Verdict:
    """What the figures say to a claim: holds, does not hold, unclear, or not measured."""

    claim: Claim
    state: str
    difference: float | None
    digits: int
    why: str


def verdicts(table: Table) -> list[Verdict]:
    """Every claim of the experiment. It holds where every 95 % interval of the difference lies
    above zero: over the seeds where there are several runs, and over the queries (or triplets, or
    items) where they were tested. One run without a test decides nothing."""
    return [_verdict(table, claim) for claim in table.experiment.claims]


def _verdict(table: Table, claim: Claim) -> Verdict:
    """The weakest of all that a claim is about."""
    digits = next(c for c in table.experiment.columns if c.key == claim.higher[1]).digits
    found = [_compared(table, high, low, digits) for high, low in claim.pairs]
    order = ("not measured", "does not hold", "unclear", "holds")
    state, difference, why = min(found, key=lambda one: order.index(one[0]))
    if len(found) > 1 and difference is not None:
        holds = sum(one[0] == "holds" for one in found)
        why = f"{holds} of {len(found)} hold; the weakest: {why}"
    return Verdict(claim, state, difference, digits, why)


def _compared(
    table: Table, higher: Place, lower: Place | None, digits: int
) -> tuple[str, float | None, str]:
    """State, difference and reason of one pair of figures."""
    above = _runs(table, higher)
    below = [0.0] if lower is None else _runs(table, lower)
    if not above or not below:
        return "not measured", None, ""
    difference = statistics.fmean(above) - statistics.fmean(below)
    intervals = _intervals(table, higher, lower, above, below)
    if not intervals:
        return "unclear", difference, "one run and no test"
    why = "; ".join(
        f"{what} [{low:+.{digits}f}, {high:+.{digits}f}]" for what, (low, high) in intervals.items()
    )
    if all(low > 0 for low, _ in intervals.values()):
        return "holds", difference, why
    if all(high < 0 for _, high in intervals.values()):
        return "does not hold", difference, why
    return "unclear", difference, why


def _runs(table: Table, place: Place) -> list[float]:
    """A figure in every run of its row."""
    title, key = place
    return [v for one in table.measures.get(title, ()) if (v := value_of(one, key)) is not None]


def _intervals(
    table: Table, higher: Place, lower: Place | None, above: list[float], below: list[float]
) -> dict[str, tuple[float, float]]:
    """What was sampled → the 95 % interval of the difference."""
    found = {}
    same_row = lower is not None and lower[0] == higher[0]
    if lower is None or (same_row and len(above) == len(below)):
        apart = [a - b for a, b in zip(above, below * len(above), strict=False)]
        if len(above) > 1:
            found["over seeds"] = t_interval(apart)
    elif len(above) > 1 and len(below) > 1:
        found["over seeds"] = t_interval(above, below)
    sampled = _over_items(table, higher, lower)
    if sampled is not None:
        found["over " + sampled[0]] = sampled[1]
    return found


def _over_items(
    table: Table, higher: Place, lower: Place | None
) -> tuple[str, tuple[float, float]] | None:
    """The interval over what a run was measured on, where that was tested."""
    measures, key = table.measures[higher[0]], higher[1]
    if lower is None:
        if not key.endswith("rho") or len(measures) != 1:
            return None
        n, rho = measures[0]["captions" if key == "caption_rho" else "images"], measures[0][key]
        spread = 1.96 / math.sqrt(max(1, n - 3))  # Fisher's z
        z = math.atanh(max(-0.999999, min(0.999999, rho)))
        return "items", (math.tanh(z - spread), math.tanh(z + spread))
    if lower[0] == higher[0]:
        start = key.removesuffix("_uncertainty")[:-2]
        if not key.endswith("_uncertainty") or any(f"{start}_gap_low" not in m for m in measures):
            return None
        low, high = (
            statistics.fmean(float(one[f"{start}_gap_{end}"]) for one in measures)
            for end in ("low", "high")
        )
        c_above = key.removesuffix("_uncertainty").endswith("_c")
        return "triplets", (low, high) if c_above else (-high, -low)
    for test in table.tests:
        found = test.measures.get(key)
        if found and key == lower[1] and {test.ours, test.theirs} == {higher[0], lower[0]}:
            low, high = found["low"], found["high"]
            return "queries", (low, high) if test.ours == higher[0] else (-high, -low)
    return None


T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t at 97.5 % for one to ten degrees of freedom; for more, that of ten is on the safe
side."""


def t_interval(a: Sequence[float], b: Sequence[float] | None = None) -> tuple[float, float]:
    """95 % interval of the mean of ``a``, or of mean a − mean b (Welch).

    >>> low, high = t_interval([10.0, 11.0, 12.0], [1.0, 2.0, 3.0])
    >>> round(low, 1), round(high, 1)
    (6.7, 11.3)
    """
    parts = [(statistics.fmean(x), statistics.variance(x) / len(x), len(x)) for x in (a, b) if x]
    center = parts[0][0] - (parts[1][0] if len(parts) > 1 else 0.0)
    total = sum(part[1] for part in parts)
    if total == 0:
        return center, center
    freedom = total**2 / sum(part[1] ** 2 / (part[2] - 1) for part in parts)
    reach = T[min(len(T), max(1, int(freedom + 1e-9))) - 1] * math.sqrt(total)
    return center - reach, center + reach


def table(one: Experiment, study: Reproduction, records: Sequence[Mapping[str, Any]]) -> Table:
    """The table of one experiment, from the records of all its cells."""
    measured = {key for record in records for key in record["measures"]}
    columns = [column for column in one.columns if column.key in measured]
    of = {row.title: [r for r in records if r["row"] == row.title] for row in one.rows}
    measures = {
        title: [r["measures"] for r in own if r["state"] == "done"] for title, own in of.items()
    }
    figures = {
        (title, c.key): mean_std([v for m in done if (v := value_of(m, c.key)) is not None])
        for title, done in measures.items()
        for c in columns
    }
    best, lines = _best(one, columns, figures), []
    for row in one.rows:
        title, own = row.title, of[row.title]
        values = {
            c.key: Value(
                *figures[title, c.key],
                row.published.get(c.key),
                row.true_figure(c.key),
                (title, c.key) in best,
            )
            for c in columns
        }
        errors = [f"seed {r['seed']}: {r['error']}" for r in own if r["state"] == "failed"]
        lines.append(Line(row, len(measures[title]), len(own), values, errors))
    each: dict[str, dict[int, Path]] = {title: {} for title in of}
    for cell, record in zip(study.of(one), records, strict=True):
        if record["state"] == "done" and cell.run is not None:
            each[cell.row.title][cell.seed] = cell.run.each(one.split)
    against = ((row.title, row.against) for row in one.rows if row.against is not None)
    tests = [t for a, b in against if (t := _test(a, b, columns, each[a], each[b])) is not None]
    return Table(one, one.data == study.setting.data, columns, lines, tests, measures)


def _best(
    one: Experiment, columns: Sequence[Column], figures: Mapping[Place, tuple[float | None, float]]
) -> set[Place]:
    """The best of each group as it is shown: equal digits are equally good."""
    best: set[Place] = set()
    for group, column in product(one.groups, columns):
        if column.lower is None:
            continue
        means = {(row.title, column.key): figures[row.title, column.key][0] for row in group}
        shown = {place: round(m, column.digits) for place, m in means.items() if m is not None}
        if len(shown) > 1:
            top = min(shown.values()) if column.lower else max(shown.values())
            best |= {place for place, m in shown.items() if m == top}
    return best


def _test(
    title: str,
    against: str,
    columns: Sequence[Column],
    ours: Mapping[int, Path],
    theirs: Mapping[int, Path],
) -> PairedTest | None:
    """Paired over queries; each query's value is its mean over the seeds that both rows have. Files
    of single queries by seed."""
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    a, b = (
        {key: _mean([each[key] for each in found]) for key in set.intersection(*map(set, found))}
        for found in ([load_tensors(files[seed]) for seed in seeds] for files in (theirs, ours))
    )
    for values in (a, b):
        values["rsum"] = _rsum_each(values)
    measures = {c.key: paired(b[c.key], a[c.key]) for c in columns if c.key in a and c.key in b}
    return PairedTest(title, against, len(seeds), measures) if measures else None


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
    """``59.3`` or ``59.3 ± 0.4``; a dash if nothing was measured."""
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
