"""A table as Markdown and as LaTeX, best in bold, the paper's figure beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gaussmatch.learn.evaluation.tables import tex
from gaussmatch.learn.studies.experiment import Column
from gaussmatch.learn.studies.results import Line, PairedTest, Table, Value

SHORT = {
    "image-to-text": "i2t",
    "text-to-image": "t2i",
    "1K (averaged over five folds)": "1K",
    "full test set": "",
    "mean of the thresholds": "mean",
}


def short(column: Column) -> str:
    """A heading in one line.

    >>> short(Column("1k_i2t_r1", "R@1", ("1K (averaged over five folds)", "image-to-text")))
    '1K i2t R@1'
    """
    return " ".join(filter(None, [*(SHORT.get(g, g) for g in column.group), column.label]))


def shown(figure: Value, column: Column, runs: int) -> str:
    """``59.3`` or ``59.3 ± 0.4``; a dash where nothing was measured."""
    if figure.mean is None:
        return "–"
    text = number(figure.mean, column.digits)
    return f"{text} ± {figure.std:.{column.digits}f}" if runs > 1 else text


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


def markdown(table: Table) -> str:
    """The table, what the paper printed, the paired tests and the notes."""
    one = table.experiment
    lines = [f"# {one.title}", "", one.about, "", context(table), ""]
    lines += [f"| model | runs | {' | '.join(short(c) for c in table.columns)} |"]
    lines += ["|---|--:|" + "--:|" * len(table.columns)]
    for line in table.lines:
        cells = [_markdown_cell(table, line, c) for c in table.columns]
        if line.runs == 0:
            cells = [line.state or "not run", *[""] * (len(cells) - 1)] if cells else []
        lines.append(f"| {line.row.title} | {line.runs} | {' | '.join(cells)} |")
    if not table.papers_data and any(line.row.published for line in table.lines):
        lines += ["", f"What the paper printed ({one.published_on}), for the eye only:", ""]
        lines += _published_markdown(table)
    if table.tests:
        lines += ["", "Ours less theirs, paired over queries (95 % interval, p):", ""]
        lines += _tests_markdown(table)
    lines += ["", *(f"- {note}" for note in notes(table))]
    return "\n".join(lines).rstrip() + "\n"


def latex(table: Table) -> str:
    """A ``tabular`` with booktabs-free rules and headings in two rows."""
    columns = table.columns
    spec = "l" + "r" * len(columns)
    lines = [
        f"% {table.experiment.title}: {context(table)}".replace("\n", " "),
        rf"\begin{{tabular}}{{{spec}}}",
        r"\hline",
    ]
    for level in heads(columns):
        spans = [rf"\multicolumn{{{span}}}{{c}}{{{tex(name)}}}" for name, span in level]
        lines.append(" & ".join(["", *spans]) + r" \\")
    lines += [" & ".join(["model", *(tex(c.label) for c in columns)]) + r" \\", r"\hline"]
    for n, (_, group) in enumerate(groupby(table.lines, lambda line: line.row.group)):
        lines += [r"\hline"] if n else []
        for line in group:
            cells = [tex(line.row.title), *(_latex_cell(table, line, c) for c in columns)]
            if line.runs == 0 and columns:
                state = rf"\multicolumn{{{len(columns)}}}{{c}}{{{tex(line.state or 'not run')}}}"
                cells = [cells[0], state]
            lines.append(" & ".join(cells) + r" \\")
    lines += [r"\hline", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {note}" for note in notes(table))]) + "\n"


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


def _markdown_cell(table: Table, line: Line, column: Column) -> str:
    figure = line.figures[column.key]
    text = shown(figure, column, line.runs)
    text = f"**{text}**" if figure.best else text
    return text + _beside(table, figure, column)


def _latex_cell(table: Table, line: Line, column: Column) -> str:
    figure = line.figures[column.key]
    text = shown(figure, column, line.runs).replace("±", r"$\pm$").replace("–", "--")
    text = text.replace("−", "$-$")
    text = rf"\textbf{{{text}}}" if figure.best else text
    return text + _beside(table, figure, column).replace("−", "$-$")


def _beside(table: Table, figure: Value, column: Column) -> str:
    if not table.papers_data or figure.published is None:
        return ""
    if figure.difference is None:
        return f" ({figure.published:.{column.digits}f})"
    digits = column.digits
    return f" ({figure.published:.{digits}f}, {signed(figure.difference, digits)})"


def _published_markdown(table: Table) -> list[str]:
    columns = published_columns(table)
    lines = [f"| model | {' | '.join(short(c) for c in columns)} |"]
    lines += ["|---|" + "--:|" * len(columns)]
    for line in table.lines:
        if line.row.published:
            cells = [printed(line, c) for c in columns]
            lines.append(f"| {line.row.title} | {' | '.join(cells)} |")
    return lines


def published_columns(table: Table) -> list[Column]:
    """Columns that the paper has figures for, measured here or not."""
    return [
        c
        for c in table.experiment.columns
        if any(c.key in line.row.published for line in table.lines)
    ]


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


def _tests_markdown(table: Table) -> list[str]:
    columns = test_columns(table)
    lines = [f"| ours | theirs | runs | {' | '.join(short(c) for c in columns)} |"]
    lines += ["|---|---|--:|" + "--:|" * len(columns)]
    for test in table.tests:
        cells = [tested(test, c.key) for c in columns]
        lines.append(f"| {test.ours} | {test.theirs} | {test.runs} | {' | '.join(cells)} |")
    return lines


def tested(test: PairedTest, key: str) -> str:
    """The difference with its interval and p."""
    if key not in test.measures:
        return ""
    r = test.measures[key]
    interval = f"[{signed(r['low'], 1)}, {signed(r['high'], 1)}]"
    return f"{signed(r['difference'], 1)} {interval} p {r['p']:.4f}"
