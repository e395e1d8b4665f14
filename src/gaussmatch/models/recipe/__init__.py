"""Recipes: one typed YAML file says everything about a run.

The defaults are the paper's settings (Sec. 4.2). Unknown keys and wrong types are refused, with the
file and the key named; any field can be overridden on the command line as ``--training.epochs 5``.
"""

from __future__ import annotations

from gaussmatch.data.recipe import DataRecipe
from gaussmatch.models.recipe.load import (
    all_recipes,
    changed,
    find_recipe,
    load_recipe,
    parse_overrides,
    read_layers,
    recipe_folder,
    recipe_parser,
    typed,
)
from gaussmatch.models.recipe.migrations import FOUND, identity
from gaussmatch.models.recipe.model import (
    AdapterRecipe,
    GeneratorRecipe,
    ModelRecipe,
    PCMEPPRecipe,
    PCMERecipe,
    PosthocRecipe,
    PublishedRecipe,
    PVSERecipe,
    VSRNRecipe,
)
from gaussmatch.models.recipe.training import LossRecipe, TrainingRecipe
from gaussmatch.models.recipe.whole import Recipe

__all__ = [
    "FOUND",
    "AdapterRecipe",
    "DataRecipe",
    "GeneratorRecipe",
    "LossRecipe",
    "ModelRecipe",
    "PCMEPPRecipe",
    "PCMERecipe",
    "PVSERecipe",
    "PosthocRecipe",
    "PublishedRecipe",
    "Recipe",
    "TrainingRecipe",
    "VSRNRecipe",
    "all_recipes",
    "changed",
    "find_recipe",
    "identity",
    "load_recipe",
    "parse_overrides",
    "read_layers",
    "recipe_folder",
    "recipe_parser",
    "typed",
]
