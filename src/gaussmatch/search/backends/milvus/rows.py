"""A gallery as a Milvus collection: its schema, and an item as one of its rows.

id            VARCHAR, primary key: the id, see ``filter.key``
lift0, …      FLOAT_VECTOR: the item by the similarity's own lift, standardised; minimum KL has two
gaussian      VARCHAR: base64 of the float32 mean and log-variance, for an exact rescore
uncertainty   DOUBLE: log det Σ; not there for points
record        VARCHAR: JSON of metadata and source, as they were given
facts         JSON: what can be filtered by, see ``filter``
thumbnail     VARCHAR: base64 of a JPEG, or empty
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.search.backends.milvus.client import pymilvus
from gaussmatch.search.backends.milvus.filter import FACTS, facts, id_of, key
from gaussmatch.search.lift import Lift
from gaussmatch.search.manifest import IndexSettings
from gaussmatch.search.record import Record

ID, TEXT = 2048, 65_535  # bytes
CELLS = 1024
"""Of a compressed index; ``IndexSettings.search`` of them are looked at."""
BATCH_ROWS, BATCH_BYTES = 1000, 8 * 2**20
"""Of one upsert; Milvus takes messages of 64 MB, and small ones spread better."""
FIELDS = ("id", "lift0", "gaussian", "record", FACTS, "thumbnail")
"""By which a collection of ours is known."""
WANTED = ("id", "gaussian", "uncertainty", "record")


def schema(form: Mapping[str, int], lift: Lift, mmap: bool = True) -> Any:
    """Of a collection that holds Gaussians of this form.

    Args:
        mmap: have Milvus map what is read for a shortlist only from disk (``mmap.enabled`` of the
            fields); lifted vectors, and what is filtered by, are in memory.
    """
    milvus, types = pymilvus().MilvusClient, pymilvus().DataType
    found = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
    found.add_field("id", types.VARCHAR, is_primary=True, max_length=ID)
    for number, centre in enumerate(lift.centres):
        found.add_field(f"lift{number}", types.FLOAT_VECTOR, dim=len(centre))
    found.add_field("gaussian", types.VARCHAR, max_length=TEXT, mmap_enabled=mmap)
    if form["variances"]:
        found.add_field("uncertainty", types.DOUBLE)
    found.add_field("record", types.VARCHAR, max_length=TEXT, mmap_enabled=mmap)
    found.add_field(FACTS, types.JSON)
    found.add_field("thumbnail", types.VARCHAR, max_length=TEXT, mmap_enabled=mmap)
    return found


def index_params(lift: Lift, settings: IndexSettings) -> Any:
    """How Milvus indexes the lifted vectors."""
    params = pymilvus().MilvusClient.prepare_index_params()
    index_type, build = {
        "flat": ("FLAT", {}),
        "hnsw": ("HNSW", {"M": settings.links, "efConstruction": settings.construction}),
        "compressed": ("IVF_SQ8", {"nlist": CELLS}),
    }[settings.structure]
    for number in range(len(lift.centres)):
        params.add_index(
            f"lift{number}",
            index_type=index_type,
            metric_type="IP" if lift.inner else "L2",
            params=build,
        )
    return params


def search_params(settings: IndexSettings, count: int) -> dict[str, Any]:
    return {
        "flat": {},
        "hnsw": {"ef": max(settings.search, count)},
        "compressed": {"nprobe": min(settings.search, CELLS)},
    }[settings.structure]


def rows(gaussians: Gaussian, records: Sequence[Record], lift: Lift) -> list[dict[str, Any]]:
    """Items as rows; one that Milvus cannot hold is refused by name."""
    lifted = lift.items(gaussians)
    points = gaussians.is_point
    unsure = None if points else gaussians.uncertainty().double().tolist()
    found = []
    for n, record in enumerate(records):
        row: dict[str, Any] = {f"lift{i}": a[n] for i, a in enumerate(lifted)}
        row |= {
            "id": _fits(key(record.id), ID, f"the id {record.id!r}"),
            "gaussian": _fits(_packed(gaussians[n]), TEXT, f"the Gaussian of {record.id!r}"),
            "record": _fits(_record_text(record), TEXT, f"the metadata of {record.id!r}"),
            FACTS: facts(record.meta),
            "thumbnail": _thumbnail(record.thumbnail),
        }
        if unsure is not None:
            row["uncertainty"] = unsure[n]
        found.append(row)
    return found


def batches(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Rows in upserts of moderate size."""
    batch: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        bytes_of = sum(getattr(v, "nbytes", len(str(v))) for v in row.values())
        if batch and (len(batch) == BATCH_ROWS or size + bytes_of > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += bytes_of
    if batch:
        yield batch


def gaussian(rows: Sequence[Mapping[str, Any]], form: Mapping[str, int]) -> Gaussian:
    """The Gaussians of rows, as a batch."""
    packed = [np.frombuffer(base64.b64decode(r["gaussian"]), dtype="<f4") for r in rows]
    values = torch.from_numpy(np.stack(packed).astype(np.float32))
    dim = form["dim"]
    return Gaussian(values[:, :dim], values[:, dim:] if form["variances"] else None)


def record(row: Mapping[str, Any]) -> Record:
    """The record of a row, with its thumbnail if requested."""
    stored = json.loads(row["record"])
    small = row.get("thumbnail")
    jpeg = base64.b64decode(small) if small else None
    return Record(id_of(row["id"]), stored["meta"], jpeg, stored.get("source"))


def _packed(g: Gaussian) -> str:
    parts = [g.mean] if g.log_var is None else [g.mean, g.log_var]
    return base64.b64encode(torch.cat(parts).float().numpy().astype("<f4").tobytes()).decode()


def _record_text(record: Record) -> str:
    meta = record.meta_json()
    source = "" if record.source is None else f', "source": {json.dumps(record.source)}'
    return f'{{"meta": {meta}{source}}}'


def _thumbnail(jpeg: bytes | None) -> str:
    """Left out where it is too large for a VARCHAR: it is only there to be looked at."""
    text = "" if jpeg is None else base64.b64encode(jpeg).decode("ascii")
    return text if len(text) <= TEXT else ""


def _fits(text: str, limit: int, what: str) -> str:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise ValueError(f"{what} takes more than the {limit:,} bytes that Milvus holds")
    return text
