"""One self-contained HTML page about a point model and its probabilistic twin."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from gaussmatch.data.pairs import Pairs
from gaussmatch.experiments.figures import cloud, curves
from gaussmatch.files import write_text
from gaussmatch.run import Model
from gaussmatch.training.log import read_log

SHOWN = 6
"""Items at each end of a gallery."""


@dataclass(frozen=True)
class Entrant:
    """A model in the report: its name, run folder and test measures."""

    name: str
    folder: Path
    measures: dict[str, Any]


@dataclass(frozen=True)
class Item:
    """A caption or an image in a gallery."""

    text: list[str]
    pictures: list[str]
    uncertainty: float
    matches: int | None


def write_report(
    path: Path, entrants: Sequence[Entrant], model: Model, pairs: Pairs, commands: Sequence[str]
) -> None:
    """Write the page; ``model`` is the probabilistic one, whose uncertainty is shown."""
    images, captions = model.encode_pairs(pairs)
    page = _template().render(
        entrants=entrants,
        pairs=pairs,
        figures=_training_figures(entrants),
        ambiguity=_ambiguity_figure(pairs, captions.uncertainty()),
        rho=entrants[-1].measures.get("caption_rho"),
        similarity=model.recipe.model.similarity,
        captions=_ends(
            captions.uncertainty(), lambda i: _caption(pairs, i, captions.uncertainty())
        ),
        images=_ends(images.uncertainty(), lambda i: _image(pairs, i, images.uncertainty())),
        commands=commands,
    )
    write_text(path, page)


def _template() -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise ImportError("reports need jinja2: pip install 'gaussmatch[report]'") from error
    environment = Environment(
        loader=PackageLoader("gaussmatch.experiments"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2")


def _training_figures(entrants: Sequence[Entrant]) -> list[str]:
    logs = {e.name: [r for r in read_log(e.folder) if r["kind"] == "epoch"] for e in entrants}
    recall = {
        name: [sum(r[f"{way}_r{k}"] for way in ("i2t", "t2i") for k in (1, 5, 10)) / 6 for r in log]
        for name, log in logs.items()
    }
    losses = {name: [r["loss"] for r in log] for name, log in logs.items()}
    return [
        curves(losses, "Training loss", "mean loss of a step", log=True),
        curves(recall, "Validation recall", "mean of the six R@K, %"),
    ]


def _ambiguity_figure(pairs: Pairs, uncertainty: Tensor) -> str | None:
    if pairs.relevance is None:
        return None
    return cloud(
        pairs.relevance.counts.tolist(),
        uncertainty.tolist(),
        "Caption uncertainty against true ambiguity",
        "images that the caption is true of",
        "log det Σ",
    )


def _ends(uncertainty: Tensor, make: Callable[[int], Item]) -> dict[str, list[Item]]:
    """The vaguest and the sharpest items; a caption that was written twice is shown once."""
    order = uncertainty.argsort(descending=True).tolist()
    return {"vaguest": _first(order, make), "sharpest": _first(order[::-1], make)}


def _first(order: Sequence[int], make: Callable[[int], Item]) -> list[Item]:
    items: dict[str, Item] = {}
    for index in order:
        if len(items) == SHOWN:
            break
        item = make(index)
        items.setdefault(item.text[0], item)
    return list(items.values())


def _caption(pairs: Pairs, index: int, uncertainty: Tensor) -> Item:
    own = int(pairs.image_of[index])
    true = pairs.relevance.of(index).tolist() if pairs.relevance is not None else [own]
    shown = [own, *(i for i in true if i != own)][:4]
    return Item(
        [pairs.captions[index]],
        [p for i in shown if (p := _picture(pairs, i))],
        float(uncertainty[index]),
        len(true) if pairs.relevance is not None else None,
    )


def _image(pairs: Pairs, index: int, uncertainty: Tensor) -> Item:
    own = (pairs.image_of == index).nonzero().flatten().tolist()
    picture = _picture(pairs, index)
    true = int((pairs.relevance.items == index).sum()) if pairs.relevance is not None else None
    return Item(
        [pairs.captions[i] for i in own],
        [picture] if picture else [],
        float(uncertainty[index]),
        true,
    )


def _picture(pairs: Pairs, index: int, side: int = 112) -> str | None:
    """A small picture as a data address, so that the page needs no other file."""
    picture = pairs.images.picture(index)
    if picture is None:
        return None
    scale = side / min(picture.size)
    size = (round(picture.width * scale), round(picture.height * scale))
    buffer = io.BytesIO()
    picture.resize(size, Image.Resampling.LANCZOS).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


__all__ = ["Entrant", "write_report"]
