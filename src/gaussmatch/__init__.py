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
    from gaussmatch.core import losses as losses
    from gaussmatch.core import metrics as metrics
    from gaussmatch.core.gaussian import Gaussian as Gaussian
    from gaussmatch.core.similarities import Similarity as Similarity
    from gaussmatch.core.similarities import similarity as similarity
    from gaussmatch.data import DataSet as DataSet
    from gaussmatch.data import Pairs as Pairs
    from gaussmatch.data import scenes as scenes
    from gaussmatch.learn import plot as plot
    from gaussmatch.learn.evaluation.evaluate import evaluate as evaluate
    from gaussmatch.learn.training.loop import train as train
    from gaussmatch.models.encoders import Probabilistic as Probabilistic
    from gaussmatch.models.features import load_data as load_data
    from gaussmatch.models.model import Model as Model
    from gaussmatch.models.model import UncertaintyWarning as UncertaintyWarning
    from gaussmatch.models.published import export as export
    from gaussmatch.models.published import from_pretrained as from_pretrained
    from gaussmatch.models.published import push_to_hub as push_to_hub
    from gaussmatch.models.published import save_pretrained as save_pretrained
    from gaussmatch.models.recipe import Recipe as Recipe
    from gaussmatch.models.recipe import load_recipe as load_recipe
    from gaussmatch.models.run import load as load
    from gaussmatch.search import Hit as Hit
    from gaussmatch.search import Hits as Hits
    from gaussmatch.search import Index as Index
    from gaussmatch.search import Query as Query
    from gaussmatch.search import Record as Record
    from gaussmatch.search.index import open_index as open_index

__version__ = "0.3.0"

_HOME = {
    "DataSet": "gaussmatch.data",
    "Gaussian": "gaussmatch.core.gaussian",
    "Hit": "gaussmatch.search",
    "Hits": "gaussmatch.search",
    "Index": "gaussmatch.search",
    "Model": "gaussmatch.models.model",
    "Pairs": "gaussmatch.data",
    "Probabilistic": "gaussmatch.models.encoders",
    "Query": "gaussmatch.search",
    "Recipe": "gaussmatch.models.recipe",
    "Record": "gaussmatch.search",
    "Similarity": "gaussmatch.core.similarities",
    "UncertaintyWarning": "gaussmatch.models.model",
    "evaluate": "gaussmatch.learn.evaluation.evaluate",
    "export": "gaussmatch.models.published",
    "from_pretrained": "gaussmatch.models.published",
    "load": "gaussmatch.models.run",
    "load_data": "gaussmatch.models.features",
    "load_recipe": "gaussmatch.models.recipe",
    "losses": "gaussmatch.core",
    "metrics": "gaussmatch.core",
    "open_index": "gaussmatch.search.index",
    "plot": "gaussmatch.learn",
    "push_to_hub": "gaussmatch.models.published",
    "save_pretrained": "gaussmatch.models.published",
    "scenes": "gaussmatch.data",
    "similarity": "gaussmatch.core.similarities",
    "train": "gaussmatch.learn.training.loop",
}
"""Where each public name lives; a test compares this with the imports above."""

_MODULES = ("losses", "metrics", "plot", "scenes")
"""Those of them that are modules."""

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gaussmatch' has no attribute {name!r}")
    found = (
        import_module(f"{home}.{name}") if name in _MODULES else getattr(import_module(home), name)
    )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
