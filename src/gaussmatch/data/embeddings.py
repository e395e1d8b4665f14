"""Embeddings that exist already, read without loading them, and those that are made once.

``.npy``, ``.safetensors``: memory-mapped. Parquet, Arrow: a column of vectors beside ids and
captions; the extra ``arrow``. Texts of a data set are embedded once, in shards that survive a kill.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from gaussmatch.checks import extra
from gaussmatch.data.stored import open_features, read_lines
from gaussmatch.encoders.pretrained import TextTower
from gaussmatch.files import atomic, cache_root

SHARD = 4096
"""Texts in what a kill can lose."""
IDS, TEXTS, VECTORS = (
    ("id", "image_id", "key"),
    ("caption", "text"),
    ("embedding", "vector", "mean"),
)
"""Names of columns, the likeliest first; vectors are else the first column of lists."""


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
            raise ValueError(f"{self.path}: an id comes twice; ids must be unique")


def open_embeddings(path: Path) -> Embeddings:
    """A file of embeddings by its ending."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of embeddings")
    if path.suffix in (".parquet", ".arrow", ".feather"):
        return _table(path)
    if path.suffix == ".safetensors":
        vectors = _safetensors(path)
    elif path.suffix == ".npy":
        vectors = open_features(path)
    else:
        raise ValueError(f"{path}: not .npy, .safetensors, .parquet, .arrow or .feather")
    if vectors.ndim != 2:
        raise ValueError(f"{path}: shape {vectors.shape}; embeddings are (n, width)")
    names = path.with_name(f"{path.stem}_ids.txt")
    ids = read_lines(names) if names.is_file() else [str(i) for i in range(len(vectors))]
    return Embeddings(path, vectors, ids)


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
        start, shape = 8 + size + about["data_offsets"][0], tuple(about["shape"])
        return np.memmap(path, dtypes[about["dtype"]], "r", start, shape)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{path}: not a safetensors file of float vectors ({error})") from error


def _table(path: Path) -> Embeddings:
    with extra("arrow", str(path)):
        import pyarrow as pa
        import pyarrow.feather as feather
        import pyarrow.parquet as parquet
    try:
        if path.suffix == ".parquet":
            table = parquet.read_table(path, memory_map=True)
        else:
            table = feather.read_table(path, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: cannot be read as {path.suffix[1:]} ({error})") from error
    types = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    lists = [f.name for f in table.schema if any(is_one(f.type) for is_one in types)]
    name = next((n for n in VECTORS if n in lists), next(iter(lists), None))
    if name is None:
        raise ValueError(f"{path}: no column of vectors among {', '.join(table.column_names)}")
    column = table.column(name).combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    if len(flat) % max(1, len(column)) or column.null_count:
        raise ValueError(f"{path}: the vectors of {name} are not all there and of one width")
    vectors = flat.reshape(len(column), -1)
    ids = _column(table, IDS) or [str(i) for i in range(len(vectors))]
    return Embeddings(path, vectors, ids, _column(table, TEXTS))


def _column(table: Any, names: Sequence[str]) -> list[str] | None:
    name = next((n for n in names if n in table.column_names), None)
    return None if name is None else [str(value) for value in table.column(name).to_pylist()]


def embedded_once(tower: TextTower, texts: Sequence[str], progress: bool = True) -> np.ndarray:
    """The embeddings (n, width) of texts, from the cache or made into it, memory-mapped.

    A list of texts is one file; texts that another list of the same encoder holds are copied from
    there, so that data sets, splits and queries share what was embedded before."""
    encoder = hashlib.sha256(f"{tower.name} {tower.sha256()}".encode()).hexdigest()[:16]
    keys = np.array([_key(text) for text in texts], np.uint64)
    name = hashlib.sha256(keys.tobytes()).hexdigest()[:24]
    target = cache_root() / "texts" / encoder / f"{name}.npy"
    if not target.is_file():
        parts = target.with_suffix(".parts")
        starts = range(0, len(texts), SHARD)
        earlier = [_Embedded(path) for path in sorted(target.parent.glob("*.npy"))]
        with tqdm(total=len(texts), desc=tower.name, unit="text", disable=not progress) as bar:
            for start in starts:
                chunk, path = slice(start, start + SHARD), parts / f"{start:09}.npy"
                if not path.is_file():
                    rows = np.full((len(texts[chunk]), tower.width), np.nan, np.float32)
                    for some in earlier:
                        some.fill(keys[chunk], rows)
                    new = np.isnan(rows[:, 0]).nonzero()[0]
                    if len(new):
                        rows[new] = tower.encode([texts[start + int(k)] for k in new]).numpy()
                    with atomic(path) as temporary, open(temporary, "wb") as file:
                        np.save(file, rows)
                bar.update(len(texts[chunk]))
        with atomic(target.with_suffix(".keys")) as temporary:
            keys.tofile(temporary)
        with atomic(target) as temporary:
            shape = (len(texts), tower.width)
            joined = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            for start in starts:
                joined[start : start + SHARD] = np.load(parts / f"{start:09}.npy")
            joined.flush()
            del joined
        shutil.rmtree(parts)
    found: np.ndarray = np.load(target, mmap_mode="r")
    return found


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Embedded:
    """A finished list of embeddings, looked up by text."""

    def __init__(self, path: Path) -> None:
        self._vectors = np.load(path, mmap_mode="r")
        keys = np.fromfile(path.with_suffix(".keys"), np.uint64)
        self._order = keys.argsort(kind="stable")
        self._keys = keys[self._order]

    def fill(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Write the embeddings of the texts that are here into their ``rows``."""
        if not len(self._keys):
            return
        near = self._keys.searchsorted(keys).clip(max=len(self._keys) - 1)
        found = (self._keys[near] == keys).nonzero()[0]
        rows[found] = self._vectors[self._order[near[found]]]
