"""Everything needed to go on after a kill, in one file that is always whole."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaussmatch.files import atomic
from gaussmatch.matcher import Matcher


@dataclass
class Progress:
    """Where a run stands: epochs done, steps done, and the best validation result so far."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_rsum: float = -1.0


def save_checkpoint(
    path: Path,
    matcher: Matcher,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    progress: Progress,
    scaler: torch.amp.GradScaler,
) -> None:
    state = {
        "matcher": matcher.state_dict(),
        "optimiser": optimiser.state_dict(),
        "schedule": schedule.state_dict(),
        "scaler": scaler.state_dict(),
        "progress": vars(progress),
        "random": _random_states(),
    }
    with atomic(path) as temporary:
        torch.save(state, temporary)


def load_checkpoint(
    path: Path,
    matcher: Matcher,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    scaler: torch.amp.GradScaler,
) -> Progress:
    """Put everything back as it was; nothing in the file is executed."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        matcher.load_state_dict(state["matcher"])
        optimiser.load_state_dict(state["optimiser"])
        schedule.load_state_dict(state["schedule"])
        if scaler.is_enabled():
            scaler.load_state_dict(state["scaler"])
        _restore_random_states(state["random"])
        return Progress(**state["progress"])
    except FileNotFoundError:
        raise
    except Exception as error:  # torch, zipfile and pickle raise many kinds for a damaged file
        raise ValueError(
            f"{path}: damaged, cut short, or of another recipe "
            f"({type(error).__name__}: {str(error).splitlines()[0]}); "
            "delete it and train again without --resume"
        ) from error


def _random_states() -> dict[str, Any]:
    kind, keys, position, gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (
            kind,
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            position,
            gauss,
            cached,
        ),
        "python": random.getstate(),
    }


def _restore_random_states(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, position, gauss, cached = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        (kind, keys.numpy().astype(np.uint32), position, gauss, cached)
    )
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
