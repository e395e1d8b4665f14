"""The model: an image encoder, a text encoder and the similarity between their Gaussians."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from gaussmatch.encoders import Probabilistic, Projection, Tokens, WordGRU
from gaussmatch.encoders.scenenet import SceneNet
from gaussmatch.gaussian import Gaussian
from gaussmatch.recipe import ModelRecipe
from gaussmatch.similarities import Similarity, similarity


class Matcher(nn.Module):
    """Two encoders into one joint space. Point encoders give Gaussians without variance.

    ``heads`` are networks that only a loss term uses, such as a caption generator; they are
    trained and saved with the rest.
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
        return _gaussian(self.image(images))

    def encode_texts(self, tokens: Tokens) -> Gaussian:
        return _gaussian(self.text(tokens))

    def forward(self, images: Tensor, tokens: Tokens) -> tuple[Gaussian, Gaussian]:
        return self.encode_images(images), self.encode_texts(tokens)

    def part(self, name: str) -> nn.Module:
        """A part of an encoder, such as ``image.graph``, whether it was adapted or not."""
        side, _, inner = name.partition(".")
        encoder = self.get_submodule(side)
        point = encoder.encoder if isinstance(encoder, Probabilistic) else encoder
        return point.get_submodule(inner)


def build(recipe: ModelRecipe, vocabulary: int) -> Matcher:
    """The model of a recipe, with random weights.

    A probabilistic model is its point model with both encoders adapted; nothing else differs.
    """
    image, text, heads = SYSTEMS[recipe.system](recipe, vocabulary)
    if recipe.probabilistic:
        image, text = (
            Probabilistic(encoder, str(encoder.part), shape=recipe.shape, bound=recipe.bound)
            for encoder in (image, text)
        )
    return Matcher(image, text, similarity(recipe.similarity), heads)


Parts = tuple[nn.Module, nn.Module, dict[str, nn.Module]]
"""Image encoder, text encoder, and the heads of loss terms."""


def _vsepp(recipe: ModelRecipe, vocabulary: int) -> Parts:
    text = WordGRU(vocabulary, recipe.dim, recipe.word_dim, recipe.normalise)
    return _image_encoder(recipe), text, {}


def _image_encoder(recipe: ModelRecipe) -> Projection:
    if recipe.backbone == "scenenet":
        net = SceneNet()
        return Projection(SceneNet.features, recipe.dim, backbone=net, normalise=recipe.normalise)
    if recipe.backbone is not None:
        raise ValueError(f"no backbone {recipe.backbone!r}; choose scenenet, or none for features")
    if recipe.feature_dim is None:
        raise ValueError("model.feature_dim is not set and no data was given to find it from")
    return Projection(recipe.feature_dim, recipe.dim, normalise=recipe.normalise)


def _gaussian(output: Tensor | Gaussian) -> Gaussian:
    return output if isinstance(output, Gaussian) else Gaussian(output)


SYSTEMS: dict[str, Callable[[ModelRecipe, int], Parts]] = {"vse++": _vsepp}
"""How to build each system of the paper; a new one is an entry here and its encoders."""
