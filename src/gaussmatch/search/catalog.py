"""All pictures of an index without searching them: on a timeline, by folder, by place, by name.

It is read once and holds a few columns, so that 100,000 pictures take some ten megabytes.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from gaussmatch.checks import SCHEMA
from gaussmatch.data.asked import TAKEN
from gaussmatch.data.language import STOP_WORDS, base
from gaussmatch.search.manifest import Record

MONTH = len("2023-05")
_WORD = re.compile(r"[^\W_]+")
_DATED = re.compile(r"\d{4}-\d\d")

Named = Literal["folder", "file", "caption"]
Box = tuple[float, float, float, float]
"""South, west, north, east, in degrees."""


@dataclass(frozen=True, slots=True)
class Month:
    """How many pictures were taken in a month."""

    __pydantic_config__ = SCHEMA

    month: str
    """As in 2023-05; empty for pictures without a date."""
    count: int


@dataclass(frozen=True, slots=True)
class Album:
    """A folder of pictures."""

    __pydantic_config__ = SCHEMA

    folder: str
    count: int
    """Pictures in it and below."""
    cover: str
    """The id of its newest picture."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Pictures that were taken near each other."""

    __pydantic_config__ = SCHEMA

    latitude: float
    longitude: float
    count: int
    cover: str
    """The id of the newest of them."""


@dataclass(frozen=True, slots=True)
class NamedHit:
    """A picture whose name says what was searched for."""

    __pydantic_config__ = SCHEMA

    id: str
    named: list[Named]
    """Which of its names: folder, file or caption."""


@dataclass(frozen=True, slots=True)
class NameHits:
    """What the names of pictures say of a query."""

    __pydantic_config__ = SCHEMA

    hits: list[NamedHit]
    total: int
    folders: list[Album] = field(default_factory=list)
    """Folders whose own path holds all words."""


class Catalog:
    """Pictures by date, newest first; those without a date last, by id.

    >>> metas = {"a": ("2019 holiday/1.jpg", "2019-07-01"), "b": ("cats/2.jpg", None)}
    >>> records = [
    ...     Record(id, {"file": file, "folder": file.split("/")[0], "taken": taken})
    ...     for id, (file, taken) in metas.items()
    ... ]
    >>> catalog = Catalog(records)
    >>> catalog.named("2019 holidays").hits
    [NamedHit(id='a', named=['folder'])]
    >>> [(m.month, m.count) for m in catalog.months()]
    [('2019-07', 1), ('', 1)]
    """

    def __init__(self, records: Iterable[Record]) -> None:
        known, folders, places = list[tuple[str, str]](), list[str](), array("d")
        words: dict[Named, dict[str, array[int]]] = {"folder": {}, "file": {}, "caption": {}}
        seen: dict[str, tuple[str, ...]] = {}
        for row, record in enumerate(records):
            meta = record.meta
            taken = _text(meta.get(TAKEN))
            known.append((taken if _DATED.match(taken) else "", record.id))
            folder, file = _text(meta.get("folder")), _text(meta.get("file"))
            folders.append("" if folder == "." else folder)
            places.extend(_place(meta))
            if folder not in seen:
                seen[folder] = tokens(folder)
            said = meta.get("captions") or [meta.get("caption")]
            parts: dict[Named, Iterable[str]] = {
                "folder": seen[folder],
                "file": tokens(file.rpartition("/")[2]),
                "caption": tokens(" ".join(map(_text, said)) if isinstance(said, list) else ""),
            }
            for name, found in parts.items():
                column = words[name]
                for word in found:
                    column.setdefault(word, array("i")).append(row)
        order = sorted(range(len(known)), key=lambda row: known[row][1])
        order.sort(key=lambda row: known[row][0], reverse=True)
        self._rank = np.empty(len(order), dtype=np.int32)
        self._rank[order] = np.arange(len(order), dtype=np.int32)
        self.ids = [known[row][1] for row in order]
        self.taken = [known[row][0] for row in order]
        codes = {folder: code for code, folder in enumerate(sorted(set(folders)))}
        self._folders = list(codes)
        self._folder = np.array([codes[folders[row]] for row in order], dtype=np.int32)
        self._place = np.array(places, dtype=np.float64).reshape(-1, 2)[order]
        self._words = words

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, folder: str | None = None, box: Box | None = None) -> np.ndarray:
        """Pictures of a folder and those below it, or of a place, in their order."""
        chosen = np.ones(len(self), dtype=bool)
        if folder is not None:
            inside = [at for at, own in enumerate(self._folders) if is_below(own, folder)]
            chosen &= np.isin(self._folder, inside)
        if box is not None:
            south, west, north, east = box
            latitude, longitude = self._place.T
            chosen &= (south <= latitude) & (latitude <= north)
            chosen &= (west <= longitude) & (longitude <= east)
        return np.flatnonzero(chosen)

    def months(self, rows: Sequence[int] | np.ndarray | None = None) -> list[Month]:
        """How many pictures each month has, newest first; those without a date last."""
        some = self.taken if rows is None else [self.taken[row] for row in rows]
        return [Month(month, n) for month, n in Counter(day[:MONTH] for day in some).items()]

    def albums(self) -> list[Album]:
        """Folders with pictures, and those above them, by name."""
        counts = np.bincount(self._folder, minlength=len(self._folders)).tolist()
        first = {int(code): row for row, code in reversed([*enumerate(self._folder)])}
        total: Counter[str] = Counter()
        cover: dict[str, int] = {}
        for code, folder in enumerate(self._folders):
            for above in _above(folder):
                total[above] += counts[code]
                cover[above] = min(cover.get(above, len(self)), first[code])
        return [Album(name, n, self.ids[cover[name]]) for name, n in sorted(total.items())]

    def spots(self, most: int) -> list[Spot]:
        """Places, as fine as ``most`` of them allow, the one with most pictures first."""
        there = np.flatnonzero(~np.isnan(self._place[:, 0]))
        for digits in (3, 2, 1, 0, -1):
            grid = np.round(self._place[there], digits)
            _, first, of, counts = np.unique(
                grid, axis=0, return_index=True, return_inverse=True, return_counts=True
            )
            if len(first) <= most:
                break
        sums = np.zeros((len(first), 2))
        np.add.at(sums, of.ravel(), self._place[there])
        means = (sums / counts[:, None]).round(5).tolist()
        return [
            Spot(means[at][0], means[at][1], int(counts[at]), self.ids[there[first[at]]])
            for at in np.argsort(-counts, kind="stable")[:most].tolist()
        ]

    def named(self, text: str, most: int = 50) -> NameHits:
        """Pictures whose folder, file name and captions together hold all words of a query; those
        first whose folder or file holds most of them, then the newest."""
        wanted = tokens(text)
        if not wanted:
            return NameHits([], 0)
        score = np.zeros(len(self), dtype=np.int32)
        fits = np.ones(len(self), dtype=bool)
        which = {name: np.zeros(len(self), dtype=bool) for name in self._words}
        for word in wanted:
            any_ = np.zeros(len(self), dtype=bool)
            for name, column in self._words.items():
                rows = self._rank[np.frombuffer(column.get(word, array("i")), dtype=np.int32)]
                any_[rows] = which[name][rows] = True
                score[rows] += 1 if name == "caption" else 2
            fits &= any_
        found = np.flatnonzero(fits)
        order = found[np.argsort(-score[found], kind="stable")]
        hits = [
            NamedHit(self.ids[row], [name for name, held in which.items() if held[row]])
            for row in order[:most].tolist()
        ]
        inside = {*wanted}
        folders = [album for album in self.albums() if inside <= {*tokens(album.folder)}]
        names = [album.folder for album in folders]
        top = [f for f in folders if not any(is_below(f.folder, o) for o in names if o != f.folder)]
        return NameHits(hits, len(found), top[:most])


def tokens(text: str) -> tuple[str, ...]:
    """The words of a name, each once, in their base form.

    >>> tokens("Trips/2019-07 Holidays_in Rome")
    ('trip', '2019', '07', 'holiday', 'rome')
    """
    words = (base(word) for word in _WORD.findall(text.lower()) if word not in STOP_WORDS)
    return tuple(dict.fromkeys(words))


def is_below(folder: str, above: str) -> bool:
    """Whether a folder is ``above`` or lies below it.

    >>> is_below("trips/rome", "trips"), is_below("trips2", "trips"), is_below("trips", "")
    (True, False, True)
    """
    return folder == above or not above or folder.startswith(f"{above}/")


def _above(folder: str) -> list[str]:
    """A folder and those above it; the uppermost has no name."""
    parts = folder.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts) + 1)] if folder else [""]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _place(meta: Mapping[str, Any]) -> tuple[float, float]:
    both = meta.get("latitude"), meta.get("longitude")
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in both):
        latitude, longitude = float(both[0]), float(both[1])  # type: ignore[arg-type]
        if abs(latitude) <= 90 and abs(longitude) <= 180:
            return latitude, longitude
    return np.nan, np.nan
