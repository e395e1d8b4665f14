"""gaussmatch: image–text retrieval that knows how sure it is.

Every photo and every caption becomes a Gaussian in one joint space.

>>> import torch, gaussmatch as gm
>>> images = gm.Gaussian(torch.randn(2, 8), torch.zeros(2, 8))
>>> captions = gm.Gaussian(torch.randn(3, 8), torch.zeros(3, 8))
>>> gm.similarity("kl").matrix(images, captions).shape
torch.Size([2, 3])
"""

from gaussmatch.data import scenes
from gaussmatch.encoders import Probabilistic
from gaussmatch.gaussian import Gaussian
from gaussmatch.model import Model, UncertaintyWarning
from gaussmatch.recipe import Recipe, load_recipe
from gaussmatch.run import load
from gaussmatch.similarities import Similarity, similarity

__version__ = "0.1.0"

__all__ = [
    "Gaussian",
    "Model",
    "Probabilistic",
    "Recipe",
    "Similarity",
    "UncertaintyWarning",
    "load",
    "load_recipe",
    "scenes",
    "similarity",
]
