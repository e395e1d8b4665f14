"""Everything needed to continue after a kill, in one file that is always complete."""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaussmatch.models import run
from gaussmatch.models.matcher import Matcher
from gaussmatch.models.recipe.training import checkpoint_interval


@dataclass
class Progress:
    """Where a run stands: epochs and steps done, the best validation result so far, and of an
    unfinished epoch the batches done and the sum of their losses."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_rsum: float = -1.0
    batch: int = 0
    summed: float = 0.0


@dataclass
class TrainingState:
    """All that changes while a run trains."""

    matcher: Matcher
    optimiser: torch.optim.Optimizer
    rates: torch.optim.lr_scheduler.LRScheduler
    scaler: torch.amp.GradScaler
    progress: Progress = field(default_factory=Progress)
    data: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint of what it is trained on, see ``Pairs.fingerprint``."""

    def save(self, folder: Path) -> None:
        state = {
            "matcher": self.matcher.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "schedule": self.rates.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": vars(self.progress),
            "data": dict(self.data),
            "random": _random_states(),
        }
        with run.replacing(folder, run.CHECKPOINT, keep=run.PREVIOUS) as temporary:
            torch.save(state, temporary)

    def load(self, folder: Path, accept_changed_data: bool = False) -> None:
        """Put everything back as it was; nothing in the file is executed. Other data than before
        are refused, unless they are accepted."""
        path = folder / run.CHECKPOINT
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.matcher.load_state_dict(run.renamed(state["matcher"]))
            self.optimiser.load_state_dict(state["optimiser"])
            self.rates.load_state_dict(state["schedule"])
            if self.scaler.is_enabled():
                self.scaler.load_state_dict(state["scaler"])
            _restore_random_states(state["random"])
            self.progress = Progress(**state["progress"])
            before = dict(state["data"])
        except FileNotFoundError:
            raise
        except Exception as error:  # torch, zipfile and pickle raise many types for a damaged file
            raise ValueError(
                f"{path}: damaged, truncated, or of another recipe "
                f"({type(error).__name__}: {' '.join(str(error).split())[:200]}); "
                "train again into another folder"
            ) from error
        changed = [k for k in {**before, **self.data} if before.get(k) != self.data.get(k)]
        if changed and not accept_changed_data:
            raise ValueError(
                f"{folder} was trained on other data: the {', the '.join(changed)} are not those "
                "of its last checkpoint; give the same data, train into another folder, or go on "
                "with --accept-changed-data"
            )


class CheckpointWarning(UserWarning):
    """The newest checkpoint is damaged; an older one takes its place."""


def find_checkpoint(folder: Path) -> bool:
    """Whether a run has a checkpoint to continue from: the newest, or the one before it.

    A damaged one is never used; if both are damaged, that is an error.
    """
    there = [name for name in (run.CHECKPOINT, run.PREVIOUS) if (folder / name).exists()]
    intact = [name for name in there if run.is_intact(folder, name)]
    if not there:
        return False
    if not intact:
        raise ValueError(
            f"{folder / there[0]} is damaged: its SHA-256 is not the one in {run.MANIFEST}, and "
            "there is no other checkpoint; restore it from a copy, or train into another folder"
        )
    if intact[0] == run.PREVIOUS:
        warnings.warn(
            f"{folder / run.CHECKPOINT} is damaged or missing: continuing from the older "
            f"{run.PREVIOUS}",
            CheckpointWarning,
            stacklevel=2,
        )
        run.restore_previous(folder)
    return True


def _random_states() -> dict[str, Any]:
    algorithm, keys, position, gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (
            algorithm,
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
    algorithm, keys, position, gauss, cached = state["numpy"]
    np.random.set_state(  # noqa: NPY002
        (algorithm, keys.numpy().astype(np.uint32), position, gauss, cached)
    )
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))


class CheckpointTimer:
    """Says when a checkpoint within an epoch is due: after some steps, or after some minutes.

    >>> interval = CheckpointTimer("2 steps")
    >>> [step for step in range(1, 7) if interval.due(step)]
    [2, 4, 6]
    """

    def __init__(self, every: str | None) -> None:
        self._number, self._unit = checkpoint_interval(every) if every else (math.inf, "minutes")
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether to save after this step."""
        if self._unit == "steps":
            return step % self._number == 0
        now = time.monotonic()
        if now - self._last < 60 * self._number:
            return False
        self._last = now
        return True
