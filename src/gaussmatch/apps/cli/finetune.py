"""``gaussmatch finetune DATA … --out FOLDER``: the photo model's image network, trained along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.data import coco, recognize
from gaussmatch.data.listing import Listing
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.learn.finetune import FineTuning, fine_tune

ABOUT = {
    "stages": "how many of the network's seven stages learn, the last ones",
    "epochs": "passes over the training photos",
    "batch": "photos per step",
    "seed": "of the order and the heads",
    "rate": "highest learning rate of the network",
    "head_rate": "highest learning rate of the heads",
    "temperature": "of InfoNCE",
    "boxes": "weight of object classes and their counts; 0 leaves boxes out",
    "window": "shortest side of the window of a photo that a batch sees, as a share",
    "text_encoder": "whose sentence embeddings the captions are",
    "start": "the folder of an earlier fine-tuning to begin with",
}


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "finetune",
        "Fine-tune the last stages of EfficientNet-Lite2 on photos with captions. The first stages "
        "run once per photo; their output is kept in the folder. Resumes if interrupted.",
        notes="Validation is on the first data set. Next, 'gaussmatch extract' with the new "
        "weights and 'gaussmatch train photos/photos' on those features.",
        examples=[
            "gaussmatch finetune coco flickr8k --out runs/one",
            "gaussmatch finetune coco flickr8k --stages 2 --epochs 2 --rate 5e-4 --start runs/one "
            "--out runs/two",
        ],
        computes=True,
    )
    parser.add_argument("data", type=Path, nargs="+", help="folders of photos with captions")
    parser.add_argument("--out", type=Path, required=True, help="the output folder")
    for field in fields(FineTuning):
        default = field.default
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(default),
            default=default,
            help=ABOUT[field.name] + (f" ({default})" if default != "" else ""),
        )
    options = parser.parse(argv)
    how = FineTuning(**{field.name: getattr(options, field.name) for field in fields(FineTuning)})
    weights = fine_tune([_listing(path) for path in options.data], options.out, how)
    encoder = f"timm:tf_efficientnet_lite2+whole@{weights}"
    print(f"{weights}: next, gaussmatch extract {options.data[0]} --backbone {encoder} --out …")


def _listing(folder: Path) -> Listing:
    source = recognize(folder)
    if source is coco.SOURCE:
        return coco.read(folder, boxes=True)
    return source.listing(DataRecipe(name=source.name), folder)
