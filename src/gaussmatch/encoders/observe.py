"""What a part of a network gave during a forward pass, for losses that look inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def observe(parts: dict[str, nn.Module]) -> Iterator[dict[str, Any]]:
    """Inside the block, the latest output of each part under its name.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> with observe({"hidden": net[0]}) as seen:
    ...     _ = net(torch.zeros(4, 3))
    >>> seen["hidden"].shape
    torch.Size([4, 2])
    """
    seen: dict[str, Any] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            seen[name] = output

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in parts.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
