"""Everything that can be measured of a run on a split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gaussmatch.data import DataSet, load_data
from gaussmatch.evaluation.retrieval import ambiguity, recalls, true_matches
from gaussmatch.files import write_json
from gaussmatch.run import Model, load


def evaluate_run(run: Path, split: str = "test", data: DataSet | None = None) -> dict[str, Any]:
    """Measure the best model of a run and write ``evaluation-{split}.json`` beside it."""
    model = load(run)
    data = data if data is not None else load_data(model.recipe.data)
    measures = evaluate(model, data, split)
    write_json(run / f"evaluation-{split}.json", measures)
    return measures


def evaluate(model: Model, data: DataSet, split: str = "test") -> dict[str, Any]:
    """Recalls always; R-Precision where true matches are known; ρ where there are variances too."""
    pairs = data.split(split)
    images, captions = model.encode_pairs(pairs)
    similarity = model.matcher.similarity
    measures: dict[str, Any] = {
        "data": pairs.name,
        "images": len(images),
        "captions": len(captions),
        **recalls(similarity, images, captions, pairs),
    }
    if pairs.relevance is not None:
        measures |= true_matches(similarity, images, captions, pairs.relevance)
        if not captions.is_point:
            measures |= ambiguity(images, captions, pairs.relevance)
    return measures
