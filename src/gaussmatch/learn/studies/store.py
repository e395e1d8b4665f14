"""Runs kept by what they are: the same recipe, seed and start is trained once.

runs/{words}-{digest}/             a run folder (``gaussmatch.models.run``)
    evaluation-{split}.json        its measures
    each-{split}.safetensors       and their values, query by query, for paired tests
    crops.json                     choices between crops
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gaussmatch.files import read_json
from gaussmatch.learn.studies.experiment import SplitName
from gaussmatch.models.recipe import DataRecipe, Recipe, identity
from gaussmatch.models.recipe.migrations import EVALUATION_ONLY
from gaussmatch.models.run import is_finished

EVALUATION = tuple(
    name.removeprefix("data.") for name in EVALUATION_ONLY if name.startswith("data.")
)
"""Fields of data that are read when a run is measured, and never in training."""
NEW_PHOTOS = ("backbone", "weights", "view")
"""Fields of data that, where features are given, only say how new photos become such features."""


@dataclass(frozen=True)
class Run:
    """A recipe (with its seed), what it starts from, and what is to be measured of it."""

    recipe: Recipe
    start: Run | None = None
    wants: frozenset[SplitName] = field(default=frozenset(), compare=False)
    folder: str | None = None  #: of a run that was not trained here and is only measured

    @property
    def trained_recipe(self) -> Recipe:
        """The recipe without what training does not read, so that adding it later trains nothing
        again."""
        data = self.recipe.data
        unread = EVALUATION + (NEW_PHOTOS if data.extracted is not None else ())
        plain = {name: getattr(DataRecipe(), name) for name in unread}
        return replace(self.recipe, title="", data=replace(data, **plain))

    @property
    def digest(self) -> str:
        """Twelve digits of the content, whatever the title."""
        start = None if self.start is None else self.start.digest
        decides = identity(self.trained_recipe)
        decides.pop("model.checkpointing", None)  # the same gradients, computed another way
        words = [decides, start] if self.folder is None else [decides, self.folder]
        return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """The folder's name: a few words for a person, then the digest."""
        model = self.recipe.model
        words = [model.system.replace("+", "p"), *(["ft"] if self.start is not None else [])]
        if model.probabilistic:
            words += [model.similarity.replace("_", "-"), model.shape.removesuffix("-avgpool")]
        words += [f"d{model.dim}", f"seed-{self.recipe.training.seed}", self.digest]
        return "-".join(words)


@dataclass(frozen=True)
class Store:
    """The folder of all runs."""

    root: Path

    def folder(self, run: Run) -> Path:
        return self.root / run.name if run.folder is None else Path(run.folder)

    def result(self, run: Run, split: SplitName) -> Path:
        """The file that says: measured on this split."""
        return self.folder(run) / ("crops.json" if split == "crops" else f"evaluation-{split}.json")

    def each(self, run: Run, split: SplitName) -> Path:
        return self.folder(run) / f"each-{split}.safetensors"

    def missing(self, run: Run) -> list[SplitName]:
        """What is still to be measured; ``dev`` and ``test`` come with their single queries."""
        return [split for split in sorted(run.wants) if not self._measured(run, split)]

    def _measured(self, run: Run, split: SplitName) -> bool:
        """Whether a result is there, and of the same fields of evaluation."""
        result = self.result(run, split)
        if not result.exists() or (split != "crops" and not self.each(run, split).exists()):
            return False
        if split == "crops":
            return True
        before = read_json(result)["provenance"]["recipe"]["data"]
        return all(before[name] == getattr(run.recipe.data, name) for name in EVALUATION)

    def trained(self, run: Run) -> bool:
        return run.folder is not None or is_finished(self.folder(run))

    def finished(self, run: Run) -> bool:
        return self.trained(run) and not self.missing(run)


def merged(runs: Iterable[Run]) -> list[Run]:
    """Each run once, wanting all that anybody wanted of it, and every start before its sequel."""
    wants: dict[Run, frozenset[SplitName]] = {}
    for run in runs:
        if run.start is not None:
            wants.setdefault(run.start, frozenset())
        wants[run] = wants.get(run, frozenset()) | run.wants
    return [replace(run, wants=wanted) for run, wanted in wants.items()]
