"""Gallery and queries as plain float32 vectors, by the similarity's own lift.

A raw lift of a KL is dominated by what all items share; float32 and graph search both drown in it.
For an inner product the gallery is therefore standardized with center u and scale s,

    a·b = ((a − u)/s) · (b s) + u·b

which changes no ranking, as u·b is one number for each query. For a squared distance both sides are
moved by one vector and divided by one number, s in every coordinate. Before either, the means are
moved to lie about zero where the similarity allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.similarities import Lifted, Similarity
from gaussmatch.core.similarities.base import CenteredLift, center, other_side
from gaussmatch.files import load_arrays, save_tensors
from gaussmatch.lazy import torch
from gaussmatch.search.manifest import Gallery

if TYPE_CHECKING:
    from torch import Tensor

FILE = "lift.safetensors"
SAMPLE = 10_000
"""Items that center and scale are taken from: any are right, typical ones are best."""
LARGEST = 1e16
"""A standardized coordinate; those of variances that a model learns are far below."""
EVERY = slice(None)


def paired(similarity: Similarity, gallery: Gallery, items: Gaussian, queries: Gaussian) -> Tensor:
    """``Similarity.paired`` of item k with query k."""
    with torch.no_grad():
        return similarity.paired(*((items, queries) if gallery == "images" else (queries, items)))


@dataclass(frozen=True)
class Lift:
    """How the items of one segment, and queries to them, become vectors.

    Args:
        centered: the similarity's lift, about the center of the items.
        ``centers``, scales: (W) for each lift.
    """

    centered: CenteredLift
    gallery: Gallery
    centers: tuple[np.ndarray, ...]
    scales: tuple[np.ndarray, ...]

    @staticmethod
    def of(similarity: Similarity, gallery: Gallery, some: Gaussian) -> Lift:
        """From typical items of the gallery."""
        some = some.to(torch.float64)
        centered = CenteredLift.of(similarity, some)
        lifted = centered(some, gallery)
        scales = [_spread(a) for a in lifted]
        if similarity.metric == "squared_l2":
            scales = [s.square().median().sqrt().expand_as(s).clone() for s in scales]
        scales = [torch.where(s > 0, s, 1.0) for s in scales]  # what never changes is not scaled
        held = ([a.numpy() for a in some] for some in (map(center, lifted), scales))
        return Lift(centered, gallery, *map(tuple, held))

    @property
    def similarity(self) -> Similarity:
        return self.centered.similarity

    @cached_property
    def inner(self) -> bool:
        return self.similarity.metric == "inner_product"

    def items(self, g: Gaussian) -> list[np.ndarray]:
        """One (n, W) float32 array for each lift."""
        lifted = self.lifted(g.numpy(), query=False)
        return [
            _float32((a - u) / s) for a, u, s in zip(lifted, self.centers, self.scales, strict=True)
        ]

    def queries(self, queries: ArrayGaussian) -> LiftedQueries:
        """Queries to these items."""
        lifted = self.lifted(queries, query=True)
        both = zip(lifted, self.centers, self.scales, strict=True)
        if self.inner:
            vectors = [_float32(b * s) for b, _, s in both]
        else:
            vectors = [_float32((b - u) / s) for b, u, s in both]
        return LiftedQueries(self.similarity, self.gallery, queries, self, lifted, vectors)

    def save(self, folder: Path) -> None:
        parts = {"shift": torch.as_tensor(self.centered.shift)}
        parts |= {f"center{i}": torch.from_numpy(u) for i, u in enumerate(self.centers)}
        parts |= {f"scale{i}": torch.from_numpy(s) for i, s in enumerate(self.scales)}
        save_tensors(folder / FILE, parts)

    @staticmethod
    def load(folder: Path, similarity: Similarity, gallery: Gallery) -> Lift:
        held = load_arrays(folder / FILE)
        count = sum(name.startswith("center") for name in held)
        centers, scales = (
            tuple(held[f"{what}{i}"] for i in range(count)) for what in ("center", "scale")
        )
        centered = CenteredLift(similarity, held["shift"])
        return Lift(centered, gallery, centers, scales)

    def lifted(self, g: ArrayGaussian, *, query: bool) -> Lifted[np.ndarray]:
        """(n, W) in float64 for each lift."""
        return self.centered.arrays(g, other_side(self.gallery) if query else self.gallery)


@dataclass(eq=False, slots=True)
class LiftedQueries:
    """Queries to the items of a segment, lifted once: to search with, and for exact scores.

    Args:
        lift: of the segment; ``None`` where the similarity has none, and nothing below it.
        lifted: (n, W) in float64 for each lift.
        vectors: (n, W) in float32 for each lift, for a structure to compare with its items.
    """

    similarity: Similarity
    gallery: Gallery
    queries: ArrayGaussian
    lift: Lift | None = None
    lifted: Lifted[np.ndarray] = ()
    vectors: Sequence[np.ndarray] = ()

    def __len__(self) -> int:
        return len(self.queries)

    def rough(self, number: int, raw: np.ndarray) -> np.ndarray:
        """What a search with ``vectors[number]`` found, (n, c), as scores."""
        assert self.lift is not None
        if self.lift.inner:
            raw = raw + (self.lifted[number] @ self.lift.centers[number])[:, None]
        else:
            raw = raw * self.lift.scales[number][0] ** 2
        return self.similarity.score(raw)

    def scores(self, items: ArrayGaussian, of: np.ndarray | slice = EVERY) -> np.ndarray:
        """Exact scores (float64) of items, one for each: with query ``of`` of each, or of equally
        many for each query of a slice, in the order of the queries."""
        if self.lift is None:
            if isinstance(of, slice):
                of = np.arange(len(self))[of]
                of = np.repeat(of, len(items) // max(1, len(of)))
            sides = (g.gaussian().to(torch.float64) for g in (items, self.queries[of]))
            return paired(self.similarity, self.gallery, *sides).numpy()
        lifted, own = self.lift.lifted(items, query=False), self.lifted
        if len(self) > 1:
            own = tuple(b[of] for b in own)
            if isinstance(of, slice):
                lifted = tuple(a.reshape(len(own[0]), -1, a.shape[-1]) for a in lifted)
                own = tuple(b[:, None] for b in own)
        both = (lifted, own) if self.gallery == "images" else (own, lifted)
        return self.similarity.of_lifted(*both).ravel()


def _spread(a: Tensor) -> Tensor:
    """The standard deviation of each coordinate as its quartiles have it: a few wild items must not
    decide the scale of all. Where half of the items are equal, the plain one."""
    quarter = (len(a) + 3) // 4
    low, high = (a.kthvalue(k, 0).values for k in (quarter, len(a) + 1 - quarter))
    spread = (high - low) / 1.349
    return torch.where(spread > 0, spread, a.std(0, unbiased=False))


def _float32(a: np.ndarray) -> np.ndarray:
    """Within bounds, so that no product overflows: of an infinity a search would make a NaN."""
    bounded: np.ndarray = np.minimum(np.maximum(a, -LARGEST), LARGEST).astype(np.float32)
    return bounded
