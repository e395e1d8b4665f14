"""Similarities that are not an inner product or distance of two vectors: their contract, the best
of all pairs of embeddings (PVSE), and the match probability over pairs of samples (PCME)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

from gaussmatch.core.gaussian import A, Gaussian, Moments, Side
from gaussmatch.core.similarities import base
from gaussmatch.core.similarities.base import Lifted, Similarity, wide

BLOCK_BYTES = 16 * 2**20
"""Working memory of a block: what is freed and allocated again stays in the process."""

COLUMNS = 256
"""Captions of one block, at most."""


class PairwiseSimilarity(Similarity):
    """A similarity with ``matrix`` and ``paired`` but without a lift: the best or the mean over
    several vectors of each item.

    Give ``scores``, ``pair_scores`` and ``no_lift``; where items are turned into vectors first,
    also ``represent``. Products hide cancellations: take them in ``wide`` precision and give the
    scores back in that of the inputs. Evaluation takes it block by block; an index can only scan
    it, and ``lift_images`` says why.
    """

    metric = "inner_product"
    shift_invariant = False

    def represent(self, images: Gaussian, captions: Gaussian) -> tuple[Gaussian, Gaussian]:
        """Both sides as ``scores`` takes them, (n, D) or (n, K, D): once for a whole matrix."""
        return images, captions

    @abstractmethod
    def scores(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n m"]:
        """Scores of every image with every caption of one block."""

    @abstractmethod
    def pair_scores(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n"]:
        """Score of image k with caption k."""

    def lift_images(self, g: Moments[A]) -> Lifted[A]:
        raise ValueError(f"{self.name} cannot be lifted into an index: {self.no_lift}")

    lift_captions = lift_images

    def against(self, items: Gaussian, side: Side) -> Callable[[Gaussian], Tensor]:
        if side == "images":
            return lambda queries: self.matrix(items, queries).T
        return lambda queries: self.matrix(queries, items)

    def matrix(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n m"]:
        images, captions = self._represented(images, captions, paired=False)
        per_pair = images.shape[1:].numel() * captions.shape[1:].numel()
        width = min(COLUMNS, len(captions))
        most = min(BLOCK_BYTES, base.BLOCK_BYTES)
        height = max(1, most // max(1, width * wide(images).itemsize * 3 * per_pair))
        rows = [
            torch.cat(
                [
                    self.scores(images[i : i + height], captions[j : j + width])
                    for j in range(0, len(captions), width)
                ],
                1,
            )
            for i in range(0, len(images) if width else 0, height)
        ]
        return torch.cat(rows) if rows else images.mean.new_zeros(len(images), len(captions))

    def paired(self, images: Gaussian, captions: Gaussian) -> Float[Tensor, "n"]:
        return self.pair_scores(*self._represented(images, captions, paired=True))

    def _represented(
        self, images: Gaussian, captions: Gaussian, *, paired: bool
    ) -> tuple[Gaussian, Gaussian]:
        """Checked, and in single precision at least: that of the result."""
        images, captions = self.prepare(images, captions, paired=paired)
        result = torch.promote_types(images.dtype, torch.float32)
        return self.represent(images.to(result), captions.to(result))


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
        "a score is the best of several cosines, not an inner product of two vectors; put every "
        "embedding into a cosine index as an entry of its own and keep the best hit of "
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
