"""A user's own folder: photos, and one table of captions (CSV, TSV or JSON lines).

A row names an image and a caption, and may name a split. An image may have many rows; in JSON
lines ``captions`` may also be a list. Images are sought from the folder, then from ``images/``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gaussmatch.data.listing import Caption, Listing, Photo, cut, split_name
from gaussmatch.data.pairs import SPLITS
from gaussmatch.data.source import Source
from gaussmatch.data.stored import read_lines

ENDINGS = (".csv", ".tsv", ".jsonl")
COLUMNS = {
    "image": ("image", "image_name", "file", "file_name", "filename", "photo", "path"),
    "caption": ("caption", "captions", "text", "comment", "description", "sentence"),
    "split": ("split", "set", "partition"),
}


@dataclass(frozen=True)
class CaptionRow:
    """One image–caption pair of the table; ``place`` is the file and line, for messages."""

    place: str
    image: str
    caption: str
    split: str | None


def read(root: Path) -> Listing:
    """All photos and captions of a folder; without a split column one is drawn from the names."""
    table = find_table(root)
    captions: dict[str, list[Caption]] = {}
    splits: dict[str, str | None] = {}
    for row in rows(table):
        if not row.caption.strip():
            raise ValueError(f"{row.place}: the caption of {row.image} is empty; write one")
        split = None if row.split is None else split_name(row.split, row.place)
        if splits.setdefault(row.image, split) != split:
            raise ValueError(
                f"{row.place}: {row.image} is in {split} here and in {splits[row.image]} before; "
                "an image belongs to one split"
            )
        known = captions.setdefault(row.image, [])
        known.append(Caption(f"{row.image}#{len(known)}", " ".join(row.caption.split())))
    if not captions:
        raise ValueError(f"{table}: no captions below the header")
    photos = [Photo(name, find_image(root, name), tuple(said)) for name, said in captions.items()]
    name = root.resolve().name
    unsplit = [photo.id for photo in photos if splits[photo.id] is None]
    if unsplit and len(unsplit) < len(photos):
        raise ValueError(
            f"{table}: {unsplit[0]} has no split, but others have; give all one, or none"
        )
    if unsplit:
        return Listing(name, cut(photos), [f"{table.name} names no split: 80/10/10 by name"])
    return Listing(name, {s: [p for p in photos if splits[p.id] == s] for s in SPLITS})


def find_table(root: Path) -> Path:
    """``captions.csv`` (``.tsv``, ``.jsonl``), or the only such table in the folder."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    tables = sorted(p for p in root.iterdir() if p.suffix.lower() in ENDINGS)
    named = [p for p in tables if p.stem.lower() == "captions"]
    if len(named) == 1 or len(tables) == 1:
        return (named or tables)[0]
    found = ", ".join(p.name for p in tables) or "none"
    raise ValueError(f"{root}: needs one captions.csv, .tsv or .jsonl (found: {found})")


def find_image(root: Path, name: str) -> Path:
    beside = root / "images" / name
    return beside if beside.is_file() else root / name


def rows(table: Path) -> Iterator[CaptionRow]:
    """The pairs of a table, with the line of each."""
    lines = read_lines(table)
    if not lines:
        raise ValueError(f"{table}: empty")
    if table.suffix.lower() == ".jsonl":
        yield from _json_rows(table, lines)
    else:
        yield from _table_rows(table, lines)


def _table_rows(table: Path, lines: list[str]) -> Iterator[CaptionRow]:
    delimiter = "\t" if table.suffix.lower() == ".tsv" or "\t" in lines[0] else ","
    if delimiter == "," and lines[0].count(";") > lines[0].count(","):
        delimiter = ";"
    reader = csv.reader(io.StringIO("\n".join(lines)), delimiter=delimiter, strict=True)
    try:
        header = [word.strip().lower() for word in next(reader, [])]
        image, caption = _column(table, header, "image"), _column(table, header, "caption")
        split = next((i for i, word in enumerate(header) if word in COLUMNS["split"]), None)
        line = reader.line_num + 1
        for fields in reader:
            place, line = f"{table}, line {line}", reader.line_num + 1
            if not any(field.strip() for field in fields):
                continue
            if len(fields) != len(header):
                raise ValueError(
                    f"{place}: {len(fields)} fields, but the header has {len(header)}; "
                    'put a caption with the delimiter in it in "quotes"'
                )
            yield CaptionRow(
                place,
                _name(fields[image].strip()),
                fields[caption],
                None if split is None or not fields[split].strip() else fields[split],
            )
    except csv.Error as error:
        raise ValueError(f"{table}, line {reader.line_num}: not valid CSV ({error})") from error


def _column(table: Path, header: list[str], role: str) -> int:
    for i, word in enumerate(header):
        if word in COLUMNS[role]:
            return i
    raise ValueError(
        f"{table}, line 1: no column for the {role}; the header must name one of "
        f"{', '.join(COLUMNS[role])} (it has {', '.join(header)})"
    )


def _json_rows(table: Path, lines: list[str]) -> Iterator[CaptionRow]:
    for number, line in enumerate(lines, start=1):
        place = f"{table}, line {number}"
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{place}: not valid JSON ({error.msg})") from error
        if not isinstance(record, dict):
            raise ValueError(f"{place}: must be an object with image and caption")
        image, said = _field(record, place, "image"), _field(record, place, "caption")
        split = next((record[k] for k in COLUMNS["split"] if record.get(k)), None)
        if said == []:
            raise ValueError(f"{place}: {image} has no caption; write one, or leave the line out")
        for caption in said if isinstance(said, list) else [said]:
            for value in (image, caption):
                if not isinstance(value, str):
                    raise ValueError(f"{place}: image and caption must be text, got {value!r}")
            yield CaptionRow(place, _name(image), caption, None if split is None else str(split))


def _name(image: str) -> str:
    """One name for a photo, so that ./a.jpg and a.jpg are not two.

    >>> _name("./a.jpg"), _name("b//c.jpg")
    ('a.jpg', 'b/c.jpg')
    """
    return PurePosixPath(image).as_posix() if image else image


def _field(record: dict[str, Any], place: str, role: str) -> Any:
    for name in COLUMNS[role]:
        if name in record:
            return record[name]
    raise ValueError(f"{place}: no field {role!r}; it has {', '.join(record)}")


SOURCE = Source(
    "folder",
    where="""\
Your own photos. In one folder:
  the photos, there or in images/
  captions.csv (or .tsv, .jsonl)     columns image, caption and, if you like, split
An image may have many rows. Without a split, 80/10/10 is drawn from the names.""",
    signs=tuple(f"*{ending}" for ending in ENDINGS),
    read=lambda recipe, root: read(root),
)
