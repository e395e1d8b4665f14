"""VSE++ (Faghri et al.): ``model_best.pth.tar`` with precomputed features or a whole network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gaussmatch.models.official.translation import (
    OfficialOptions,
    Rule,
    Translation,
    Weights,
    plain,
    torchvision_rules,
)
from gaussmatch.models.recipe import DataRecipe, LossRecipe, ModelRecipe, Recipe, TrainingRecipe

TEXT = [Rule(r"embed\.weight", "text.words.weight"), Rule(r"rnn\.(\w+)", r"text.embed.rnn.\1")]
IMAGE = [Rule(r"fc\.(weight|bias)", r"image.embed.\1")]

# fmt: off
HARMLESS = [
    "data_path", "vocab_path", "logger_name", "log_step", "val_step", "resume", "workers",
    "crop_size", "use_restval", "reset_train", "vocab_size", "finetune",
]
# fmt: on
"""Options that change no result of a trained model."""

PHOTOS = {"coco": "coco", "f30k": "flickr30k", "f8k": "flickr8k"}


def recognises(checkpoint: Mapping[str, Any]) -> bool:
    return has_graph(checkpoint) is False


def has_graph(checkpoint: Mapping[str, Any]) -> bool | None:
    """Whether a checkpoint in the layout of VSE++ holds the graph of VSRN; ``None`` for another
    layout."""
    model = checkpoint.get("model")
    if "opt" not in checkpoint or not isinstance(model, list) or len(model) != 2:
        return None
    return any(str(name).startswith("Rs_GCN") for name in model[0])


def translate(checkpoint: Mapping[str, Any], where: str) -> Translation:
    options = OfficialOptions(checkpoint["opt"], where, HARMLESS)
    name = options.get("data_name", "precomp")
    require_cosine(options)
    image, text = checkpoint["model"]
    weights = Weights()
    weights.take(text, TEXT, where)
    if name.endswith("precomp"):
        unused = Rule(r"cnn\..*", why="the model is used with precomputed features")
        weights.take(image, [*IMAGE, unused], where)
        options.get("cnn_type", "vgg19")
        network = None
        width = options.agree("img_dim", weights.size("image.embed.weight", 1, where))
    else:
        network, width = options.get("cnn_type", "vgg19"), None
        options.get("img_dim", 4096)
        weights.take(image, [*IMAGE, *torchvision_rules(network, r"cnn\.", where)], where)
    model = ModelRecipe(
        system="vse++",
        dim=options.agree("embed_size", weights.size("image.embed.weight", 0, where)),
        word_dim=options.agree("word_dim", weights.size("text.words.weight", 1, where)),
        backbone=network,
        feature_dim=width,
    )
    recipe = Recipe(f"VSE++ official {name}", data(name, where), model, *training(options))
    return Translation(recipe, weights, options, None, training_notes(checkpoint, "best_rsum"))


def require_cosine(options: OfficialOptions) -> None:
    """Refuse options of VSE++ and VSRN that change the model."""
    options.require("measure", "cosine", "there is no order embedding")
    options.require("use_abs", False, "embeddings are not made positive")
    options.require("no_imgnorm", False, "embeddings of images have norm 1")
    options.require("num_layers", 1, "the GRU has one layer")


def training(options: OfficialOptions) -> tuple[LossRecipe, TrainingRecipe]:
    """The loss and the training that VSE++ and VSRN have in common."""
    loss = LossRecipe(
        margin=options.get("margin", 0.2),
        mining="hardest" if options.get("max_violation", False) else "sum",
        same_image_negatives=True,
    )
    return loss, TrainingRecipe(
        epochs=options.get("num_epochs", 30),
        batch_size=options.get("batch_size", 128),
        learning_rate=options.get("learning_rate", 2e-4),
        decay_epoch=options.get("lr_update", 15),
        clip=options.get("grad_clip", 2.0) or float("inf"),
    )


def data(name: str, where: str) -> DataRecipe:
    """Their data set under our name; its folder is the user's to give."""
    if name.endswith("precomp"):
        return DataRecipe(name="precomputed", words="nltk", dev_images=1000)
    if name not in PHOTOS:
        raise ValueError(f"{where}: trained on {name!r}, which is not one of {', '.join(PHOTOS)}")
    return DataRecipe(name=PHOTOS[name], words="nltk", features="pixels")


def training_notes(checkpoint: Mapping[str, Any], score: str) -> dict[str, Any]:
    return {"epoch": plain(checkpoint.get("epoch")), score: plain(checkpoint.get(score))}
