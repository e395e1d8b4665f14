"""What every data set becomes: images, captions, and which belongs to which."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor

from gaussmatch.core.metrics.ranking import Relevance

SPLITS = ("train", "dev", "test")
SAMPLED = 64
"""Images that a fingerprint looks at: photos have to be decoded."""


class ImageSource(Protocol):
    """The images of a split, read when they are needed.

    Item ``i`` is what the image encoder takes: a feature vector (F), a set of region features
    (R, F), or a picture (3, H, W), as float32. ``picture`` is the same item for a person to look
    at, or ``None`` if there are only features.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> np.ndarray: ...
    def picture(self, index: int) -> Image.Image | None: ...


@runtime_checkable
class RandomViews(Protocol):
    """An ``ImageSource`` that gives a random view of an image at each training step."""

    def random_view(self, index: int, seed: int) -> np.ndarray: ...


Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


@dataclass(frozen=True)
class Region:
    """A box of an image with its own caption."""

    box: Box
    caption: str


@dataclass(frozen=True, eq=False)
class Pairs:
    """One split: images, captions, and the image of each caption.

    Args:
        name: for messages, such as ``"scenes/test"``.
        images: n images.
        captions: m captions.
        image_of: (m), the image that each caption was written for.
        classes: (n, classes), the object classes in each image (for PMRP), where known.
        class_names: of ``classes``.
        regions: for each image its boxes with captions (for the crop experiment), where known.
        relevance: captions × images: every image that a caption is *true of*, own image included,
            where the data set knows more than the pairs. ``None`` means the pairs are all we know.
        exhaustive: whether ``relevance`` holds *every* such image; people judge a part.
        texts: the embedding of each caption, where the data set is ready embeddings.
        ids: the publisher's names of the images and of the captions, where there are files.
    """

    name: str
    images: ImageSource
    captions: Sequence[str]
    image_of: Int[Tensor, "m"]
    classes: Bool[Tensor, "n classes"] | None = None
    regions: Sequence[Sequence[Region]] | None = None
    relevance: Relevance | None = None
    exhaustive: bool = False
    texts: Sequence[np.ndarray] | None = None
    ids: tuple[Sequence[str], Sequence[str]] | None = None
    class_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        n, m = len(self.images), len(self.captions)
        if n == 0 or m == 0:
            raise ValueError(f"{self.name}: {n} images and {m} captions; each needs at least one")
        if len(self.image_of) != m:
            raise ValueError(f"{self.name}: {m} captions but {len(self.image_of)} image numbers")
        if int(self.image_of.min()) < 0 or int(self.image_of.max()) >= n:
            raise ValueError(f"{self.name}: a caption names an image outside 0…{n - 1}")
        if self.texts is not None and len(self.texts) != m:
            raise ValueError(f"{self.name}: {m} captions but {len(self.texts)} text embeddings")
        for i, caption in enumerate(self.captions):
            if not caption.strip():
                raise ValueError(f"{self.name}: caption {i} is empty; remove it or write one")
        if self.relevance is not None and (
            self.relevance.queries != m or self.relevance.gallery != n
        ):
            raise ValueError(f"{self.name}: relevance must be captions × images, {m} × {n}")

    def __repr__(self) -> str:
        known = {"classes": self.classes, "regions": self.regions, "relevance": self.relevance}
        more = ", ".join(name for name, held in known.items() if held is not None)
        sizes = f"{len(self.images):,} images, {len(self.captions):,} captions"
        return f"Pairs({self.name!r}, {sizes}{', with ' * bool(more)}{more})"

    def first(self, images: int) -> Pairs:
        """The first images, with their captions and nothing else."""
        kept = (self.image_of < images).nonzero().flatten()
        few = _FirstImages(self.images, min(images, len(self.images)))
        captions = [self.captions[i] for i in kept.tolist()]
        return Pairs(self.name, few, captions, self.image_of[kept])

    def fingerprint(self) -> dict[str, str]:
        """What tells this split from another one: how many images, hashes of the captions with
        their images, and of what the encoder is given for ``SAMPLED`` images and captions, evenly
        spread.

        >>> pairs = Pairs("a", np.zeros((2, 3), np.float32), ["a dog"], torch.tensor([1]))
        >>> pairs.fingerprint()["images"]
        '2'
        """
        words = hashlib.sha256("\n".join(self.captions).encode("utf-8", "surrogatepass"))
        words.update(self.image_of.to(torch.int64).numpy().tobytes())
        seen = hashlib.sha256()
        for source in (self.images, self.texts):
            count = 0 if source is None else len(source)
            for i in np.linspace(0, count - 1, min(count, SAMPLED)).astype(int).tolist():
                assert source is not None
                seen.update(np.ascontiguousarray(source[i]).tobytes())
        found = {"captions": words.hexdigest(), "features": seen.hexdigest()}
        return {"images": str(len(self.images)), **found}

    def pairs(self) -> Relevance:
        """Captions × images: each caption with its own image only."""
        return Relevance.from_pairs(
            torch.arange(len(self.captions)),
            self.image_of,
            queries=len(self.captions),
            gallery=len(self.images),
        )


class _FirstImages:
    """The first images of a source."""

    def __init__(self, images: ImageSource, count: int) -> None:
        self._count = count
        self.picture, self._read = images.picture, images.__getitem__

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> np.ndarray:
        return self._read(index)


class _JoinedImages:
    """The images of several sources, one after the other."""

    def __init__(self, parts: Sequence[ImageSource]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _find(self, index: int) -> tuple[ImageSource, int]:
        part = int(np.searchsorted(self._starts, index, "right")) - 1
        return self._parts[part], index - int(self._starts[part])

    def __getitem__(self, index: int) -> np.ndarray:
        part, inside = self._find(index)
        return part[inside]

    def picture(self, index: int) -> Image.Image | None:
        part, inside = self._find(index)
        return part.picture(inside)


class _JoinedViews(_JoinedImages):
    """The same where some sources give random views: the others give the only one that they
    have."""

    def random_view(self, index: int, seed: int) -> np.ndarray:
        part, inside = self._find(index)
        return part.random_view(inside, seed) if isinstance(part, RandomViews) else part[inside]


def joined(parts: Sequence[Pairs]) -> Pairs:
    """Several splits as one, for training: their images and captions one after the other. What
    only evaluation needs (classes, regions, relevance) is left out.

    >>> import torch
    >>> two = [Pairs(n, np.zeros((2, 3)), ["a dog"], torch.tensor([1])) for n in ("a", "b")]
    >>> both = joined(two)
    >>> both.name, len(both.images), both.image_of.tolist()
    ('a + b', 4, [1, 3])
    """
    starts = np.cumsum([0, *(len(part.images) for part in parts)]).tolist()
    images = [part.images for part in parts]
    moving = any(isinstance(source, RandomViews) for source in images)
    return Pairs(
        " + ".join(part.name for part in parts),
        (_JoinedViews if moving else _JoinedImages)(images),
        [caption for part in parts for caption in part.captions],
        torch.cat([part.image_of + start for part, start in zip(parts, starts, strict=False)]),
    )


@dataclass(frozen=True, eq=False)
class DataSet:
    """The three splits of a data set. Nothing is ever chosen by looking at ``test``."""

    name: str
    train: Pairs
    dev: Pairs
    test: Pairs
    notes: tuple[str, ...] = field(
        default=(), kw_only=True
    )  #: what a reader of its figures should know

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(self.split(name).images):,}" for name in SPLITS)
        return f"DataSet({self.name!r}, images: {sizes})"

    def _repr_html_(self) -> str:
        """A small table, for notebooks."""
        rows = [
            f"<tr><th>{name}</th><td>{len(p.images):,}</td><td>{len(p.captions):,}</td>"
            f"<td>{escape(p.captions[0])}</td></tr>"
            for name, p in ((name, self.split(name)) for name in SPLITS)
        ]
        heads = "".join(f"<th>{word}</th>" for word in ("", "images", "captions", "the first"))
        return f"<b>{escape(self.name)}</b><table><tr>{heads}</tr>{''.join(rows)}</table>"

    def split(self, name: str) -> Pairs:
        if name not in SPLITS:
            raise ValueError(f"unknown split {name!r}; choose train, dev or test")
        return {"train": self.train, "dev": self.dev, "test": self.test}[name]


def read_image(pairs: Pairs, index: int) -> np.ndarray:
    """One image as float32; a NaN or infinity is refused here, where its position is known."""
    image = np.asarray(pairs.images[index], dtype=np.float32)
    if not np.isfinite(image).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(image))[0])
        raise ValueError(
            f"{pairs.name}: the features of image {index} hold a NaN or infinity at {place}; "
            "extract them again or remove the image"
        )
    return image


def read_texts(pairs: Pairs, numbers: Sequence[int]) -> Sequence[str] | np.ndarray:
    """Some captions of a split as ``Model.encode_texts`` takes them."""
    if pairs.texts is not None:
        return np.stack([pairs.texts[i] for i in numbers])
    return [pairs.captions[i] for i in numbers]


def read_images(pairs: Pairs, numbers: Iterable[int], read: Any = map) -> Float[Tensor, "n ..."]:
    """Some images of a split as one batch; ``read`` may be the ``map`` of a pool of threads."""
    return torch.from_numpy(np.stack(list(read(partial(read_image, pairs), numbers))))


def image_batches(pairs: Pairs, batch_size: int, workers: int = 0) -> Iterator[Tensor]:
    """All images of a split in order, for encoding; ``workers`` threads read those of a batch."""
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for start in range(0, len(pairs.images), batch_size):
            numbers = range(start, min(start + batch_size, len(pairs.images)))
            yield read_images(pairs, numbers, pool.map if workers else map)
