"""``gaussmatch export``: a model as ONNX, or the Gaussians of an index as Parquet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.cli.parser import Parser
from gaussmatch.published import export_onnx


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "export",
        "Write a model in a format that others read. --onnx: both encoders with all their weights, "
        "any number of pictures or texts, checked against torch to 1e-5. The folder is a run for "
        "'index', 'search' and 'serve', which then need onnxruntime.",
        examples=[
            "gaussmatch export runs/mine --onnx mine.onnx",
            "gaussmatch export photos --onnx photos.onnx",
        ],
        computes=True,
    )
    parser.add_argument("run", type=Path, help="the run folder; photos is the photo model")
    parser.add_argument("--onnx", type=Path, required=True, help="a new folder")
    options = parser.parse(argv)
    for name, most in export_onnx(options.run, options.onnx).items():
        size = (options.onnx / name).stat().st_size
        print(f"{options.onnx / name}: {size / 1e6:.1f} MB, differs from torch by {most:.0e}")
    print(f"next: gaussmatch index {options.onnx} FOLDER --out …", file=sys.stderr)
