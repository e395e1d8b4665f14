"""ECCV Caption: the machine-and-human-verified positives of the COCO test split (an extra)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import map_at_r, r_precision, recall_at_k
from gaussmatch.core.similarities import Similarity
from gaussmatch.data.pairs import Pairs
from gaussmatch.learn.evaluation.retrieval import top


def eccv(s: Similarity, images: Gaussian, captions: Gaussian, pairs: Pairs) -> dict[str, float]:
    """``eccv_measures`` of the whole test split of COCO; nothing of other data, of a part of it, or
    where the package is not installed."""
    if pairs.name != "coco/test" or pairs.ids is None or find_spec("eccv_caption") is None:
        return {}
    image_ids, caption_ids = (np.array(ids, dtype=np.int64) for ids in pairs.ids)
    queries, truth = {"i2t": image_ids, "t2i": caption_ids}, eccv_positives()
    if any(set(truth[way]) - set(ids.tolist()) for way, ids in queries.items()):
        return {}
    deepest = max(len(positives) for way in truth.values() for positives in way.values())
    i2t, t2i = top(s, images, captions, deepest)
    return eccv_measures({"i2t": caption_ids[i2t], "t2i": image_ids[t2i]}, queries)


def eccv_positives() -> dict[str, dict[int, list[int]]]:
    """``i2t`` and ``t2i``: COCO id of a query → COCO ids of its positives, from the package
    ``eccv_caption``. Only some images and captions are queries there; all are in the gallery."""
    with extra("eccv", "ECCV Caption"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where its faster JSON reader is missing
        from eccv_caption import Metrics
    truth: dict[str, dict[int, list[int]]] = Metrics().eccv_gts
    return truth


def eccv_measures(
    rankings: Mapping[str, np.ndarray], queries: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """R@1, R-Precision and mAP@R in percent on ECCV Caption, for each direction given.

    Args:
        rankings: ``i2t`` or ``t2i`` → (queries × k) COCO ids, best first.
        queries: the same keys → (queries), COCO id of each row.
    """
    truth, measures = eccv_positives(), {}
    for way, ranked in rankings.items():
        row = {int(q): n for n, q in enumerate(queries[way])}
        missing = [q for q in truth[way] if q not in row]
        if missing:
            raise ValueError(f"ECCV Caption needs {way} query {missing[0]}, which is not ranked")
        rows = ranked[[row[q] for q in truth[way]]]
        positives = list(truth[way].values())
        measures[f"{way}_eccv_r1"] = recall_at_k(rows, positives, [1])[0]
        measures[f"{way}_eccv_r_precision"] = r_precision(rows, positives)
        measures[f"{way}_eccv_map_at_r"] = map_at_r(rows, positives)
    return measures
