"""gaussmatch: image–text retrieval that knows how sure it is.

Every photo and every caption becomes a Gaussian in one joint space.

>>> import torch, gaussmatch as gm
>>> images = gm.Gaussian(torch.randn(2, 8), torch.zeros(2, 8))
>>> captions = gm.Gaussian(torch.randn(3, 8), torch.zeros(3, 8))
>>> gm.similarity("kl").matrix(images, captions).shape
torch.Size([2, 3])

Names are imported when they are first used, so that ``import gaussmatch`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaussmatch import losses as losses
    from gaussmatch import metrics as metrics
    from gaussmatch import plot as plot
    from gaussmatch.data import DataSet as DataSet
    from gaussmatch.data import Pairs as Pairs
    from gaussmatch.data import load_data as load_data
    from gaussmatch.data import scenes as scenes
    from gaussmatch.encoders import Probabilistic as Probabilistic
    from gaussmatch.evaluation.evaluate import evaluate as evaluate
    from gaussmatch.gaussian import Gaussian as Gaussian
    from gaussmatch.index import Hit as Hit
    from gaussmatch.index import Hits as Hits
    from gaussmatch.index import Index as Index
    from gaussmatch.index.index import open_index as open_index
    from gaussmatch.model import Model as Model
    from gaussmatch.model import UncertaintyWarning as UncertaintyWarning
    from gaussmatch.published import from_pretrained as from_pretrained
    from gaussmatch.published import push_to_hub as push_to_hub
    from gaussmatch.published import save_pretrained as save_pretrained
    from gaussmatch.recipe import Recipe as Recipe
    from gaussmatch.recipe import load_recipe as load_recipe
    from gaussmatch.run import load as load
    from gaussmatch.similarities import Similarity as Similarity
    from gaussmatch.similarities import similarity as similarity
    from gaussmatch.training.loop import train as train

__version__ = "0.2.0"

_HOME = {
    "DataSet": "gaussmatch.data",
    "Gaussian": "gaussmatch.gaussian",
    "Hit": "gaussmatch.index",
    "Hits": "gaussmatch.index",
    "Index": "gaussmatch.index",
    "Model": "gaussmatch.model",
    "Pairs": "gaussmatch.data",
    "Probabilistic": "gaussmatch.encoders",
    "Recipe": "gaussmatch.recipe",
    "Similarity": "gaussmatch.similarities",
    "UncertaintyWarning": "gaussmatch.model",
    "evaluate": "gaussmatch.evaluation.evaluate",
    "from_pretrained": "gaussmatch.published",
    "load": "gaussmatch.run",
    "load_data": "gaussmatch.data",
    "load_recipe": "gaussmatch.recipe",
    "losses": "gaussmatch",
    "metrics": "gaussmatch",
    "open_index": "gaussmatch.index.index",
    "plot": "gaussmatch",
    "push_to_hub": "gaussmatch.published",
    "save_pretrained": "gaussmatch.published",
    "scenes": "gaussmatch.data",
    "similarity": "gaussmatch.similarities",
    "train": "gaussmatch.training.loop",
}
"""Where each public name lives; a test compares this with the imports above."""

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gaussmatch' has no attribute {name!r}")
    found = (
        import_module(f"gaussmatch.{name}")
        if home == "gaussmatch"
        else getattr(import_module(home), name)
    )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
