"""The paper's adaptation, for any point encoder: keep its output as the mean, duplicate its
learnable part without sharing to predict the log-variance, bounded and in one of three shapes."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gaussmatch.core.gaussian import Gaussian

Shape = Literal["ellipsoidal", "spherical-avgpool", "spherical-one-value"]
Bound = Literal["clamp", "smooth"]

Range = tuple[float, float]

VARIANCE_RANGE: Range = (0.1, 10.0)
"""The paper bounds every variance to this range (Sec. 4.2)."""

_HOOKS = threading.Lock()  # PyTorch counts hooks without one


def bounded(
    raw: Float[Tensor, "... d"], bound: Bound, within: Range = VARIANCE_RANGE
) -> Float[Tensor, "... d"]:
    """ln σ² within the range.

    ``clamp`` is the paper's literal bound; outside, its gradient is zero and an item can stay
    stuck there. ``smooth`` bends toward the same bounds with slope 1 at their geometric mean (σ² =
    1 for the paper's range) and never stops.

    >>> bounded(torch.tensor([-9.0, 0.0, 9.0]), "clamp").exp()
    tensor([ 0.1000,  1.0000, 10.0000])
    """
    low, high = (math.log(v) for v in within)
    if bound == "clamp":
        return raw.clamp(low, high)
    center, half = (high + low) / 2, (high - low) / 2
    return center + half * torch.tanh((raw - center) / half)


def shaped(log_var: Float[Tensor, "... d"], shape: Shape) -> Float[Tensor, "... k"]:
    """The log-variance in its final shape: (…, D) as it is, or (…, 1) for a sphere.

    ``spherical-avgpool`` takes the arithmetic mean of the *variances* of an ellipsoid.

    >>> shaped(torch.tensor([[1.0, 3.0]]).log(), "spherical-avgpool").exp()
    tensor([[2.]])
    """
    if shape == "spherical-avgpool":
        return log_var.logsumexp(-1, keepdim=True) - math.log(log_var.shape[-1])
    return log_var


class Probabilistic(nn.Module):
    """μ = f_emb(f(x); θ) and ln σ² = f_emb(f(x); γ): the paper's equations (1) and (2).

    Args:
        encoder: any module that maps its input to points (n, D).
        part: dotted name of the submodule that is its learnable embedding function f_emb, such as
            ``"fc"`` or ``"head.proj"``. It is called once in a forward pass; the copy is called on
            the very same inputs, so what comes before (the backbone, the words) is computed once
            and shared, and what comes after (the L2-norm) touches the mean only.
        shape: ``ellipsoidal``, ``spherical-avgpool`` or ``spherical-one-value``.
        bound: ``clamp`` (the paper) or ``smooth``.
        variance_range: the least and the greatest variance.
        relative: the range bounds u = D·σ² instead, and the copy predicts ln u. A unit mean has
            squares of 1/D on average, so widths of this size mean the same in every dimension.
        start: ``fresh`` gives the copy new random weights through ``reset_parameters``; ``copy``
            keeps those of the original.
        pool: turns the copy's output into (n, D) if it is not that already, such as
            ``lambda out: out[0][:, -1]`` for a bare ``nn.GRU``.
        frozen: leave the encoder as it is, its dropout off, and train the copy alone.
        dim: D; needed for ``spherical-one-value`` where the encoder has no attribute ``dim``.

    >>> import torch
    >>> class Mine(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.trunk, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
    ...     def forward(self, x):
    ...         return nn.functional.normalize(self.head(self.trunk(x).relu()), dim=-1)
    >>> Probabilistic(Mine(), part="head")(torch.randn(3, 8))
    Gaussian(ellipsoidal, shape=(3,), dim=4, dtype=torch.float32)
    """

    def __init__(
        self,
        encoder: nn.Module,
        part: str,
        *,
        shape: Shape = "ellipsoidal",
        bound: Bound = "clamp",
        variance_range: Range = VARIANCE_RANGE,
        relative: bool = False,
        start: Literal["fresh", "copy"] = "fresh",
        pool: Callable[[Any], Tensor] | None = None,
        dim: int | None = None,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        _choose("shape", shape, get_args(Shape))
        _choose("bound", bound, get_args(Bound))
        _choose("start", start, ("fresh", "copy"))
        self.encoder, self.part, self.shape, self.bound = encoder, part, shape, bound
        self.variance_range, self.relative = variance_range, relative
        original = _submodule(encoder, part)
        if not any(True for _ in original.parameters()):
            raise ValueError(
                f"part {part!r} ({type(original).__name__}) has no weights, so a copy of it cannot "
                f"learn the variance; choose among {', '.join(_learnable(encoder)) or 'none'}"
            )
        self.variance = copy.deepcopy(original)
        if start == "fresh":
            _reset(self.variance)
        self.pool = pool
        self.scalar: nn.Linear | None = None
        if shape == "spherical-one-value":
            width = dim if dim is not None else getattr(encoder, "dim", None)
            if not isinstance(width, int):
                raise ValueError("spherical-one-value needs dim=D (the encoder has no 'dim')")
            self.scalar = nn.Linear(width, 1)
        self.dim = getattr(encoder, "dim", dim)
        self.frozen = frozen
        if frozen:
            encoder.requires_grad_(False)

    def train(self, mode: bool = True) -> Probabilistic:
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Gaussian:
        mean, inputs = self._mean_and_inputs(args, kwargs)
        raw = self.variance(*inputs[0], **inputs[1])
        raw = self.pool(raw) if self.pool is not None else raw
        if not isinstance(raw, Tensor) or raw.shape != mean.shape:
            found = tuple(raw.shape) if isinstance(raw, Tensor) else type(raw).__name__
            raise ValueError(
                f"part {self.part!r} gives {found}, but the mean has shape {tuple(mean.shape)}; "
                "choose another part, or give pool= to turn its output into that shape"
            )
        if self.scalar is not None:
            raw = self.scalar(raw)
        log_var = shaped(bounded(raw, self.bound, self.variance_range), self.shape)
        return Gaussian(mean, log_var - math.log(mean.shape[-1]) if self.relative else log_var)

    def _mean_and_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Tensor, tuple[tuple[Any, ...], dict[str, Any]]]:
        """Run the encoder, noting what its embedding function was called with; by this thread, as
        others may use the same encoder at the same time."""
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        own = threading.get_ident()

        def note(
            module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any] | None = None
        ) -> None:
            if threading.get_ident() == own:
                calls.append((inputs, named or {}))

        part = _submodule(self.encoder, self.part)
        with _HOOKS:
            handle = part.register_forward_pre_hook(note, with_kwargs=True)
        try:
            mean = self.encoder(*args, **kwargs)
        finally:
            handle.remove()
        if len(calls) != 1:
            raise ValueError(
                f"part {self.part!r} was called {len(calls)} times in one forward pass; "
                "it must be called once, as a module"
            )
        return mean, calls[0]


def _choose(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"unknown {name} {value!r}; choose {', '.join(allowed)}")


def _submodule(encoder: nn.Module, part: str) -> nn.Module:
    try:
        if part:
            return encoder.get_submodule(part)
    except AttributeError:
        pass
    names = [name for name, _ in encoder.named_modules() if name]
    raise ValueError(f"the encoder has no part {part!r}; it has {', '.join(names) or 'none'}")


def _learnable(encoder: nn.Module) -> list[str]:
    """The names of layers with weights of their own."""
    return [
        name
        for name, layer in encoder.named_modules()
        if name and any(True for _ in layer.parameters(recurse=False))
    ]


def _reset(module: nn.Module) -> None:
    """New random weights for every layer, each by its own rule."""
    for name, layer in module.named_modules():
        reset = getattr(layer, "reset_parameters", None)
        if callable(reset):
            reset()
        elif any(True for _ in layer.parameters(recurse=False)):
            raise ValueError(
                f"layer {name or type(layer).__name__!r} has weights but no reset_parameters(); "
                'give it one, or use start="copy"'
            )
