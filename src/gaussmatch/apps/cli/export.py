"""Models in and out: ``gaussmatch import [SYSTEM] CHECKPOINT --vocab FILE --out DIR``, and
``gaussmatch export``: a model as ONNX, or the Gaussians of an index as Parquet."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.models.official import GAUSSIAN, SYSTEMS, import_checkpoint
from gaussmatch.models.published import export_onnx
from gaussmatch.models.run import read_metrics
from gaussmatch.search import GALLERIES, Index
from gaussmatch.search.tables import write_parquet


def run_import(argv: Sequence[str]) -> None:
    parser = Parser(
        "import",
        "Turn a checkpoint of the official code of VSE++, VSRN, PVSE, PCME or PCME++, a folder "
        "of ProLIP or PCME++ from the hub, or an encoder of both sides by name, into a run "
        "folder. Nothing in the files is executed.",
        notes="Fields of the recipe's data can be given too: --data.root FOLDER is where it lies.",
        examples=[
            "model_best.pth.tar --vocab coco_precomp_vocab.pkl --out runs/vsepp",
            "prolip ProLIP-ViT-B-16-DC-1B-12_8B --out runs/prolip",
            "open_clip:ViT-B-32/openai --out runs/clip",
        ],
        fields=("data",),
    )
    parser.take(
        "system", "the official code (default: detected)", nargs="?", choices=(*SYSTEMS, *GAUSSIAN)
    )
    parser.path("checkpoint", "such as model_best.pth.tar; a folder of the hub; a name")
    parser.path("--vocab", "its vocabulary, .pkl or .json; PCME needs none")
    parser.path("--out", "the run folder", required=True)
    options = parser.parse(argv)
    recipe = import_checkpoint(
        options.checkpoint, options.out, options.vocab, options.system, options.overrides
    )
    about = read_metrics(options.out)["imported"]
    print(f"{options.out}: {recipe.title}, D = {recipe.model.dim}")
    facts = ", ".join(
        f"{name} {value}" for name, value in about["training"].items() if value is not None
    )
    if facts:
        print(f"its training says: {facts}")
    if about["ignored"]:
        reasons = ", ".join(sorted(set(about["ignored"].values())))
        print(f"{len(about['ignored'])} weights ignored: {reasons}")
    root = "" if recipe.data.root else " --data.root FOLDER"
    print(f"next: gaussmatch evaluate {options.out}{root}", file=sys.stderr)


def run_export(argv: Sequence[str]) -> None:
    parser = Parser(
        "export",
        "Write a model, or the items of an index, in a format that other programs read. --onnx: "
        "both encoders with all their weights, any number of pictures or texts, checked against "
        "torch to 1e-5; the folder is a run for 'index', 'search' and 'serve', which then need "
        "onnxruntime. --parquet: id, mean, log_variance, uncertainty, percentile and metadata of "
        "every item; 'index RUN FILE.parquet' reads it.",
        examples=[
            "runs/mine --onnx mine.onnx",
            "photos --onnx photos.onnx",
            "photos.index --parquet photos.parquet",
        ],
        computes=True,
    )
    parser.take("source", "a run folder, photos for the photo model, or an index")
    parser.path("--onnx", "a new folder")
    parser.path("--parquet", "a new file")
    parser.take("--gallery", "for --parquet", "images", choices=GALLERIES)
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
