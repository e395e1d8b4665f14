"""A job that other processes can import by name."""

from __future__ import annotations

import os
import time
from pathlib import Path


class Job:
    """Leaves a file, fails, or takes its process with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> None:
        if name.startswith("die"):
            os._exit(7)
        if name.startswith("fail"):
            raise ValueError(f"{name} cannot be done")
        if name == "slow":
            time.sleep(0.3)
        (self.folder / name).write_text(str(time.monotonic()))
