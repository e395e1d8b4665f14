"""How ambiguous is an image? Two meanings, each with a gauge of its own, learned from captions.

log det Σ of an image answers neither well, but its Gaussian holds both answers: a gauge is linear
in the mean and the log-variances, a = w·μ + v·ln σ². Its weights are a ridge regression on what the
captions of training images say; no person labels anything. Every item of an index has one, as
nothing but its Gaussian is needed.

* ``fits_many``: do captions of other images fit this one? Learned from ln n, where n counts,
  softly, the captions of other images that say what the image's own captions say.
* ``many_ways``: would people describe it in many ways? Learned from how far the captions of one
  image disagree, and from the entropy of the model's posterior over training captions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

TITLES = {"fits_many": "fits many captions", "many_ways": "can be described in many ways"}
"""Gauge → what it says of an image with a high percentile."""
RIDGE = 0.8
"""The penalty of the regression for each training image; inputs have unit variance."""
SHARPNESS = 30.0
"""κ of n = Σ exp(κ (cos − 1))."""
FEWEST_CAPTIONS = 3
"""Captions of an image that can disagree, at least."""
FEWEST_IMAGES = 100
"""Images that a gauge is learned from, at least."""
NEAR = 12_000
"""Captions that near ones are counted among, at most."""
POSTERIOR = 6000
"""Captions that the posterior is taken over, at most."""
TEMPERATURE = 0.2
"""Of the posterior; people's judgments of photos chose it."""
QUANTILES = 101
_BLOCK = 512


def verdict_lines(
    kept: Mapping[str, Any] | None, here: Mapping[str, Any] | None = None
) -> list[str]:
    """The verdict that a run keeps, in the words of every command; and what another probe
    (``here``) alone would decide, if that differs.

    >>> images = {"passed": False, "failed": ["surest half 1.03 < 1.05"]}
    >>> found = {"data": "pairs/dev", "verdict": {"captions": {"passed": True}, "images": images}}
    >>> print(*verdict_lines(found), sep="\\n")
    verdict of the probe on pairs/dev:
      uncertainty of captions: passed, searches show it
      uncertainty of images: failed (surest half 1.03 < 1.05), searches do not show it
    """
    judged, others = ({} if one is None else one["verdict"] for one in (kept, here))
    if kept is None:
        lines = ["no verdict in the run: searches show no uncertainty"]
    else:
        lines = [f"verdict of the probe on {kept['data']}:"]
    for name in sorted({**judged, **others}, key=lambda name: name in TITLES):
        title = f"“{TITLES[name]}”" if name in TITLES else f"uncertainty of {name}"
        passed = name in judged and judged[name]["passed"]
        how = _outcome(judged[name]) if name in judged else "not judged"
        line = f"  {title}: {how}, searches {'show it' if passed else 'do not show it'}"
        if here is not None and name in others and others[name]["passed"] != passed:
            line += f"; on {here['data']} alone: {_outcome(others[name])}"
        lines.append(line)
    return lines


def _outcome(judged: Mapping[str, Any]) -> str:
    why = "; ".join(judged.get("failed", ())).replace("_", " ")
    return "passed" if judged["passed"] else f"failed ({why})"


@dataclass(frozen=True, eq=False)
class Gauge:
    """A number for each image; higher is more ambiguous in the sense of the gauge.

    Args:
        weights: (D) of the mean, followed by those of the log-variances (D, or 1 of a sphere).
        quantiles: its values on training images at 0 %, 1 %, …, 100 %.
    """

    weights: np.ndarray
    quantiles: np.ndarray

    def __call__(self, g: Gaussian | ArrayGaussian) -> np.ndarray:
        """(n), without a unit; NaN where the Gaussians are of another form."""
        x = _inputs(g)
        if x.shape[1] != len(self.weights):
            return np.full(len(x), np.nan)
        return x @ self.weights.astype(np.float64)

    def percentile(self, values: np.ndarray) -> np.ndarray:
        """(n), the share (0–100) of training images that have less of it."""
        share = np.linspace(0, 100, len(self._quantiles))
        return np.interp(values, self._quantiles, share)

    @cached_property
    def _quantiles(self) -> np.ndarray:
        return self.quantiles.astype(np.float64)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights, "quantiles": self.quantiles}


def learn_gauges(
    similarity: Similarity, images: Gaussian, captions: Gaussian, image_of: Tensor, meaning: Tensor
) -> dict[str, Gauge]:
    """Both gauges; one for which there is too little is left out.

    Args:
        images: of the training split.
        captions: of those images; ``image_of`` (m) says which, and ``meaning`` (m, E) are sentence
            embeddings, or their means.
    """
    x = torch.from_numpy(_inputs(images))
    center, scale = x.mean(0), x.std(0).clamp_min(1e-6)
    z = (x - center) / scale
    several, apart = disagreements(meaning, image_of, len(images))
    with_captions, count = near_captions(meaning, image_of, len(images))
    taught: dict[str, Tensor] = {}
    if len(with_captions) >= FEWEST_IMAGES:
        taught["fits_many"] = _ridge(z[with_captions], count)
    if len(several) >= FEWEST_IMAGES:
        spread = _entropy(similarity, images, captions)
        parts = [_ridge(z[several], apart), _ridge(z, spread)]
        taught["many_ways"] = sum((w / (z @ w).std().clamp_min(1e-9) for w in parts), z[0] * 0)
    found = {}
    for name, w in taught.items():
        weights = (w / scale).float()
        values = (x @ weights.double()).numpy()
        quantiles = np.quantile(values, np.linspace(0, 1, QUANTILES))
        found[name] = Gauge(weights.numpy(), quantiles.astype(np.float32))
    return found


def disagreement(meaning: Tensor) -> float:
    """One less the mean cosine of different sentences about one image (n, E)."""
    unit = torch.nn.functional.normalize(meaning.double(), dim=1)
    n = len(unit)
    return float(1 - (unit.sum(0).square().sum() - n) / (n * (n - 1)))


def _inputs(g: Gaussian | ArrayGaussian) -> np.ndarray:
    own = g.numpy() if isinstance(g, Gaussian) else g
    parts = [a.reshape(len(a), -1) for a in (own.mean, own.log_var) if a is not None]
    return np.concatenate(parts, 1, dtype=np.float64)


def _ridge(z: Tensor, target: Tensor) -> Tensor:
    z, y = z - z.mean(0), (target - target.mean()).double()
    penalty = RIDGE * len(z) * torch.eye(z.shape[1], dtype=z.dtype)
    return torch.linalg.solve(z.T @ z + penalty, z.T @ y)


def disagreements(said: Tensor, image_of: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """Images with several captions, and how far these disagree."""
    said = torch.nn.functional.normalize(said.float(), dim=1)
    n = torch.bincount(image_of, minlength=images).double()
    total = torch.zeros(images, said.shape[1]).index_add_(0, image_of, said).double()
    several = (n >= FEWEST_CAPTIONS).nonzero()[:, 0]
    k = n[several]
    return several, 1 - (total[several].square().sum(1) - k) / (k * (k - 1))


def near_captions(said: Tensor, image_of: Tensor, images: int) -> tuple[Tensor, Tensor]:
    """Images with captions, and the mean ln n of these, n among captions of other images, evenly
    chosen."""
    said = torch.nn.functional.normalize(said.float(), dim=1)
    count = torch.zeros(len(said), dtype=torch.float64)
    chosen = torch.linspace(0, len(said) - 1, min(NEAR, len(said))).long()
    others, their_image = said[chosen], image_of[chosen]
    for start in range(0, len(said), _BLOCK):
        rows = slice(start, start + _BLOCK)
        near = (SHARPNESS * (said[rows] @ others.T - 1)).exp()
        near.masked_fill_(image_of[rows, None] == their_image[None], 0.0)
        count[rows] = (near.sum(1).double() + 1e-5).log()
    n = torch.bincount(image_of, minlength=images).double()
    total = torch.zeros(images, dtype=torch.float64).index_add_(0, image_of, count)
    known = (n > 0).nonzero()[:, 0]
    return known, total[known] / n[known]


def _entropy(similarity: Similarity, images: Gaussian, captions: Gaussian) -> Tensor:
    """(n), of the posterior over captions, evenly chosen."""
    from gaussmatch.learn.evaluation.scores import query_scores

    some = captions[torch.linspace(0, len(captions) - 1, min(POSTERIOR, len(captions))).long()]
    found = []
    for start in range(0, len(images), _BLOCK):
        scores = query_scores(similarity, images[start : start + _BLOCK], some, "captions")
        log_p = (scores / TEMPERATURE).log_softmax(1)
        found.append(-(log_p.exp() * log_p).sum(1))
    return torch.cat(found).double()
