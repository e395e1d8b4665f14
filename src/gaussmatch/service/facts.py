"""What is told besides search results; worked out by the batcher."""

from __future__ import annotations

from typing import Any

from gaussmatch.gaussian import Gaussian
from gaussmatch.service.answers import Answers
from gaussmatch.service.encoding import Question
from gaussmatch.service.errors import dumps
from gaussmatch.service.schema import Gallery
from gaussmatch.service.sharpen import examples
from gaussmatch.service.telling import Known, vagueness


def warm_up(answers: Answers) -> None:
    """Load what the first question would have to wait for."""
    text = answers.model.example_text
    if text and answers.sizes["images"]:
        (told,) = answers.work([Question("text", text, 1)])
        if isinstance(told, Exception):
            raise told
    described(answers)


def described(answers: Answers) -> dict[str, Any]:
    def make() -> dict[str, Any]:
        index, recipe = answers.index, answers.model.recipe
        form = index.manifest.form or {}
        return {
            "model": recipe.title or recipe.model.system,
            "similarity": index.manifest.similarity,
            "dimension": recipe.model.dim,
            "probabilistic": recipe.model.probabilistic,
            **answers.sizes,
            "examples": examples(index) if form else [],
        }

    found: dict[str, Any] = answers.kept("about", make)
    return found


def item(answers: Answers, id: str, gallery: Gallery) -> dict[str, Any]:
    record = answers.record(id, gallery)
    unsure, share = answers.about(gallery, answers.index.gaussian(id, gallery))
    known = Known(record.meta, unsure[0], share[0])
    return answers.told(id, known, gallery)


def sample(answers: Answers, most: int) -> dict[str, Any]:
    return {"items": _some(answers, most)[0], "total": answers.sizes["images"]}


def _some(answers: Answers, most: int) -> tuple[list[dict[str, Any]], Gaussian | None]:
    """Pictures as the API shows them, and their Gaussians."""
    records, g = answers.index.some(most)
    if g is None:
        return [], None
    unsure, share = answers.about("images", g)
    known = zip(records, unsure, share, strict=True)
    return [answers.told(r.id, Known(r.meta, u, p), "images") for r, u, p in known], g


def embedding_map(answers: Answers, most: int) -> bytes:
    def make() -> bytes:
        plane = answers.plane()
        items, g = _some(answers, most)
        assert g is not None
        placed = [item | place for item, place in zip(items, plane(g).rows(), strict=True)]
        total = answers.sizes["images"]
        return dumps({"items": placed, "total": total, "explained": plane.explained})

    found: bytes = answers.kept("map", make)
    return found


def embedded(g: Gaussian) -> dict[str, Any]:
    log_var = [None] * len(g) if g.log_var is None else g.log_var.tolist()
    pairs = zip(g.mean.tolist(), log_var, strict=True)
    return {
        "dimension": g.dim,
        "embeddings": [{"mean": mean, "log_variance": v} for mean, v in pairs],
    }


def vague(answers: Answers, g: Gaussian, kind: Gallery) -> dict[str, Any]:
    unsure, share = answers.about(kind, g)
    return vagueness(unsure[0], share[0], kind)
