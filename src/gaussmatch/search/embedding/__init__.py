"""Bulk embedding: a source of millions of items → shards of Gaussians, by many processes.

``embed`` writes DIR/embedding.json, which says what is embedded by which model, and one file per
shard, atomically. Which items a shard holds depends only on the source and the shard size, so any
number of processes, in any order, interrupted and started again, write the same files.
``index_embeddings`` then fills an index from them, equal to one that encoded the items itself.
"""

from __future__ import annotations

from gaussmatch.search.embedding.arrays import index_arrays
from gaussmatch.search.embedding.embed import Share, embed, index_embeddings
from gaussmatch.search.embedding.parquet import index_parquet, write_parquet
from gaussmatch.search.embedding.shards import EmbeddingManifest, Shard, is_embedding

__all__ = [
    "EmbeddingManifest",
    "Shard",
    "Share",
    "embed",
    "index_arrays",
    "index_embeddings",
    "index_parquet",
    "is_embedding",
    "write_parquet",
]
