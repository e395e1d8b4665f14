"""Lets torchvision be imported beside a torch of another build, for which it lacks its operators.

Its wheel from PyPI beside a CPU build of torch fails at import (``operator torchvision::nms does
not exist``), and timm with it. The two schemas that it registers Python code for are declared
here first; where torchvision is healthy nothing is done. gaussmatch calls neither operator.
"""

from __future__ import annotations

import importlib.metadata
import sys

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []  # a library lives as long as it is referred to


def make_importable() -> None:
    """Call before the first import of timm or torchvision."""
    if "torchvision" in sys.modules or _kept:
        return
    try:
        importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [n for n in sys.modules if n.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(operator + _SCHEMA)
        _kept.append(library)
