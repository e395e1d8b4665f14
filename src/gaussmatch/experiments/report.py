"""One self-contained HTML page about a point model and its probabilistic twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gaussmatch.data.pairs import Pairs
from gaussmatch.experiments.gallery import caption, ends, image
from gaussmatch.files import write_text
from gaussmatch.model import Model
from gaussmatch.plot import ambiguity, curves, svg
from gaussmatch.training.log import read_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Entrant:
    """A model in the report: its name, run folder and test measures."""

    name: str
    folder: Path
    measures: dict[str, Any]


def write_report(
    path: Path, entrants: Sequence[Entrant], model: Model, pairs: Pairs, commands: Sequence[str]
) -> None:
    """Write the page; ``model`` is the probabilistic one, whose uncertainty is shown."""
    images, captions = model.encode_pairs(pairs)
    unsure, images_unsure = captions.uncertainty(), images.uncertainty()
    page = template("report.html.j2").render(
        entrants=entrants,
        pairs=pairs,
        figures=_training_figures(entrants),
        ambiguity=ambiguity_figure(pairs, unsure),
        rho=entrants[-1].measures.get("caption_rho"),
        similarity=model.recipe.model.similarity,
        captions=ends(unsure, lambda i: caption(pairs, i, unsure)),
        images=ends(images_unsure, lambda i: image(pairs, i, images_unsure)),
        commands=commands,
    )
    write_text(path, page)


def template(name: str) -> Any:
    """A page of ``templates/``; what it is given is escaped."""
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
    return environment.get_template(name)


def _training_figures(entrants: Sequence[Entrant]) -> list[str]:
    return [svg(axes) for axes in training_curves({e.name: e.folder for e in entrants}).values()]


def training_curves(folders: Mapping[str, Path]) -> dict[str, Axes]:
    """Loss and validation recall over the epochs, one line for each run: name → folder."""
    logs = {
        name: [r for r in read_log(folder) if r["event"] == "epoch"]
        for name, folder in folders.items()
    }
    recall = {
        name: [sum(r[f"{way}_r{k}"] for way in ("i2t", "t2i") for k in (1, 5, 10)) / 6 for r in log]
        for name, log in logs.items()
    }
    losses = {name: [r["loss"] for r in log] for name, log in logs.items()}
    return {
        "loss": curves(losses, "Training loss", "mean loss of a step", log=True),
        "recall": curves(recall, "Validation recall", "mean of the six R@K, %"),
    }


def ambiguity_figure(pairs: Pairs, uncertainty: Tensor) -> str | None:
    """Uncertainty of captions over the number of images that each is true of, where known."""
    axes = caption_ambiguity(pairs, uncertainty)
    return None if axes is None else svg(axes)


def caption_ambiguity(
    pairs: Pairs, uncertainty: Tensor, title: str = "Caption uncertainty against true ambiguity"
) -> Axes | None:
    if pairs.relevance is None:
        return None
    return ambiguity(pairs.relevance.counts, uncertainty, title)


__all__ = ["Entrant", "caption_ambiguity", "template", "training_curves", "write_report"]
