"""Gallery and queries as plain float32 vectors, by the similarity's own lift.

A raw lift of a KL is dominated by what all items share; float32 and graph search both drown in it.
For an inner product the gallery is therefore standardised with centre u and scale s,

    a·b = ((a − u)/s) · (b s) + u·b

which changes no ranking, as u·b is one number for each query. For a squared distance both sides are
moved by one vector. Before either, the means are moved to lie about zero where the similarity
allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.layout import Gallery
from gaussmatch.similarities import Lifted, Similarity

FILE = "lift.safetensors"
SAMPLE = 10_000
"""Items that centre and scale are taken from: any are right, typical ones are best."""


@torch.no_grad()
def scores(similarity: Similarity, gallery: Gallery, items: Gaussian, queries: Gaussian) -> Tensor:
    """``Similarity.matrix`` as queries × items, whichever of them are the images."""
    if gallery == "images":
        return similarity.matrix(items, queries).T
    return similarity.matrix(queries, items)


@torch.no_grad()
def paired(similarity: Similarity, gallery: Gallery, items: Gaussian, queries: Gaussian) -> Tensor:
    """``Similarity.paired`` of item k with query k."""
    return similarity.paired(*((items, queries) if gallery == "images" else (queries, items)))


@dataclass(frozen=True)
class Lift:
    """How the items of one segment, and queries to them, become vectors.

    Args:
        shift: (D), taken off all means first.
        centres, scales: (W) for each lift.
    """

    similarity: Similarity
    gallery: Gallery
    shift: Tensor
    centres: tuple[Tensor, ...]
    scales: tuple[Tensor, ...]

    @staticmethod
    def of(similarity: Similarity, gallery: Gallery, some: Gaussian) -> Lift:
        """From typical items of the gallery."""
        some = some.to(torch.float64)
        shift = some.mean.mean(0) if similarity.shift_invariant else torch.zeros_like(some.mean[0])
        plain = Lift(similarity, gallery, shift, (), ())
        lifted = plain._lift(some, query=False)
        scales = [torch.ones_like(a[0]) for a in lifted]
        if similarity.metric == "inner_product":
            scales = [_nonzero(a.std(0, unbiased=False)) for a in lifted]
        return Lift(similarity, gallery, shift, tuple(a.mean(0) for a in lifted), tuple(scales))

    @property
    def inner(self) -> bool:
        return self.similarity.metric == "inner_product"

    def items(self, g: Gaussian) -> list[np.ndarray]:
        """One (n, W) float32 array for each lift."""
        lifted = self._lift(g, query=False)
        return [
            _float32((a - u) / s) for a, u, s in zip(lifted, self.centres, self.scales, strict=True)
        ]

    def queries(self, g: Gaussian) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each lift the vectors (n, W), and u·b (n), to be added to an inner product."""
        lifted = self._lift(g, query=True)
        both = zip(lifted, self.centres, self.scales, strict=True)
        if self.inner:
            return [(_float32(b * s), (b @ u).numpy()) for b, u, s in both]
        return [(_float32(b - u), np.zeros(len(b))) for b, u, _ in both]

    def score(self, raw: np.ndarray, constant: np.ndarray) -> np.ndarray:
        """What a search returned, as scores; −inf where it found nothing."""
        found = torch.from_numpy(raw.astype(np.float64) + constant[:, None])
        return self.similarity.from_raw(found).numpy()

    def save(self, folder: Path) -> None:
        parts = {"shift": self.shift}
        parts |= {f"centre{i}": u for i, u in enumerate(self.centres)}
        parts |= {f"scale{i}": s for i, s in enumerate(self.scales)}
        save_file(parts, folder / FILE)

    @staticmethod
    def load(folder: Path, similarity: Similarity, gallery: Gallery) -> Lift:
        try:
            held = load_file(folder / FILE)
        except SafetensorError as error:
            raise ValueError(
                f"{folder / FILE}: damaged ({error}); restore the index or make it again"
            ) from error
        count = sum(name.startswith("centre") for name in held)
        centres, scales = (
            tuple(held[f"{what}{i}"] for i in range(count)) for what in ("centre", "scale")
        )
        return Lift(similarity, gallery, held["shift"], centres, scales)

    def _lift(self, g: Gaussian, *, query: bool) -> Lifted:
        g = g.to(torch.float64)
        g = Gaussian(g.mean - self.shift, g.log_var)
        as_image = (self.gallery == "images") != query
        return self.similarity.lift_images(g) if as_image else self.similarity.lift_captions(g)


def blocks(total: int, size: int = 4096) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def _nonzero(scale: Tensor) -> Tensor:
    """A coordinate that never changes is not scaled."""
    return torch.where(scale > 0, scale, 1.0)


def _float32(a: Tensor) -> np.ndarray:
    return np.ascontiguousarray(a.numpy(), dtype=np.float32)
