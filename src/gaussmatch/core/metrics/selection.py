"""Binary selection: given one of A and C as the query, which of A and C of the other side?"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def binary_selection(
    scores: Float[Tensor, "triplets 2 2"],
    caption_queries: Float[Tensor, "triplets 2 2"] | None = None,
) -> dict[str, float]:
    """Percentage of right choices for each query; a tie is a wrong choice.

    Args:
        scores: of crop A and crop C (rows) with caption A and caption C (columns).
        caption_queries: the same scores for caption queries, where they differ.

    Returns:
        ``crop_a`` and ``crop_c``: image-to-text, a crop selects its caption. ``caption_a`` and
        ``caption_c``: text-to-image, a caption selects its crop.

    >>> binary_selection(torch.tensor([[[3.0, 1.0], [2.0, 1.0]]]))
    {'crop_a': 100.0, 'crop_c': 0.0, 'caption_a': 100.0, 'caption_c': 0.0}
    """
    if not len(scores):
        raise ValueError("no triplets: there is nothing to select")
    if scores.isnan().any():
        raise ValueError(f"a score of triplet {int(scores.isnan().nonzero()[0, 0])} is NaN")
    by_caption = (scores if caption_queries is None else caption_queries).transpose(1, 2)
    right = {
        side: table.diagonal(dim1=1, dim2=2) > torch.stack([table[:, 0, 1], table[:, 1, 0]], -1)
        for side, table in (("crop", scores), ("caption", by_caption))
    }
    return {
        f"{side}_{name}": 100 * float(chosen[:, n].double().mean())
        for side, chosen in right.items()
        for n, name in enumerate("ac")
    }
