"""Faults of data: pairs that do not fit, vague captions, missing positives, odd photos, twins.

Works on any vectors of images and captions: features, or the means of a model. What fits is
learned from the data itself and cross-fitted: only pairs of the other folds say what a pair should
look like. Three views score it: a map from captions to images (ridge regression in closed form),
the captions of the most similar photos, and the photos of the most similar captions. How to weigh
them is learned from mismatches made for the purpose, by exchanging captions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gaussmatch.core.metrics import ResultProbability

FOLDS = 5
RIDGE = 0.02
"""Share of the mean variance of captions that is added to every direction."""
WIDTH = 256
"""Principal directions of the images that a caption is mapped to, at most."""
NEIGHBOURS = 40
"""Pairs of the other folds that a photo, or a caption, is compared with."""
NEARNESS = 10.0
"""How much more a nearer one counts: its weight is e^(10 · cosine)."""
BLOCK = 1000
"""Rows whose cosines with all others are held at a time."""
COLUMNS = 6
"""Evidence about a pair, see ``_standing`` and ``_likeness``."""
TWINS = 0.98
"""Cosine of two photos from which they count as near-duplicates."""


@dataclass(frozen=True, eq=False)
class Fit:
    """How well each caption fits its image, judged by pairs of other folds.

    Args:
        score: (m), how well it fits its image, see ``_scores``.
        features: (m, f), evidence about each pair, see ``_standing``.
        misfit: (m), the probability that the pair is a mismatch.
        better: (m), the image of its fold that fits each caption best, and ``margin``, by how much
            better than its own, in standard deviations.
        others: (p), the same margin of other pairs, where they were given; NaN where caption and
            image are of different folds.
    """

    score: Tensor
    features: Tensor
    misfit: Tensor
    better: Tensor
    margin: Tensor
    others: Tensor


def cross_fitted(
    images: Tensor,
    captions: Tensor,
    image_of: Tensor,
    seed: int = 0,
    others: tuple[Tensor, Tensor] | None = None,
) -> Fit:
    """Judge every pair by the pairs of the other folds.

    Args:
        images: (n, F) and ``captions``: (m, G), any vectors.
        image_of: (m), the image of each caption.
        others: (p) captions and (p) images, other pairs to judge.
    """
    if len(images) < 2 * FOLDS:
        raise ValueError(f"an audit needs at least {2 * FOLDS} images, got {len(images)}")
    generator = torch.Generator().manual_seed(seed)
    x, t = _principal(images), _unit(captions.float() - captions.float().mean(0))
    fold = torch.randperm(len(x), generator=generator) % FOLDS
    score, better, margin = torch.zeros(len(t)), torch.zeros(len(t)).long(), torch.zeros(len(t))
    features, wrong = torch.zeros(2, len(t), COLUMNS).double()
    c, i = (torch.zeros(0).long(),) * 2 if others is None else others
    of_others = torch.full((len(c),), torch.nan)
    for f in range(FOLDS):
        mine, here = (fold[image_of] == f).nonzero()[:, 0], (fold == f).nonzero()[:, 0]
        if not len(mine):
            continue
        seen = (fold[image_of] != f).nonzero()[:, 0]
        scores = _scores(t[mine], x[here], t[seen], x[image_of[seen]])
        place, row = torch.full((len(x),), -1), torch.full((len(t),), -1)
        place[here], row[mine] = torch.arange(len(here)), torch.arange(len(mine))
        own = place[image_of[mine]]
        exchanged = torch.randperm(len(mine), generator=generator)
        for found, turn in ((features, slice(None)), (wrong, exchanged)):
            columns = [*_standing(scores, own[turn]), *_likeness(t, image_of, mine, mine[turn])]
            found[mine] = torch.stack(columns, 1).double()
        score[mine] = scores[torch.arange(len(mine)), own]
        best, spread = scores.max(1), _spread(scores, 1)
        better[mine] = here[best.indices]
        margin[mine] = (best.values - score[mine]) / spread
        both = (fold[image_of[c]] == f) & (fold[i] == f)
        rows = row[c[both]]
        of_others[both] = (scores[rows, place[i[both]]] - score[c[both]]) / spread[rows]
    labels = torch.cat([torch.zeros(len(t)), torch.ones(len(t))])
    weigh = ResultProbability.fit(torch.cat([features, wrong]), labels)
    return Fit(score, features, weigh(features), better, margin, of_others)


def _scores(t: Tensor, x: Tensor, seen_t: Tensor, seen_x: Tensor) -> Tensor:
    """How well captions fit images of a fold (captions × images): the mean of three cosines in
    their standard deviations — of a caption's mapped image with an image, of a caption with those
    of similar photos, and of the photos of similar captions with an image."""
    unit = _unit(x)
    views = (
        _unit(t @ _ridge(seen_t, seen_x)) @ unit.T,
        t @ _borrowed(unit, _unit(seen_x), seen_t).T,
        _borrowed(t, seen_t, seen_x) @ unit.T,
    )
    return torch.stack([view / _spread(view) for view in views]).mean(0)


def _borrowed(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The mean value of the ``NEIGHBOURS`` nearest keys, the nearest counting most."""
    parts = []
    for some in queries.split(BLOCK):
        near = (some @ keys.T).topk(min(NEIGHBOURS, len(keys)))
        weight = (NEARNESS * near.values).softmax(1)
        parts.append(torch.einsum("qk,qkd->qd", weight, values[near.indices]))
    return _unit(torch.cat(parts))


def _standing(scores: Tensor, column: Tensor) -> list[Tensor]:
    """Of captions with the images in ``column``: the score; where it lies among the caption's
    scores with other images, as a z-score and as the logit of its rank; and where it lies among the
    image's scores with other captions."""
    own = scores[torch.arange(len(scores)), column]
    rank = ((scores >= own[:, None]).double().sum(1) - 0.5) / scores.shape[1]
    return [
        own,
        (own - scores.mean(1)) / _spread(scores, 1),
        torch.logit(rank.clamp(1e-6, 1 - 1e-6)).float(),
        (own - scores.mean(0)[column]) / _spread(scores, 0)[column],
    ]


def _likeness(t: Tensor, image_of: Tensor, captions: Tensor, siblings_of: Tensor) -> list[Tensor]:
    """How like the other captions of an image a caption is, and whether there are any."""
    others, some = _siblings(t, image_of, siblings_of)
    return [(_unit(others) * t[captions]).sum(1) * some, some.float()]


def _siblings(t: Tensor, image_of: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
    """Of each of some captions the sum of the other captions of its image, and whether there are
    any."""
    images = int(image_of.max()) + 1
    total = t.new_zeros(images, t.shape[1]).index_add_(0, image_of, t)
    count = torch.bincount(image_of, minlength=images)
    return total[image_of[captions]] - t[captions], count[image_of[captions]] > 1


def _principal(x: Tensor) -> Tensor:
    """The leading principal directions, the larger ones drawn in."""
    x = x.double() - x.double().mean(0)
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    keep = min(WIDTH, x.shape[1], len(x) - 1)
    values, vectors = values[-keep:], vectors[:, -keep:]
    return (
        (x @ vectors) / values.clamp_min(1e-6 * float(values[-1]) + 1e-12).sqrt() ** 0.5
    ).float()


def _ridge(t: Tensor, x: Tensor) -> Tensor:
    t, x = t.double(), x.double()
    gram = t.T @ t
    ridge = RIDGE * gram.diagonal().mean().clamp_min(1e-9) * torch.eye(len(gram), dtype=t.dtype)
    return torch.linalg.solve(gram + ridge, t.T @ x).float()


def _spread(x: Tensor, axis: int | None = None) -> Tensor:
    """The standard deviation, or a little where nothing varies: captions or photos may all be
    alike, and there may be one."""
    n = x.numel() if axis is None else x.shape[axis]
    return x.std(axis, correction=min(1, n - 1)).clamp_min(1e-6)


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)


# ---- findings ----

ISSUES = {
    "misfit": "the caption does not fit its photo",
    "missing positive": "the caption fits another photo at least as well",
    "vague": "the caption fits many photos",
    "odd photo": "unlike the other photos",
    "near-duplicate": "nearly the same photo twice",
}


@dataclass(frozen=True)
class Finding:
    """Something to look at, see docs/trust.md."""

    issue: str
    """One of ``ISSUES``."""
    severity: float
    """Comparable within an issue; higher is worse."""
    image: int
    """Its position in the data."""
    caption: int | None = None
    """Its position, where the finding is about one."""
    other: int | None = None
    """The position of another image that it is about."""
    reason: str = ""
    """Why, in words."""
    text: str = ""
    """Of the caption."""


def audit(
    images: Tensor,
    captions: Tensor,
    image_of: Tensor,
    *,
    uncertainty: Tensor | None = None,
    most: int = 100,
) -> list[Finding]:
    """The ``most`` worst findings of each issue, issue by issue, worst first.

    Args:
        images: (n, F) and ``captions``: (m, G), any vectors.
        image_of: (m), the image of each caption.
        uncertainty: (m), of each caption, where a model knows it; else vague captions are those
            that the map does not distinguish from many photos.
    """
    fit = cross_fitted(images, captions, image_of)
    found = []
    for c in fit.misfit.argsort(descending=True)[:most].tolist():
        if fit.misfit[c] >= 0.5:
            reason = f"a mismatch with probability {100 * float(fit.misfit[c]):.0f} %"
            found.append(Finding("misfit", float(fit.misfit[c]), int(image_of[c]), c, None, reason))
    sound = fit.misfit < 0.5
    ahead = torch.where(sound & (fit.better != image_of), fit.margin, torch.zeros(()))
    for c in ahead.argsort(descending=True)[:most].tolist():
        if ahead[c] > 0:
            reason = f"fits the other photo better by {float(ahead[c]):.1f} standard deviations"
            own, other = int(image_of[c]), int(fit.better[c])
            found.append(Finding("missing positive", float(ahead[c]), own, c, other, reason))
    unsure = -fit.features[:, 1] if uncertainty is None else uncertainty.double()
    share = unsure.argsort().argsort().double() / len(unsure)
    order = torch.where(sound, share, -torch.ones(()).double()).argsort(descending=True)
    for c in order[: max(1, min(most, len(order) // 20))].tolist():
        reason = f"vaguer than {min(99, int(100 * share[c]))} % of the captions"
        found.append(Finding("vague", float(share[c]), int(image_of[c]), c, None, reason))
    return [*found, *_odd(images, most), *_twins(images, most)]


def _odd(images: Tensor, most: int) -> list[Finding]:
    """Photos far from all others: robust z-scores of the distance to the nearest of them."""
    x = _unit(images.double() - images.double().mean(0))
    near = torch.cat([_nearest(x, start)[0] for start in range(0, len(x), BLOCK)])
    apart = 1 - near
    median = apart.median()
    z = (apart - median) / (1.4826 * (apart - median).abs().median()).clamp_min(1e-12)
    return [
        Finding("odd photo", float(z[i]), i, None, None, f"{float(z[i]):.1f} robust deviations out")
        for i in z.argsort(descending=True)[:most].tolist()
        if z[i] > 4
    ]


def _twins(images: Tensor, most: int) -> list[Finding]:
    """Pairs of photos whose vectors nearly agree, each named once."""
    x = _unit(images.double() - images.double().mean(0))
    parts = [_nearest(x, start) for start in range(0, len(x), BLOCK)]
    alike, other = (torch.cat(column) for column in zip(*parts, strict=True))
    pairs = {
        (min(i, int(other[i])), max(i, int(other[i]))): float(alike[i])
        for i in (alike >= TWINS).nonzero()[:, 0].tolist()
    }
    worst = sorted(pairs.items(), key=lambda pair: -pair[1])[:most]
    return [
        Finding("near-duplicate", cosine, i, None, j, f"cosine {cosine:.3f} of their features")
        for (i, j), cosine in worst
    ]


def _nearest(x: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Cosine and position of the nearest other photo, of some."""
    some = x[start : start + BLOCK]
    cosines = some @ x.T
    cosines[torch.arange(len(some)), torch.arange(start, start + len(some))] = -2
    best = cosines.max(1)
    return best.values, best.indices
