"""Does "dog without person" find dogs without people? On the boxes of COCO:

    python benchmarks/negation.py DATA/coco_real [--split test] [--pairs 300] [--run photos]

For each pair of classes (A, B) with at least 10 photos of A without B and 10 of A with B, the first
ten results for "A without B": the share that shows A and no B, that shows A, and that shows B;
beside the same for "A" alone (the negation left out) and for the words as they are. Then the same
with pictures: like one that shows A and B, and not like one that shows B without A. The rule was
chosen on the dev split (``gaussmatch.search.query``); nothing was chosen on the test split.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from gaussmatch.models.run import load, locate
from gaussmatch.search import Index, Query, Record
from gaussmatch.search.trust import kept_calibration

FIRST = 10
LEAST = 10
"""Photos with A and B, and with A and without B, that a pair needs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("--split", default="test", choices=("train", "dev", "test"))
    parser.add_argument("--run", default="photos")
    parser.add_argument("--pairs", type=int, help="so many, drawn at random (default: all)")
    options = parser.parse_args()
    features, truth, classes = read(options.root, options.split)
    run = locate(options.run)
    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(Path(folder) / "index", run, calibration=kept_calibration(run))
        index.add(
            load(run).encode_images(torch.from_numpy(features)),
            [Record(str(n)) for n in range(len(features))],
        )
        measure(index, truth, classes, options.pairs)


def read(root: Path, split: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Features of the photos of a split (n, W), the classes each shows (n, C), and their names."""
    packed = np.load(root / "lite2.npz")
    row = {int(id): at for at, id in enumerate(packed["ids"])}
    notes = root / "annotations"
    captions = json.loads((notes / "captions_train2017.json").read_text())["annotations"]
    image_of = {caption["id"]: caption["image_id"] for caption in captions}
    chosen = np.load(notes / f"coco_{split}_ids.npy").tolist()
    rows = sorted({row[image_of[id]] for id in chosen})
    boxes = json.loads((notes / "instances_train2017.json").read_text())
    names = {category["id"]: category["name"] for category in boxes["categories"]}
    classes = sorted(names.values())
    shown = np.zeros((len(row), len(classes)), dtype=bool)
    for box in boxes["annotations"]:
        if box["image_id"] in row:
            shown[row[box["image_id"]], classes.index(names[box["category_id"]])] = True
    features = packed["low"] + packed["codes"][rows].astype(np.float32) * packed["step"]
    return features.astype(np.float32), shown[rows], classes


def measure(index: Index, truth: np.ndarray, classes: list[str], most: int | None) -> None:
    generator = np.random.default_rng(0)
    found: dict[str, list[tuple[float, float, float, bool]]] = {}
    together = truth.T.astype(int) @ truth
    alone_of = truth.sum(0)[:, None] - together
    pairs = np.argwhere((together >= LEAST) & (alone_of >= LEAST))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    if most is not None and most < len(pairs):
        pairs = pairs[np.sort(generator.choice(len(pairs), most, replace=False))]
    for a, b in pairs.tolist():
        wanted, excluded = classes[a], classes[b]
        both, alone = truth[:, a] & truth[:, b], truth[:, a] & ~truth[:, b]
        rival = np.flatnonzero(truth[:, b] & ~truth[:, a])
        like = str(generator.choice(np.flatnonzero(both)))
        not_like = str(generator.choice(rival)) if len(rival) else None
        plural = "people" if excluded == "person" else excluded
        words = [index.model.encode_texts([f"{wanted} without {plural}"])]
        ways = {
            "words, negation left out": index.search_text([wanted], FIRST)[0].ids,
            "words, read as they are": index.search(words[0], FIRST)[0].ids,
            "words, excluded": index.search_text([f"{wanted} without {plural}"], FIRST)[0].ids,
        }
        if not_like is not None:
            ways["picture, negation left out"] = index.search_id(like, FIRST).ids
            query = Query(item=like, unlike=(not_like,))
            ways["picture, excluded"] = index.search(query, FIRST)[0].ids
        for way, ids in ways.items():
            rows = [int(id) for id in ids]
            shares = (alone[rows].mean(), truth[rows, a].mean(), truth[rows, b].mean())
            found.setdefault(way, []).append((*shares, excluded == "person"))
    print(f"{len(truth):,} photos, {len(pairs)} pairs (A, B); of the first {FIRST} results")
    for way, rows_of in found.items():
        table = np.array(rows_of, dtype=float)
        people = table[table[:, 3] == 1]
        print(
            f"{way:28} A and no B {table[:, 0].mean():.3f}, A {table[:, 1].mean():.3f}, "
            f"B {table[:, 2].mean():.3f}; B = people: {people[:, 0].mean():.3f}, "
            f"{people[:, 1].mean():.3f}, {people[:, 2].mean():.3f}"
        )


if __name__ == "__main__":
    main()
