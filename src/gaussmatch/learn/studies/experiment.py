"""What an experiment is: rows to train, columns to measure, and what the paper printed.

Nothing here runs: ``paper`` fills these types with the nine experiments, ``reproduce`` executes
any of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from gaussmatch.core.metrics.measures import measure

SplitName = Literal["test", "dev", "crops", "trust"]
"""What the runs are measured on; ``crops`` are triplets of crops (``evaluation.triplets``),
``trust`` is test with people's judgments of uncertainty (``search.trust.peers``)."""

Display = Literal["table", "area", "galleries"]
"""How it is shown beside its table: nothing more, uncertainty over area, or pictures."""


@dataclass(frozen=True)
class Column:
    """A measure in a table.

    Args:
        key: its name in a run's evaluation, such as ``i2t_r1``.
        label: its heading.
        group: headings above, from the top.
        digits: shown after the point.
        lower: whether the smallest is the best; ``None`` where there is no best.
    """

    key: str
    label: str
    group: tuple[str, ...] = ()
    digits: int = 1
    lower: bool | None = False

    @staticmethod
    def of(key: str, group: tuple[str, ...] = (), label: str = "", digits: int = -1) -> Column:
        """A column of a registered measure; label and digits are its own unless given."""
        entry = measure(key)
        digits = entry.digits if digits < 0 else digits
        return Column(key, label or entry.label, group, digits, entry.lower)


def slug(title: str) -> str:
    """A title as a file name.

    >>> slug("VSE++ft † KL, one value")
    'vsepp-ft-high-capacity-kl-one-value'
    """
    text = title.lower().replace("++ft", "pp-ft").replace("++", "pp").replace("†", "high capacity")
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())


@dataclass(frozen=True)
class Slip:
    """A figure that the paper misprints: what it should be, and how we know."""

    value: float
    why: str


@dataclass(frozen=True)
class TableRow:
    """A model of a table.

    Args:
        title: its name, unique in the table.
        recipe: ``recipes/{data}/{recipe}.yaml``.
        overrides: fields beside the file: dotted name → value.
        group: rows of one group are compared; the best of each is bold.
        published: what the paper printed, by column key.
        spread: the printed standard deviations, by column key.
        slips: printed figures that cannot be right, by column key.
        against: title of the row that it is tested against, query by query.
        note: a word about the row.
    """

    title: str
    recipe: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    published: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    slips: Mapping[str, Slip] = field(default_factory=dict)
    against: str | None = None
    note: str = ""

    @property
    def slug(self) -> str:
        """The title as a file name."""
        return slug(self.title)

    def true_figure(self, key: str) -> float | None:
        """The published figure of a column, put right where it is a slip."""
        return self.slips[key].value if key in self.slips else self.published.get(key)


Place = tuple[str, str]
"""Row title, column key."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that figures can speak to: one is higher than another.

    Args:
        text: the claim.
        higher: where the higher figure is.
        lower: where the lower is; ``None`` stands for zero.
        also: further (higher, lower) pairs that the same claim is about, such as every threshold.
    """

    text: str
    higher: Place
    lower: Place | None
    also: tuple[tuple[Place, Place | None], ...] = ()

    @property
    def pairs(self) -> tuple[tuple[Place, Place | None], ...]:
        return ((self.higher, self.lower), *self.also)

    @property
    def titles(self) -> set[str]:
        """The rows that it is about."""
        return {place[0] for pair in self.pairs for place in pair if place is not None}


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Args:
        name: what one types.
        title: its heading.
        about: two sentences for a reader: the question, and how to read the answer.
        place: where it is in the paper; empty if it is not.
        data: the paper's data set for it.
        split: what is measured on.
        columns: in the order of the paper; one that no run has is left out.
        rows: the models.
        seeds: runs of each row, unless given.
        display: what is shown beside the table.
        published_on: the split of the paper's figures, in words.
        claims: what the paper concludes from it.
    """

    name: str
    title: str
    about: str
    place: str
    data: str
    split: SplitName
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    seeds: int = 1
    display: Display = "table"
    published_on: str = ""
    claims: tuple[Claim, ...] = ()

    def __post_init__(self) -> None:
        titles = [row.title for row in self.rows]
        slugs = {row.slug for row in self.rows}
        if len(slugs) < len(titles):
            raise ValueError(f"experiment {self.name}: two rows have one name")
        keys = {column.key for column in self.columns}
        for row in self.rows:
            if row.against is not None and row.against not in titles:
                raise ValueError(f"experiment {self.name}: no row {row.against!r} to test against")
            strange = {*row.published, *row.slips, *row.spread} - keys
            if strange:
                raise ValueError(f"experiment {self.name}, {row.title}: no column {strange}")
        for claim in self.claims:
            for title, key in filter(None, (place for pair in claim.pairs for place in pair)):
                if title not in titles or key not in keys:
                    raise ValueError(f"experiment {self.name}: {claim.text!r} names {title}, {key}")

    @property
    def groups(self) -> Iterator[list[TableRow]]:
        """Rows group by group, in order."""
        for group in dict.fromkeys(row.group for row in self.rows):
            yield [row for row in self.rows if row.group == group]

    def row(self, title: str) -> TableRow:
        return next(row for row in self.rows if row.title == title)

    def only(self, patterns: Sequence[str]) -> Experiment:
        """The rows whose titles fit one of the patterns (``VSE++ KL*``), with the claims about
        them; all of them without a pattern."""
        if not patterns:
            return self
        rows = [row for row in self.rows if any(fnmatchcase(row.title, p) for p in patterns)]
        if not rows:
            titles = ", ".join(repr(row.title) for row in self.rows)
            raise ValueError(
                f"experiment {self.name}: no row fits {' or '.join(patterns)}; it has {titles}"
            )
        kept = {row.title for row in rows}
        claims = tuple(claim for claim in self.claims if claim.titles <= kept)
        rows = [replace(row, against=row.against if row.against in kept else None) for row in rows]
        about = f"{self.about} Here with {len(rows)} of its {len(self.rows)} rows."
        return replace(self, about=about, rows=tuple(rows), claims=claims)


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
