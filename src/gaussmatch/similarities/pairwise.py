"""The contract of a similarity that is no inner product or distance of two vectors."""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.gaussian import Gaussian
from gaussmatch.similarities import base
from gaussmatch.similarities.base import Lifted, Similarity, wide


class PairwiseSimilarity(Similarity):
    """A similarity with ``matrix`` and ``paired`` but without a lift: the best or the mean over
    several vectors of each item.

    Give ``scores``, ``pair_scores`` and ``no_lift``. Evaluation takes it block by block; an index
    can only scan it, and ``lift_images`` tells why.
    """

    metric = "inner_product"
    shift_invariant = False
    per_pair: int = 1
    """How many numbers ``scores`` holds at once for one pair: sets the size of a block."""

    @abstractmethod
    def scores(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n m"]:
        """Scores of every image with every caption of one block."""

    @abstractmethod
    def pair_scores(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n"]:
        """Score of image k with caption k."""

    def lift_images(self, g: Gaussian) -> Lifted:
        raise ValueError(f"{self.name} cannot be lifted into an index: {self.no_lift}")

    lift_captions = lift_images

    def matrix(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n m"]:
        images, captions = self.prepare(images, captions, paired=False)
        dtype, result = wide(images), torch.promote_types(images.dtype, torch.float32)
        per_row = max(1, len(captions) * dtype.itemsize * 3 * self.per_pair)
        rows = max(1, base.BLOCK_BYTES // per_row)
        wider = captions.to(dtype)
        blocks = [
            self.scores(images[i : i + rows].to(dtype), wider).to(result)
            for i in range(0, len(images), rows)
        ]
        empty = images.mean.new_zeros(0, len(captions), dtype=result)
        return torch.cat(blocks) if blocks else empty

    def paired(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n"]:
        images, captions = self.prepare(images, captions, paired=True)
        dtype, result = wide(images), torch.promote_types(images.dtype, torch.float32)
        return self.pair_scores(images.to(dtype), captions.to(dtype)).to(result)
