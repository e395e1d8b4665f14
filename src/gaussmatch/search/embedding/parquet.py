"""Gaussians as Parquet, for other tools: exported from an index, and imported into one.

=================  ===============================================================
``id``             of the item
``mean``           D numbers, float32
``log_variance``   D numbers, or one for a sphere; no column for points
``uncertainty``    log det Σ
``percentile``     the share (0–100) of the model's training items that are surer
``metadata``       JSON
=================  ===============================================================

The file names the model that made it, so that an index of another model refuses it. A file made by
another program only needs ``id`` and ``mean``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data.embeddings import plain_row, widths
from gaussmatch.files import atomic
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import Gallery
from gaussmatch.search.record import Record

ABOUT = b"gaussmatch"
"""The key of the file's metadata: the gallery, the hashes of the model, the similarity."""
ROWS = 8192
COLUMNS = {"id", "mean", "log_variance", "uncertainty", "percentile", "metadata"}


def write_parquet(
    index: Index,
    file: str | os.PathLike[str],
    gallery: Gallery = "images",
    *,
    progress: bool = True,
) -> int:
    """Write all items of a gallery, one block in memory at a time; returns their number."""
    pa, parquet = _arrow()
    form = index.manifest.form
    if form is None or not index.size(gallery):
        raise ValueError(f"{index.place} holds no {gallery}")
    columns = {"id": pa.string(), "mean": pa.list_(pa.float32(), form["dim"])}
    if form["variances"]:
        columns |= {
            "log_variance": pa.list_(pa.float32(), form["variances"]),
            "uncertainty": pa.float64(),
            "percentile": pa.float64(),
        }
    about = {
        "gallery": gallery,
        "run": dict(index.manifest.run),
        "similarity": index.manifest.similarity,
    }
    schema = pa.schema({**columns, "metadata": pa.string()}, {ABOUT: json.dumps(about)})
    total = index.size(gallery)
    with (
        atomic(Path(file)) as temporary,
        parquet.ParquetWriter(temporary, schema) as writer,
        tqdm(total=total, desc="parquet", unit="item", disable=not progress) as bar,
    ):
        for g, records in index.blocks(gallery):
            held: dict[str, Any] = {
                "id": [record.id for record in records],
                "mean": _lists(pa, g.mean, schema.field("mean").type),
                "metadata": [record.meta_json() for record in records],
            }
            if g.log_var is not None:
                unsure = g.uncertainty().double().numpy()
                share = index.calibration.percentile(gallery, unsure)
                held |= {
                    "log_variance": _lists(pa, g.log_var, schema.field("log_variance").type),
                    "uncertainty": unsure,
                    "percentile": pa.nulls(len(records), pa.float64()) if share is None else share,
                }
            writer.write_table(pa.table(held, schema=schema))
            bar.update(len(records))
    return total


def index_parquet(
    index: Index,
    file: str | os.PathLike[str],
    gallery: Gallery | None = None,
    *,
    progress: bool = True,
) -> int:
    """Add the Gaussians of a file to an index of the same model, or of bare Gaussians, block by
    block; returns their number. An item replaces one with the same id. Columns that are not named
    above are metadata too.

    Args:
        gallery: what they are of, where the file does not say (images if not given).
    """
    pa, parquet = _arrow()
    try:
        source = parquet.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{file}: cannot be read as Parquet ({error})") from error
    names = set(source.schema_arrow.names)
    if not {"id", "mean"} <= names:
        listed = ", ".join(sorted(names))
        raise ValueError(f"{file}: needs the columns id and mean; it has {listed}")
    about = json.loads((source.schema_arrow.metadata or {}).get(ABOUT, b"{}"))
    made_by, own = about.get("run"), dict(index.manifest.run)
    if made_by and own and made_by != own:
        raise ValueError(
            f"{file} was made by another model than that of {index.place}: their Gaussians "
            "cannot be compared"
        )
    if gallery is not None and about.get("gallery", gallery) != gallery:
        raise ValueError(f"{file} holds {about['gallery']}, not {gallery}")
    gallery = gallery or about.get("gallery", "images")
    total = source.metadata.num_rows
    with tqdm(total=total, desc="index", unit="item", disable=not progress) as bar:
        for batch in source.iter_batches(ROWS):
            held = {name: batch.column(name) for name in names}
            log_var = _matrix(file, held, "log_variance") if "log_variance" in held else None
            gaussians = Gaussian(_matrix(file, held, "mean"), log_var)
            if held["id"].null_count:
                raise ValueError(f"{file}: a row has no id")
            said = held["metadata"].to_pylist() if "metadata" in held else [None] * len(batch)
            more = map(plain_row, batch.select(sorted(names - COLUMNS)).to_pylist())
            records = [
                Record(str(id_), {**beside, **json.loads(m or "{}")})
                for id_, m, beside in zip(held["id"].to_pylist(), said, more, strict=True)
            ]
            index.add(gaussians, records, gallery, replace=True)
            bar.update(len(records))
    index.compact(gallery)
    return int(total)


def _lists(pa: Any, values: torch.Tensor, of: Any) -> Any:
    flat = pa.array(values.float().numpy().ravel())
    return pa.FixedSizeListArray.from_arrays(flat, type=of)


def _matrix(file: object, held: dict[str, Any], name: str) -> torch.Tensor:
    column = held[name]
    flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False), np.float32)
    if column.null_count or len(widths(column)) > 1:
        raise ValueError(f"{file}: the vectors of {name} are incomplete or not all of one width")
    return torch.from_numpy(flat.reshape(len(column), -1).copy())


def _arrow() -> tuple[Any, Any]:
    with extra("arrow", "Parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow, pyarrow.parquet
