"""Recipes: one typed YAML file says everything about a run.

The defaults are the paper's settings (Sec. 4.2). Unknown keys and wrong types are refused, with the
file and the key named; any field can be overridden on the command line as ``--training.epochs 5``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from gaussmatch.encoders.variance import Bound, Shape
from gaussmatch.files import write_text
from gaussmatch.losses import Mining

SimilarityName = Literal[
    "cosine", "kl", "reverse_kl", "min_kl", "wasserstein", "wasserstein_literal", "csd"
]
DataName = Literal[
    "scenes", "precomputed", "folder", "flickr8k", "flickr30k", "coco", "visual-genome"
]


@dataclass(frozen=True)
class DataRecipe:
    """Which data.

    Args:
        name: the data set; ``gaussmatch data where`` tells which files each needs.
        root: its folder; scenes needs none.
        size: how much of scenes: tiny (a look), small, or full.
        seed: which scenes are drawn.
        features: what an image is to the encoder: one pooled vector, 36 region vectors, or pixels
            (scenes only).
        extracted: the features of photos: a folder made by ``gaussmatch extract``, or a .npy file
            with ``{stem}_files.txt`` beside it; a path, or a name inside root. None extracts them
            once, into the cache.
        backbone: the network of timm that extracts them.
        weights: a local file of its weights; none downloads timm's own.
        cxc: with coco: the folder of sits_*.csv, whose judgements become true pairs.
        coco: with visual-genome: the folder of COCO, whose training images are left out.
        dev_images: validate on the first so many images of dev; none for all.
        min_count: a word must occur this often in the training captions to have a vector.
        words: how captions are cut into words: plain, or nltk as in the published vocabularies.
    """

    name: DataName = "scenes"
    root: str | None = None
    size: Literal["tiny", "small", "full"] = "full"
    seed: int = 0
    features: Literal["pooled", "regions", "pixels"] = "pooled"
    extracted: str | None = None
    backbone: str = "resnet50"
    weights: str | None = None
    cxc: str | None = None
    coco: str | None = None
    dev_images: int | None = None
    min_count: int = 4
    words: Literal["plain", "nltk"] = "plain"

    def __post_init__(self) -> None:
        if self.dev_images is not None:
            _positive("data", self, "dev_images")


@dataclass(frozen=True)
class ModelRecipe:
    """Which model.

    Args:
        system: vse++.
        dim: D, the dimension of the joint space.
        word_dim: width of the word vectors.
        normalise: L2-norm of the means.
        probabilistic: a Gaussian for each item instead of a point.
        shape: of the Gaussians.
        bound: how variances are kept in [0.1, 10].
        similarity: between an image and a caption.
        backbone: train this network end to end on pixels (scenenet); none for given features.
        feature_dim: width of the image features; found from the data when none.
    """

    system: Literal["vse++"] = "vse++"
    dim: int = 1024
    word_dim: int = 300
    normalise: bool = True
    probabilistic: bool = False
    shape: Shape = "ellipsoidal"
    bound: Bound = "clamp"
    similarity: SimilarityName = "cosine"
    backbone: str | None = None
    feature_dim: int | None = None

    def __post_init__(self) -> None:
        if self.probabilistic == (self.similarity == "cosine"):
            raise ValueError(
                f"model.probabilistic is {str(self.probabilistic).lower()} but model.similarity is "
                f"{self.similarity!r}: a point model takes cosine, a probabilistic one any other"
            )
        _positive("model", self, "dim", "word_dim")


@dataclass(frozen=True)
class LossRecipe:
    """Which loss.

    Args:
        margin: α of the hinge.
        mining: which negatives count.
        warmup_epochs: epochs with all negatives (sum) first; one of them prevents the collapse.
        same_image_negatives: count other captions of an image as its negatives (official VSE++).
    """

    margin: float = 0.2
    mining: Mining = "hardest"
    warmup_epochs: int = 0
    same_image_negatives: bool = False


@dataclass(frozen=True)
class TrainingRecipe:
    """How it is trained.

    Args:
        epochs: passes over the training captions.
        batch_size: pairs in a step.
        learning_rate: of Adam.
        decay_epoch: after this many epochs the rate is multiplied by decay.
        decay: the factor.
        clip: largest gradient norm.
        seed: of the weights and of the order of the data.
        workers: processes that read images; 0 reads in the training process.
        device: cpu, cuda, mps, or auto for the best there is.
        bucket: put captions of like length in a batch. Faster with long captions, but the
            negatives are then of like length too, so it is off unless asked for.
    """

    epochs: int = 30
    batch_size: int = 128
    learning_rate: float = 2e-4
    decay_epoch: int = 15
    decay: float = 0.1
    clip: float = 2.0
    seed: int = 0
    workers: int = 0
    device: str = "auto"
    bucket: bool = False

    def __post_init__(self) -> None:
        _positive("training", self, "epochs", "learning_rate", "decay_epoch", "decay", "clip")
        if self.batch_size < 2:
            raise ValueError(f"training.batch_size must be at least 2, got {self.batch_size}")


@dataclass(frozen=True)
class Recipe:
    """Everything about a run. ``title`` names its row in a table."""

    title: str = ""
    data: DataRecipe = field(default_factory=DataRecipe)
    model: ModelRecipe = field(default_factory=ModelRecipe)
    loss: LossRecipe = field(default_factory=LossRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)

    def save(self, path: str | os.PathLike[str]) -> None:
        write_text(path, yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True))


def load_recipe(recipe: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by path, or by name (``scenes/vsepp-kl``), and apply command-line overrides.

    >>> load_recipe("scenes/vsepp-kl", ["--training.epochs", "3"]).training.epochs
    3
    """
    path = find_recipe(recipe)
    _check_keys(path)
    parser = recipe_parser()
    try:
        made = parser.instantiate(parser.parse_args(["--config", str(path), *overrides]))
    except (ArgumentError, ValueError) as error:
        raise ValueError(f"recipe {path}: {' '.join(str(error).split())}") from error
    return Recipe(made.title, made.data, made.model, made.loss, made.training)


def find_recipe(recipe: str | os.PathLike[str]) -> Path:
    """The file of a recipe given by path or by name."""
    given = Path(recipe)
    named = recipe_folder() / f"{recipe}.yaml"
    for path in (given, named):
        if path.is_file():
            return path
    known = sorted(p.relative_to(recipe_folder()).as_posix()[:-5] for p in all_recipes())
    raise ValueError(f"no recipe {recipe}: neither a file nor one of {', '.join(known)}")


def recipe_folder() -> Path:
    """``recipes/``: inside the installed package, or beside ``src`` in a checkout."""
    installed = Path(str(resources.files("gaussmatch"))) / "recipes"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "recipes"


def all_recipes() -> list[Path]:
    return sorted(recipe_folder().rglob("*.yaml"))


def recipe_parser() -> ArgumentParser:
    """The parser of all recipe fields, for YAML and the command line alike."""
    parser = ArgumentParser(
        usage="any field of the recipe:", add_help=False, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action="config", help="a YAML file with these fields")
    parser.add_class_arguments(Recipe, nested_key=None)
    return parser


def _check_keys(path: Path) -> None:
    """Refuse a misspelt key with the nearest right one; the parser then checks the types."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(
            f"recipe {path}: not valid YAML ({' '.join(str(error).split())})"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(
            f"recipe {path}: must be a mapping with title, data, model, loss, training"
        )
    known = _keys(asdict(Recipe()))
    for key in _keys(content):
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise ValueError(f"recipe {path}: unknown key {key!r}; {hint}")
    for section in ("data", "model", "loss", "training"):
        if not isinstance(content.get(section, {}), dict):
            raise ValueError(f"recipe {path}: {section!r} must hold fields, such as {{…: …}}")


def _keys(mapping: dict[str, Any], prefix: str = "") -> set[str]:
    """All keys of a nested mapping, dotted."""
    keys = set()
    for key, value in mapping.items():
        keys.add(f"{prefix}{key}")
        if isinstance(value, dict):
            keys |= _keys(value, f"{prefix}{key}.")
    return keys


def _positive(section: str, recipe: object, *names: str) -> None:
    for name in names:
        if getattr(recipe, name) <= 0:
            raise ValueError(f"{section}.{name} must be positive, got {getattr(recipe, name)}")
