"""Training in several processes (``torchrun``): the only module that knows about ranks.

Each rank encodes its share of a global batch. The shares are gathered, so that every rank computes
the loss L of the whole batch, with all its negatives. A rank differentiates L / W for W ranks; the
gather sums the gradients of an embedding over all ranks, and those of the parameters are summed as
well. The result is the gradient of one process with the same batch, for parameters of the encoders
and of the loss alike.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

LONGEST_WAIT = timedelta(hours=6)
"""How long ranks wait for one another; the main rank validates and saves while others wait."""


class RankLostError(OSError):
    """Another process of this training has ended."""


def rank() -> int:
    """The number of this process, from 0."""
    if dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if _launched() else 0


def ranks() -> int:
    """W, how many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def is_main() -> bool:
    """Whether this process writes the run."""
    return rank() == 0


@contextmanager
def joined(device: torch.device) -> Iterator[torch.device]:
    """Join the processes that ``torchrun`` started; yields the device of this one."""
    if not _launched() or dist.is_initialized():
        yield device
        return
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=LONGEST_WAIT)
    try:
        yield device
    finally:
        dist.destroy_process_group()


def on_main(decide: Callable[[], T]) -> T:
    """The main rank's decision, on all ranks; the others wait for it."""
    found = [decide() if is_main() else None]
    if ranks() > 1:
        with _together():
            dist.broadcast_object_list(found, src=0)
    return found[0]  # type: ignore[return-value]


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Copy the weights of the main rank to all ranks."""
    if ranks() > 1:
        with _together():
            for tensor in tensors:
                dist.broadcast(tensor, src=0)


def gather(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The shares (n_r, …) of all ranks in the order of the ranks: (Σ n_r, …), differentiable.

    All tensors of a rank have the same n_r, which may differ from rank to rank.
    """
    if ranks() == 1:
        return list(tensors)
    lengths = numbers(len(tensors[0]), tensors[0].device)
    with _together():
        return [_Gather.apply(tensor, lengths) for tensor in tensors]


def numbers(own: int, device: torch.device) -> list[int]:
    """One of every rank; ``own`` is that of this one."""
    if ranks() == 1:
        return [own]
    given = torch.tensor([own], device=device)
    found = [torch.empty_like(given) for _ in range(ranks())]
    with _together():
        dist.all_gather(found, given)
    return [int(number) for number in found]


def sum_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Add up the gradients of all ranks; one that a rank did not need counts as zero."""
    if ranks() == 1:
        return
    with _together():
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, lengths: list[int]) -> Tensor:
        ctx.lengths = lengths
        padded = local.new_zeros(max(lengths), *local.shape[1:])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in lengths]
        dist.all_gather(parts, padded)
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        with _together():
            dist.all_reduce(gradient)
        start = sum(ctx.lengths[: rank()])
        return gradient[start : start + ctx.lengths[rank()]], None


def _launched() -> bool:
    """Whether ``torchrun`` started this process."""
    return "RANK" in os.environ and "MASTER_ADDR" in os.environ


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankLostError(
            "another process of this training has ended; its own message says why. Continue with "
            "--resume, with as many processes as you like"
        ) from error
