"""One self-contained HTML page about a point model and its probabilistic twin: measures, curves,
and what the model is least and most sure of."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from torch import Tensor

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data.pairs import Pairs
from gaussmatch.files import write_text
from gaussmatch.learn.plot import ambiguity, curves, ellipses, svg
from gaussmatch.learn.training.loop import read_log
from gaussmatch.models.model import Model

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
    folders = {entrant.name: entrant.folder for entrant in entrants}
    drawn, texts = plane(pairs, images, captions)
    page = template("report.html.j2").render(
        entrants=entrants,
        pairs=pairs,
        figures=[svg(axes) for axes in training_curves(folders).values()],
        ambiguity=None if (axes := caption_ambiguity(pairs, unsure)) is None else svg(axes),
        plane=svg(drawn),
        on_plane=texts,
        rho=entrants[-1].measures.get("caption_rho"),
        similarity=model.recipe.model.similarity,
        captions=ends(unsure, lambda i: caption(pairs, i, unsure)),
        images=ends(images_unsure, lambda i: image(pairs, i, images_unsure)),
        commands=commands,
    )
    write_text(path, page)


def template(name: str) -> Any:
    """A page of ``templates/``; what it is given is escaped."""
    with extra("report", "a report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    environment = Environment(
        loader=PackageLoader("gaussmatch.learn.studies"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


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


def caption_ambiguity(
    pairs: Pairs, uncertainty: Tensor, title: str = "Caption uncertainty against true ambiguity"
) -> Axes | None:
    """Uncertainty of captions over the number of images that each is true of, where known."""
    if pairs.relevance is None:
        return None
    return ambiguity(pairs.relevance.counts, uncertainty, title)


def plane(pairs: Pairs, images: Gaussian, captions: Gaussian) -> tuple[Axes, list[str]]:
    """The two vaguest captions, A and B, and the two sharpest, C and D, on one plane with their
    images, a to d; and the captions."""
    chosen = captions.uncertainty().argsort(descending=True)[[0, 1, -2, -1]]
    groups = {"captions": captions[chosen], "their images": images[pairs.image_of[chosen]]}
    axes = ellipses(groups, "ABCDabcd", "Vague and sharp captions in the joint space")
    return axes, [pairs.captions[i] for i in chosen.tolist()]


SHOWN = 6
"""Items at each end of a gallery."""
SIDE = 128
"""A picture's shorter side on a page, at most."""


@dataclass(frozen=True)
class Item:
    """A caption or an image in a gallery."""

    text: list[str]
    pictures: list[str]
    uncertainty: float
    matches: int | None


def ends(uncertainty: Tensor, make: Callable[[int], Item]) -> dict[str, list[Item]]:
    """The vaguest and the sharpest items; a caption that was written twice is shown once."""
    order = uncertainty.argsort(descending=True).tolist()
    return {"vaguest": first(order, make, SHOWN), "sharpest": first(order[::-1], make, SHOWN)}


def drawn_ends(uncertainty: Tensor, make: Callable[[int], Item]) -> dict[str, list[Item]]:
    """As the paper's galleries: five at random from the least and the most sure twentieth."""
    order = uncertainty.argsort(descending=True).tolist()
    enough = max(15, round(len(order) / 20))
    parts = {"vaguest": order[:enough], "sharpest": order[::-1][:enough]}
    for part in parts.values():
        random.Random(0).shuffle(part)
    return {name: first(part, make, 5) for name, part in parts.items()}


def first(order: Sequence[int], make: Callable[[int], Item], shown: int) -> list[Item]:
    items: dict[str, Item] = {}
    for index in order:
        if len(items) == shown:
            break
        item = make(index)
        items.setdefault(item.text[0], item)
    return list(items.values())


def caption(pairs: Pairs, index: int, uncertainty: Tensor) -> Item:
    """A caption with its own picture, then others that it is true of."""
    own = int(pairs.image_of[index])
    true = pairs.relevance.of(index).tolist() if pairs.relevance is not None else [own]
    shown = [own, *(i for i in true if i != own)][:4]
    return Item(
        [pairs.captions[index]],
        [p for i in shown if (p := picture_of(pairs, i))],
        float(uncertainty[index]),
        len(true) if pairs.relevance is not None else None,
    )


def image(pairs: Pairs, index: int, uncertainty: Tensor, plausible: int = 0) -> Item:
    """An image with the captions written for it, and some others that are true of it."""
    own = (pairs.image_of == index).nonzero().flatten().tolist()
    picture, more, true = picture_of(pairs, index), list[int](), None
    if pairs.relevance is not None:
        captions = pairs.relevance.query_of[pairs.relevance.items == index].tolist()
        true, more = len(captions), [i for i in captions if i not in own][:plausible]
    return Item(
        [pairs.captions[i] for i in [*own, *more]],
        [picture] if picture else [],
        float(uncertainty[index]),
        true,
    )


def picture_of(pairs: Pairs, index: int) -> str | None:
    """A small picture as a data address, so that a page needs no other file."""
    picture = pairs.images.picture(index)
    return None if picture is None else address(picture)


def address(picture: Image.Image, side: int = SIDE) -> str:
    """A picture as a data address; small ones as they are, large ones made small."""
    buffer = io.BytesIO()
    if min(picture.size) > side:
        scale = side / min(picture.size)
        size = (round(picture.width * scale), round(picture.height * scale))
        picture.resize(size, Image.Resampling.LANCZOS).save(buffer, "WEBP", quality=85)
    else:
        picture.save(buffer, "WEBP", lossless=True)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
