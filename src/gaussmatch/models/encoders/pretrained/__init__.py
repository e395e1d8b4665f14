"""Published encoders by name, frozen: a picture or a text → the embedding their authors meant.

=====================================  ==========================================================
``timm:NAME``                          an image network of timm; a bare NAME is the same
``open_clip:ARCH[/PRETRAINED]``        CLIP and its kin of open_clip, images and texts
``hf:REPO``                            CLIP, SigLIP, SigLIP 2 of transformers, both sides
``onnx:FILE``                          an image network in onnxruntime
``st:NAME``                            a BERT-like sentence encoder, texts
``prolip:REPO``, ``pcmepp:REPO``       ProLIP and PCME++, both sides: mean and variance
=====================================  ==========================================================

``…+whole`` looks at the whole picture, squeezed into a square, instead of a center crop.
``…@PLACE`` takes the weights from a local file or folder. Weights are safetensors; a hub is used
once, and not at all for what lies in its cache. A new library is one module here with ``image`` or
``text``, and its entry in ``LIBRARIES``.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from gaussmatch.models.encoders.pretrained.base import ImageTower, TextTower

LIBRARIES: dict[str, tuple[str, ...]] = {
    "timm": ("image",),
    "open_clip": ("image", "text"),
    "hf": ("image", "text"),
    "onnx": ("image",),
    "st": ("text",),
    "prolip": ("image", "text"),
    "pcmepp": ("image", "text"),
}
"""Library → what its encoders encode; each is the module of its name, here or in ``ELSEWHERE``."""
ELSEWHERE = {
    "timm": "gaussmatch.models.encoders.backbone",
    "onnx": "gaussmatch.models.encoders.onnx",
}
GAUSSIAN = ("prolip", "pcmepp")
"""Libraries whose embeddings are a mean and ln σ², side by side: ``gaussmatch import`` makes a run
of such an encoder."""
WHOLE = "+whole"
"""At the end of an image encoder's name: it looks at the whole picture."""


class Spec(NamedTuple):
    """The parts of an encoder's name.

    >>> Spec.of("timm:resnet50@weights/r50.safetensors")
    Spec(library='timm', name='resnet50', place='weights/r50.safetensors', whole=False)
    >>> Spec.of("resnet50").library
    'timm'
    """

    library: str
    name: str
    place: str | None
    whole: bool = False

    @staticmethod
    def of(encoder: str) -> Spec:
        library, colon, rest = encoder.partition(":")
        if not colon:
            library, rest = "timm", encoder
        if library not in LIBRARIES:
            raise ValueError(f"no encoder {encoder!r}: it begins with none of {_listed(LIBRARIES)}")
        name, _, place = rest.partition("@")
        if not name:
            raise ValueError(f"encoder {encoder!r} has no name after {library}:")
        return Spec(library, name.removesuffix(WHOLE), place or None, name.endswith(WHOLE))


def image_tower(encoder: str, weights: str | Path | None = None, whole: bool = False) -> ImageTower:
    """A frozen image encoder by name.

    Args:
        weights: a local file or folder; the same as ``@PLACE`` in the name.
        whole: the same as ``+whole`` in the name.
    """
    tower: ImageTower = _tower("image", encoder, weights)
    tower.whole = whole or Spec.of(encoder).whole
    return tower


def text_tower(encoder: str, weights: str | Path | None = None) -> TextTower:
    """A frozen text encoder by name, see ``image_tower``."""
    return _tower("text", encoder, weights)


def _tower(side: str, encoder: str, weights: str | Path | None) -> Any:
    library, name, place, _ = Spec.of(encoder)
    if side not in LIBRARIES[library]:
        can = [name for name, sides in LIBRARIES.items() if side in sides]
        raise ValueError(
            f"{library}: cannot encode {side}s ({encoder!r}); choose one of {_listed(can)}"
        )
    module = import_module(ELSEWHERE.get(library, f"{__name__}.{library}"))
    given = place if weights is None else weights
    return getattr(module, side)(name, None if given is None else Path(given).expanduser())


def _listed(libraries: Iterable[str]) -> str:
    return ", ".join(f"{library}:" for library in libraries)
