"""How much does a graph find, and in how many steps? On real photos and captions.

    python benchmarks/graph_recall.py --coco COCO [--items 32000] [--similarity kl ...]

The photo model encodes images from their features (``lite2.npz``) and captions; each gallery is
searched by queries of the other side. Distances are those that a walk computes for one query, at
the narrowest walk (efSearch) with that recall@10; exact search is the truth.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import torch
from search_speed import clustered, recall_of

import gaussmatch as gm
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities.base import other_side
from gaussmatch.search import Index, IndexSettings, Record
from gaussmatch.search.manifest import GALLERIES, Gallery

QUERIES = 500
WIDTHS = (14, 16, 18, 20, 22, 25, 28, 32, 36, 40, 45, 50, 57, 64, 80, 128)


def main() -> None:
    parser = argparse.ArgumentParser(description="How much does a graph find?")
    parser.add_argument("--coco", type=Path, help="a folder with lite2.npz and annotations/")
    parser.add_argument("--items", type=int, default=32_000)
    parser.add_argument("--similarity", nargs="+", default=["kl", "min_kl", "wasserstein"])
    parser.add_argument("--structure", nargs="+", default=["hnsw", "compressed"])
    options = parser.parse_args()
    sides: dict[str, dict[Gallery, Gaussian]] = {}
    if options.coco is not None:
        sides["COCO, photo model"] = encoded(options.coco, options.items)
    drawn, queries = clustered(options.items, QUERIES, 128)
    sides["clustered, D = 128"] = {"images": drawn, "captions": queries}
    print(f"| data | gallery | similarity | structure | {' | '.join(HEADS)} |")
    print("|" + "---|" * (4 + len(HEADS)))
    for name, both in sides.items():
        for gallery in GALLERIES:
            if len(both[gallery]) > QUERIES:
                wanted = both[other_side(gallery)][:QUERIES]
                for similarity in options.similarity:
                    found = measured(both[gallery], wanted, gallery, similarity, options.structure)
                    for structure, cells in found.items():
                        where = f"{name} | {gallery} | {similarity} | {structure}"
                        print(f"| {where} | {' | '.join(cells)} |", flush=True)


def encoded(coco: Path, items: int) -> dict[Gallery, Gaussian]:
    model, features = gm.load("photos"), np.load(coco / "lite2.npz")
    rows = (features["low"] + features["codes"][:items] * features["step"]).astype(np.float32)
    file = coco / "annotations" / "captions_train2017.json"
    texts = [c["caption"] for c in json.loads(file.read_text(encoding="utf-8"))["annotations"]]
    random.Random(0).shuffle(texts)
    images = model.encode_images(torch.from_numpy(rows))
    return {"images": images, "captions": model.encode_texts(texts[:items], allow_unknown=True)}


HEADS = ("distances at 0.95", "at 0.98", "recall at efSearch 64", "at 128")


def measured(
    items: Gaussian, queries: Gaussian, gallery: Gallery, similarity: str, structures: list[str]
) -> dict[str, list[str]]:
    """The cells of ``HEADS`` for each structure."""
    cells = {}
    records = [Record(str(k)) for k in range(len(items))]
    with tempfile.TemporaryDirectory() as folder:
        exact = Index.create(Path(folder) / "exact", similarity=similarity)
        exact.add(items, records, gallery)
        truth = [hits.ids for hits in exact.search(queries, 10, gallery=gallery)]
        for structure in structures:
            settings = IndexSettings(structure=structure, recall=0.0)  # type: ignore[arg-type]
            index = Index.create(Path(folder) / structure, similarity=similarity, settings=settings)
            index.add(items, records, gallery)
            walked = index.backend.segments(gallery)[0].structure
            recalls, distances = [], []
            for width in WIDTHS:
                walked.settings, walked.width = replace(settings, search=width), width
                faiss.cvar.hnsw_stats.reset()
                found = [hits.ids for hits in index.search(queries, 10, gallery=gallery)]
                recalls.append(recall_of(found, truth))
                distances.append(faiss.cvar.hnsw_stats.ndis / len(queries))
            at = dict(zip(WIDTHS, recalls, strict=True))
            cells[structure] = [
                *(needed(recalls, distances, wanted) for wanted in (0.95, 0.98)),
                *(f"{at[width]:.3f}" for width in (64, 128)),
            ]
    return cells


def needed(recalls: list[float], distances: list[float], wanted: float) -> str:
    rising = np.maximum.accumulate(recalls)
    return f"{np.interp(wanted, rising, distances):.0f}" if rising[-1] >= wanted else "never"


if __name__ == "__main__":
    main()
