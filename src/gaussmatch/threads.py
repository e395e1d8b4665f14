"""How many threads the arithmetic of this process may use."""

from __future__ import annotations

import torch


def use_threads(number: int | None = None) -> int:
    """Use ``number`` threads from now on, or torch's default; returns how many are in use."""
    if number is not None:
        if number < 1:
            raise ValueError(f"--threads must be at least 1, got {number}")
        torch.set_num_threads(number)
    return torch.get_num_threads()
