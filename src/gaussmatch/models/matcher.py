"""The network: an image encoder, a text encoder and the similarity between their Gaussians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gaussmatch.core.gaussian import Gaussian, Side
from gaussmatch.core.losses import InfoNCE, PairwiseSigmoid
from gaussmatch.core.similarities import SIMILARITIES, Similarity, similarity
from gaussmatch.core.similarities.divergence import Divergence
from gaussmatch.data.pairs import Pairs
from gaussmatch.models.encoders import (
    PCMEImage,
    PCMEText,
    Probabilistic,
    Projection,
    PVSEImage,
    PVSEText,
    TextEncoder,
    Tokenizer,
    WordGRU,
)
from gaussmatch.models.encoders.adapter import (
    ARRAYS,
    Encoders,
    GivenMean,
    ImageAdapter,
    Named,
    TextAdapter,
)
from gaussmatch.models.encoders.backbone import Backbone
from gaussmatch.models.encoders.base import ImageTransform
from gaussmatch.models.encoders.onnx import OnnxImages, OnnxTexts
from gaussmatch.models.encoders.pretrained import image_tower, text_tower
from gaussmatch.models.encoders.pretrained.base import Transform
from gaussmatch.models.encoders.vocabulary import Vocabulary
from gaussmatch.models.encoders.vsrn import CaptionGenerator, RegionReasoning
from gaussmatch.models.recipe import LossRecipe, ModelRecipe, Recipe


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
        point = encoder.encoder if isinstance(encoder, Probabilistic) else encoder
        return point.get_submodule(inner)

    @property
    def image_transform(self) -> ImageTransform | None:
        """That of the image encoder; ``None`` where its features are made outside the model."""
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
    tokenizer: Tokenizer,
    loss: LossRecipe | None = None,
    pixels: Transform | None = None,
) -> Matcher:
    """The network of a recipe, with random weights. Its text encoder owns the tokenizer, its
    backbone (if it has one) the transform of pictures to pixels. A loss with learned parameters
    becomes one of its heads.

    A probabilistic model is its point model with both encoders adapted; nothing else differs.
    """
    image, text, heads = SYSTEMS[recipe.system](recipe, tokenizer)
    if isinstance(backbone := getattr(image, "backbone", None), Backbone):
        backbone.pixels = pixels
    if recipe.probabilistic:
        image, text = (_probabilistic(encoder, recipe) for encoder in (image, text))
    return Matcher(image, text, _similarity(recipe), heads | _learned_loss(loss))


def exported(recipe: ModelRecipe, tokenizer: Tokenizer, images: Path, texts: Path) -> Matcher:
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
    """The network as a trained model ranks with it: by the cosine of the means where those are
    given embeddings, whose variances the similarity of the recipe has trained."""
    if recipe.ranks_by_mean:
        matcher.similarity = similarity("cosine")
    return matcher


def _learned_loss(recipe: LossRecipe | None) -> dict[str, nn.Module]:
    if recipe is not None and recipe.name == "infonce":
        return {"loss": InfoNCE(recipe.scale, recipe.learn_scale, recipe.reduction)}
    if recipe is not None and recipe.name == "sigmoid":
        loss = PairwiseSigmoid(
            recipe.scale, recipe.bias, recipe.learn_scale, recipe.pseudo_positives, recipe.reduction
        )
        return {"loss": loss}
    return {}


def _probabilistic(encoder: nn.Module, recipe: ModelRecipe) -> Probabilistic:
    settings: dict[str, Any] = {
        "shape": recipe.shape,
        "bound": recipe.bound,
        "variance_range": recipe.variance_range,
        "relative": recipe.variance_relative,
    }
    if isinstance(encoder, ImageAdapter) and recipe.adapter.mean == "given":
        return GivenMean(encoder, **settings)
    return Probabilistic(encoder, str(encoder.part), **settings)


def learn_tokenizer(recipe: Recipe, pairs: Pairs) -> Tokenizer:
    """The tokenizer of a recipe's text encoder: its words are those of the training captions, or it
    comes with a published encoder."""
    if recipe.model.system == "adapter":
        return _encoders(recipe, pairs)
    return Vocabulary.build(pairs.captions, recipe.data.min_count, recipe.data.words)


def load_tokenizer(recipe: Recipe, folder: Path) -> Tokenizer:
    """The tokenizer of a recipe's text encoder, as a run folder holds it."""
    encoder = Encoders if recipe.model.system == "adapter" else Vocabulary
    return encoder.load(folder / encoder.file)


def _encoders(recipe: Recipe, pairs: Pairs) -> Encoders:
    """The published encoders of an adapter, known by their hashes."""
    name, own = recipe.model.adapter.text_encoder, recipe.model.adapter
    if name == ARRAYS:
        if pairs.texts is None:
            raise ValueError(
                f"model.adapter.text_encoder is {ARRAYS}, but {pairs.name} has no text "
                "embeddings: name an encoder, such as st:all-MiniLM-L6-v2"
            )
        text = Named(ARRAYS, len(pairs.texts[0]))
    else:
        text = Named.of(name, text_tower(name))
        given = text.width if pairs.texts is None else len(pairs.texts[0])
        if given != text.width:
            raise ValueError(
                f"{name} makes embeddings of {text.width} dimensions, but the texts of "
                f"{pairs.name} have {given}: name the encoder that made them"
            )
    if own.image_encoder is None:
        return Encoders(text)
    image = Named.of(own.image_encoder, image_tower(own.image_encoder))
    if len(pairs.images[0]) != image.width:
        raise ValueError(
            f"{image.name} makes embeddings of {image.width} dimensions, but the images of "
            f"{pairs.name} have {len(pairs.images[0])}: name the encoder that made them"
        )
    return Encoders(text, image)


Parts = tuple[nn.Module, nn.Module, dict[str, nn.Module]]
"""Image encoder, text encoder, and the heads of loss terms."""


def _vsepp(recipe: ModelRecipe, tokenizer: Tokenizer) -> Parts:
    width, backbone = _features(recipe)
    image = Projection(width, recipe.dim, backbone, recipe.normalise, recipe.normalise_features)
    text = WordGRU(tokenizer, recipe.dim, recipe.word_dim, recipe.normalise)
    return image, text, {}


def _vsrn(recipe: ModelRecipe, tokenizer: Tokenizer) -> Parts:
    own, dim, width = recipe.vsrn, recipe.dim, _features(recipe)[0]
    image = RegionReasoning(
        width, dim, own.blocks, own.over, own.batch_norm, recipe.normalise, own.duplicate
    )
    text = WordGRU(tokenizer, dim, recipe.word_dim, recipe.normalise)
    if not own.generator.used:
        return image, text, {}
    sizes = asdict(own.generator)
    del sizes["used"]
    return image, text, {"generator": CaptionGenerator(len(tokenizer), dim, **sizes)}


def _pvse(recipe: ModelRecipe, tokenizer: Tokenizer) -> Parts:
    own, (width, backbone), norm = recipe.pvse, _features(recipe), recipe.normalise
    image = PVSEImage(width, recipe.dim, own.embeddings, own.dropout, backbone, norm)
    sizes = recipe.dim, recipe.word_dim, own.embeddings, own.dropout
    return image, PVSEText(tokenizer, *sizes, own.state, norm), {}


def _pcme(recipe: ModelRecipe, tokenizer: Tokenizer) -> Parts:
    own, (width, backbone) = recipe.pcme, _features(recipe)
    image = PCMEImage(width, recipe.dim, backbone, recipe.normalise, own.log_sigma)
    text = PCMEText(
        tokenizer, recipe.dim, recipe.word_dim, own.state, recipe.normalise, own.log_sigma
    )
    return image, text, {}


def _adapter(recipe: ModelRecipe, tokenizer: Tokenizer) -> Parts:
    assert isinstance(tokenizer, Encoders)
    own, width = recipe.adapter, _features(recipe)[0]
    sizes = recipe.dim, own.hidden, own.dropout
    if own.mean == "given" and not width == tokenizer.text.width == recipe.dim:
        raise ValueError(
            f"model.adapter.mean given needs one space: images have {width} dimensions, texts "
            f"{tokenizer.text.width}, model.dim is {recipe.dim}"
        )
    image = ImageAdapter(tokenizer, width, *sizes, own.image_scale)
    text = TextAdapter(tokenizer, tokenizer.text.width, *sizes, own.text_scale, center_only=True)
    return image, text, {}


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


SYSTEMS: dict[str, Callable[[ModelRecipe, Tokenizer], Parts]] = {
    "vse++": _vsepp,
    "vsrn": _vsrn,
    "pvse": _pvse,
    "pcme": _pcme,
    "adapter": _adapter,
}
"""How to build each system of the paper; a new one is an entry here and its encoders."""
