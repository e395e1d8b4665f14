"""What an experiment is (rows to train, columns to measure, and what the paper printed), and the
nine of the paper and three beside it, which ``paper.yaml`` holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import yaml

from gaussmatch.core.metrics.measures import measure
from gaussmatch.models.recipe import recipe_folder

SplitName = Literal["test", "dev", "crops", "trust"]
"""What the runs are measured on; ``crops`` are triplets of crops (``evaluation.triplets``),
``trust`` is test with people's judgments of uncertainty (``search.trust.peers``)."""
Display = Literal["table", "area", "galleries"]
"""How it is shown beside its table: nothing more, uncertainty over area, or pictures."""
WAYS = {"i2t": "image-to-text", "t2i": "text-to-image"}


@dataclass(frozen=True)
class Column:
    """A measure in a table."""

    key: str  #: its name in a run's evaluation, such as ``i2t_r1``
    label: str
    group: tuple[str, ...] = ()  #: headings above, from the top
    digits: int = 1  #: shown after the point
    lower: bool | None = False  #: whether the smallest is the best; ``None`` if there is no best


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
    """A model of a table; what the paper printed of it is by column key."""

    title: str  #: its name, unique in the table
    recipe: str  #: ``recipes/{data}/{recipe}.yaml``
    overrides: Mapping[str, Any] = field(default_factory=dict)  #: fields beside the file
    group: str = ""  #: rows of one group are compared; the best of each is bold
    published: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)  #: printed standard deviations
    slips: Mapping[str, Slip] = field(default_factory=dict)
    against: str | None = None  #: title of the row that it is tested against, query by query
    note: str = ""

    @property
    def slug(self) -> str:
        return slug(self.title)

    def true_figure(self, key: str) -> float | None:
        """The published figure of a column, put right if it is a slip."""
        return self.slips[key].value if key in self.slips else self.published.get(key)


Place = tuple[str, str]
"""Row title, column key."""


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that figures can speak to: one is higher than another, or than zero
    (``None``); ``also`` holds further pairs that it is about, such as every threshold."""

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
    """One table or figure of the paper."""

    name: str  #: what one types
    title: str
    about: str  #: two sentences for a reader: the question, and how to read the answer
    place: str  #: where it is in the paper; empty if it is not
    data: str  #: the paper's data set for it
    split: SplitName
    columns: tuple[Column, ...]  #: in the order of the paper; one that no run has is left out
    rows: tuple[TableRow, ...]
    seeds: int = 1  #: runs of each row, unless given
    display: Display = "table"
    published_on: str = ""  #: the split of the paper's figures, in words
    claims: tuple[Claim, ...] = ()  #: what the paper concludes from it

    def __post_init__(self) -> None:
        titles = [row.title for row in self.rows]
        if len({row.slug for row in self.rows}) < len(titles):
            raise ValueError(f"experiment {self.name}: two rows have one name")
        keys = {column.key for column in self.columns}
        for row in self.rows:
            if row.against is not None and row.against not in titles:
                raise ValueError(f"experiment {self.name}: no row {row.against!r} to test against")
            if strange := {*row.published, *row.slips, *row.spread} - keys:
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


# ---- from paper.yaml ----

_ALL: dict[str, dict[str, Any]] = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
NAMES = tuple(_ALL)
PAPER = tuple(name for name, given in _ALL.items() if given["place"])
"""The nine of the paper: ``all``."""


def experiment(name: str, data: str = "coco") -> Experiment:
    """An experiment by name, as it is made on a data set.

    >>> experiment("coco").rows[2].published["1k_i2t_r1"]
    59.3
    """
    if name not in _ALL:
        raise ValueError(f"no experiment {name!r}; choose from {', '.join(NAMES)} or all")
    given = _ALL[name] | _ALL[name].get("for", {}).get(data, {})
    columns = tuple(_columns(given))
    rows = tuple(_rows(given, columns, recipe_folder() / data))
    claims = tuple(_claims(given))
    if "bases" in given:
        claims = tuple(c for c in claims if c.titles <= {row.title for row in rows})
    own = {key: given[key] for key in Experiment.__dataclass_fields__ if key in given}
    return Experiment(name, **own | {"columns": columns, "rows": rows, "claims": claims})


def _columns(given: Mapping[str, Any]) -> Iterator[Column]:
    for one in given["columns"]:
        ((kind, keys),) = one.items() if isinstance(one, dict) else (("", one),)
        for start, above in _levels(kind, given.get("thresholds", ())):
            for key in keys.split():
                side = {"crop": "i2t", "caption": "t2i"}.get(key.partition("_")[0], "")
                way = [WAYS[side]] if kind in ("areas", "means") and key[-1] in "ac" else []
                entry = measure(key)
                label = given.get("labels", {}).get(key, entry.label)
                digits = given.get("digits", entry.digits)
                yield Column(start + key, label, (*above, *way), digits, entry.lower)


def _levels(kind: str, thresholds: Sequence[str]) -> list[tuple[str, list[str]]]:
    """What measures are taken on: (start of their keys, headings above them)."""
    ways = [(f"{way}_", [name]) for way, name in WAYS.items()]
    if kind == "folds":
        levels = {"1k_": "1K (averaged over five folds)", "": "full test set"}
        return [(a + b, [title, *name]) for a, title in levels.items() for b, name in ways]
    if kind == "areas":
        return [(f"{t}_", [f"area < {t}"]) for t in thresholds]
    plain: list[tuple[str, list[str]]] = [("", [])]
    return {"ways": ways, "means": [("mean_", ["mean of the thresholds"])]}.get(kind, plain)


def _rows(given: Mapping[str, Any], columns: Sequence[Column], folder: Path) -> Iterator[TableRow]:
    bases = given.get("bases", ())
    base = next((b for b in bases if (folder / f"{b}.yaml").is_file()), "vsepp")
    for title, row in given["rows"].items():
        recipe, own = row["recipe"].replace("BASE", base), row["recipe"].removeprefix("BASE-")
        if base == "vsepp" and (folder / f"{own}.yaml").is_file():
            recipe = own
        if bases and not (folder / f"{recipe}.yaml").is_file():
            continue
        printed = row.get("figures", {})
        if isinstance(printed, str):
            printed = dict(zip((c.key for c in columns), map(float, printed.split()), strict=False))
        slips = {key: Slip(*slip) for key, slip in row.get("slips", {}).items()}
        more = {key: row[key] for key in ("group", "spread", "against", "note") if key in row}
        fields = row.get("fields", {})
        yield TableRow(title, recipe, fields, published=printed, slips=slips, **more)


def _claims(given: Mapping[str, Any]) -> Iterator[Claim]:
    for one in given["claims"]:
        if "areas" in one:
            row, (high, low) = one["row"], one["areas"].split(" > ")
            first, *also = (
                ((row, f"{t}_{high}_uncertainty"), (row, f"{t}_{low}_uncertainty"))
                for t in given["thresholds"]
            )
            yield Claim(one["text"].format(row=row), *first, tuple(also))
            continue
        key, text = one["of"], one.get("text", "{higher} is above {lower} in {what}")
        for higher, lower in (pair.split(" > ") for pair in one["pairs"]):
            said = text.format(higher=higher, lower=lower, what=one.get("in", key))
            yield Claim(said, (higher, key), None if lower == "0" else (lower, key))


def _numbers() -> Iterator[tuple[str, str]]:
    for name in PAPER:
        place = _ALL[name]["place"]
        first, *last = map(int, re.findall(r"\d+", place.partition(",")[0]))
        for number in range(first, (last[-1] if last else first) + 1):
            yield f"{'table' if place.startswith('Table') else 'figure'}{number}", name


NUMBERED = dict(_numbers())
"""The paper's number → name: table1, …, figure7."""
