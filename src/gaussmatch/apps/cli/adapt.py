"""``gaussmatch adapt``: embeddings, or encoders by name, become a probabilistic model."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote

from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity
from gaussmatch.data import DataSet
from gaussmatch.data.pairs import image_batches
from gaussmatch.learn.evaluation.retrieval import recalls
from gaussmatch.learn.evaluation.tables import measures_table
from gaussmatch.learn.training.loop import train
from gaussmatch.models.encoders.posthoc import METHODS, OURS
from gaussmatch.models.features import load_data
from gaussmatch.models.features.texts import prepared_texts
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import load_recipe
from gaussmatch.models.run import claim_place, read_metrics
from gaussmatch.search.trust.gauges import verdict_line
from gaussmatch.search.trust.learn import kept_calibration


def run(argv: Sequence[str]) -> None:
    options = _options(argv)
    claim_place(options.out)
    fields = {**_fields(options), **options.overrides}
    own = {n: v for n, v in fields.items() if not n.startswith("model.posthoc.")}
    data = load_data(load_recipe("adapter/improve", own).data)
    one_space = options.text_encoder is not None and options.text_encoder == options.image_encoder
    if data.train.texts is not None:
        one_space = data.train.images[0].shape == data.train.texts[0].shape
    ranking = options.ranking or ("keep" if one_space else "improve")
    _check_method(options, data, ranking, one_space)
    fitted = options.method not in (None, OURS)
    recipe = load_recipe(f"adapter/{'posthoc' if fitted else ranking}", fields)
    if recipe.model.ranks_by_mean:
        width = int(data.train.images[0].shape[-1])
        recipe = replace(recipe, model=replace(recipe.model, dim=width))
    changed = options.accept_changed_data
    model = train(
        recipe, options.out, resume=options.resume, data=data, accept_changed_data=changed
    )
    reached = read_metrics(options.out)["dev"]
    kept = _kept(model, data)
    rows = [(recipe.title, dict(reached))] if ranking == "improve" else []
    if kept is not None:
        rows.insert(0, ("the given embeddings", kept))
    print(f"{options.out}: validation")
    print(measures_table(rows))
    if ranking == "improve" and kept is not None and kept["rsum"] > reached["rsum"]:
        raise ValueError(
            f"improve reaches an rsum of {reached['rsum']:.1f} on validation, the given "
            f"embeddings {kept['rsum']:.1f}: use --ranking keep, with another --out"
        )
    if recipe.training.calibrate:
        for name, passed in kept_calibration(options.out).gauges.items():
            print(verdict_line(name, passed))
    then = "my-photos" if options.images is None else quote(options.images)
    print(f"next: gaussmatch index {quote(str(options.out))} {then} --out …", file=sys.stderr)


def _fields(options: Namespace) -> dict[str, str]:
    """The options as fields of the recipe."""
    given = {
        "data.name": options.data,
        "data.backbone": None if options.data is None else options.image_encoder,
        "data.images": options.images,
        "data.texts": options.texts,
        "data.pairs": options.pairs,
        "model.adapter.text_encoder": options.text_encoder or "arrays",
        "model.adapter.image_encoder": options.image_encoder,
        "model.posthoc.method": options.method,
    }
    return {name: value for name, value in given.items() if value is not None}


def _options(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "adapt",
        "Learn how sure the embeddings of published encoders are. Embeddings are files, or made "
        "once of a data set by encoders named here.",
        notes="Any field of the recipe can be given too. 'keep' leaves the order of results by "
        "the mean as it is, bit for bit, and learns variances alone; 'improve' learns means as "
        "well, and is the default where images and texts are not of one space.",
        examples=[
            "gaussmatch adapt --images img.npy --texts txt.parquet --pairs pairs.csv --out runs/me",
            "gaussmatch adapt --image-encoder open_clip:ViT-B-32/openai --text-encoder same "
            "--data coco --data.root COCO --out runs/clip",
            "gaussmatch adapt --method bayesvlm --images img.npy --texts txt.npy --pairs pairs.csv "
            "--out runs/laplace",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.add_argument("--images", help="a file of image embeddings (.npy, .parquet, …)")
    parser.add_argument("--texts", help="a file of text embeddings")
    parser.add_argument("--pairs", help="CSV: image, text (ids), optionally split")
    parser.add_argument("--data", help="a data set of photos and captions, with --data.root")
    parser.add_argument("--image-encoder", help="such as open_clip:ViT-B-32/openai, hf:REPO")
    parser.add_argument("--text-encoder", help="such as st:all-MiniLM-L6-v2; same as the image's")
    parser.add_argument("--ranking", choices=("keep", "improve"), help="see below")
    parser.add_argument(
        "--method",
        choices=(OURS, *METHODS),
        help="how the uncertainty is found where the ranking is kept (default: ours)",
    )
    parser.add_argument("--out", type=Path, required=True, help="the run folder")
    parser.add_argument("--resume", action="store_true", help="continue after the last whole epoch")
    parser.add_argument(
        "--accept-changed-data", action="store_true", help="resume although the data have changed"
    )
    options = parser.parse(argv)
    if (options.data is None) == (None in (options.images, options.texts, options.pairs)):
        parser.error("give --images, --texts and --pairs, or --data and both encoders")
    if options.text_encoder == "same":
        options.text_encoder = options.image_encoder
    if options.data is not None and None in (options.image_encoder, options.text_encoder):
        parser.error("--data needs --image-encoder and --text-encoder")
    return options


def _check_method(options: Namespace, data: DataSet, ranking: str, one_space: bool) -> None:
    """Refuse a method for embeddings that it cannot keep the ranking of."""
    if options.method is None or (ranking == "keep" and one_space):
        return
    if ranking == "improve" and options.ranking is not None:
        raise ValueError("--method keeps the ranking: leave --ranking improve out")
    if data.train.texts is not None:
        found = data.train.images[0].shape[-1], data.train.texts[0].shape[-1]
        given = f"{options.images} has {found[0]} dimensions, {options.texts} {found[1]}"
    else:
        given = f"{options.image_encoder} and {options.text_encoder} are two encoders"
    raise ValueError(
        f"--method {options.method} needs images and texts of one space, but {given}: give "
        "embeddings of one encoder, or leave --method out to learn a common space"
    )


def _kept(model: Model, data: DataSet) -> dict[str, float] | None:
    """Validation measures of the given embeddings by cosine, where both are of one space."""
    text = model.matcher.text_encoder
    rows = prepared_texts(data.dev, text)
    images = Gaussian.cat([Gaussian(batch) for batch in image_batches(data.dev, 256)])
    if images.dim != len(rows[0]):
        return None
    captions = Gaussian(text.collate([rows[i] for i in range(len(rows))]))
    return recalls(similarity("cosine"), images, captions, data.dev)
