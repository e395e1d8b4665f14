"""Recipes: one typed YAML file says everything about a run.

The defaults are the paper's settings (Sec. 4.2). Unknown keys and wrong types are refused, with the
file and the key named; any field can be overridden on the command line as ``--training.epochs 5``.
"""

from __future__ import annotations

from gaussmatch.data.recipe import DataRecipe
from gaussmatch.models.recipe.fields import (
    AdapterRecipe,
    GeneratorRecipe,
    LossRecipe,
    ModelRecipe,
    PCMEPPRecipe,
    PCMERecipe,
    PosthocRecipe,
    PublishedRecipe,
    PVSERecipe,
    Recipe,
    TrainingRecipe,
    VSRNRecipe,
)
from gaussmatch.models.recipe.load import (
    FOUND,
    all_recipes,
    changed,
    find_recipe,
    identity,
    load_recipe,
    parse_overrides,
    read_layers,
    recipe_folder,
    recipe_parser,
    typed,
)
