"""Which model: the section ``model`` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gaussmatch.encoders.variance import Bound, Shape
from gaussmatch.recipe.checks import positive

SimilarityName = Literal[
    "cosine", "kl", "reverse_kl", "min_kl", "wasserstein", "wasserstein_literal", "csd"
]


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
        positive("model", self, "dim", "word_dim")
