"""Where a figure comes from: recipe, weights, data and versions."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch

from gaussmatch import __version__
from gaussmatch.data.pairs import Pairs
from gaussmatch.files import sha256
from gaussmatch.recipe import Recipe


def provenance(recipe: Recipe, pairs: Pairs, weights: Path | None = None) -> dict[str, Any]:
    """What is needed to know, or to make again, what was measured."""
    known = pairs.relevance
    return {
        "recipe": json.loads(json.dumps(asdict(recipe))),  # as it will be read again
        "weights_sha256": None if weights is None else sha256(weights),
        "data": {
            "name": pairs.name,
            "images": len(pairs.images),
            "captions": len(pairs.captions),
            "true_pairs": None if known is None else len(known.items),
            "images_with_classes": None
            if pairs.classes is None
            else int(pairs.classes.any(1).sum()),
            "regions": None if pairs.regions is None else sum(len(r) for r in pairs.regions),
        },
        "versions": {
            "gaussmatch": __version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }
