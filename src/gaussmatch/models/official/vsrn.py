"""VSRN (Li et al.): ``model_best.pth.tar`` over 36 region features an image.

Their checkpoints hold the two encoders; the caption generator, which only training needs, is not
saved. Their published figures are of two models whose scores are averaged; each is imported alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from gaussmatch.models.official import vsepp
from gaussmatch.models.official.translation import OfficialOptions, Rule, Translation, Weights
from gaussmatch.models.recipe import GeneratorRecipe, ModelRecipe, Recipe, VSRNRecipe

BLOCKS = 4
FLICKR = "f30k_precomp"
HARMLESS = [
    *vsepp.HARMLESS,
    *["cnn_type", "dim_vid", "dim_hidden", "bidirectional", "input_dropout_p"],
    *["rnn_type", "rnn_dropout_p", "dim_word", "max_len"],
]
"""The caption generator's widths are among them: it is not in the checkpoint."""


def _dot(weight: Tensor) -> Tensor:
    """A convolution of width 1 is a linear layer."""
    return weight.squeeze(-1)


def _block(number: int) -> list[Rule]:
    theirs, ours = rf"Rs_GCN_{number}\.", f"image.reasoning.graph.blocks.{number - 1}."
    return [
        Rule(rf"{theirs}(theta|phi|g)\.weight", rf"{ours}\1.weight", change=_dot),
        Rule(rf"{theirs}(theta|phi|g)\.bias", rf"{ours}\1.bias"),
        Rule(rf"{theirs}W\.0\.weight", f"{ours}w.weight", change=_dot),
        Rule(rf"{theirs}W\.0\.bias", f"{ours}w.bias"),
        Rule(rf"{theirs}W\.1\.(\w+)", rf"{ours}norm.\1"),
    ]


IMAGE = [
    Rule(r"fc\.(weight|bias)", r"image.reasoning.graph.project.\1"),
    *(rule for number in range(1, BLOCKS + 1) for rule in _block(number)),
    Rule(r"img_rnn\.(\w+)", r"image.reasoning.embed.rnn.\1"),
    Rule(r"bn\.(\w+)", r"image.norm.\1"),
]


def recognises(checkpoint: Mapping[str, Any]) -> bool:
    return vsepp.has_graph(checkpoint) is True


def translate(checkpoint: Mapping[str, Any], where: str) -> Translation:
    options = OfficialOptions(checkpoint["opt"], where, HARMLESS)
    name = options.get("data_name", "precomp")
    if not name.endswith("precomp"):
        raise ValueError(f"{where}: trained on {name!r}, not on region features (…_precomp)")
    vsepp.require_cosine(options)
    weights, (image, text) = Weights(), checkpoint["model"]
    weights.take(image, IMAGE, where)
    weights.take(text, vsepp.TEXT, where)
    model = ModelRecipe(
        system="vsrn",
        dim=options.agree(
            "embed_size", weights.size("image.reasoning.graph.project.weight", 0, where)
        ),
        word_dim=options.agree("word_dim", weights.size("text.words.weight", 1, where)),
        feature_dim=options.agree(
            "img_dim", weights.size("image.reasoning.graph.project.weight", 1, where)
        ),
        vsrn=VSRNRecipe(
            blocks=BLOCKS,
            over="regions",
            batch_norm=name == FLICKR,
            generator=GeneratorRecipe(used=False),
        ),
    )
    data = replace(vsepp.data(name, where), features="regions")
    recipe = Recipe(f"VSRN official {name}", data, model, *vsepp.training(options))
    return Translation(
        recipe, weights, options, None, vsepp.training_notes(checkpoint, "best_rsum")
    )
