"""A user's own folder: photos, and one table of captions (CSV, TSV, JSON lines or Parquet).

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

from gaussmatch.checks import extra
from gaussmatch.data.listing import Caption, Listing, Photo, cut, split_name
from gaussmatch.data.pairs import SPLITS
from gaussmatch.data.recipe import Source
from gaussmatch.data.stored import read_lines

PARQUET = ".parquet"
ENDINGS = (".csv", ".tsv", ".jsonl", PARQUET)
COLUMNS = {
    "image": ("image", "image_name", "file", "file_name", "filename", "photo", "path"),
    "caption": ("caption", "captions", "text", "comment", "description", "sentence"),
    "split": ("split", "set", "partition"),
}
TEXT = ("string", "large_string", "string_view")
"""What pyarrow calls columns of text."""


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
        split = None if row.split is None else split_name(row.split, row.place)
        if splits.setdefault(row.image, split) != split:
            raise ValueError(
                f"{row.place}: {row.image} is in {split} here and in {splits[row.image]} before; "
                "an image belongs to one split"
            )
        known = captions.setdefault(row.image, [])
        place = row.place.removeprefix(f"{root}/")
        known.append(Caption(f"{row.image}#{len(known)}", " ".join(row.caption.split()), place))
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
    """``captions.csv`` (or another of ``ENDINGS``), or the only such table in the folder."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    tables = sorted(p for p in root.iterdir() if p.suffix.lower() in ENDINGS)
    named = [p for p in tables if p.stem.lower() == "captions"]
    if len(named) == 1 or len(tables) == 1:
        return (named or tables)[0]
    found = ", ".join(p.name for p in tables) or "none"
    raise ValueError(f"{root}: needs one captions.csv, .tsv, .jsonl or .parquet (found: {found})")


def find_image(root: Path, name: str) -> Path:
    beside = root / "images" / name
    return beside if beside.is_file() else root / name


def rows(table: Path) -> Iterator[CaptionRow]:
    """The pairs of a table, with the line of each."""
    if table.suffix.lower() == PARQUET:
        yield from _parquet_rows(table)
        return
    lines = read_lines(table)
    if not lines:
        raise ValueError(f"{table}: empty")
    if table.suffix.lower() == ".jsonl":
        yield from _json_rows(table, lines)
    else:
        yield from _table_rows(table, lines)


def delimiter(table: Path, header: str) -> str:
    """What separates the fields of a table."""
    if table.suffix.lower() == ".tsv" or "\t" in header:
        return "\t"
    return ";" if header.count(";") > header.count(",") else ","


def _table_rows(table: Path, lines: list[str]) -> Iterator[CaptionRow]:
    separator = delimiter(table, lines[0])
    reader = csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, strict=True)
    try:
        header = [word.strip().lower() for word in next(reader, [])]
        image, caption = column(table, header, "image"), column(table, header, "caption")
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
                photo_name(fields[image].strip()),
                fields[caption],
                None if split is None or not fields[split].strip() else fields[split],
            )
    except csv.Error as error:
        raise ValueError(f"{table}, line {reader.line_num}: not valid CSV ({error})") from error


def column(table: Path, header: list[str], role: str) -> int:
    """Which column holds the image, or the caption."""
    for i, word in enumerate(header):
        if word in COLUMNS[role]:
            return i
    raise ValueError(
        f"{table}, line 1: no column for the {role}; the header must name one of "
        f"{', '.join(COLUMNS[role])} (it has {', '.join(header)})"
    )


def read_parquet(table: Path) -> Any:
    """A Parquet table of pyarrow whose column of images holds names."""
    with extra("arrow", str(table)):
        import pyarrow.parquet as parquet
    content = parquet.read_table(table)
    header = [name.lower() for name in content.column_names]
    image, caption = column(table, header, "image"), column(table, header, "caption")
    if any(str(content.schema.types[at]) not in TEXT for at in (image, caption)):
        raise ValueError(
            f"{table}: images and captions must be text, the images as file names; one that holds "
            "the photos themselves is read with --format datasets"
        )
    return content


def _parquet_rows(table: Path) -> Iterator[CaptionRow]:
    content = read_parquet(table)
    header = [name.lower() for name in content.column_names]
    image, caption = column(table, header, "image"), column(table, header, "caption")
    split = next((i for i, word in enumerate(header) if word in COLUMNS["split"]), None)
    splits = [None] * len(content) if split is None else content[split].to_pylist()
    pairs = zip(content[image].to_pylist(), content[caption].to_pylist(), splits, strict=True)
    for row, (name, text, of) in enumerate(pairs):
        place = f"{table}, row {row}"
        yield CaptionRow(place, photo_name(name or ""), text or "", of or None)


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
        image, said = (record[field(record, place, role)] for role in ("image", "caption"))
        split = next((record[k] for k in COLUMNS["split"] if record.get(k)), None)
        if said == []:
            raise ValueError(f"{place}: {image} has no caption; write one, or leave the line out")
        for caption in said if isinstance(said, list) else [said]:
            for value in (image, caption):
                if not isinstance(value, str):
                    raise ValueError(f"{place}: image and caption must be text, got {value!r}")
            yield CaptionRow(
                place, photo_name(image), caption, None if split is None else str(split)
            )


def photo_name(image: str) -> str:
    """One name for a photo, so that ./a.jpg and a.jpg are not two.

    >>> photo_name("./a.jpg"), photo_name("b//c.jpg")
    ('a.jpg', 'b/c.jpg')
    """
    return PurePosixPath(image).as_posix() if image else image


def field(record: dict[str, Any], place: str, role: str) -> str:
    """Which field of a JSON record holds the image, or the caption."""
    for name in COLUMNS[role]:
        if name in record:
            return name
    raise ValueError(f"{place}: no field {role!r}; it has {', '.join(record)}")


SOURCE = Source(
    "folder",
    where="""\
Your own photos. In one folder:
  the photos, there or in images/
  captions.csv (or .tsv, .jsonl, .parquet)   columns image, caption and, if you like, split
An image may have many rows. Without a split, 80/10/10 is drawn from the names.""",
    signs=tuple(f"*{ending}" for ending in ENDINGS),
    read=lambda recipe, root: read(root),
)
