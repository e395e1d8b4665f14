"""How a model is trained: the sections ``loss`` and ``training`` of a recipe."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gaussmatch.checks import known, not_negative, positive
from gaussmatch.core.losses import LOSSES, Mining, Reduction

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
