"""``gaussmatch export``: a model as ONNX, or the Gaussians of an index as Parquet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.models.published import export_onnx
from gaussmatch.search import GALLERIES, Index
from gaussmatch.search.tables import write_parquet


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "export",
        "Write a model, or the items of an index, in a format that other programs read. --onnx: "
        "both encoders with all their weights, any number of pictures or texts, checked against "
        "torch to 1e-5; the folder is a run for 'index', 'search' and 'serve', which then need "
        "onnxruntime. --parquet: id, mean, log_variance, uncertainty, percentile and metadata of "
        "every item; 'index RUN FILE.parquet' reads it.",
        examples=[
            "gaussmatch export runs/mine --onnx mine.onnx",
            "gaussmatch export photos --onnx photos.onnx",
            "gaussmatch export photos.index --parquet photos.parquet",
        ],
        computes=True,
    )
    parser.add_argument("source", help="a run folder, photos for the photo model, or an index")
    parser.add_argument("--onnx", type=Path, help="a new folder")
    parser.add_argument("--parquet", type=Path, help="a new file")
    parser.add_argument("--gallery", choices=GALLERIES, default="images", help="for --parquet")
    options = parser.parse(argv)
    if (options.onnx is None) == (options.parquet is None):
        parser.error("give --onnx FOLDER or --parquet FILE")
    if options.parquet is not None:
        if options.parquet.exists():
            raise FileExistsError(f"{options.parquet} already exists; choose another file")
        count = write_parquet(Index.open(options.source), options.parquet, options.gallery)
        print(f"{options.parquet}: {count:,} {options.gallery}")
        return
    for name, most in export_onnx(options.source, options.onnx).items():
        size = (options.onnx / name).stat().st_size
        print(f"{options.onnx / name}: {size / 1e6:.1f} MB, differs from torch by {most:.0e}")
    print(f"next: gaussmatch index {options.onnx} FOLDER --out …", file=sys.stderr)
