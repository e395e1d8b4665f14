"""The files of an index in Milvus: model, calibration, manifest and lifts, kept in a collection of
their own, so that whoever can reach the server can ask in words.

A file is compressed, written as base64 and cut into rows of less than the 65,535 bytes that a
VARCHAR holds. A file of one row, as the manifest always is, changes in one step.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import Any

from gaussmatch.search.backends.milvus.client import Client, pymilvus
from gaussmatch.search.backends.milvus.filter import ids

CHUNK = 60_000
FIELDS = ("id", "chunks", "sha256", "text")
AT_ONCE = 64  # chunks read or written in one call


class FilesCollection:
    """Named files in the collection ``NAME_about``."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self.collection = client, f"{name}_about"

    def open(self) -> bool:
        """Make ready to read; whether there is anything."""
        there = self._client.ours(self.collection, FIELDS)
        if there:
            self._client("load_collection", self.collection)
        return there

    def create(self) -> None:
        """Empty; what a killed ``create`` left is removed."""
        milvus, types = pymilvus().MilvusClient, pymilvus().DataType
        self.drop()
        schema = milvus.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", types.VARCHAR, is_primary=True, max_length=512)
        schema.add_field("chunks", types.INT64)
        schema.add_field("sha256", types.VARCHAR, max_length=64)
        schema.add_field("text", types.VARCHAR, max_length=65_535)
        schema.add_field("nothing", types.FLOAT_VECTOR, dim=2)  # every collection needs a vector
        params = milvus.prepare_index_params()
        params.add_index("nothing", index_type="FLAT", metric_type="L2")
        self._client("create_collection", self.collection, schema=schema, index_params=params)

    def drop(self) -> None:
        self._client.drop(self.collection, FIELDS)

    def write(self, file: str, content: bytes) -> None:
        text = base64.b64encode(zlib.compress(content)).decode("ascii")
        chunks = [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)]
        rows = [
            {
                "id": f"{file}#{number}",
                "chunks": len(chunks),
                "sha256": hashlib.sha256(content).hexdigest(),
                "text": chunk,
                "nothing": [0.0, 0.0],
            }
            for number, chunk in enumerate(chunks)
        ]
        for start in range(0, len(rows), AT_ONCE):
            self._client.write("upsert", self.collection, rows[start : start + AT_ONCE])

    def read(self, file: str, consistency: str = "Strong") -> bytes | None:
        """``None`` if there is no such file; a damaged one is refused."""
        first = self._rows(file, range(1), self._client.level(self.collection, consistency))
        if not first:
            return None
        rows = [*first]
        for start in range(1, first[0]["chunks"], AT_ONCE):
            rows += self._rows(file, range(start, min(start + AT_ONCE, first[0]["chunks"])))
        rows.sort(key=lambda row: int(row["id"].rpartition("#")[2]))
        try:
            content = zlib.decompress(base64.b64decode("".join(row["text"] for row in rows)))
        except (ValueError, zlib.error) as error:
            raise self._damaged(file) from error
        if hashlib.sha256(content).hexdigest() != first[0]["sha256"]:
            raise self._damaged(file)
        return content

    def _rows(self, file: str, numbers: range, level: str = "Strong") -> list[dict[str, Any]]:
        return list(
            self._client(
                "query",
                self.collection,
                filter=ids([f"{file}#{n}" for n in numbers]),
                output_fields=list(FIELDS),
                consistency_level=level,
            )
        )

    def _damaged(self, file: str) -> ValueError:
        return ValueError(f"{self.collection}: {file} is damaged; make the index again")
