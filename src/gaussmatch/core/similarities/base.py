"""The contract of every similarity: matrix, paired, and a lift into plain vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float

from gaussmatch.core.gaussian import (
    A,
    ArrayGaussian,
    Gaussian,
    Moments,
    Side,
    check_gaussian,
    dot,
    largest,
    total,
)
from gaussmatch.lazy import torch

SIDES: tuple[Side, ...] = get_args(Side)

Lifted = tuple[A, ...]
"""One vector set (n, W) for each lift; nearly always just one."""

BLOCK_BYTES = 256 * 2**20
"""Working memory of ``matrix`` above its inputs and its result."""


class Similarity(ABC):
    """How well an image and a caption match; higher is better.

    A similarity is defined by one thing only, its *lift*: vectors whose inner product (or squared
    Euclidean distance) is the score, up to a monotone ``from_raw``. ``matrix``, ``paired`` and any
    index are derived from it, so no formula is written twice and nothing ever materializes an
    n × m × D tensor. Where there are several lifts, the score is the best of them (minimum KL).

    To add one: give ``name``, ``metric``, the two lifts and, for a distance, ``from_raw``. What has
    no such lift is a ``PairwiseSimilarity`` and says why in ``no_lift``. One that scores image
    queries and caption queries differently returns the similarity of each side in ``for_query``.
    """

    name: ClassVar[str]
    metric: ClassVar[Literal["inner_product", "squared_l2"]]
    """What an index must compute between lifted vectors."""

    needs_variance: ClassVar[bool] = True
    """Whether point embeddings are refused."""

    several: ClassVar[bool] = False
    """Whether an item may be several embeddings, (n, K, D)."""

    no_lift: ClassVar[str | None] = None
    """Why an index cannot hold it as plain vectors, or ``None`` where it can."""

    shift_invariant: ClassVar[bool] = True
    """Whether moving all means, of images and captions alike, by one vector changes no score."""

    on_arrays: ClassVar[bool] = False
    """Whether lifts and ``from_raw`` also take numpy arrays (``ArrayGaussian``): a search of one
    query is faster so."""

    uncertainty_note: ClassVar[str | None] = None
    """Why the variances learned with this similarity do not separate vague from specific, or
    ``None`` where they do (docs/uncertainty.md has the measurements)."""

    def for_query(self, side: Side) -> Similarity:
        """The similarity that scores queries of ``side``: itself, unless the direction counts.

        >>> from gaussmatch.core.similarities import similarity
        >>> similarity("kl").for_query("images"), similarity("query_kl").for_query("images")
        (similarity('kl'), similarity('reverse_kl'))
        """
        check_side(side)
        return self

    def both_ways(self, images: Gaussian, captions: Gaussian) -> tuple[torch.Tensor, torch.Tensor]:
        """``matrix`` for image queries and for caption queries, each images × captions; the same
        tensor twice where the direction does not count."""
        by_image, by_caption = self.for_query("images"), self.for_query("captions")
        scores = by_image.matrix(images, captions)
        return scores, scores if by_caption is by_image else by_caption.matrix(images, captions)

    @abstractmethod
    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        """Images as plain vectors."""

    @abstractmethod
    def lift_captions(self, g: Moments[A]) -> Lifted[A]:
        """Captions as plain vectors, to be compared with ``lift_images``."""

    def from_raw(self, raw: A) -> A:
        """The score from an inner product or a squared distance; never decreasing in closeness."""
        return raw if self.metric == "inner_product" else -raw

    def matrix(self, images: Gaussian, captions: Gaussian) -> Float[torch.Tensor, "n m"]:
        """Scores of every image with every caption.

        Computed in float64 where the device has it (a matrix product hides cancellations that
        float32 does not forgive), block by block, and returned in the inputs' precision, but in
        float32 for half-precision inputs: float16 cannot hold a large KL, bfloat16 makes ties.
        """
        images, captions = self.prepare(images, captions, paired=False)
        dtype, left, right = self.precision(images), len(images), len(captions)
        result = _result(images)
        lifted = self.lift_captions(captions.to(dtype))
        rows = max(1, BLOCK_BYTES // max(1, right * dtype.itemsize * 3))
        blocks = [
            self._block(self.lift_images(images[i : i + rows].to(dtype)), lifted).to(result)
            for i in range(0, left, rows)
        ]
        return torch.cat(blocks) if blocks else images.mean.new_zeros(0, right, dtype=result)

    def against(self, items: Gaussian, side: Side) -> Callable[[Gaussian], torch.Tensor]:
        """``matrix`` with some items fixed, which are lifted once: queries → (queries, items).

        >>> from gaussmatch.core.similarities import similarity
        >>> g = Gaussian(torch.eye(2), torch.zeros(2, 1))
        >>> similarity("kl").against(g, "images")(g)
        tensor([[ 0., -1.],
                [-1.,  0.]])
        """
        dtype = wide(items)
        lift, other = self.lift_images, self.lift_captions
        lifted = (lift if side == "images" else other)(items.to(dtype))

        def scores(queries: Gaussian) -> torch.Tensor:
            sides = (items, queries) if side == "images" else (queries, items)
            fit = self.prepare(*sides, paired=False)
            if fit[side == "captions"] is not items:  # spheres among ellipsoids
                found = self.matrix(*fit)
            elif side == "images":
                found = self._block(lifted, other(fit[1].to(dtype))).to(_result(items))
            else:
                found = self._block(lift(fit[0].to(dtype)), lifted).to(_result(queries))
            return found.T if side == "images" else found

        return scores

    def arrays_against(
        self, items: ArrayGaussian, side: Side
    ) -> Callable[[ArrayGaussian], np.ndarray]:
        """``against`` of numpy arrays of one form, in float64."""
        if not self.on_arrays:
            scores = self.against(items.gaussian(), side)
            return lambda queries: scores(queries.gaussian()).numpy(force=True).astype(np.float64)
        lift, other = self.lift_images, self.lift_captions
        if side == "images":
            held = lift(items.astype(np.float64))
            return lambda queries: self._block(held, other(queries.astype(np.float64))).T
        held = other(items.astype(np.float64))
        return lambda queries: self._block(lift(queries.astype(np.float64)), held)

    def precision(self, g: Gaussian) -> torch.dtype:
        """What ``matrix`` computes in."""
        return wide(g)

    def paired(self, images: Gaussian, captions: Gaussian) -> Float[torch.Tensor, "n"]:
        """Score of image k with caption k, for each k."""
        images, captions = self.prepare(images, captions, paired=True)
        dtype = wide(images)
        lifted = self.lift_images(images.to(dtype)), self.lift_captions(captions.to(dtype))
        return self.of_lifted(*lifted).to(_result(images))

    def of_lifted(self, images: Lifted[A], captions: Lifted[A]) -> A:
        """Scores of sides that are lifted already, (..., W) each; other dimensions broadcast."""
        return self._best(
            dot(a, b) if self.metric == "inner_product" else total((a - b) ** 2)
            for a, b in zip(images, captions, strict=True)
        )

    def _block(self, images: Lifted[A], captions: Lifted[A]) -> A:
        return self._best(self._all_raw(a, b) for a, b in zip(images, captions, strict=True))

    def _all_raw(self, a: A, b: A) -> A:
        raw: A = a @ b.T
        if self.metric == "squared_l2":
            raw = total(a**2)[:, None] + total(b**2)[None] - 2 * raw
        return raw

    def score(self, raw: A) -> A:
        """``from_raw`` of tensors or arrays, whichever it takes."""
        if isinstance(raw, np.ndarray) and not self.on_arrays:
            return self.from_raw(torch.from_numpy(raw)).numpy()
        return self.from_raw(raw)

    def _best(self, raw: Iterable[A]) -> A:
        """The score from what each lift gave."""
        scores = [self.score(r) for r in raw]
        return scores[0] if len(scores) == 1 else largest(scores)

    def prepare(
        self, images: Gaussian, captions: Gaussian, *, paired: bool
    ) -> tuple[Gaussian, Gaussian]:
        """Check that the two sides fit, and give them one shape where one is a sphere."""
        for side, g in (("images", images), ("captions", captions)):
            check_gaussian(g, side)
            if g.mean.ndim != 2 and not (self.several and g.mean.ndim == 3):
                raise ValueError(
                    f"{side} must be a batch (n, D), got {tuple(g.mean.shape)}"
                    + ("; mil compares several embeddings" if g.mean.ndim == 3 else "")
                )
            if self.needs_variance and g.is_point:
                raise ValueError(f"{self.name} compares distributions, but the {side} are points")
        if images.dim != captions.dim:
            raise ValueError(
                f"images have D = {images.dim}, captions have D = {captions.dim}: encode both with "
                "the same model"
            )
        if paired and len(images) != len(captions):
            raise ValueError(f"paired: {len(images)} images but {len(captions)} captions")
        if not self.needs_variance:
            return images, captions
        if images.is_spherical != captions.is_spherical:
            return images.expand(), captions.expand()
        return images, captions

    def __repr__(self) -> str:
        return f"similarity({self.name!r})"


@dataclass(frozen=True)
class CenteredLift:
    """The lift of a similarity with the means moved about zero first, where that changes no score.

    A raw lift holds large terms that all items share; float32 loses the small differences that
    rank them. Evaluation and index both lift through this, then center the vectors themselves.

    Args:
        shift: (D), subtracted from every mean.

    >>> from gaussmatch.core.similarities import similarity
    >>> g = Gaussian(torch.tensor([[7.0], [8.0], [9.0]]), torch.zeros(3, 1))
    >>> CenteredLift.of(similarity("kl"), g).shift
    tensor([8.])
    """

    similarity: Similarity
    shift: torch.Tensor | np.ndarray

    @staticmethod
    def of(similarity: Similarity, *some: Gaussian) -> CenteredLift:
        """About the center of typical items; those of each side count alike."""
        shift = torch.stack([center(g.mean) for g in some]).mean(0)
        return CenteredLift(similarity, shift if similarity.shift_invariant else shift * 0)

    def __call__(self, g: Gaussian, side: Side) -> Lifted[torch.Tensor]:
        """Items of a side, lifted in the precision of the shift."""
        shift = torch.as_tensor(self.shift)
        log_var = None if g.log_var is None else g.log_var.to(shift.dtype)
        return self._lift(Gaussian(g.mean - shift, log_var), side)

    def arrays(self, g: ArrayGaussian, side: Side) -> Lifted[np.ndarray]:
        """The same of numpy arrays; by tensors where the similarity asks for them."""
        if not self.similarity.on_arrays:
            return tuple(a.numpy() for a in self(g.gaussian(), side))
        moved = g.astype(self._array.dtype)
        moved.mean -= self._array
        return self._lift(moved, side)

    def _lift(self, g: Moments[A], side: Side) -> Lifted[A]:
        if side == "images":
            return self.similarity.lift_images(g)
        return self.similarity.lift_captions(g)

    @cached_property
    def _array(self) -> np.ndarray:
        return np.asarray(self.shift)


def center(x: torch.Tensor) -> torch.Tensor:
    """The median of each coordinate: one outlier must not move the center of all."""
    return x.median(0).values


def check_side(side: str) -> None:
    if side not in SIDES:
        raise ValueError(f"unknown side {side!r} of a query; choose images or captions")


def other_side(side: Side) -> Side:
    """The side that is searched when ``side`` is the query, and the other way round."""
    return "captions" if side == "images" else "images"


def wide(g: Gaussian) -> torch.dtype:
    """float64, or float32 where the device has no float64 (Apple's MPS)."""
    return torch.float32 if g.device.type == "mps" else torch.float64


def _result(g: Gaussian) -> torch.dtype:
    return torch.promote_types(g.dtype, torch.float32)
