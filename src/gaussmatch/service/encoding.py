"""Questions → Gaussians: texts of a batch are encoded together, and pictures together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from PIL import Image

from gaussmatch.gaussian import Gaussian
from gaussmatch.index import Gallery, Where
from gaussmatch.model import Model
from gaussmatch.service.errors import RefusalError

Kind = Literal["text", "image", "item"]
EVERYTHING = Where()


@dataclass(frozen=True, slots=True)
class Question:
    """One search: a text, a picture or the id of an image."""

    kind: Kind
    value: str | Image.Image
    k: int
    where: Where = EVERYTHING
    places: bool = False
    gallery: Gallery = "images"


class Row(NamedTuple):
    """Where the Gaussian of a question is, and the words that the model does not know."""

    batch: Gaussian
    row: int
    unknown: Sequence[str] = ()


def encode(
    questions: Sequence[Question], model: Model, item: Callable[[str], Gaussian]
) -> list[Row | Exception]:
    """A row of a batch for each question, or what is wrong with it. All rows of a kind are in one
    batch, but those of items, which ``item`` finds one by one."""
    of: dict[Kind, dict[int, Any]] = {"text": {}, "image": {}, "item": {}}
    for at, q in enumerate(questions):
        of[q.kind][at] = q.value
    found = {at: _alone(tried(item, id)) for at, id in of["item"].items()}
    found |= _texts(of["text"], model) | _pictures(of["image"], model)
    return [found[at] for at in range(len(questions))]


def _texts(texts: Mapping[int, str], model: Model) -> dict[int, Row | Exception]:
    """Those without any known word are refused, the others encoded together."""
    found: dict[int, Row | Exception] = {}
    read = dict(zip(texts, model.read(list(texts.values())), strict=True))
    for at, reading in list(read.items()):
        if not reading.known:
            found[at] = no_known_word(reading.text)
            del read[at]
    if read:
        batch = tried(model.encode_texts, list(read.values()))
        for row, (at, reading) in enumerate(read.items()):
            failed = isinstance(batch, Exception)
            found[at] = batch if failed else Row(batch, row, reading.unknown)
    return found


def _pictures(pictures: Mapping[int, Image.Image], model: Model) -> dict[int, Row | Exception]:
    """Together; where one spoils that, each alone and then those that are left together."""
    if not pictures:
        return {}
    batch = tried(model.encode_images, list(pictures.values()))
    if not isinstance(batch, Exception):
        return {at: Row(batch, row) for row, at in enumerate(pictures)}
    alone = {at: tried(model.encode_images, [p]) for at, p in pictures.items()}
    good = [at for at, g in alone.items() if not isinstance(g, Exception)]
    if good:
        batch = Gaussian.cat([alone[at] for at in good])
    return alone | {at: Row(batch, row) for row, at in enumerate(good)}


def _alone(g: Gaussian | Exception) -> Row | Exception:
    return g if isinstance(g, Exception) else Row(g, 0)


def no_known_word(text: str) -> RefusalError:
    return RefusalError(
        422,
        "unknown_words",
        f"the model knows no word of {text[:60]!r}; use words like those of its captions",
    )


def tried(work: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What it returns, or the exception that it raises."""
    try:
        return work(*given, **options)
    except Exception as error:
        return error
