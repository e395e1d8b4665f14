"""The best of all pairs of embeddings: the similarity of items with several of them (PVSE)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities.base import wide
from gaussmatch.core.similarities.pairwise import PairwiseSimilarity


class MIL(PairwiseSimilarity):
    """max over k, l of cos(i_k, c_l): multiple-instance learning over K × K embeddings.

    Items are (n, K, D); plain points (n, D) are the case K = 1, where it is the cosine. Variances,
    if there are any, play no part.

    >>> import torch
    >>> image = Gaussian(torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))      # looks both ways
    >>> captions = Gaussian(torch.tensor([[[0.0, 3.0]], [[-1.0, -1.0]]]))
    >>> MIL().matrix(image, captions)
    tensor([[ 1.0000, -0.7071]])
    """

    name = "mil"
    needs_variance = False
    several = True
    no_lift = (
        "a score is the best of several cosines, and a maximum is no inner product of two vectors; "
        "put every embedding into a cosine index as an entry of its own and keep the best hit of "
        "each item"
    )

    def scores(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n m"]:
        a, b = _embeddings(images), _embeddings(captions)
        cosines = a.flatten(0, 1) @ b.flatten(0, 1).T
        return cosines.view(*a.shape[:2], *b.shape[:2]).amax((1, 3)).to(images.dtype)

    def pair_scores(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n"]:
        best = (_embeddings(images) @ _embeddings(captions).mT).amax((1, 2))
        return best.to(images.dtype)


def _embeddings(g: Gaussian) -> Float[Tensor, "n k d"]:
    """Unit vectors, K for each item."""
    unit = normalize(g.mean.to(wide(g)), dim=-1)
    return unit if unit.ndim == 3 else unit[:, None]
