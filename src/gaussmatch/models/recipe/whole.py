"""A whole recipe: everything about a run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field

import yaml

from gaussmatch.data.recipe import DataRecipe
from gaussmatch.files import write_text
from gaussmatch.models.recipe.model import ModelRecipe
from gaussmatch.models.recipe.training import LossRecipe, TrainingRecipe


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
