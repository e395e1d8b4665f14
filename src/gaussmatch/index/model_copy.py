"""The model inside an index: the files of a run, copied in and known by their hashes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gaussmatch.files import sha256
from gaussmatch.run import model_files


def hashes(run: Path) -> dict[str, str]:
    """File → sha256."""
    return {name: sha256(run / name) for name in model_files(run)}


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
