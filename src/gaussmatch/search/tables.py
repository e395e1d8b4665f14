"""Embeddings and Gaussians in the files of other programs, into an index and out of it.

Embeddings that exist already (``data.embeddings``) go into an index of a model that was adapted to
them: a row becomes the Gaussian that the model's heads make of it, and what else a table says of it
becomes metadata, to filter and sort by. Gaussians are Parquet:

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
from gaussmatch.data.embeddings import (
    check_vectors,
    count_embeddings,
    plain_row,
    read_embeddings,
    widths,
)
from gaussmatch.files import atomic
from gaussmatch.models.model import Model
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import Gallery, Record


def index_arrays(
    index: Index,
    file: str | os.PathLike[str],
    gallery: Gallery = "images",
    *,
    progress: bool = True,
) -> int:
    """Add the rows of a file whose ids are not in a gallery yet; gives how many. They count block
    by block, so that an interruption loses one block, and memory holds one."""
    path, model = Path(file), index.model
    if model.recipe.model.system not in ("adapter", "published"):
        raise ValueError(
            f"{path} holds embeddings, which {model.recipe.title!r} does not take: they need a "
            "model that 'gaussmatch adapt' made of such embeddings"
        )
    held = {record.id for record in index.records(gallery)}
    seen: set[str] = set()
    added = 0
    with tqdm(total=count_embeddings(path), desc=f"index {gallery}", disable=not progress) as bar:
        for block in read_embeddings(path):
            check_vectors(path, block.vectors, block.ids)
            for id_ in block.ids:
                if id_ in seen:
                    raise ValueError(f"{path}: the id {id_!r} comes twice; ids must be unique")
                seen.add(id_)
            new = [i for i, id_ in enumerate(block.ids) if id_ not in held]
            if new:
                records = [Record(block.ids[i], block.meta[i]) for i in new]
                index.add(_encoded(path, model, block.vectors[new], gallery), records, gallery)
            added += len(new)
            bar.update(len(block.ids))
    index.compact(gallery)
    return added


def _encoded(path: Path, model: Model, vectors: np.ndarray, gallery: Gallery) -> Gaussian:
    side = model.matcher.part("image" if gallery == "images" else "text")
    width = vectors.shape[1]
    if getattr(side, "width", width) != width:  # an exported model checks itself
        raise ValueError(
            f"{path}: embeddings of {width} dimensions; the model was adapted to {gallery} of "
            f"{side.width}"
        )
    rows = np.asarray(vectors, np.float32)
    return model.encode_images(rows) if gallery == "images" else model.encode_texts(rows)


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
    run, similarity = dict(index.manifest.run), index.manifest.similarity
    about = {"gallery": gallery, "run": run, "similarity": similarity}
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
