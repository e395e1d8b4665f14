"""PCME (Chun et al.): ``model_best.pth`` with a ResNet over photos and its vocabulary inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gaussmatch.models.official import vsepp
from gaussmatch.models.official.checkpoint import words_of
from gaussmatch.models.official.pvse import attention, encoders
from gaussmatch.models.official.translation import (
    OfficialOptions,
    Rule,
    Translation,
    Weights,
    plain,
)
from gaussmatch.models.recipe import LossRecipe, ModelRecipe, PCMERecipe, Recipe, TrainingRecipe

# fmt: off
HARMLESS = [
    "name", "wemb_type", "cache_dir", "img_finetune", "txt_finetune", "no_sigma_ln", "eval_method",
    "pretrained_resnet_model_path",
]
# fmt: on
"""``no_sigma_ln`` is in their configuration, but no line of their code reads it."""


def _scalar(value: Tensor) -> Tensor:
    return value.squeeze()


SPREAD = [
    *attention(r"img_enc\.uncertain_net\.", "image.spread."),
    Rule(r"img_enc\.uncertain_net\.fc\.(weight|bias)", r"image.spread.attended.\1"),
    Rule(r"img_enc\.uncertain_net\.fc2\.(weight|bias)", r"image.spread.pooled.\1"),
    *attention(r"txt_enc\.uncertain_net\.", "text.spread."),
    Rule(r"txt_enc\.uncertain_net\.fc\.(weight|bias)", r"text.spread.attended.\1"),
    Rule(r"txt_enc\.uncertain_net\.rnn\.(\w+)", r"text.spread.embed.rnn.\1"),
]
CRITERION = [
    Rule("negative_scale", "similarity.scale", change=_scalar),
    Rule("shift", "similarity.shift", change=_scalar),
]


def recognises(checkpoint: Mapping[str, Any]) -> bool:
    return "config" in checkpoint and "word2idx" in checkpoint


def translate(checkpoint: Mapping[str, Any], where: str) -> Translation:
    options = _section(checkpoint, "model", where)
    for name in ("img_attention", "txt_attention", "img_probemb", "txt_probemb"):
        options.require(name, True, "PCME has attention and variances on both sides")
    samples = options.get("n_samples_inference", 0)
    if samples < 1:
        raise ValueError(f"{where}: draws no samples, so it has no match probability")
    network = options.get("cnn_type", "resnet152")
    weights = Weights()
    weights.take(checkpoint.get("model"), [*encoders(network, where), *SPREAD], where)
    weights.take(checkpoint.get("criterion"), CRITERION, where)
    model = ModelRecipe(
        system="pcme",
        dim=options.agree("embed_dim", weights.size("image.embed.weight", 0, where)),
        word_dim=options.agree("word_dim", weights.size("text.words.weight", 1, where)),
        similarity="match_prob",
        backbone=network,
        pcme=PCMERecipe(samples=samples, state="last-token"),
    )
    recipe = Recipe(
        "PCME official", vsepp.data("coco", where), model, *_training(checkpoint, where)
    )
    words = words_of(checkpoint["word2idx"], f"{where}, word2idx")
    metadata = checkpoint.get("metadata")
    notes = metadata if isinstance(metadata, dict) else {}
    return Translation(recipe, weights, options, words, {"epoch": plain(notes.get("cur_epoch"))})


def _section(checkpoint: Mapping[str, Any], name: str, where: str) -> OfficialOptions:
    config = checkpoint["config"]
    held = config.get(name) if isinstance(config, dict) else None
    return OfficialOptions(held, f"{where}, config.{name}", HARMLESS)


def _training(checkpoint: Mapping[str, Any], where: str) -> tuple[LossRecipe, TrainingRecipe]:
    data, optimizer, train, criterion = (
        _section(checkpoint, name, where)
        for name in ("dataloader", "optimizer", "train", "criterion")
    )
    loss = LossRecipe(
        name="soft-contrastive",
        same_image_negatives=True,
        vib_as_published=criterion.get("vib_beta", 0.0),
    )
    return loss, TrainingRecipe(
        epochs=train.get("finetune_epochs", 30),
        batch_size=data.get("batch_size", 128),
        learning_rate=optimizer.get("learning_rate", 2e-4),
        clip=train.get("grad_clip", 2.0) or float("inf"),
    )
