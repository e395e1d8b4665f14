"""Which model: the section ``model`` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gaussmatch.checks import known, positive, share
from gaussmatch.core.similarities import SIMILARITIES
from gaussmatch.models.encoders.backbone import NormMode
from gaussmatch.models.encoders.posthoc import METHODS, OURS
from gaussmatch.models.encoders.probabilistic import VARIANCE_RANGE, Bound, Range, Shape
from gaussmatch.models.encoders.systems import SYSTEMS
from gaussmatch.models.encoders.vsepp import State
from gaussmatch.models.encoders.vsrn import Duplicate, NormOver


@dataclass(frozen=True)
class GeneratorRecipe:
    """The network that generates captions, for loss.generation.

    Args:
        used: make one; published checkpoints have none.
        hidden: width of its GRUs.
        word_dim: width of its word vectors.
        dropout: of its inputs.
        longest: captions are truncated to this many words, start and end included.
    """

    used: bool = True
    hidden: int = 512
    word_dim: int = 300
    dropout: float = 0.2
    longest: int = 60

    def __post_init__(self) -> None:
        positive("model.vsrn.generator", self, "hidden", "word_dim")
        share("model.vsrn.generator", self, "dropout")
        if self.longest < 2:
            raise ValueError(f"model.vsrn.generator.longest must be 2 or more, got {self.longest}")


@dataclass(frozen=True)
class VSRNRecipe:
    """What only VSRN has.

    Args:
        blocks: graph-reasoning blocks.
        over: the L2-norm of the regions runs over features, or over regions as in the published
            code (needed for its weights).
        batch_norm: the Flickr30K variant: BatchNorm after the GRU, no first L2-norm.
        duplicate: what a probabilistic model doubles: the GRU over regions, or all before it too.
        generator: the network of loss.generation.
    """

    blocks: int = 4
    over: NormOver = "features"
    batch_norm: bool = False
    duplicate: Duplicate = "gru"
    generator: GeneratorRecipe = field(default_factory=GeneratorRecipe)

    def __post_init__(self) -> None:
        positive("model.vsrn", self, "blocks")


@dataclass(frozen=True)
class PVSERecipe:
    """What only PVSE has.

    Args:
        embeddings: K points for each item.
        dropout: of words, global features and residuals.
        state: which states of the caption's GRU are used: both final ones, or both at the last
            token (the published checkpoints).
    """

    embeddings: int = 2
    dropout: float = 0.0
    state: State = "final"

    def __post_init__(self) -> None:
        positive("model.pvse", self, "embeddings")
        share("model.pvse", self, "dropout")


@dataclass(frozen=True)
class PCMERecipe:
    """What only PCME has.

    Args:
        samples: drawn of each Gaussian; a match probability is a mean over their pairs.
        scale: a of the logits b − a·distance, at the start; it is learned.
        shift: b of them, at the start; it is learned.
        log_sigma: roughly the initial ln σ. The published one is 0; with it, the noise keeps a
            small model on little data at the level of guessing.
        state: which states of the caption's GRUs are used, as in model.pvse.
    """

    samples: int = 7
    log_sigma: float = 0.0
    scale: float = 15.0
    shift: float = 15.0
    state: State = "final"

    def __post_init__(self) -> None:
        positive("model.pcme", self, "samples", "scale")


@dataclass(frozen=True)
class PCMEPPRecipe:
    """What only PCME++ has.

    Args:
        deep: a two-layer network beside the linear one over local features, as for regions.
        drop: share of regions and words that a training step leaves out of the pooling.
        log_var: roughly the initial ln σ²; the published one is 0.
    """

    deep: bool = True
    drop: float = 0.2
    log_var: float = 0.0

    def __post_init__(self) -> None:
        share("model.pcmepp", self, "drop")


@dataclass(frozen=True)
class PublishedRecipe:
    """What only a published probabilistic model has: its two encoders, of which nothing learns.

    Args:
        image_encoder: such as prolip:REPO or prolip:NAME@FOLDER.
        image_sha256: of its weights. Others are refused.
        text_encoder: the same of texts.
        text_sha256: of its weights.
    """

    image_encoder: str = "prolip:SanghyukChun/ProLIP-ViT-B-16-DC-1B-12_8B"
    image_sha256: str | None = None
    text_encoder: str = "prolip:SanghyukChun/ProLIP-ViT-B-16-DC-1B-12_8B"
    text_sha256: str | None = None


@dataclass(frozen=True)
class AdapterRecipe:
    """What only the adapter has: frozen encoders by name, each with a learned head.

    Args:
        text_encoder: such as st:all-MiniLM-L6-v2 or open_clip:ViT-B-32/openai; arrays for
            embeddings that exist already.
        text_width: of its embeddings; found when training starts.
        text_sha256: of its weights; found when training starts. Others are refused.
        image_encoder: for new pictures, if the data is arrays; none for the encoder that made
            the features of the data (data.backbone), or if there are never any pictures.
        image_sha256: of its weights, as text_sha256.
        mean: learned by the heads, or given: the embedding itself, and results are ranked by the
            cosine of the means, so that their order is that of the encoders.
        hidden: width of a head's hidden layer.
        dropout: between the two layers of a head.
        image_scale: length of the image embeddings after standardization.
        text_scale: length of the text embeddings after centering.
    """

    text_encoder: str = "st:all-MiniLM-L6-v2"
    text_width: int | None = None
    text_sha256: str | None = None
    image_encoder: str | None = None
    image_sha256: str | None = None
    mean: Literal["learned", "given"] = "learned"
    hidden: int = 1024
    dropout: float = 0.3
    image_scale: float = 20.0
    text_scale: float = 10.0

    def __post_init__(self) -> None:
        positive("model.adapter", self, "hidden", "image_scale", "text_scale")
        share("model.adapter", self, "dropout")


@dataclass(frozen=True)
class PosthocRecipe:
    """Uncertainty for a frozen pair of encoders, whose ranking it keeps.

    Args:
        method: none trains the means too; ours learns heads for the variances by model.similarity
            and the loss; probvlm, asymvlm, bayesvlm, best-score, perplexity and perturbation have
            rules of their own (docs/peers-adapt.md), with model.similarity cosine. The means are
            those of training.start_from, or with model.adapter.mean given the embeddings.
        hidden: width of the networks of probvlm and asymvlm.
        dropout: in the network of probvlm.
        reference: training embeddings of the other side that best-score, perplexity and
            perturbation compare with.
    """

    method: str | None = None
    hidden: int = 512
    dropout: float = 0.1
    reference: int = 1024

    def __post_init__(self) -> None:
        if self.method is not None:
            known("model.posthoc.method", self.method, (OURS, *METHODS))
        positive("model.posthoc", self, "hidden", "reference")
        share("model.posthoc", self, "dropout")

    @property
    def fitted(self) -> bool:
        """Whether the method has a rule of its own, beside the training loop."""
        return self.method not in (None, OURS)


@dataclass(frozen=True)
class ModelRecipe:
    """Which model.

    Args:
        system: vse++, vsrn (on region features), pvse, pcme, pcmepp (PCME++), adapter (heads on
            frozen encoders), or published (encoders that are probabilistic themselves); any of
            encoders.systems.SYSTEMS.
        dim: D, the dimension of the joint space.
        word_dim: width of the word vectors.
        normalize: L2-norm of the means.
        probabilistic: a Gaussian for each item instead of a point.
        shape: of the Gaussians.
        bound: how variances are kept in variance_range.
        variance_range: the least and the greatest variance; [0.1, 10] is the paper's.
        variance_relative: the range bounds u = D·σ², and divergences are divided by D: widths and
            scores then mean the same in every dimension. For a probabilistic model.
        similarity: between an image and a caption.
        backbone: train this network end to end on pixels: scenenet, or any network of timm; none
            for given features.
        backbone_weights: a local file of its initial weights; none takes those that come with
            scenenet, or downloads timm's. A run in training.start_from takes precedence.
        backbone_norm: what its batch normalization does in training: frozen keeps the running
            statistics, train takes those of each batch and updates the running ones.
        checkpointing: compute a backbone's activations again in the backward pass: less memory,
            more time.
        normalize_features: L2-norm of the features before the projection; none does as the
            official code: a backbone's are normalized, given ones are not.
        feature_dim: width of the image features; found from the data when none.
        vsrn: what only VSRN has.
        pvse: what only PVSE has.
        pcme: what only PCME has.
        pcmepp: what only PCME++ has.
        adapter: what only the adapter has.
        published: what only published probabilistic encoders have.
        posthoc: uncertainty for a frozen model, whose means stay as they are.
    """

    system: str = "vse++"
    dim: int = 1024
    word_dim: int = 300
    normalize: bool = True
    probabilistic: bool = False
    shape: Shape = "ellipsoidal"
    bound: Bound = "clamp"
    variance_range: Range = VARIANCE_RANGE
    variance_relative: bool = False
    similarity: str = "cosine"
    backbone: str | None = None
    backbone_weights: str | None = None
    backbone_norm: NormMode = "frozen"
    checkpointing: bool = False
    normalize_features: bool | None = None
    feature_dim: int | None = None
    vsrn: VSRNRecipe = field(default_factory=VSRNRecipe)
    pvse: PVSERecipe = field(default_factory=PVSERecipe)
    pcme: PCMERecipe = field(default_factory=PCMERecipe)
    pcmepp: PCMEPPRecipe = field(default_factory=PCMEPPRecipe)
    adapter: AdapterRecipe = field(default_factory=AdapterRecipe)
    published: PublishedRecipe = field(default_factory=PublishedRecipe)
    posthoc: PosthocRecipe = field(default_factory=PosthocRecipe)

    def __post_init__(self) -> None:
        positive("model", self, "dim", "word_dim")
        known("model.similarity", self.similarity, SIMILARITIES)
        known("model.system", self.system, SYSTEMS)
        system = SYSTEMS[self.system]
        if not system.adaptable:
            self._check_own()
        elif self.similarity == "mil":
            raise ValueError(
                f"model.similarity 'mil' is not for model.system {self.system!r}: mil compares the "
                "embeddings of pvse"
            )
        elif self.probabilistic != SIMILARITIES[self.similarity].needs_variance:
            raise ValueError(
                f"model.probabilistic is {str(self.probabilistic).lower()} but model.similarity is "
                f"{self.similarity!r}: a point model takes one without variances (cosine), a "
                "probabilistic one any other"
            )
        low, high = self.variance_range
        if not 0 < low < high:
            raise ValueError(
                f"model.variance_range must be two numbers, 0 < least < greatest, got {low}, {high}"
            )
        if self.variance_relative and not self.probabilistic:
            raise ValueError("model.variance_relative needs model.probabilistic true")
        if not system.pixels and self.backbone is not None:
            raise ValueError(f"model.backbone: {self.system} takes features, set it to none")
        self._check_posthoc()
        if self.backbone is None and (self.backbone_weights is not None or self.checkpointing):
            name = "checkpointing" if self.checkpointing else "backbone_weights"
            raise ValueError(f"model.{name} is set, but model.backbone is not: name the network")

    @property
    def ranks_by_mean(self) -> bool:
        """Whether results are ordered by the cosine of the means, which are those of a frozen
        model or given embeddings."""
        return self.posthoc.method is not None

    @property
    def has_variance(self) -> bool:
        """Whether its items are Gaussians rather than points."""
        return self.probabilistic or SYSTEMS[self.system].gaussian or self.posthoc.fitted

    def _check_posthoc(self) -> None:
        given = self.system == "adapter" and self.adapter.mean == "given"
        if given and not self.ranks_by_mean:
            raise ValueError(
                "model.adapter.mean given learns no means: say how the uncertainty is found with "
                f"model.posthoc.method, {', '.join((OURS, *METHODS))}"
            )
        if not self.ranks_by_mean:
            return
        if not SYSTEMS[self.system].adaptable:
            raise ValueError(f"model.posthoc takes points, and {self.system} has none of its own")
        if self.probabilistic == self.posthoc.fitted:
            raise ValueError(
                f"model.posthoc.method {self.posthoc.method} needs model.probabilistic "
                + ("false and model.similarity cosine" if self.probabilistic else "true")
            )
        widths = self.feature_dim, self.adapter.text_width
        if given and None not in widths and {*widths} != {self.dim}:
            raise ValueError(
                f"model.adapter.mean given needs one space: images have {widths[0]} dimensions, "
                f"texts {widths[1]}, model.dim is {self.dim}"
            )

    def _check_own(self) -> None:
        """The systems that are not adapted: they are Gaussians, or several points, themselves."""
        if self.probabilistic:
            raise ValueError(
                f"model.probabilistic is not for {self.system}: "
                + ("its Gaussians" if SYSTEMS[self.system].gaussian else "its several points")
                + " are its own; leave it out"
            )
        if self.dim % 2 and self.system != "published":
            raise ValueError(f"model.dim must be even for {self.system}, got {self.dim}")
        one = self.pvse.embeddings == 1
        if self.system == "pvse" and self.similarity not in ("mil", *(["cosine"] if one else [])):
            raise ValueError(
                f"model.similarity is {self.similarity!r}, but pvse has "
                f"{self.pvse.embeddings} embeddings an item: it takes mil"
                + (" or cosine" if one else "")
            )
        if self.system in ("pcme", "pcmepp") and self.similarity in ("mil", "cosine"):
            own = "match_prob" if self.system == "pcme" else "csd"
            raise ValueError(
                f"model.similarity {self.similarity!r} would never train the variances of "
                f"{self.system}: choose {own} or another that uses them ('gaussmatch evaluate "
                "--similarity cosine' ranks by the means)"
            )
        if self.system in ("pcmepp", "published") and self.similarity in ("mil", "match_prob"):
            raise ValueError(
                f"model.similarity {self.similarity!r} is not for model.system {self.system!r}: "
                "mil compares the embeddings of pvse, match_prob the Gaussians of pcme"
            )
