"""The folder of a reproduction: of one setting only, and which experiments were made in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from gaussmatch.experiments.paper import NAMES
from gaussmatch.experiments.reproduce import Setting
from gaussmatch.files import read_json, write_json

_FILE = "setting.json"


def claim_folder(out: Path, setting: Setting, names: Iterable[str]) -> None:
    """Note the setting of each experiment; another data set or other fields are refused."""
    for name, before in made_before(out).items():
        if replace(before, seeds=None) != replace(setting, seeds=None):
            raise ValueError(
                f"{out / name}: was made with another setting ({before}); choose another --out"
            )
    for name in names:
        write_json(out / name / _FILE, asdict(setting))


def made_before(out: Path) -> dict[str, Setting]:
    """The experiments of a folder, in the order of the paper, with their settings."""
    found = {}
    for name in NAMES:
        path = out / name / _FILE
        if path.exists():
            told = read_json(path)
            found[name] = Setting(**{**told, "overrides": tuple(told["overrides"])})
    return found
