"""The value that flows through everything: a diagonal Gaussian in the joint space."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from typing import Any, Generic, Literal, TypeVar, Union

import numpy as np
from jaxtyping import Float

from gaussmatch.lazy import torch

Side = Literal["images", "captions"]
"""Images or captions: which of them is the query, or is searched."""
Index = Union[int, slice, Sequence[int], "torch.Tensor", EllipsisType, None]
A = TypeVar("A", "torch.Tensor", np.ndarray)


class Moments(Generic[A]):
    """Mean and log-variance, and what follows from them, of tensors or of numpy arrays."""

    mean: A
    log_var: A | None

    @property
    def dim(self) -> int:
        """D, the dimension of the joint space."""
        return int(self.mean.shape[-1])

    @property
    def is_point(self) -> bool:
        return self.log_var is None

    @property
    def is_spherical(self) -> bool:
        """One variance for all dimensions."""
        return self.log_var is not None and self.log_var.shape[-1] == 1

    @property
    def variance(self) -> A:
        """σ²; zero for a point. Shape (..., D), or (..., 1) for a sphere or a point."""
        return column(self.mean, 0.0) if self.log_var is None else exp(self.log_var)

    @property
    def std(self) -> A:
        """σ; zero for a point. Shape as ``variance``."""
        return column(self.mean, 0.0) if self.log_var is None else exp(0.5 * self.log_var)

    def uncertainty(self) -> A:
        """log det Σ, the paper's measure of how ambiguous an item is, (...).

        Comparable within one model and one modality only.

        >>> sphere = Gaussian(torch.zeros(1, 8), torch.full((1, 1), 0.5))
        >>> ellipsoid = Gaussian(torch.zeros(1, 8), torch.full((1, 8), 0.5))
        >>> sphere.uncertainty(), ellipsoid.uncertainty()
        (tensor([4.]), tensor([4.]))
        """
        log_var = self._log_var("uncertainty()")
        return total(log_var) * self.dim if log_var.shape[-1] == 1 else total(log_var)

    def _log_var(self, what: str) -> A:
        if self.log_var is None:
            raise ValueError(
                f"{what} needs variances, and this is a point embedding; "
                "use a probabilistic model (docs/uncertainty.md)"
            )
        return self.log_var


@dataclass(frozen=True, eq=False)
class Gaussian(Moments["torch.Tensor"]):
    """N(μ, diag σ²) for each item: a mean and a log-variance.

    Args:
        mean: μ, shape (..., D).
        log_var: ln σ², shape (..., D) for an ellipsoid, (..., 1) for a sphere, or ``None`` for a
            point embedding, which is the case without variance.
        side: which side of a model the items come from, where known. It follows the items through
            indexing, ``to`` and ``cat``, so that swapped arguments can be refused.

    >>> g = Gaussian(torch.zeros(3, 4), torch.zeros(3, 1))      # three spheres in four dimensions
    >>> g.shape, g.dim, g.is_spherical
    (torch.Size([3]), 4, True)
    >>> g[0].uncertainty()
    tensor(0.)
    """

    mean: torch.Tensor
    log_var: torch.Tensor | None = None
    side: Side | None = None

    def __post_init__(self) -> None:
        mean, log_var = self.mean, self.log_var
        if not isinstance(mean, torch.Tensor) or not mean.is_floating_point():
            raise TypeError(
                f"mean must be a floating-point torch.Tensor of shape (..., D), got {_kind(mean)}"
                "; convert it: torch.as_tensor(x).float()"
            )
        shape = mean.shape
        if not shape or shape[-1] == 0:
            raise ValueError(f"mean must have shape (..., D) with D ≥ 1, got {tuple(shape)}")
        if log_var is None:
            return
        if not isinstance(log_var, torch.Tensor) or not log_var.is_floating_point():
            raise TypeError(
                "log_var must be a floating-point torch.Tensor, or None for a point, got "
                f"{_kind(log_var)}; convert it: torch.as_tensor(x).float()"
            )
        if log_var.shape not in (shape, (*shape[:-1], 1)):
            raise ValueError(
                f"log_var {tuple(log_var.shape)} does not fit mean {tuple(shape)}: "
                "it must be (..., D) for an ellipsoid or (..., 1) for a sphere"
            )

    @property
    def shape(self) -> torch.Size:
        """The batch shape, without D."""
        return self.mean.shape[:-1]

    def mean_log_var(self) -> Float[torch.Tensor, "..."]:
        """Mean of ln σ² over the dimensions: ``uncertainty() / D``, comparable across D."""
        return self._log_var("mean_log_var()").mean(-1)

    def expand(self) -> Gaussian:
        """The same Gaussian with one log-variance for each dimension."""
        if self.log_var is None or self.log_var.shape == self.mean.shape:
            return self
        return Gaussian(self.mean, self.log_var.expand_as(self.mean), self.side)

    # ---- a container of items ----

    def __len__(self) -> int:
        if self.mean.ndim < 2:
            raise TypeError("a single Gaussian has no length")
        return len(self.mean)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Gaussian:
        """Select items along the batch dimensions; D is never touched."""
        if not self.shape:
            raise TypeError("a single Gaussian cannot be indexed")
        key: Any = index if isinstance(index, tuple) else (index,)
        rest = () if Ellipsis in [k for k in key if not _array(k)] else (Ellipsis,)
        key = (*key, *rest, slice(None))
        return self._map(lambda t: t[key])

    def to(self, *args: Any, **kwargs: Any) -> Gaussian:
        """Move or convert both tensors, as ``torch.Tensor.to``."""
        return self._map(lambda t: t.to(*args, **kwargs))

    def detach(self) -> Gaussian:
        return self._map(torch.Tensor.detach)

    def numpy(self) -> ArrayGaussian:
        """The same numbers as numpy arrays, in the same memory if that is the CPU's."""
        log_var = None if self.log_var is None else self.log_var.numpy(force=True)
        return ArrayGaussian(self.mean.numpy(force=True), log_var)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype

    @staticmethod
    def cat(parts: Sequence[Gaussian]) -> Gaussian:
        """Join along the first dimension; all of one shape (point, sphere or ellipsoid).

        >>> g = Gaussian(torch.zeros(2, 4), torch.zeros(2, 4))
        >>> len(Gaussian.cat([g, g]))
        4
        """
        if not parts:
            raise ValueError("nothing to concatenate")
        shapes = {(p.is_point, p.is_spherical and p.dim > 1, p.mean.shape[1:]) for p in parts}
        if len(shapes) > 1:
            raise ValueError("cannot concatenate Gaussians of different shapes or dimensions")
        log_vars = [p.log_var for p in parts if p.log_var is not None]
        sides = {p.side for p in parts}
        return Gaussian(
            torch.cat([p.mean for p in parts]),
            torch.cat(log_vars) if log_vars else None,
            sides.pop() if len(sides) == 1 else None,
        )

    @staticmethod
    def product(parts: Sequence[Gaussian], powers: Sequence[float] | None = None) -> Gaussian:
        """∏ N(μₖ, Σₖ)^wₖ, scaled to a density: what lies where *all* of some Gaussians are high.

        Σ⁻¹ = Σₖ wₖ Σₖ⁻¹ and μ = Σ · Σₖ wₖ Σₖ⁻¹ μₖ: a mean weighted by precision, so that the
        narrower Gaussian counts for more. Points, which have no precision, are equally precise.

        Args:
            parts: of one kind (point, sphere or ellipsoid) and shape.
            powers: wₖ > 0, one for each part; all 1 if not given.

        >>> wide = Gaussian(torch.tensor([0.0]), torch.tensor([3.0]).log())
        >>> narrow = Gaussian(torch.tensor([4.0]), torch.tensor([1.0]).log())
        >>> both = Gaussian.product([wide, narrow])
        >>> round(both.mean.item(), 3), round(both.variance.item(), 3)
        (3.0, 0.75)
        """
        powers = [1.0] * len(parts) if powers is None else powers
        if not parts or len(parts) != len(powers) or min(powers) <= 0:
            raise ValueError(
                f"a product needs as many positive powers as parts, got {len(powers)} for "
                f"{len(parts)}"
            )
        if len({(p.is_point, p.is_spherical, p.mean.shape) for p in parts}) > 1:
            raise ValueError("cannot multiply Gaussians of different kinds, shapes or dimensions")
        precision = torch.stack(  # its logarithm
            [
                (torch.zeros_like(p.variance) if p.log_var is None else -p.log_var) + math.log(w)
                for p, w in zip(parts, powers, strict=True)
            ]
        )
        mean = (precision.softmax(0) * torch.stack([p.mean for p in parts])).sum(0)
        return Gaussian(mean, None if parts[0].is_point else -precision.logsumexp(0))

    def _map(self, f: Any) -> Gaussian:
        return Gaussian(f(self.mean), None if self.log_var is None else f(self.log_var), self.side)

    def __repr__(self) -> str:
        shape = "point" if self.is_point else "spherical" if self.is_spherical else "ellipsoidal"
        what = f"{shape} {self.side}" if self.side else shape
        return f"Gaussian({what}, shape={tuple(self.shape)}, dim={self.dim}, dtype={self.dtype})"

    # ---- on disk ----

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.safetensors`` file with ``mean`` and, unless a point, ``log_var``."""
        from safetensors.torch import save

        tensors = {"mean": self.mean.detach().contiguous().cpu()}
        if self.log_var is not None:
            tensors["log_var"] = self.log_var.detach().contiguous().cpu()
        Path(path).write_bytes(save(tensors))  # save_file keeps it from all but its owner

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Gaussian:
        """Read what ``save`` wrote."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(os.fspath(path))
        except SafetensorError as error:
            raise ValueError(f"{path}: not a complete safetensors file ({error})") from error
        if "mean" not in tensors:
            raise ValueError(f"{path}: holds no 'mean'; found {sorted(tensors)}")
        return Gaussian(tensors["mean"], tensors.get("log_var"))


class ArrayGaussian(Moments[np.ndarray]):
    """A Gaussian as a search sees it, in numpy arrays: an answer takes many small steps, and numpy
    takes less time for each than torch does.

    >>> g = Gaussian(torch.zeros(2, 4), torch.zeros(2, 4)).numpy()
    >>> len(g), g.variance.tolist()[0], g.gaussian()
    (2, [1.0, 1.0, 1.0, 1.0], Gaussian(ellipsoidal, shape=(2,), dim=4, dtype=torch.float32))
    """

    def __init__(self, mean: np.ndarray, log_var: np.ndarray | None = None) -> None:
        self.mean, self.log_var = mean, log_var

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, rows: slice | Sequence[int] | np.ndarray) -> ArrayGaussian:
        return ArrayGaussian(self.mean[rows], None if self.log_var is None else self.log_var[rows])

    def astype(self, dtype: np.typing.DTypeLike) -> ArrayGaussian:
        """A copy in another precision."""
        log_var = None if self.log_var is None else self.log_var.astype(dtype)
        return ArrayGaussian(self.mean.astype(dtype), log_var)

    def gaussian(self) -> Gaussian:
        """The same numbers, in the same memory, as tensors."""
        log_var = None if self.log_var is None else torch.from_numpy(self.log_var)
        return Gaussian(torch.from_numpy(self.mean), log_var)


# ---- of tensors and numpy arrays alike ----


def exp(a: A) -> A:
    result: A = np.exp(a) if isinstance(a, np.ndarray) else a.exp()
    return result


def column(beside: A, value: float) -> A:
    """(..., 1) of one number, to stand beside (..., D)."""
    first = beside[..., :1]
    if isinstance(first, np.ndarray):
        whole = np.empty(first.shape, first.dtype)
        whole.fill(value)
        return whole
    return torch.full_like(first, value)


def joined(first: A, *others: A | float) -> A:
    """(..., a), (..., b), … → (..., a + b + …); a number stands for a column of it."""
    parts: Any = [first, *(column(first, p) if isinstance(p, float) else p for p in others)]
    result: A = np.concatenate(parts, -1) if isinstance(first, np.ndarray) else torch.cat(parts, -1)
    return result


def total(a: A) -> A:
    """The sum over the last dimension."""
    result: A = np.add.reduce(a, -1) if isinstance(a, np.ndarray) else a.sum(-1)
    return result


def dot(a: A, b: A) -> A:
    """The inner product over the last dimension; the others broadcast."""
    result: A = np.vecdot(a, b) if isinstance(a, np.ndarray) else (a * b).sum(-1)
    return result


def largest(parts: list[A]) -> A:
    """The largest of each number."""
    if isinstance(parts[0], np.ndarray):
        result: A = np.maximum.reduce(parts)
        return result
    return torch.stack(parts).amax(0)


def normalized(a: A) -> A:
    """Of length one; zero stays zero."""
    if isinstance(a, np.ndarray):
        result: A = a / np.maximum((a**2).sum(-1) ** 0.5, 1e-12)[..., None]
        return result
    return torch.nn.functional.normalize(a, dim=-1)


def check_gaussian(value: object, what: str, instead: str = "", encode: str = "") -> None:
    """Refuse what is not a ``Gaussian``, and say what to wrap it with, or what of the caller's
    would ``encode`` it.

    >>> check_gaussian(np.zeros((2, 8)), "images")
    Traceback (most recent call last):
    TypeError: images must be a Gaussian, got ndarray (2, 8); wrap it: \
gm.Gaussian(torch.as_tensor(x).float()) for points, gm.Gaussian(mean, log_var) for distributions
    """
    if isinstance(value, Gaussian):
        return
    wrap = (
        f"; {encode and f'embeddings: {encode}; otherwise '}wrap it: "
        "gm.Gaussian(torch.as_tensor(x).float()) for points, gm.Gaussian(mean, log_var) for "
        "distributions"
    )
    help_ = wrap if isinstance(value, torch.Tensor | np.ndarray) else instead
    raise TypeError(f"{what} must be a Gaussian, got {_kind(value)}{help_}")


def _kind(value: object) -> str:
    """What a user has passed: its type, and its shape or dtype if that is what is wrong."""
    if not isinstance(value, torch.Tensor | np.ndarray):
        return type(value).__name__
    kind = f"{type(value).__name__} {tuple(value.shape)}"
    array = isinstance(value, np.ndarray)
    floating = value.dtype.kind == "f" if array else value.is_floating_point()  # type: ignore[union-attr]
    return kind if floating else f"{kind} of {value.dtype}"


def _array(key: object) -> bool:
    """Arrays compare elementwise, so ``in`` must not see them."""
    return isinstance(key, torch.Tensor) or hasattr(key, "__array__")
