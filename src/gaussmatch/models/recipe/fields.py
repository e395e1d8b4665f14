"""The sections ``model``, ``loss`` and ``training`` of a recipe, and the whole, with what they must
agree on. ``data`` is in ``data.recipe``."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass, field
from typing import Literal

import yaml

from gaussmatch.checks import known, not_negative, positive, share
from gaussmatch.core.losses import LOSSES, Mining, Reduction
from gaussmatch.core.similarities import SIMILARITIES
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.files import write_text
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
    """What only a published model has: its two encoders, of which nothing learns. They are
    probabilistic themselves if model.feature_dim is twice model.dim, or else their embeddings are
    points.

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
            rules of their own (docs/peers-adapt.md), as has captions, which learns from the texts
            alone; all with model.similarity cosine. The means are those of training.start_from, or
            with model.adapter.mean given the embeddings.
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
        points = self.system == "published" and self.feature_dim == self.dim
        own = SYSTEMS[self.system].gaussian and not points
        return self.probabilistic or own or self.posthoc.fitted

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


PrecisionName = Literal["float32", "auto", "bfloat16", "float16"]


@dataclass(frozen=True)
class LossRecipe:
    """Which loss.

    Args:
        name: triplet (the hinge), infonce, sigmoid (pairwise), pcmepp and prolip (the same in the
            published forms), or soft-contrastive (PCME; with similarity match_prob); any of
            losses.LOSSES.
        margin: α of the hinge.
        mining: which negatives count in the hinge.
        reduction: sum over the batch, or mean (PVSE).
        scale: logit = scale · score in infonce and the sigmoid losses; an inverse temperature.
        learn_scale: train the scale; it is saved with the model.
        bias: of the logit in sigmoid, at the start; it is learned. About −scale suits the cosine, 0
            a divergence or distance.
        pseudo_positives: weight of a second sigmoid term in which negatives that score as high as
            the pair count as matches (PCME++: 0.1).
        label_smoothing: ε of sigmoid and pcmepp: a match counts as 1 − ε of one, a negative as ε.
        warmup_epochs: epochs with all negatives (sum) first; one of them prevents the collapse.
        same_image_negatives: count other captions of an image as its negatives (official VSE++).
        generation: weight of generating the caption from the regions (vsrn).
        diversity: weight of the term that keeps an item's embeddings apart (pvse).
        inclusion: weight of the term that puts a caption inside its shortened form (ProLIP); with
            training.shorten_as add or query.
        inclusion_as_published: weight of the same in the form of ProLIP's code (1e-3).
        inclusion_of_images: weight of that form for images inside their captions (ProLIP: 1e-7).
        fitting: weight of the term that puts the uncertainties of texts in the order of how many
            photos they fit, counted among the training captions.
        rivals: weight of the same without counting: in the order of how many images of the batch
            score beside a text's own.
        mmd: weight of the term that pulls images and captions together as two sets.
        vib: weight of the KL of every Gaussian to the unit one, summed; with pcmepp and prolip its
            mean over items and dimensions.
        vib_as_published: weight of the same in the form of PCME's code, with ln σ for ln σ².
    """

    name: str = "triplet"
    margin: float = 0.2
    mining: Mining = "hardest"
    reduction: Reduction = "sum"
    scale: float = 10.0
    learn_scale: bool = True
    bias: float = 0.0
    pseudo_positives: float = 0.0
    label_smoothing: float = 0.0
    warmup_epochs: int = 0
    same_image_negatives: bool = False
    generation: float = 0.0
    diversity: float = 0.0
    inclusion: float = 0.0
    inclusion_as_published: float = 0.0
    inclusion_of_images: float = 0.0
    fitting: float = 0.0
    rivals: float = 0.0
    mmd: float = 0.0
    vib: float = 0.0
    vib_as_published: float = 0.0

    def __post_init__(self) -> None:
        known("loss.name", self.name, LOSSES)
        positive("loss", self, "scale")
        for name in ("pseudo_positives", "label_smoothing"):
            if getattr(self, name) and self.name not in ("sigmoid", "pcmepp"):
                raise ValueError(f"loss.{name} needs loss.name sigmoid or pcmepp, not {self.name}")
        terms = [
            "generation",
            "diversity",
            "inclusion",
            "inclusion_as_published",
            "inclusion_of_images",
            "fitting",
            "rivals",
            "mmd",
            "vib",
            "vib_as_published",
        ]
        not_negative("loss", self, "pseudo_positives", *terms)
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(
                f"loss.label_smoothing must be in [0, 0.5), got {self.label_smoothing}"
            )

    @property
    def averages(self) -> bool:
        """Whether it is a mean over items, and so are its terms."""
        return self.name in ("pcmepp", "prolip")


@dataclass(frozen=True)
class TrainingRecipe:
    """How it is trained.

    Args:
        epochs: passes over the training captions.
        batch_size: pairs in a step, over all processes.
        learning_rate: of Adam.
        decay_epoch: after this many epochs the rate is multiplied by decay.
        decay: the factor.
        clip: largest gradient norm.
        seed: of the weights and of the order of the data.
        workers: processes that read images; 0 reads in the training process.
        device: cpu, cuda, mps, or auto for the best available.
        start_from: start with the weights and the vocabulary of another run: its folder, or the
            name of a recipe, whose loss and schedule then train this model on frozen features
            first, into the folder frozen of this run.
        backbone_rate: factor on the learning rate for model.backbone; 0 leaves it as it is.
        precision: of the networks in training: float32; bfloat16 or float16 (mixed: weights and
            scores stay float32); auto takes what a GPU has, and float32 elsewhere.
        steps: gradient steps in an epoch; none takes all pairs.
        optimizer: adam, fused-adam (the same in one pass over the weights, a quarter of its time;
            the last bits differ), or adamw with weight_decay.
        weight_decay: of adamw.
        schedule: step multiplies the rate by decay after decay_epoch epochs; one-cycle raises and
            lowers it over the whole training; cosine warms up in a line, then falls to 0.
        warmup: share of all steps over which one-cycle and cosine raise the rate.
        micro_batch: encode a batch in parts of this many pairs: the loss and gradients of the whole
            batch in the memory of one part, for about half as much time again.
        checkpoint_every: save a checkpoint within an epoch too: "500 steps" or "10 minutes"; none
            saves at the end of each epoch only. A resumed run ends with the same bits either way.
        bucket: put captions of like length in a batch. Faster with long captions, but the
            negatives are then of like length too, so it is off by default.
        shorten: the share of captions that are shortened to one to five words in an epoch, as
            people type queries.
        generalize: the share of those that are put in more general words instead (English).
        frame: the share of those with words around them that say nothing ("I can see a picture of
            …"), so that such words are not taken for specific ones (English).
        shorten_as: replace the whole caption, or add the shortened one: as a further pair, as a
            query only, which has to find its image but that images do not search for (loss.name
            infonce), or to compare it with the whole one in the terms of the loss and no more.
        mix: share of a batch's images that are mixed with another one's, half of them by a weighted
            mean and half by putting a part of it in their place; each is then a part of a match
            with both captions (loss.name sigmoid or pcmepp; PCME++: 0.25).
        calibrate: when done, learn from validation what the numbers mean and judge the uncertainty,
            as ``gaussmatch calibrate`` does; else this is done when the run is first indexed.
    """

    epochs: int = 30
    batch_size: int = 128
    learning_rate: float = 2e-4
    decay_epoch: int = 15
    decay: float = 0.1
    clip: float = 2.0
    seed: int = 0
    workers: int = 0
    device: str = "auto"
    start_from: str | None = None
    backbone_rate: float = 1.0
    precision: PrecisionName = "float32"
    steps: int | None = None
    bucket: bool = False
    checkpoint_every: str | None = None
    shorten: float = 0.0
    generalize: float = 0.0
    frame: float = 0.0
    shorten_as: Literal["replace", "add", "query", "compare"] = "replace"
    mix: float = 0.0
    optimizer: Literal["adam", "fused-adam", "adamw"] = "adam"
    weight_decay: float = 0.0
    schedule: Literal["step", "one-cycle", "cosine"] = "step"
    warmup: float = 0.1
    micro_batch: int | None = None
    calibrate: bool = False

    def __post_init__(self) -> None:
        positive("training", self, "epochs", "learning_rate", "decay_epoch", "decay", "clip")
        positive("training", self, "steps", "micro_batch")
        not_negative("training", self, "backbone_rate", "weight_decay")
        if self.weight_decay and self.optimizer != "adamw":
            raise ValueError("training.weight_decay needs training.optimizer adamw")
        if not 0 < self.warmup < 1:
            raise ValueError(f"training.warmup must be between 0 and 1, got {self.warmup}")
        if self.checkpoint_every is not None:
            checkpoint_interval(self.checkpoint_every)
        for name in ("shorten", "generalize", "frame", "mix"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"training.{name} is a share in [0, 1], got {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"training.seed must be in [0, 2³²), got {self.seed}")
        if self.batch_size < 2:
            raise ValueError(f"training.batch_size must be at least 2, got {self.batch_size}")

    @property
    def adds_captions(self) -> bool:
        """Whether shortened captions come beside the whole ones."""
        return self.shorten > 0 and self.shorten_as != "replace"


def checkpoint_interval(every: str) -> tuple[float, str]:
    """``training.checkpoint_every`` as a number and its unit.

    >>> checkpoint_interval("500 steps"), checkpoint_interval("1 minute")
    ((500.0, 'steps'), (1.0, 'minutes'))
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *(step|minute)s?", every.strip())
    if found is None or not float(found[1]) or (found[2] == "step" and float(found[1]) % 1):
        raise ValueError(
            f"training.checkpoint_every must be like '500 steps' or '10 minutes', got {every!r}"
        )
    return float(found[1]), f"{found[2]}s"


@dataclass(frozen=True)
class Recipe:
    """Everything about a run. ``title`` names its row in a table."""

    title: str = ""
    data: DataRecipe = field(default_factory=DataRecipe)
    model: ModelRecipe = field(default_factory=ModelRecipe)
    loss: LossRecipe = field(default_factory=LossRecipe)
    training: TrainingRecipe = field(default_factory=TrainingRecipe)

    def __post_init__(self) -> None:
        """What sections must agree on."""
        model, loss = self.model, self.loss
        if loss.generation and not (model.system == "vsrn" and model.vsrn.generator.used):
            raise ValueError(
                f"loss.generation is {loss.generation}, but only a model with a generator "
                "generates captions: model.system vsrn with model.vsrn.generator.used true"
            )
        if (model.backbone is not None) != (self.data.features == "pixels"):
            raise ValueError(
                f"model.backbone is {model.backbone or 'none'} but data.features is "
                f"{self.data.features}: a backbone takes pixels, and pixels need a backbone"
            )
        if loss.name == "soft-contrastive" and model.similarity != "match_prob":
            raise ValueError(
                "loss.name soft-contrastive reads scores as log-odds: it needs model.similarity "
                f"match_prob, not {model.similarity}"
            )
        if loss.diversity and model.system != "pvse":
            raise ValueError(f"loss.diversity needs model.system pvse, not {model.system}")
        for name in ("inclusion", "inclusion_as_published"):
            if getattr(loss, name) and not self.training.adds_captions:
                raise ValueError(
                    f"loss.{name} compares captions with their shortened forms: set "
                    "training.shorten, and training.shorten_as to add, query or compare"
                )
        if self.training.mix and loss.name not in ("sigmoid", "pcmepp"):
            raise ValueError(
                f"training.mix makes parts of matches, which loss.name {loss.name} does not know: "
                "it needs sigmoid or pcmepp"
            )
        if self.training.mix and self.training.adds_captions:
            raise ValueError("training.mix is not for further captions (training.shorten_as)")
        if self.training.shorten_as == "query" and loss.name != "infonce":
            raise ValueError(
                f"training.shorten_as query needs loss.name infonce, not {loss.name}; set it to add"
            )
        widths = ("inclusion", "inclusion_as_published", "inclusion_of_images", "fitting", "rivals")
        for name in ("vib", "vib_as_published", *widths):
            if getattr(loss, name) and not model.has_variance:
                raise ValueError(f"loss.{name} needs variances, but the model has points")

    def save(self, path: str | os.PathLike[str]) -> None:
        write_text(path, yaml.safe_dump(asdict(self), sort_keys=False, allow_unicode=True))
