"""The model inside an index: three files of a run, copied in and known by their hashes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from gaussmatch.index.layout import sync

FILES = ("recipe.yaml", "vocabulary.json", "model.safetensors")


def hashes(run: Path) -> dict[str, str]:
    """File → sha256."""
    found = {}
    for name in FILES:
        with (run / name).open("rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def copy_run(run: Path, target: Path) -> dict[str, str]:
    """Copy and sync; gives the hashes."""
    for name in FILES:
        shutil.copyfile(run / name, target / name)
        sync(target / name)
    sync(target)
    return hashes(target)


def check_unchanged(run: Path, known: Mapping[str, str]) -> None:
    """A clear error if the copy is not what was copied."""
    for name, found in hashes(run).items():
        if found != known.get(name):
            raise ValueError(
                f"{run / name} is not the file that the index was made with; "
                "restore it or make the index again"
            )


def check_same_run(index: object, known: Mapping[str, str], run: Path) -> None:
    """A clear error unless an index was made with this run."""
    if dict(known) != hashes(run):
        raise ValueError(f"{index} was made with another model than {run}: choose another place")
