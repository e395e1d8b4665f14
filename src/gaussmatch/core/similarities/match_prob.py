"""The match probability of PCME: a mean over pairs of samples."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities.base import wide
from gaussmatch.core.similarities.pairwise import PairwiseSimilarity

EPSILON = 1e-6
"""Under the root of a distance, so that a gradient exists at distance zero (as published)."""

SEEDS = {"images": 0x1A6E, "captions": 0xCA97}
"""Of the noise that evaluation shares between all items of a side."""


class MatchProb(PairwiseSimilarity, nn.Module):
    """ln P/(1 − P), the log-odds of the probability P that an image and a caption match.

        P = mean over k, l of sigmoid(2·(b − a·‖z_k − z_l‖)),   z_k ~ N(μi, Σi), z_l ~ N(μc, Σc)

    ranks as P does and never saturates; −ln P = softplus(−score) and −ln(1 − P) = softplus(score)
    are what ``SoftContrastive`` sums. ``scale`` (a) and ``shift`` (b) are learned and saved with
    the weights of a model.

    While a model trains, every item is sampled afresh. Otherwise all images share one fixed set of
    standard normal vectors and all captions another: a score does not depend on what else is
    scored, repeats on every machine, and two items are compared under the same luck.

    Args:
        samples: of each item; the mean is over samples² pairs.
        scale: a at the start.
        shift: b at the start.

    >>> g = Gaussian(torch.eye(3), torch.full((3, 3), -9.0))
    >>> (MatchProb().matrix(g, g).sigmoid() > 0.5).int()
    tensor([[1, 0, 0],
            [0, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """

    name = "match_prob"
    shift_invariant = True
    no_lift = (
        "a score is a mean over pairs of samples, not an inner product of two vectors; an "
        "index can hold the means (cosine) and its best hits be scored again by match_prob"
    )

    def __init__(self, samples: int = 7, scale: float = 15.0, shift: float = 15.0) -> None:
        nn.Module.__init__(self)
        self.training = False  # alone it scores; a model in training turns fresh samples on
        self.samples = samples
        self.scale = nn.Parameter(torch.tensor(scale))
        self.shift = nn.Parameter(torch.tensor(shift))

    def represent(self, images: Gaussian, captions: Gaussian) -> tuple[Gaussian, Gaussian]:
        """Samples (n, K, D) of both sides."""
        return self._sampled(images, "images"), self._sampled(captions, "captions")

    def scores(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n m"]:
        """Sample by sample, so that the pairs of samples stand on the outer dimensions."""
        a, b = (g.mean.to(wide(g)).transpose(0, 1) for g in (images, captions))
        left, right = a.flatten(0, 1), b.flatten(0, 1)
        squares = left.square().sum(-1)[:, None] + right.square().sum(-1) - 2 * left @ right.T
        return self._log_odds(squares.view(*a.shape[:2], *b.shape[:2]).to(images.dtype), (0, 2))

    def pair_scores(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n"]:
        a, b = (g.mean.to(wide(g)) for g in (images, captions))
        squares = (a[:, :, None] - b[:, None]).square().sum(-1)
        return self._log_odds(squares.to(images.dtype), (1, 2))

    def _log_odds(self, squares: Float[Tensor, "..."], over: tuple[int, int]) -> Tensor:
        """From the squared distances of all pairs of samples; stable at both ends."""
        distance = (squares.clamp_min(0) + EPSILON).sqrt()
        logit = 2 * (self.shift.to(distance) - self.scale.to(distance) * distance)
        log_p = logsigmoid(logit)
        return log_p.logsumexp(over) - (log_p - logit).logsumexp(over)  # ln(1 − p) = ln p − logit

    def _sampled(self, g: Gaussian, side: str) -> Gaussian:
        if self.training:
            noise = torch.randn(len(g), self.samples, g.dim, dtype=g.dtype, device=g.device)
        else:
            noise = self.noise(side, g.dim).to(g.mean)
        return Gaussian(g.mean[:, None] + g.std[:, None] * noise)

    def noise(self, side: str, dim: int) -> Float[Tensor, "k d"]:
        """The standard normal vectors that all items of a side share in evaluation."""
        dice = torch.Generator().manual_seed(SEEDS[side])
        return torch.randn(self.samples, dim, generator=dice, dtype=torch.float64)
