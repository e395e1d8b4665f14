"""The model: an image encoder, a text encoder and the similarity between their Gaussians."""

from __future__ import annotations

from torch import Tensor, nn

from gaussmatch.encoders import Probabilistic, Projection, Tokens, WordGRU
from gaussmatch.encoders.scenenet import SceneNet
from gaussmatch.gaussian import Gaussian
from gaussmatch.recipe import ModelRecipe
from gaussmatch.similarities import Similarity, similarity


class Matcher(nn.Module):
    """Two encoders into one joint space. Point encoders give Gaussians without variance."""

    def __init__(self, image: nn.Module, text: nn.Module, similarity: Similarity) -> None:
        super().__init__()
        self.image, self.text, self.similarity = image, text, similarity

    def encode_images(self, images: Tensor) -> Gaussian:
        return _gaussian(self.image(images))

    def encode_texts(self, tokens: Tokens) -> Gaussian:
        return _gaussian(self.text(tokens))

    def forward(self, images: Tensor, tokens: Tokens) -> tuple[Gaussian, Gaussian]:
        return self.encode_images(images), self.encode_texts(tokens)


def build(recipe: ModelRecipe, vocabulary: int) -> Matcher:
    """The model of a recipe, with random weights.

    A probabilistic model is its point model with both encoders adapted; nothing else differs.
    """
    image: nn.Module = _image_encoder(recipe)
    text: nn.Module = WordGRU(vocabulary, recipe.dim, recipe.word_dim, recipe.normalise)
    if recipe.probabilistic:
        image, text = (
            Probabilistic(encoder, str(encoder.part), shape=recipe.shape, bound=recipe.bound)
            for encoder in (image, text)
        )
    return Matcher(image, text, similarity(recipe.similarity))


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
