"""PVSE (Song and Soleymani): ``model_best.pth.tar`` with a ResNet over photos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gaussmatch.models.official import vsepp
from gaussmatch.models.official.translation import (
    OfficialOptions,
    Rule,
    Translation,
    Weights,
    torchvision_rules,
)
from gaussmatch.models.recipe import LossRecipe, ModelRecipe, PVSERecipe, Recipe, TrainingRecipe

# fmt: off
HARMLESS = [
    "data_path", "vocab_path", "logger_name", "log_step", "log_file", "debug", "workers",
    "wemb_type", "img_finetune", "txt_finetune", "val_metric", "batch_size_eval", "weight_decay",
    "ckpt", "eval_on_gpu",
]
# fmt: on


def attention(theirs: str, ours: str) -> list[Rule]:
    """Their self-attention, of PVSE and PCME."""
    return [
        Rule(rf"{theirs}attention\.w_1\.weight", f"{ours}attention.hidden.weight"),
        Rule(rf"{theirs}attention\.w_2\.weight", f"{ours}attention.heads.weight"),
    ]


def pie(theirs: str, ours: str) -> list[Rule]:
    """Their ``PIENet``, of PVSE and PCME."""
    return [
        *attention(theirs, ours),
        Rule(rf"{theirs}fc\.(weight|bias)", rf"{ours}residual.embed.\1"),
        Rule(rf"{theirs}layer_norm\.(weight|bias)", rf"{ours}norm.\1"),
    ]


def encoders(network: str, where: str) -> list[Rule]:
    """Both encoders, as PVSE and PCME have them in common."""
    return [
        *torchvision_rules(network, r"img_enc\.cnn\.", where),
        Rule(r"img_enc\.fc\.(weight|bias)", r"image.embed.\1"),
        *pie(r"img_enc\.pie_net\.", "image.pie."),
        Rule(r"txt_enc\.embed\.weight", "text.words.weight"),
        Rule(r"txt_enc\.rnn\.(\w+)", r"text.embed.rnn.\1"),
        *pie(r"txt_enc\.pie_net\.", "text.pie."),
    ]


def recognises(checkpoint: Mapping[str, Any]) -> bool:
    return "args" in checkpoint and isinstance(checkpoint.get("model"), dict)


def translate(checkpoint: Mapping[str, Any], where: str) -> Translation:
    options = OfficialOptions(checkpoint["args"], where, HARMLESS)
    options.require("max_video_length", 1, "it is a model of videos")
    options.require("order", False, "there is no order embedding")
    options.require("img_attention", True, "PVSE without attention is not implemented")
    options.require("txt_attention", True, "PVSE without attention is not implemented")
    network = options.get("cnn_type", "resnet152")
    weights = Weights()
    weights.take(checkpoint["model"], encoders(network, where), where)
    heads = weights.size("image.pie.attention.heads.weight", 0, where)
    model = ModelRecipe(
        system="pvse",
        dim=options.agree("embed_size", weights.size("image.embed.weight", 0, where)),
        word_dim=options.agree("word_dim", weights.size("text.words.weight", 1, where)),
        similarity="mil",
        backbone=network,
        pvse=PVSERecipe(
            embeddings=options.agree("num_embeds", heads),
            dropout=options.get("dropout", 0.0),
            state="last-token" if options.get("legacy", False) else "final",
        ),
    )
    loss = LossRecipe(
        margin=options.get("margin", 0.1),
        mining="hardest" if options.get("max_violation", False) else "sum",
        reduction="mean",
        same_image_negatives=True,
        diversity=options.get("div_weight", 0.0),
        mmd=options.get("mmd_weight", 0.0),
    )
    training = TrainingRecipe(
        epochs=options.get("num_epochs", 30),
        batch_size=options.get("batch_size", 32),
        learning_rate=options.get("lr", 2e-4),
        clip=options.get("grad_clip", 2.0) or float("inf"),
    )
    name = options.get("data_name", "coco")
    data = replace(vsepp.data(name, where), crop=options.get("crop_size", 224))
    recipe = Recipe(f"PVSE official {name}", data, model, loss, training)
    return Translation(
        recipe, weights, options, None, vsepp.training_notes(checkpoint, "best_score")
    )
