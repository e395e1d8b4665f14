"""Checkpoints of the official codes of VSE++, VSRN, PVSE and PCME, in our terms."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from gaussmatch.models.encoders.base import Vocabulary
from gaussmatch.models.model import build
from gaussmatch.models.official.checkpoint import words_of
from gaussmatch.models.recipe import (
    DataRecipe,
    GeneratorRecipe,
    LossRecipe,
    ModelRecipe,
    PCMERecipe,
    PVSERecipe,
    Recipe,
    TrainingRecipe,
    VSRNRecipe,
)

# ---- weights ----
# Their weights under our names: every one is used, or ignored for a stated reason.


@dataclass(frozen=True)
class Rule:
    """Where a weight goes.

    Args:
        theirs: a pattern of their whole name, without the ``module.`` of DataParallel.
        ours: our name, with the pattern's groups as ``\\1``; none to ignore it.
        why: it is ignored.
        change: its values or shape, where ours differ.
    """

    theirs: str
    ours: str | None = None
    why: str = ""
    change: Callable[[Tensor], Tensor] = lambda weight: weight


@dataclass
class Weights:
    """Weights under our names, with the name that each had, and those that are ignored."""

    values: dict[str, Tensor] = field(default_factory=dict)
    theirs: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)

    def take(self, state: object, rules: Sequence[Rule], where: str) -> None:
        """Sort the state dict of one of their networks in; a name without a rule is an error."""
        strange = []
        for name, value in state_of(state, where).items():
            plain = re.sub(r"(^|\.)module\.", r"\1", name)
            matches = ((rule, re.fullmatch(rule.theirs, plain)) for rule in rules)
            rule, match = next(((r, m) for r, m in matches if m is not None), (None, None))
            if rule is None or match is None:
                strange.append(name)
            elif rule.ours is None:
                self.ignored[name] = rule.why
            else:
                ours = match.expand(rule.ours)
                if ours in self.theirs:
                    also = self.theirs[ours]
                    raise ValueError(f"{where}: {name} and {also} are the same weight twice")
                self.values[ours] = rule.change(value)
                self.theirs[ours] = name
        if strange:
            raise ValueError(f"{where}: unknown weights {_listed(strange)}")

    def size(self, ours: str, dim: int, where: str) -> int:
        """A width of the network, as its weights have it."""
        if ours not in self.values:
            raise ValueError(f"{where}: the weight that becomes {ours} is missing")
        if self.values[ours].ndim <= dim:
            raise ValueError(
                f"{where}: {self.theirs[ours]} has {self.values[ours].ndim} dimensions"
            )
        return self.values[ours].shape[dim]

    def fitted(self, recipe: ModelRecipe, words: Vocabulary, where: str) -> dict[str, Tensor]:
        """All weights of the recipe's model; a missing, spare or misshaped one is an error.

        The model is built without memory for its weights, so that a false size costs none.
        Counters of BatchNorm, which checkpoints before torch 0.4.1 do not have, become 0.
        """
        with torch.device("meta"):
            wanted = build(recipe, words).state_dict()
        counters = [n for n in wanted if n.endswith("num_batches_tracked") and n not in self.values]
        values = {**self.values, **{n: torch.zeros((), dtype=torch.int64) for n in counters}}
        if missing := [name for name in wanted if name not in values]:
            raise ValueError(f"{where}: there is nothing for our weights {_listed(missing)}")
        if spare := [self.theirs[name] for name in values if name not in wanted]:
            raise ValueError(f"{where}: a model with its options has no weights {_listed(spare)}")
        if wrong := [
            f"{self.theirs[name]} {tuple(values[name].shape)} instead of {tuple(like.shape)}"
            for name, like in wanted.items()
            if values[name].shape != like.shape
        ]:
            raise ValueError(f"{where}: weights of another shape: {_listed(wrong)}")
        return {
            name: values[name].to(like.dtype).contiguous().clone() for name, like in wanted.items()
        }


def state_of(state: object, where: str) -> dict[str, Tensor]:
    """The state dict, checked: plain tensors that lie within what the file holds."""
    if not isinstance(state, dict) or not state:
        raise ValueError(f"{where}: no state dict, but {type(state).__name__}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(f"{where}: {name!r} is a {type(value).__name__}, not a weight")
        if value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise ValueError(f"{where}: {name} is not a plain tensor of numbers")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(f"{where}: {name} claims more numbers than the file holds")
    return state


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more


OURS = "image.backbone.net."


def torchvision_rules(network: str, theirs: str, where: str) -> list[Rule]:
    """Where the weights of a ResNet or VGG of torchvision go, without its classifier.

    Args:
        network: torchvision's name, which is timm's too.
        theirs: a pattern of what their names begin with.
    """
    if re.fullmatch(r"resnet(18|34|50|101|152)", network):
        return [Rule(rf"{theirs}((?:conv1|bn1|layer\d)\..*)", rf"{OURS}\1")]
    if re.fullmatch(r"vgg(11|13|16|19)(_bn)?", network):
        return [
            Rule(rf"{theirs}features\.(.*)", rf"{OURS}features.\1"),
            # in torchvision before 2017 a dropout stood first and moved the numbers up
            Rule(rf"{theirs}classifier\.[01]\.weight", f"{OURS}pre_logits.fc1.weight", change=_map),
            Rule(
                rf"{theirs}classifier\.[34]\.weight", f"{OURS}pre_logits.fc2.weight", change=_pixel
            ),
            Rule(rf"{theirs}classifier\.[01]\.bias", f"{OURS}pre_logits.fc1.bias"),
            Rule(rf"{theirs}classifier\.[34]\.bias", f"{OURS}pre_logits.fc2.bias"),
        ]
    raise ValueError(f"{where}: its network {network!r} is not a ResNet or VGG of torchvision")


def _map(weight: Tensor) -> Tensor:
    """A layer over a flattened 7 × 7 map, as the convolution that timm has in its place."""
    return weight.reshape(len(weight), -1, 7, 7)


def _pixel(weight: Tensor) -> Tensor:
    return weight[:, :, None, None]


# ---- translation ----
# An official model in our terms: what each system's module makes of a checkpoint.


@dataclass(frozen=True)
class Translation:
    """An official model in our terms.

    Args:
        recipe: what it is and how it was trained.
        weights: under our names.
        options: of their training, all read that we know.
        words: its vocabulary, where the checkpoint holds it.
        training: what their training recorded, such as its epoch and its score.
    """

    recipe: Recipe
    weights: Weights
    options: OfficialOptions
    words: list[str] | None
    training: dict[str, Any]


def plain(value: object) -> int | float | str | None:
    """A value for JSON, or none."""
    return value if isinstance(value, int | float | str) else None


T = TypeVar("T", int, float, str, bool)


class OfficialOptions:
    """The options of a checkpoint, read one by one.

    Args:
        values: by name.
        where: the checkpoint, for errors.
        harmless: names that change no result of a trained model: paths, logging, workers.
    """

    def __init__(self, values: object, where: str, harmless: Collection[str]) -> None:
        if not isinstance(values, Mapping):
            raise ValueError(f"{where}: holds no options of its training")
        self._values: Mapping[str, Any] = values
        self._where, self._read = where, set(harmless)

    def get(self, name: str, default: T) -> T:
        """An option, or its default if the checkpoint is older than the option."""
        self._read.add(name)
        value = self._values.get(name, default)
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise ValueError(
                f"{self._where}: option {name} is {value!r}, not a {_type_name(default)}"
            )
        return value

    def require(self, name: str, wanted: T, why: str) -> None:
        """Refuse a checkpoint with an option that we cannot reproduce."""
        if self.get(name, wanted) != wanted:
            raise ValueError(
                f"{self._where}: trained with {name} = {self._values[name]!r}, which cannot be "
                f"reproduced here: {why}"
            )

    def agree(self, name: str, found: int) -> int:
        """A width that the weights have; an option that says otherwise is an error."""
        if self.get(name, found) != found:
            raise ValueError(
                f"{self._where}: option {name} is {self._values[name]}, "
                f"but its weights have {found}"
            )
        return found

    @property
    def unread(self) -> list[str]:
        """Options that no system reads: perhaps of a fork, perhaps of consequence."""
        return sorted(str(name) for name in self._values if name not in self._read)


def _type_name(value: object) -> str:
    return {"bool": "truth value", "int": "whole number", "float": "number"}.get(
        type(value).__name__, "text"
    )


WORDS = [Rule(r"embed\.weight", "text.words.weight"), Rule(r"rnn\.(\w+)", r"text.embed.rnn.\1")]
PROJECTION = [Rule(r"fc\.(weight|bias)", r"image.embed.\1")]

# fmt: off
VSEPP_HARMLESS = [
    "data_path", "vocab_path", "logger_name", "log_step", "val_step", "resume", "workers",
    "crop_size", "use_restval", "reset_train", "vocab_size", "finetune",
]
# fmt: on
"""Options of VSE++ that change no result of a trained model."""

PHOTOS = {"coco": "coco", "f30k": "flickr30k", "f8k": "flickr8k"}


def _has_graph(checkpoint: Mapping[str, Any]) -> bool | None:
    """Whether a checkpoint in the layout of VSE++ holds the graph of VSRN; ``None`` for another
    layout."""
    model = checkpoint.get("model")
    if "opt" not in checkpoint or not isinstance(model, list) or len(model) != 2:
        return None
    return any(str(name).startswith("Rs_GCN") for name in model[0])


def vsepp(checkpoint: Mapping[str, Any], where: str) -> Translation:
    """VSE++ (Faghri et al.): ``model_best.pth.tar`` on precomputed features or a whole network."""
    options = OfficialOptions(checkpoint["opt"], where, VSEPP_HARMLESS)
    name = options.get("data_name", "precomp")
    _require_cosine(options)
    image, text = checkpoint["model"]
    weights = Weights()
    weights.take(text, WORDS, where)
    if name.endswith("precomp"):
        unused = Rule(r"cnn\..*", why="the model is used with precomputed features")
        weights.take(image, [*PROJECTION, unused], where)
        options.get("cnn_type", "vgg19")
        network = None
        width = options.agree("img_dim", weights.size("image.embed.weight", 1, where))
    else:
        network, width = options.get("cnn_type", "vgg19"), None
        options.get("img_dim", 4096)
        weights.take(image, [*PROJECTION, *torchvision_rules(network, r"cnn\.", where)], where)
    model = ModelRecipe(
        system="vse++",
        dim=options.agree("embed_size", weights.size("image.embed.weight", 0, where)),
        word_dim=options.agree("word_dim", weights.size("text.words.weight", 1, where)),
        backbone=network,
        feature_dim=width,
    )
    recipe = Recipe(f"VSE++ official {name}", data_of(name, where), model, *_gru_training(options))
    return Translation(recipe, weights, options, None, _training_notes(checkpoint, "best_rsum"))


def _require_cosine(options: OfficialOptions) -> None:
    """Refuse options of VSE++ and VSRN that change the model."""
    options.require("measure", "cosine", "there is no order embedding")
    options.require("use_abs", False, "embeddings are not made positive")
    options.require("no_imgnorm", False, "embeddings of images have norm 1")
    options.require("num_layers", 1, "the GRU has one layer")


def _gru_training(options: OfficialOptions) -> tuple[LossRecipe, TrainingRecipe]:
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


def data_of(name: str, where: str) -> DataRecipe:
    """Their data set under our name; its folder is the user's to give."""
    if name.endswith("precomp"):
        return DataRecipe(name="precomputed", words="nltk", dev_images=1000)
    if name not in PHOTOS:
        raise ValueError(f"{where}: trained on {name!r}, which is not one of {', '.join(PHOTOS)}")
    return DataRecipe(name=PHOTOS[name], words="nltk", features="pixels")


def _training_notes(checkpoint: Mapping[str, Any], score: str) -> dict[str, Any]:
    return {"epoch": plain(checkpoint.get("epoch")), score: plain(checkpoint.get(score))}


BLOCKS = 4
FLICKR = "f30k_precomp"
VSRN_HARMLESS = [
    *VSEPP_HARMLESS,
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


REASONING = [
    Rule(r"fc\.(weight|bias)", r"image.reasoning.graph.project.\1"),
    *(rule for number in range(1, BLOCKS + 1) for rule in _block(number)),
    Rule(r"img_rnn\.(\w+)", r"image.reasoning.embed.rnn.\1"),
    Rule(r"bn\.(\w+)", r"image.norm.\1"),
]


def vsrn(checkpoint: Mapping[str, Any], where: str) -> Translation:
    """VSRN (Li et al.): ``model_best.pth.tar`` over 36 region features an image.

    Their checkpoints hold the two encoders; the caption generator, which only training needs, is
    not saved. Their published figures are of two models whose scores are averaged; each is imported
    alone.
    """
    options = OfficialOptions(checkpoint["opt"], where, VSRN_HARMLESS)
    name = options.get("data_name", "precomp")
    if not name.endswith("precomp"):
        raise ValueError(f"{where}: trained on {name!r}, not on region features (…_precomp)")
    _require_cosine(options)
    weights, (image, text) = Weights(), checkpoint["model"]
    weights.take(image, REASONING, where)
    weights.take(text, WORDS, where)
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
    data = replace(data_of(name, where), features="regions")
    recipe = Recipe(f"VSRN official {name}", data, model, *_gru_training(options))
    return Translation(recipe, weights, options, None, _training_notes(checkpoint, "best_rsum"))


# fmt: off
PVSE_HARMLESS = [
    "data_path", "vocab_path", "logger_name", "log_step", "log_file", "debug", "workers",
    "wemb_type", "img_finetune", "txt_finetune", "val_metric", "batch_size_eval", "weight_decay",
    "ckpt", "eval_on_gpu",
]
# fmt: on


def _attention(theirs: str, ours: str) -> list[Rule]:
    """Their self-attention, of PVSE and PCME."""
    return [
        Rule(rf"{theirs}attention\.w_1\.weight", f"{ours}attention.hidden.weight"),
        Rule(rf"{theirs}attention\.w_2\.weight", f"{ours}attention.heads.weight"),
    ]


def _pie(theirs: str, ours: str) -> list[Rule]:
    """Their ``PIENet``, of PVSE and PCME."""
    return [
        *_attention(theirs, ours),
        Rule(rf"{theirs}fc\.(weight|bias)", rf"{ours}residual.embed.\1"),
        Rule(rf"{theirs}layer_norm\.(weight|bias)", rf"{ours}norm.\1"),
    ]


def _encoders(network: str, where: str) -> list[Rule]:
    """Both encoders, as PVSE and PCME have them in common."""
    return [
        *torchvision_rules(network, r"img_enc\.cnn\.", where),
        Rule(r"img_enc\.fc\.(weight|bias)", r"image.embed.\1"),
        *_pie(r"img_enc\.pie_net\.", "image.pie."),
        Rule(r"txt_enc\.embed\.weight", "text.words.weight"),
        Rule(r"txt_enc\.rnn\.(\w+)", r"text.embed.rnn.\1"),
        *_pie(r"txt_enc\.pie_net\.", "text.pie."),
    ]


def pvse(checkpoint: Mapping[str, Any], where: str) -> Translation:
    """PVSE (Song and Soleymani): ``model_best.pth.tar`` with a ResNet over photos."""
    options = OfficialOptions(checkpoint["args"], where, PVSE_HARMLESS)
    options.require("max_video_length", 1, "it is a model of videos")
    options.require("order", False, "there is no order embedding")
    options.require("img_attention", True, "PVSE without attention is not implemented")
    options.require("txt_attention", True, "PVSE without attention is not implemented")
    network = options.get("cnn_type", "resnet152")
    weights = Weights()
    weights.take(checkpoint["model"], _encoders(network, where), where)
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
    data = replace(data_of(name, where), crop=options.get("crop_size", 224))
    recipe = Recipe(f"PVSE official {name}", data, model, loss, training)
    return Translation(recipe, weights, options, None, _training_notes(checkpoint, "best_score"))


# fmt: off
PCME_HARMLESS = [
    "name", "wemb_type", "cache_dir", "img_finetune", "txt_finetune", "no_sigma_ln", "eval_method",
    "pretrained_resnet_model_path",
]
# fmt: on
"""``no_sigma_ln`` is in their configuration, but no line of their code reads it."""


SPREAD = [
    *_attention(r"img_enc\.uncertain_net\.", "image.spread."),
    Rule(r"img_enc\.uncertain_net\.fc\.(weight|bias)", r"image.spread.attended.\1"),
    Rule(r"img_enc\.uncertain_net\.fc2\.(weight|bias)", r"image.spread.pooled.\1"),
    *_attention(r"txt_enc\.uncertain_net\.", "text.spread."),
    Rule(r"txt_enc\.uncertain_net\.fc\.(weight|bias)", r"text.spread.attended.\1"),
    Rule(r"txt_enc\.uncertain_net\.rnn\.(\w+)", r"text.spread.embed.rnn.\1"),
]
CRITERION = [
    Rule("negative_scale", "similarity.scale", change=Tensor.squeeze),
    Rule("shift", "similarity.shift", change=Tensor.squeeze),
]


def pcme(checkpoint: Mapping[str, Any], where: str) -> Translation:
    """PCME (Chun et al.): ``model_best.pth`` with a ResNet over photos and its vocabulary."""
    options = _pcme_section(checkpoint, "model", where)
    for name in ("img_attention", "txt_attention", "img_probemb", "txt_probemb"):
        options.require(name, True, "PCME has attention and variances on both sides")
    samples = options.get("n_samples_inference", 0)
    if samples < 1:
        raise ValueError(f"{where}: draws no samples, so it has no match probability")
    network = options.get("cnn_type", "resnet152")
    weights = Weights()
    weights.take(checkpoint.get("model"), [*_encoders(network, where), *SPREAD], where)
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
        "PCME official", data_of("coco", where), model, *_pcme_training(checkpoint, where)
    )
    words = words_of(checkpoint["word2idx"], f"{where}, word2idx")
    metadata = checkpoint.get("metadata")
    notes = metadata if isinstance(metadata, dict) else {}
    return Translation(recipe, weights, options, words, {"epoch": plain(notes.get("cur_epoch"))})


def _pcme_section(checkpoint: Mapping[str, Any], name: str, where: str) -> OfficialOptions:
    config = checkpoint["config"]
    held = config.get(name) if isinstance(config, dict) else None
    return OfficialOptions(held, f"{where}, config.{name}", PCME_HARMLESS)


def _pcme_training(checkpoint: Mapping[str, Any], where: str) -> tuple[LossRecipe, TrainingRecipe]:
    data, optimizer, train, criterion = (
        _pcme_section(checkpoint, name, where)
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


class System(NamedTuple):
    """An official code: whether a checkpoint is one of its, by layout and names of weights; and the
    model in it, or a ``ValueError`` if it cannot be reproduced here."""

    recognizes: Callable[[Mapping[str, Any]], bool]
    translate: Callable[[Mapping[str, Any], str], Translation]


SYSTEMS = {
    "vsepp": System(lambda c: _has_graph(c) is False, vsepp),
    "vsrn": System(lambda c: _has_graph(c) is True, vsrn),
    "pvse": System(lambda c: "args" in c and isinstance(c.get("model"), dict), pvse),
    "pcme": System(lambda c: "config" in c and "word2idx" in c, pcme),
}
"""The official codes that are read."""
