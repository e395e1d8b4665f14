"""Embeddings that exist already, read without loading them, and the data set of such files.

``.npy``, ``.safetensors``: memory-mapped. Parquet, Arrow: a column of vectors beside ids, captions
and any metadata, read block by block; the extra ``arrow``. In ``data.name: arrays`` a CSV or TSV
says which images and texts go together: columns ``image``, ``text`` (ids) and perhaps ``split``;
without it the split is cut by the hash of the image's id.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaussmatch.checks import extra
from gaussmatch.data.listing import Caption, Photo, cut, split_name
from gaussmatch.data.pairs import SPLITS, DataSet, Pairs
from gaussmatch.data.recipe import DataRecipe, Source
from gaussmatch.data.stored import StoredFeatures, open_features, read_lines
from gaussmatch.files import cache_root

IDS, TEXTS, VECTORS = (
    ("id", "image_id", "key"),
    ("caption", "text"),
    ("embedding", "vector", "mean"),
)
"""Names of columns, the likeliest first; vectors are else the first column of number lists."""
TABLES = (".parquet", ".arrow", ".feather")
ENDINGS = (".npy", ".safetensors", *TABLES)
BLOCK = 8192
"""Rows of a file in memory at a time."""


@dataclass(frozen=True)
class Embeddings:
    """Rows of vectors with their names.

    Args:
        path: for messages.
        vectors: (n, width), memory-mapped where the format allows.
        ids: the name of each row: of the table, of ``{stem}_ids.txt`` beside an array, or 0, 1, ….
        texts: the caption of each row, where the table has them.
    """

    path: Path
    vectors: np.ndarray
    ids: Sequence[str]
    texts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.vectors):
            raise ValueError(f"{self.path}: {len(self.ids)} ids for {len(self.vectors)} vectors")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError(f"{self.path}: an id occurs twice; ids must be unique")

    def check(self) -> Embeddings:
        """Itself, if every vector has a direction."""
        for start in range(0, len(self.ids), BLOCK):
            some = slice(start, start + BLOCK)
            check_vectors(self.path, self.vectors[some], self.ids[some])
        return self


def check_vectors(path: Path, vectors: np.ndarray, ids: Sequence[str]) -> None:
    """Refuse a vector without a direction, by the id of its row."""
    for fault, bad in (
        ("holds a NaN or infinity", ~np.isfinite(vectors).all(1)),
        ("is zero: it has no direction", ~vectors.any(1)),
    ):
        if bad.any():
            raise ValueError(f"{path}: the embedding of {ids[int(bad.argmax())]!r} {fault}")


@dataclass(frozen=True)
class Block:
    """Rows of a file of embeddings that follow each other.

    Args:
        vectors: (n, width).
        ids, texts: see ``Embeddings``.
        meta: what else a table says of each row.
    """

    vectors: np.ndarray
    ids: Sequence[str]
    texts: Sequence[str] | None
    meta: Sequence[Mapping[str, Any]]


def open_embeddings(path: Path) -> Embeddings:
    """A file of embeddings by its ending. The vectors of a table are copied to an unnamed file in
    the cache, so that they take no memory."""
    if _ending(path) not in TABLES:
        vectors = _array(path)
        return Embeddings(path, vectors, _names(path, len(vectors)))
    ids: list[str] = []
    texts: list[str] = []
    with tempfile.TemporaryFile(dir=cache_root()) as file:
        width, dtype = 0, np.dtype(np.float32)
        for block in _table(path, with_meta=False):
            width, dtype = block.vectors.shape[1], block.vectors.dtype
            file.write(np.ascontiguousarray(block.vectors).data)
            ids += block.ids
            texts += block.texts or ()
        if not ids:
            raise ValueError(f"{path}: holds no rows")
        file.flush()
        vectors = np.memmap(file, dtype, "r", shape=(len(ids), width))
    return Embeddings(path, vectors, ids, texts or None)


def read_embeddings(path: Path) -> Iterator[Block]:
    """A file of embeddings block by block, with all that a table says of them."""
    if _ending(path) in TABLES:
        yield from _table(path)
        return
    vectors = _array(path)
    ids = _names(path, len(vectors))
    for start in range(0, len(vectors), BLOCK):
        some = slice(start, start + BLOCK)
        rows = vectors[some]
        yield Block(rows, ids[some], None, [{}] * len(rows))


def count_embeddings(path: Path) -> int:
    """How many rows a file has."""
    if _ending(path) not in TABLES:
        return len(_array(path))
    return _batches(path)[0]


def columns_of(path: Path) -> list[str]:
    """The names of a table's columns; none of an array."""
    return list(_batches(path)[1].names) if _ending(path) in TABLES else []


def _ending(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of embeddings")
    if path.suffix not in ENDINGS:
        raise ValueError(f"{path}: not {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    return path.suffix


def _array(path: Path) -> np.ndarray:
    vectors = _safetensors(path) if path.suffix == ".safetensors" else open_features(path)
    if vectors.ndim != 2:
        raise ValueError(f"{path}: shape {vectors.shape}; embeddings are (n, width)")
    return vectors


def _names(path: Path, rows: int) -> Sequence[str]:
    """Of the rows of an array: the lines of the file beside it, or their numbers."""
    names = path.with_name(f"{path.stem}_ids.txt")
    if not names.is_file():
        return [str(i) for i in range(rows)]
    found = read_lines(names)
    if len(found) != rows:
        raise ValueError(f"{names}: {len(found):,} ids, but {path.name} has {rows:,} rows")
    return found


def _safetensors(path: Path) -> np.ndarray:
    """The one matrix of a file, memory-mapped: 8 bytes of length, a JSON header, then the data."""
    dtypes = {"F16": np.float16, "F32": np.float32, "F64": np.float64}
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > path.stat().st_size:
                raise ValueError("the header is longer than the file")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        found = {name: about for name, about in header.items() if len(about["shape"]) == 2}
        if len(found) != 1:
            raise ValueError(f"holds {len(found)} matrices ({', '.join(found)}), not one")
        (about,) = found.values()
        dtype, shape = np.dtype(dtypes[about["dtype"]]), tuple(map(int, about["shape"]))
        start, stop = (8 + size + int(offset) for offset in about["data_offsets"])
        length = math.prod(shape) * dtype.itemsize
        if min(shape) < 1 or start < 8 + size or stop - start != length:
            raise ValueError(f"{shape} numbers do not lie at {about['data_offsets']}")
        return np.memmap(path, dtype, "r", start, shape)
    except (ValueError, KeyError, TypeError, OSError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not a safetensors file of float vectors ({error})") from error


def _batches(path: Path) -> tuple[int, Any, Iterator[Any]]:
    """Rows, schema and record batches of a table."""
    with extra("arrow", str(path)):
        import pyarrow as pa
        import pyarrow.parquet as parquet
    try:
        if path.suffix == ".parquet":
            table = parquet.ParquetFile(path, memory_map=True)
            return table.metadata.num_rows, table.schema_arrow, table.iter_batches(BLOCK)
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        held = (file.get_batch(i) for i in range(file.num_record_batches))
        pieces = (b.slice(i, BLOCK) for b in held for i in range(0, b.num_rows, BLOCK))
        return file.count_rows(), file.schema, pieces
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: cannot be read as {path.suffix[1:]} ({error})") from error


def _table(path: Path, with_meta: bool = True) -> Iterator[Block]:
    _, schema, batches = _batches(path)
    lists = [field.name for field in schema if _is_vector(field.type)]
    vectors = next((n for n in VECTORS if n in lists), next(iter(lists), None))
    if vectors is None:
        raise ValueError(f"{path}: no column of vectors among {', '.join(schema.names)}")
    ids, texts = (next((n for n in some if n in schema.names), None) for some in (IDS, TEXTS))
    said = [name for name in schema.names if name != ids and name not in lists]
    start, width = 0, None
    for batch in batches:
        column, rows = batch.column(vectors), len(batch)
        flat = column.flatten().to_numpy(zero_copy_only=False)
        width = len(flat) // max(1, rows) if width is None else width
        if column.null_count or widths(column) - {width}:
            raise ValueError(
                f"{path}: the vectors of {vectors} are incomplete or not all of one width"
            )
        if ids is not None and batch.column(ids).null_count:
            raise ValueError(f"{path}: a row has no {ids}")
        about = batch.select(said).to_pylist() if with_meta else [{}] * rows
        yield Block(
            flat.reshape(rows, width),
            [str(start + i) for i in range(rows)] if ids is None else _texts(batch, ids),
            None if texts is None else _texts(batch, texts),
            [plain_row(row) for row in about],
        )
        start += rows


def widths(column: Any) -> set[int]:
    """Those of the vectors of a column."""
    from pyarrow import compute

    return set(compute.list_value_length(column).unique().to_pylist())


def _is_vector(kind: Any) -> bool:
    from pyarrow import types

    listed = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(is_one(kind) for is_one in listed) and types.is_floating(kind.value_type)


def _texts(batch: Any, name: str) -> list[str]:
    """As text; a value that is missing is an empty one."""
    return ["" if value is None else str(value) for value in batch.column(name).to_pylist()]


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row that JSON can hold: dates as text, and none that is not there.

    >>> plain_row({"taken": date(2023, 5, 17), "place": None, "stars": 4, "raw": b"x"})
    {'taken': '2023-05-17', 'stars': 4}
    """
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, datetime | date | time):
            found[name] = value.isoformat()
        elif isinstance(value, str | bool | int | list) or (
            isinstance(value, float) and np.isfinite(value)
        ):
            found[name] = value
    return found


def load(recipe: DataRecipe) -> DataSet:
    """The three splits of a recipe's arrays."""
    missing = [n for n in ("images", "texts", "pairs") if getattr(recipe, n) is None]
    if missing:
        raise ValueError(f"data.{missing[0]} is not set: arrays needs images, texts and pairs")
    images, texts, pairs = (
        Path(str(getattr(recipe, name))).expanduser() for name in ("images", "texts", "pairs")
    )
    return assembled(open_embeddings(images), open_embeddings(texts), pairs, recipe.dev_images)


def assembled(
    images: Embeddings, texts: Embeddings, pairs: Path, dev_images: int | None = None
) -> DataSet:
    splits = _read_pairs(pairs, images.check(), texts.check())
    if dev_images is not None:
        splits["dev"] = splits["dev"][:dev_images]
    row = {name: i for i, name in enumerate(images.ids)}
    column = {name: i for i, name in enumerate(texts.ids)}
    said = texts.ids if texts.texts is None else texts.texts
    made = []
    for split, photos in splits.items():
        if not photos:
            raise ValueError(f"{pairs}: the split {split!r} has no images")
        chosen = [column[c.id] for p in photos for c in p.captions]
        made.append(
            Pairs(
                f"{pairs.stem}/{split}",
                StoredFeatures(images.vectors, [row[p.id] for p in photos]),
                [said[i] for i in chosen],
                torch.tensor([i for i, p in enumerate(photos) for _ in p.captions]),
                texts=StoredFeatures(texts.vectors, chosen),
            )
        )
    return DataSet(pairs.stem, *made)


def names_splits(pairs: Path) -> bool:
    """Whether a file of pairs says which split each belongs to."""
    return any(line.get("split") for line in _lines(pairs))


def _lines(pairs: Path) -> Iterator[dict[str, str]]:
    if not pairs.is_file():
        raise FileNotFoundError(f"{pairs}: no such file of pairs (data.pairs)")
    with pairs.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, dialect="excel-tab" if pairs.suffix == ".tsv" else "excel")
        if not {"image", "text"} <= set(reader.fieldnames or ()):
            raise ValueError(f"{pairs}, line 1: the columns must be image, text and perhaps split")
        yield from reader


def _read_pairs(path: Path, images: Embeddings, texts: Embeddings) -> dict[str, list[Photo]]:
    """Images with the ids of their texts, by split."""
    known = {"image": set(images.ids), "text": set(texts.ids)}
    said: dict[str, list[str]] = defaultdict(list)
    split_of: dict[str, str] = {}
    for number, line in enumerate(_lines(path), start=2):
        for column, names in known.items():
            if line[column] not in names:
                of = (images if column == "image" else texts).path
                raise ValueError(f"{path}, line {number}: {of.name} has no {line[column]!r}")
        said[line["image"]].append(line["text"])
        if line.get("split"):
            split = split_name(line["split"], f"{path}, line {number}")
            if split_of.setdefault(line["image"], split) != split:
                raise ValueError(f"{path}, line {number}: {line['image']!r} is in two splits")
    photos = [Photo(i, path, tuple(Caption(t, t) for t in ts)) for i, ts in said.items()]
    if not split_of:
        return {name: cut(photos)[name] for name in SPLITS}
    lost = [p.id for p in photos if p.id not in split_of]
    if lost:
        raise ValueError(f"{path}: {lost[0]!r} has no split ({len(lost)} images)")
    return {s: [p for p in photos if split_of[p.id] == s] for s in SPLITS}


SOURCE = Source(
    "arrays",
    where="Embeddings of your own: data.images and data.texts (.npy, .safetensors, .parquet, "
    ".arrow) and data.pairs, a CSV with the columns image, text and perhaps split. An array's ids "
    "are the lines of {stem}_ids.txt beside it, or its row numbers.",
    fields=("images", "texts", "pairs"),
    load=load,
)
