"""The network: an image encoder, a text encoder and the similarity between their Gaussians."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from gaussmatch.core.gaussian import Gaussian, Side
from gaussmatch.core.losses import LOSSES, ScoreLoss
from gaussmatch.core.similarities import SIMILARITIES, Similarity, similarity
from gaussmatch.core.similarities.lifted import Divergence
from gaussmatch.models.encoders.adapter import Adapter, GivenMean
from gaussmatch.models.encoders.backbone import Backbone
from gaussmatch.models.encoders.base import ImageTransform, TextEncoder, Tokenizer
from gaussmatch.models.encoders.onnx import OnnxImages, OnnxTexts
from gaussmatch.models.encoders.posthoc import Posthoc
from gaussmatch.models.encoders.pretrained.base import Transform
from gaussmatch.models.encoders.probabilistic import Probabilistic
from gaussmatch.models.encoders.systems import SYSTEMS
from gaussmatch.models.recipe import LossRecipe, ModelRecipe

T = TypeVar("T")


class Matcher(nn.Module):
    """Two encoders into one joint space. Point encoders give Gaussians without variance, and
    those with several embeddings an item a batch (n, K). A similarity that learns is trained and
    saved with them.

    ``heads`` are modules that only the loss uses, such as a caption generator or a loss with a
    learned scale (``"loss"``); they are trained and saved with the rest.
    """

    def __init__(
        self,
        image: nn.Module,
        text: nn.Module,
        similarity: Similarity,
        heads: dict[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.image, self.text, self.similarity = image, text, similarity
        self.heads = nn.ModuleDict(heads or {})

    def encode_images(self, images: Tensor) -> Gaussian:
        return _gaussian(self.image(images), "images")

    def encode_texts(self, texts: Any) -> Gaussian:
        """A batch that the text encoder collated, as Gaussians."""
        return _gaussian(self.text(texts), "captions")

    def forward(self, images: Tensor, texts: Any) -> tuple[Gaussian, Gaussian]:
        return self.encode_images(images), self.encode_texts(texts)

    def part(self, name: str) -> nn.Module:
        """An encoder (``image``, ``text``) or a part of it, such as ``image.graph``, whether it
        was adapted or not."""
        side, _, inner = name.partition(".")
        encoder = self.get_submodule(side)
        point = encoder.encoder if isinstance(encoder, Probabilistic | Posthoc) else encoder
        return point.get_submodule(inner)

    @property
    def image_transform(self) -> ImageTransform | None:
        """That of the image encoder; ``None`` if its features are made outside the model."""
        if self.backbone is not None:
            return self.backbone.view().batch
        return getattr(self.part("image"), "transform", None)

    @property
    def backbone(self) -> Backbone | None:
        """The network inside the image encoder that takes pictures, if it has one."""
        return getattr(self.part("image"), "backbone", None)

    @property
    def text_encoder(self) -> TextEncoder:
        """The point encoder of texts, which owns the tokenizer."""
        encoder = self.part("text")
        assert isinstance(encoder, TextEncoder)
        return encoder


def build(
    recipe: ModelRecipe,
    tokenizer: Tokenizer | None,
    loss: LossRecipe | None = None,
    pixels: Transform | None = None,
) -> Matcher:
    """The network of a recipe, with random weights. A loss with learned parameters becomes one of
    its heads. A probabilistic model is its point model with both encoders adapted; nothing else
    differs.

    Args:
        tokenizer: of its text encoder; ``None`` if that comes with its own.
        pixels: how its backbone, if it has one, makes pixels of pictures.
    """
    system, own = SYSTEMS[recipe.system], getattr(recipe, recipe.system, None)
    width, backbone = _features(recipe)
    if backbone is not None:
        backbone.pixels = pixels
    fields = vars(recipe) | (vars(own) if is_dataclass(own) else {})
    fields |= {"tokenizer": tokenizer, "feature_dim": width, "backbone": backbone}
    image, text = (with_fields(make, fields) for make in (system.image, system.text))
    heads = {name: with_fields(make, fields) for name, make in system.heads.items()}
    fitted = recipe.posthoc.fitted  # by a loss of its own
    if loss is not None and not fitted and isinstance(learned := loss_of(loss), nn.Module):
        heads["loss"] = learned
    if recipe.probabilistic:
        image, text = (_probabilistic(encoder, recipe) for encoder in (image, text))
    elif fitted:
        image, text = _posthoc(image, "images", recipe), _posthoc(text, "captions", recipe)
    made = {name: head for name, head in heads.items() if head is not None}
    return Matcher(image, text, _similarity(recipe), made)


def with_fields(make: Callable[..., T], fields: Mapping[str, Any]) -> T:
    """Call a class with those of some fields that its constructor has arguments for.

    >>> with_fields(nn.Linear, {"in_features": 2, "out_features": 3, "epochs": 5})
    Linear(in_features=2, out_features=3, bias=True)
    """
    wanted = signature(make).parameters
    return make(**{name: value for name, value in fields.items() if name in wanted})


def loss_of(recipe: LossRecipe) -> ScoreLoss:
    """The loss over scores that a recipe names, with its fields as arguments."""
    return with_fields(LOSSES[recipe.name], vars(recipe))


def exported(
    recipe: ModelRecipe, tokenizer: Tokenizer | None, images: Path, texts: Path
) -> Matcher:
    """The network of a recipe, trained, whose encoders are files in ONNX."""
    image, text = OnnxImages(images), OnnxTexts(texts, tokenizer)
    matcher = Matcher(image, text, _similarity(recipe))
    if isinstance(matcher.similarity, nn.Module):  # one that learned
        learned = image.network.notes["similarity"]
        matcher.similarity.load_state_dict({k: torch.tensor(v) for k, v in learned.items()})
    return ranking(recipe, matcher)


def _similarity(recipe: ModelRecipe) -> Similarity:
    settings: dict[str, Any] = {}
    if recipe.similarity == "match_prob":
        pcme = recipe.pcme
        settings = {"samples": pcme.samples, "scale": pcme.scale, "shift": pcme.shift}
    elif recipe.variance_relative and issubclass(SIMILARITIES[recipe.similarity], Divergence):
        settings = {"per_dimension": True}
    return similarity(recipe.similarity, **settings)


def ranking(recipe: ModelRecipe, matcher: Matcher) -> Matcher:
    """The network as a trained model ranks with it: by the cosine of the means if those are
    given, or of a frozen model, whose variances the similarity of the recipe has trained."""
    if recipe.ranks_by_mean:
        matcher.similarity = similarity("cosine")
    return matcher


def _probabilistic(encoder: nn.Module, recipe: ModelRecipe) -> Probabilistic:
    settings: dict[str, Any] = {
        "shape": recipe.shape,
        "bound": recipe.bound,
        "variance_range": recipe.variance_range,
        "relative": recipe.variance_relative,
    }
    if _is_given(encoder, recipe):
        return GivenMean(encoder, **settings)
    frozen = recipe.ranks_by_mean
    return Probabilistic(encoder, str(encoder.part), frozen=frozen, **settings)


def _posthoc(encoder: nn.Module, side: Side, recipe: ModelRecipe) -> Posthoc:
    settings = dict(vars(recipe.posthoc))
    given = _is_given(encoder, recipe)
    return Posthoc(encoder, settings.pop("method"), side, given=given, dim=recipe.dim, **settings)


def _is_given(encoder: nn.Module, recipe: ModelRecipe) -> TypeGuard[Adapter]:
    """Whether the means are the embeddings that an adapter takes in."""
    return isinstance(encoder, Adapter) and recipe.adapter.mean == "given"


def _features(recipe: ModelRecipe) -> tuple[int, Backbone | None]:
    """The width of the image features, and the backbone that makes them of pictures, if any."""
    if recipe.backbone is not None:
        backbone = Backbone(recipe.backbone, recipe.backbone_norm, recipe.checkpointing)
        return backbone.width, backbone
    if recipe.feature_dim is None:
        raise ValueError("model.feature_dim is not set and no data was given to find it from")
    return recipe.feature_dim, None


def _gaussian(output: Tensor | Gaussian, side: Side) -> Gaussian:
    if isinstance(output, Gaussian):
        return Gaussian(output.mean, output.log_var, side)
    return Gaussian(output, side=side)
