"""Which model: the section ``model`` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gaussmatch.encoders.bigru import State
from gaussmatch.encoders.variance import Bound, Shape
from gaussmatch.recipe.checks import positive

SimilarityName = Literal[
    "cosine",
    "kl",
    "reverse_kl",
    "min_kl",
    "wasserstein",
    "wasserstein_literal",
    "csd",
    "mil",
    "match_prob",
]


@dataclass(frozen=True)
class PVSERecipe:
    """What only PVSE has.

    Args:
        embeddings: K points for each item.
        dropout: of words, global features and residuals.
        state: what of the caption's GRU is taken: both final states, or both at the last token
            (the published checkpoints).
    """

    embeddings: int = 2
    dropout: float = 0.0
    state: State = "final"

    def __post_init__(self) -> None:
        positive("model.pvse", self, "embeddings")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.pvse.dropout must be in [0, 1), got {self.dropout}")


@dataclass(frozen=True)
class PCMERecipe:
    """What only PCME has.

    Args:
        samples: drawn of each Gaussian; a match probability is a mean over their pairs.
        scale: a of the logits b − a·distance, at the start; it is learned.
        shift: b of them, at the start; it is learned.
        log_sigma: about where ln σ starts. 0 is published; a small model on little data does not
            leave the guess that the noise of 0 makes of every score.
        state: what of the caption's GRUs is taken, as in model.pvse.
    """

    samples: int = 7
    log_sigma: float = 0.0
    scale: float = 15.0
    shift: float = 15.0
    state: State = "final"

    def __post_init__(self) -> None:
        positive("model.pcme", self, "samples", "scale")


@dataclass(frozen=True)
class ModelRecipe:
    """Which model.

    Args:
        system: vse++, pvse or pcme.
        dim: D, the dimension of the joint space.
        word_dim: width of the word vectors.
        normalise: L2-norm of the means.
        probabilistic: a Gaussian for each item instead of a point.
        shape: of the Gaussians.
        bound: how variances are kept in [0.1, 10].
        similarity: between an image and a caption.
        backbone: train this network end to end on pixels (scenenet); none for given features.
        feature_dim: width of the image features; found from the data when none.
        pvse: what only PVSE has.
        pcme: what only PCME has.
    """

    system: Literal["vse++", "pvse", "pcme"] = "vse++"
    dim: int = 1024
    word_dim: int = 300
    normalise: bool = True
    probabilistic: bool = False
    shape: Shape = "ellipsoidal"
    bound: Bound = "clamp"
    similarity: SimilarityName = "cosine"
    backbone: str | None = None
    feature_dim: int | None = None
    pvse: PVSERecipe = field(default_factory=PVSERecipe)
    pcme: PCMERecipe = field(default_factory=PCMERecipe)

    def __post_init__(self) -> None:
        positive("model", self, "dim", "word_dim")
        if self.system in UNADAPTED:
            self._check_own()
        elif self.similarity in ("mil", "match_prob"):
            raise ValueError(
                f"model.similarity {self.similarity!r} is not for model.system {self.system!r}: "
                "mil compares the embeddings of pvse, match_prob the Gaussians of pcme"
            )
        elif self.probabilistic == (self.similarity == "cosine"):
            raise ValueError(
                f"model.probabilistic is {str(self.probabilistic).lower()} but model.similarity is "
                f"{self.similarity!r}: a point model takes cosine, a probabilistic one any other"
            )

    @property
    def has_variance(self) -> bool:
        """Whether its items are Gaussians rather than points."""
        return self.probabilistic or self.system == "pcme"

    def _check_own(self) -> None:
        """The systems that the paper compares with but does not adapt."""
        if self.probabilistic:
            raise ValueError(
                f"model.probabilistic is not for {self.system}: "
                + ("its Gaussians" if self.system == "pcme" else "its several points")
                + " are its own; leave it out"
            )
        if self.dim % 2:
            raise ValueError(f"model.dim must be even for {self.system}, got {self.dim}")
        one = self.pvse.embeddings == 1
        if self.system == "pvse" and self.similarity not in ("mil", *(["cosine"] if one else [])):
            raise ValueError(
                f"model.similarity is {self.similarity!r}, but pvse has "
                f"{self.pvse.embeddings} embeddings an item: it takes mil"
                + (" or cosine" if one else "")
            )
        if self.system == "pcme" and self.similarity in ("mil", "cosine"):
            raise ValueError(
                f"model.similarity {self.similarity!r} would never train the variances of pcme: "
                "take match_prob or another that sees them ('gaussmatch evaluate --similarity "
                "cosine' ranks by the means)"
            )


UNADAPTED = ("pvse", "pcme")
"""Systems that ``probabilistic``, the paper's adaptation, is not for."""
