"""``gaussmatch train RECIPE --out DIR [--resume] [--any.field value]``, ``gaussmatch adapt … --out
DIR``, ``gaussmatch evaluate RUN`` and ``gaussmatch finetune DATA … --out FOLDER``."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import SIMILARITIES, similarity
from gaussmatch.data import DataSet, coco, recognize
from gaussmatch.data.embeddings import names_splits
from gaussmatch.data.listing import Listing
from gaussmatch.data.pairs import SPLITS, image_batches
from gaussmatch.data.queries import read_corpus
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.files import claim_folder, write_json, write_text
from gaussmatch.learn.evaluation.evaluate import Evaluation, against, file_stem, measure_run
from gaussmatch.learn.evaluation.retrieval import recalls
from gaussmatch.learn.evaluation.tables import comparison, measures_table, plain_table, rows
from gaussmatch.learn.finetune import FineTuning, fine_tune
from gaussmatch.learn.plot import deciles, svg
from gaussmatch.learn.training.gather import is_main
from gaussmatch.learn.training.loop import train
from gaussmatch.learn.training.posthoc import adapt_to_captions
from gaussmatch.learn.training.start import NOTHING_TO_ADAPT
from gaussmatch.models import run as runs
from gaussmatch.models.encoders.posthoc import METHODS, OURS
from gaussmatch.models.features import load_data, prepared_texts
from gaussmatch.models.model import Model
from gaussmatch.models.official import import_checkpoint
from gaussmatch.models.recipe import load_recipe, recipe_parser
from gaussmatch.search.trust.gauges import verdict_lines
from gaussmatch.search.trust.learn import (
    calibrate_captions,
    fits_table,
    kept_calibration,
    measure_kept,
)


def run_train(argv: Sequence[str]) -> None:
    parser = Parser(
        "train",
        "Train a recipe into a run folder.",
        notes="Any field of the recipe can be given too; --help-fields lists them all.",
        examples=[
            "scenes/vsepp-kl --out runs/mine --training.epochs 20",
            "scenes/vsepp-kl --out runs/mine --training.epochs 20 --resume",
            "folder/vsepp-kl --data.root my-photos",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.take("recipe", "a YAML file, or a name such as scenes/vsepp-kl", nargs="?")
    parser.path("--out", "the run folder (default: runs/RECIPE)")
    parser.flag("--resume", "continue after the last checkpoint")
    parser.flag(
        "--accept-changed-data", "resume although images, features or captions have changed"
    )
    parser.flag("--help-fields", "list the recipe's fields")
    options = parser.parse(argv)
    if options.help_fields:
        print(recipe_parser().format_help())
        return
    if options.recipe is None:
        parser.error("a recipe is needed")
    recipe = load_recipe(options.recipe, options.overrides)
    out = options.out or Path("runs") / Path(options.recipe).with_suffix("").name
    try:
        changed = options.accept_changed_data
        model = train(recipe, out, resume=options.resume, accept_changed_data=changed)
    except KeyboardInterrupt:
        print("\nto resume, run the same command with --resume", file=sys.stderr)
        raise
    if not is_main():
        return
    print(f"{out}: best epoch on validation, {out / runs.METRICS}")
    print(measures_table([(model.recipe.title or out.name, runs.read_metrics(out)["dev"])]))
    if recipe.training.calibrate:
        _show_verdict(out)
    print(f"next: gaussmatch evaluate {out}", file=sys.stderr)


def _show_verdict(out: Path) -> None:
    """The verdict that the run keeps; made now if there is none."""
    kept_calibration(out)
    print(*verdict_lines(runs.read_listed(out, runs.PROBE)), sep="\n")


def run_adapt(argv: Sequence[str]) -> None:
    options = _options(argv)
    runs.claim_place(options.out)
    if options.captions is not None:
        _from_captions(options)
        return
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
    reached = runs.read_metrics(options.out)["dev"]
    kept = _kept(model, data)
    rows = [(recipe.title, dict(reached))] if ranking == "improve" else []
    if kept is not None:
        title = "the given embeddings" + (", ranking kept" if ranking == "keep" else "")
        rows.insert(0, (title, kept))
    print(f"{options.out}: validation")
    print(measures_table(rows))
    print(_sizes(data, options.pairs))
    if ranking == "improve" and kept is not None and kept["rsum"] > reached["rsum"]:
        raise ValueError(
            f"improve reaches an rsum of {reached['rsum']:.1f} on validation, the given "
            f"embeddings {kept['rsum']:.1f}: use --ranking keep, with another --out"
        )
    _show_verdict(options.out)
    then = "my-photos" if options.images is None else quote(options.images)
    print(f"next: gaussmatch index {quote(str(options.out))} {then} --out …", file=sys.stderr)


def _from_captions(options: Namespace) -> None:
    """How vague and how familiar texts are, without a photo; a tenth of the photos' captions is
    held out to judge it."""
    if runs.is_run(options.out):
        raise FileExistsError(f"{options.out} already holds a run; choose another with --out")
    captions, image_of = read_corpus(options.captions)
    with TemporaryDirectory() as folder:
        base = import_checkpoint(Path(options.encoder), Path(folder) / "run")
    if base.model.has_variance:
        raise ValueError(NOTHING_TO_ADAPT.format(options.encoder))
    fields = {"model.posthoc.method": "captions", **options.overrides}
    sides = [image_of % 10 != 0, image_of % 10 == 0]
    train, held_out = ([captions[i] for i in side.nonzero()[0]] for side in sides)
    recipe = load_recipe("adapter/posthoc", fields)
    adapt_to_captions(base, train, image_of[sides[0]], recipe, options.out)
    found = calibrate_captions(options.out, train, held_out, options.captions.name)
    shares = {n: v for n, v in found["edits"].items() if isinstance(v, float)}
    said = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
    print(f"{options.out}: learned from {len(train):,} captions; edits of {len(held_out):,} others "
          f"whose vagueness is right: {said}")  # fmt: skip
    print(*verdict_lines(found), sep="\n")
    print(f"next: gaussmatch index {quote(str(options.out))} my-photos --out …", file=sys.stderr)


def _sizes(data: DataSet, pairs: str | None) -> str:
    """How the pairs were divided."""
    how = ""
    if pairs is not None:
        how = ", by its column split" if names_splits(Path(pairs)) else ", 80/10/10 by image id"
    uses = {"to train": data.train, "to validate": data.dev, "to test": data.test}
    sizes = [f"{len(p.images):,} with {len(p.captions):,} {use}" for use, p in uses.items()]
    return f"{data.name}, images with texts{how}: {', '.join(sizes)}"


def _fields(options: Namespace) -> dict[str, str]:
    """The options as fields of the recipe. Files get their full path: the run is used from other
    folders too."""
    files = {name: getattr(options, name) for name in ("images", "texts", "pairs")}
    given = {
        "data.name": options.data,
        "data.backbone": None if options.data is None else options.image_encoder,
        **{
            f"data.{n}": path and str(Path(path).expanduser().absolute())
            for n, path in files.items()
        },
        "model.adapter.text_encoder": options.text_encoder or "arrays",
        "model.adapter.image_encoder": options.image_encoder,
        "model.posthoc.method": options.method,
    }
    return {name: value for name, value in given.items() if value is not None}


def _options(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "adapt",
        "Learn how sure each embedding of a published encoder is. Give the embeddings as files, or "
        "name the encoders and a data set to embed.",
        notes="--ranking keep ranks by your embeddings, bit for bit, and learns only variances. "
        "improve learns new means as well; it is the default if images and texts do not share a "
        "space. It ends with the verdict of a probe on validation: do the variances mean anything? "
        "Any field of the recipe can be given too.",
        examples=[
            "--images img.npy --texts txt.parquet --pairs pairs.csv --out runs/me",
            "--encoder open_clip:ViT-B-32/openai --data coco --data.root COCO --method bayesvlm "
            "--out runs/laplace",
            "--encoder open_clip:ViT-B-32/openai --captions captions.json --out c",
        ],
        fields=SECTIONS,
        computes=True,
    )
    parser.take("--images", "a file of image embeddings (.npy, .parquet, …)")
    parser.take("--texts", "a file of text embeddings")
    parser.take("--pairs", "CSV: image, text (ids), optionally split")
    parser.take("--data", "a data set of photos and captions, with --data.root")
    parser.path(
        "--captions",
        "captions without photos, with --encoder: learn from them alone how many photos a text "
        "fits (.json of COCO, .csv with image and caption, or lines)",
        metavar="FILE",
    )
    parser.take("--encoder", "the encoder of both sides, instead of the next two options")
    parser.take("--image-encoder", "such as open_clip:ViT-B-32/openai, hf:REPO")
    parser.take("--text-encoder", "such as st:all-MiniLM-L6-v2, or 'same' as that of images")
    parser.take(
        "--ranking",
        "by the given embeddings, or by new means; see below",
        choices=("keep", "improve"),
    )
    parser.take(
        "--method",
        "how to find the uncertainty if the ranking is kept (default: ours)",
        choices=(OURS, *METHODS),
    )
    parser.path("--out", "the run folder", required=True)
    parser.flag("--resume", "continue after the last whole epoch")
    parser.flag("--accept-changed-data", "resume although the data have changed")
    options = parser.parse(argv)
    if options.captions is not None:
        given = [options.images, options.texts, options.pairs, options.data, options.method]
        if options.encoder is None or any(given):
            parser.error("--captions needs --encoder, and no embeddings, data or method")
        return options
    if options.encoder is not None:
        options.image_encoder = options.text_encoder = options.encoder
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
        raise ValueError("--method keeps the ranking: leave out --ranking improve")
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


def run_evaluate(argv: Sequence[str]) -> None:
    parser = Parser(
        "evaluate",
        "Measure runs on a split: everything that the data allows, with 95 % intervals by "
        "bootstrap over queries. Writes JSON, Markdown and LaTeX into each run.",
        notes="Fields of the recipe's data can be given too: --data.seed 1 is another data set.",
        examples=[
            "runs/mine --against runs/demo/point",
            "runs/mine --split dev --similarity cosine --data.seed 1",
            "photos --data.name flickr8k --data.root FLICKR8K --out figures",
        ],
        fields=("data",),
        computes=True,
    )
    parser.take("runs", "run folders, or photos", nargs="+", type=runs.locate)
    parser.take("--split", "the split to measure", "test", choices=SPLITS)
    parser.take("--against", "a run to test the others against", type=runs.locate)
    parser.take(
        "--similarity",
        "rank by this instead of the model's own; cosine compares the means only",
        choices=list(SIMILARITIES),
    )
    parser.path(
        "--fitting",
        "captions with the photos that people say they fit (JSON lines), to judge P(fits)",
        metavar="FILE",
    )
    parser.path("--out", "write into FOLDER/RUN instead of into the run", metavar="FOLDER")
    options = parser.parse(argv)
    overrides = options.overrides
    stem = file_stem(options.split, overrides, options.similarity)
    table, found = [], {}
    folders = list(dict.fromkeys([*options.runs, *filter(None, [options.against])]))
    if options.out is not None and len({f.name for f in folders}) < len(folders):
        parser.error("two runs have the same name, so one --out cannot hold both")
    for folder in folders:
        if _target(options, folder).resolve() != folder.resolve():
            claim_folder(_target(options, folder))
    for folder in folders:
        name = runs.load(folder).recipe.title or folder.name
        data = load_data(runs.read_recipe(folder, overrides).data)
        out = _target(options, folder)
        if out.resolve() != folder.resolve():
            claim_folder(out, names=_names(stem))
        measured = measure_run(folder, options.split, data, overrides, options.similarity, out=out)
        found[folder] = (data, measured)
        _show(name, out, stem, measured)
        _show_fits(folder, out, stem, options, data)
        table.append((name, measured.measures))
    print(measures_table(table))
    if options.against is not None:
        _compare(options, _against(stem), found)


def _names(stem: str) -> list[str]:
    """All files that an evaluation may write."""
    own = [f"{stem}.{ending}" for ending in ("json", "md", "tex", "svg")]
    return [*own, f"{_against(stem)}.json"]


def _against(stem: str) -> str:
    return stem.replace("evaluation", "against", 1)


def _show_fits(folder: Path, out: Path, stem: str, options: Namespace, data: DataSet) -> None:
    """What the calibration that the run has says of this data, which it has not seen."""
    if runs.read_listed(folder, runs.CALIBRATION) is None:
        return
    rows = measure_kept(folder, data, options.split, options.fitting)
    print("\nWhat the run's calibration says after a search, against what is true:\n")
    print(plain_table(fits_table(rows)))
    if not runs.is_shipped(out):
        write_json(out / f"{stem.replace('evaluation', 'fits', 1)}.json", {"fits": rows})


def _target(options: Namespace, folder: Path) -> Path:
    """Where the figures of a run are written."""
    return folder if options.out is None else options.out / folder.name


def _show(name: str, folder: Path, stem: str, measured: Evaluation) -> None:
    measures = measured.measures
    about = f"{measures['images']} images, {measures['captions']} captions"
    print(f"{name} on {measures['data']}: {about}\n")
    print(plain_table([("measure", "images", "captions"), *rows(measures)]))
    for note in measures.get("notes", []):
        print(f"note: {note}")
    if runs.is_shipped(folder):
        print("\nnothing is written into the package; --out FOLDER keeps these figures\n")
        return
    written = [f"{stem}.{ending}" for ending in ("json", "md", "tex")]
    try:
        if "t2i_deciles" in measures:
            write_text(folder / f"{stem}.svg", svg(deciles(measures)))
            written.append(f"{stem}.svg")
    except ImportError as error:
        print(f"no plots: {error}")
    print(f"\nwritten in {folder}: {', '.join(written)}\n")


def _compare(
    options: Namespace, stem: str, found: Mapping[Path, tuple[DataSet, Evaluation]]
) -> None:
    data, theirs = found[options.against]
    for folder in options.runs:
        if folder == options.against:
            continue
        ours_data, ours = found[folder]
        same = ours_data.split(options.split), data.split(options.split)
        result = against(ours, theirs, same)
        print(f"\n{folder} (ours) against {options.against} (theirs), paired over queries:")
        print(plain_table(comparison(result)))
        out = _target(options, folder)
        if runs.is_shipped(out):
            continue
        path = out / f"{stem}.json"
        write_json(path, {"ours": str(folder), "theirs": str(options.against), "measures": result})
        print(f"written: {path}")


# ---- the photo model's encoders ----

ABOUT = {
    "stages": "how many of the image network's seven stages learn, the last ones",
    "text_layers": "how many layers of the text encoder learn, the last ones",
    "epochs": "passes over the training photos",
    "batch": "photos per step",
    "seed": "seed of the order and the heads",
    "rate": "highest learning rate of the network",
    "text_rate": "highest learning rate of the text layers",
    "head_rate": "highest learning rate of the heads",
    "keep": "how strongly the text layers are held near the published embeddings",
    "mirror": "show half of the photos mirrored",
    "temperature": "temperature of InfoNCE",
    "boxes": "weight of object classes and their counts; 0 leaves boxes out",
    "window": "shortest side of the window of a photo that a batch sees, as a share",
    "text_encoder": "the sentence encoder of the captions",
    "start": "the folder of an earlier fine-tuning, or of a model, to begin with",
}


def run_finetune(argv: Sequence[str]) -> None:
    parser = Parser(
        "finetune",
        "Fine-tune the last stages of EfficientNet-Lite2, and the last layers of the text encoder, "
        "on photos with captions. The first stages run once per photo; their output is kept in the "
        "folder. Resumes if interrupted.",
        notes="Validation is on the first data set. Next, 'gaussmatch extract' with the new "
        "weights and 'gaussmatch train photos/photos' on those features.",
        examples=[
            "coco flickr8k --out runs/one",
            "coco flickr8k --stages 2 --epochs 2 --rate 5e-4 --start runs/one --out runs/two",
        ],
        computes=True,
    )
    parser.path("data", "folders of photos with captions", nargs="+")
    parser.path("--out", "the output folder", required=True)
    for field in fields(FineTuning):
        name, default = f"--{field.name.replace('_', '-')}", field.default
        if default is False:
            parser.flag(name, ABOUT[field.name])
        else:
            shown = f" ({default})" if default != "" else ""
            parser.take(name, ABOUT[field.name] + shown, default)
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
