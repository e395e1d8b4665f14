"""``gaussmatch import [SYSTEM] CHECKPOINT --vocab FILE --out DIR [--data.field value]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.models.official import GAUSSIAN, SYSTEMS, import_checkpoint
from gaussmatch.models.run import read_metrics


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "import",
        "Turn a checkpoint of the official code of VSE++, VSRN, PVSE, PCME or PCME++, or a folder "
        "of ProLIP or PCME++ from the hub, into a run folder. Nothing in the files is executed.",
        notes="Fields of the recipe's data can be given too: --data.root FOLDER is where it lies.",
        examples=[
            "gaussmatch import model_best.pth.tar --vocab coco_precomp_vocab.pkl --out runs/vsepp",
            "gaussmatch import pcme model_last.pth --out runs/pcme --data.root COCO",
            "gaussmatch import prolip ProLIP-ViT-B-16-DC-1B-12_8B --out runs/prolip",
        ],
        fields=("data",),
    )
    parser.add_argument(
        "system",
        nargs="?",
        choices=(*SYSTEMS, *GAUSSIAN),
        help="the official code (default: detected)",
    )
    parser.add_argument(
        "checkpoint", type=Path, help="such as model_best.pth.tar; or a folder, or name, of the hub"
    )
    parser.add_argument("--vocab", type=Path, help="its vocabulary, .pkl or .json; PCME needs none")
    parser.add_argument("--out", type=Path, required=True, help="the run folder")
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
