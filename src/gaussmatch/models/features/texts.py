"""Texts become rows that an encoder takes: tokens, or embeddings of a frozen encoder, cached."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from gaussmatch.data.pairs import Pairs
from gaussmatch.files import atomic, cache_root, damage, made_once, write_rows
from gaussmatch.models.encoders.adapter import FrozenTexts
from gaussmatch.models.encoders.base import TextEncoder
from gaussmatch.models.encoders.pretrained import TextTower

VECTORS, KEYS = "vectors.npy", "keys.npy"
SHARD = 4096
"""Texts that are embedded and kept at a time: what an interruption can lose."""


def prepared_texts(pairs: Pairs, encoder: TextEncoder) -> Sequence[Any] | np.ndarray:
    """A row for each caption of a split: its tokens, or its embedding by a frozen encoder, computed
    once and cached."""
    return prepared(pairs.captions, encoder) if pairs.texts is None else pairs.texts


def prepared(texts: Sequence[str], encoder: TextEncoder) -> Sequence[Any] | np.ndarray:
    """A row for each text, see ``prepared_texts``."""
    if not isinstance(encoder, FrozenTexts):
        return encoder.prepare(texts)
    distinct = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    embeddings = embedded_once(encoder.tower, list(distinct))
    return embeddings if len(distinct) == len(texts) else embeddings[[distinct[t] for t in texts]]


def embedded_once(tower: TextTower, texts: Sequence[str], progress: bool = True) -> np.ndarray:
    """The embeddings (n, width) of texts, from the cache or made into it, memory-mapped.

    A list of texts is one folder; texts that another list of the same encoder holds are copied from
    there, so that data sets, splits and queries share what was embedded before."""
    encoder = hashlib.sha256(f"{tower.name} {tower.sha256()}".encode()).hexdigest()[:16]
    keys = np.array([_key(text) for text in texts], np.uint64)
    name = hashlib.sha256(keys.tobytes()).hexdigest()[:24]
    folder = cache_root() / "texts" / encoder / name
    made_once(folder, lambda work: _embed(tower, texts, keys, work, progress))
    found: np.ndarray = np.load(folder / VECTORS, mmap_mode="r")
    return found


def _embed(
    tower: TextTower, texts: Sequence[str], keys: np.ndarray, work: Path, progress: bool
) -> None:
    """Fill a folder, shard by shard; those of an interrupted process are there already."""
    shards = {at: work / "shards" / f"{at:09}.npy" for at in range(0, len(texts), SHARD)}
    earlier = [_Embedded(f) for f in sorted(work.parent.glob("[!.]*")) if damage(f) is None]
    with tqdm(total=len(texts), desc=tower.name, unit="text", disable=not progress) as bar:
        for start, path in shards.items():
            chunk = slice(start, start + SHARD)
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
    np.save(work / KEYS, keys)
    blocks = map(np.load, shards.values())
    write_rows(work / VECTORS, (len(texts), tower.width), blocks, np.float32)
    shutil.rmtree(work / "shards", ignore_errors=True)  # there are none of no texts


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class _Embedded:
    """A finished list of embeddings, looked up by text."""

    def __init__(self, folder: Path) -> None:
        self._vectors = np.load(folder / VECTORS, mmap_mode="r")
        keys = np.load(folder / KEYS)
        self._order = keys.argsort(kind="stable")
        self._keys = keys[self._order]

    def fill(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Write the embeddings of the texts that are here into their ``rows``."""
        if not len(self._keys):
            return
        near = self._keys.searchsorted(keys).clip(max=len(self._keys) - 1)
        found = (self._keys[near] == keys).nonzero()[0]
        rows[found] = self._vectors[self._order[near[found]]]
