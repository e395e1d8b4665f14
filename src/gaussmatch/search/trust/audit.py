"""Faults of data: pairs that do not fit, vague captions, missing positives, odd photos, twins.

Works on any vectors of images and captions: features, or the means of a model. What fits is
learned from the data itself and cross-fitted: only pairs of the other folds say what a pair should
look like. Three views score it: a map from captions to images (ridge regression in closed form),
the captions of the most similar photos, and the photos of the most similar captions. How to weigh
them is learned from mismatches made for the purpose, by exchanging captions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gaussmatch.core.metrics import ResultProbability
from gaussmatch.search.trust.duplicates import Copies, grouped, nearest

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
"""Cosine of two photos without pictures from which they count as near-duplicates."""
SUSPECT = 0.1
"""Probability of a mismatch from which on a caption is shown; from 0.5 on it is proposed to go."""
SHARE, ROUNDS = 0.1, 20
"""Of mismatches at first, and how often it is estimated again, see ``_mismatch``."""
LIKELY = 2.0
"""Standard deviations by which two captions must fit each other's photo to be called exchanged."""
ODD = 4.0
"""Robust deviations from which on a photo is unlike the others."""


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
    x, t = _prepared(images, captions)
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
    return Fit(score, features, _mismatch(features, wrong), better, margin, of_others)


def _mismatch(given: Tensor, made: Tensor) -> Tensor:
    """(m), the probability that a given pair is a mismatch, from features (m, f) of those and of
    mismatches that were made. Given pairs are a mixture: an unknown share of them is like those
    made. Share and weights are found together, by expectation and maximization."""
    x = torch.cat([given, made])
    labels = torch.cat([torch.zeros(len(given)), torch.ones(len(made))])
    odds = ResultProbability.fit(x, labels).logit(given)
    share = torch.tensor(SHARE).double()
    for _ in range(ROUNDS):
        wrong = torch.sigmoid(odds + torch.logit(share))
        share = wrong.mean().clamp(0.5 / len(given), 0.5)
        right = 1 - wrong
        weight = torch.cat([right, right.mean().expand(len(made))])
        odds = ResultProbability.fit(x, labels, weight).logit(given)
    return torch.sigmoid(odds + torch.logit(share))


Scorer = Callable[[Tensor, Tensor], Tensor]
"""Positions of captions and of images → captions × images, the scores of a model."""


def exchanged(
    images: Tensor,
    captions: Tensor,
    image_of: Tensor,
    misfit: Tensor,
    scorer: Scorer | None = None,
) -> dict[int, int]:
    """Captions that were probably exchanged: among those that do not fit their own photo, two that
    fit each other's photo best. Judged by the pairs that do fit, and by the model if there is one:
    the standardized scores of both ways, averaged."""
    wrong, sound = (misfit >= SUSPECT).nonzero()[:, 0], (misfit < SUSPECT).nonzero()[:, 0]
    if len(wrong) < 3 or len(sound) < 2:
        return {}
    x, t = _prepared(images, captions)
    views = [_scores(t[wrong], x[image_of[wrong]], t[sound], x[image_of[sound]])]
    views += [] if scorer is None else [scorer(wrong, image_of[wrong])]
    one_way = torch.stack([(v - v.mean(1, keepdim=True)) / _spread(v, 1)[:, None] for v in views])
    scores = (one_way + one_way.transpose(1, 2)).mean(0) / 2
    scores[image_of[wrong][:, None] == image_of[wrong]] = -torch.inf
    best = scores.max(1)
    rows = torch.arange(len(wrong))
    sure = (best.indices[best.indices] == rows) & (best.values >= LIKELY)
    return {int(wrong[a]): int(wrong[best.indices[a]]) for a in rows[sure].tolist()}


def _prepared(images: Tensor, captions: Tensor) -> tuple[Tensor, Tensor]:
    return _principal(images), normalize(captions.float() - captions.float().mean(0))


def _scores(t: Tensor, x: Tensor, seen_t: Tensor, seen_x: Tensor) -> Tensor:
    """How well captions fit images of a fold (captions × images): the mean of three cosines in
    their standard deviations — of a caption's mapped image with an image, of a caption with those
    of similar photos, and of the photos of similar captions with an image."""
    unit = normalize(x)
    views = (
        normalize(t @ _ridge(seen_t, seen_x)) @ unit.T,
        t @ _borrowed(unit, normalize(seen_x), seen_t).T,
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
    return normalize(torch.cat(parts))


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
    return [(normalize(others) * t[captions]).sum(1) * some, some.float()]


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


# ---- findings ----

ISSUES = {
    "leakage": "nearly the same photo in two splits",
    "misfit": "the caption does not fit its photo",
    "says nothing": "the caption says nothing about its photo",
    "near-duplicate": "nearly the same photo twice",
    "same caption": "the same words for another photo",
    "unreadable": "the photo cannot be opened, or shows nothing",
    "missing positive": "the caption fits another photo at least as well",
    "vague": "the caption fits many photos",
    "odd photo": "unlike the other photos",
}


@dataclass(frozen=True)
class Fault:
    """Something to look at, by positions in the data; see docs/trust.md."""

    issue: str
    """One of ``ISSUES``."""
    severity: float
    """Comparable within an issue; higher is worse."""
    image: int
    caption: int | None = None
    """If the finding is about one; else it is about the photo."""
    other: int | None = None
    """Another image that it is about."""
    reason: str = ""
    """Why, in words."""
    other_caption: int | None = None
    """The caption that it was probably exchanged with."""
    proposal: str = ""
    """What to do about it: a decision (``data.clean``), or nothing if only people can tell."""


def audit(
    images: Tensor,
    captions: Tensor,
    image_of: Tensor,
    *,
    uncertainty: Tensor | None = None,
    copies: Sequence[Copies] | None = None,
    splits: Sequence[str] | None = None,
    scorer: Scorer | None = None,
    fit: Fit | None = None,
) -> list[Fault]:
    """All findings, issue by issue, worst first.

    Args:
        images: (n, F) and ``captions``: (m, G), any vectors.
        image_of: (m), the image of each caption.
        uncertainty: (m), of each caption, if a model knows it; else vague captions are those
            that the map does not distinguish from many photos.
        copies: what ``duplicates`` found in the pictures; without pictures ``None``, and photos
            count as near-duplicates if their vectors nearly agree.
        splits: of each image; copies in two of them are leakage.
        scorer: the scores of a model, to tell which captions were exchanged.
        fit: what ``cross_fitted`` says, if that is known already.
    """
    fit = fit or cross_fitted(images, captions, image_of)
    swapped = exchanged(images, captions, image_of, fit.misfit, scorer)
    sound = fit.misfit < SUSPECT
    found = []
    for c, p in _worst(fit.misfit, ~sound):
        with_ = swapped.get(c)
        other = None if with_ is None else int(image_of[with_])
        reason = f"a mismatch with probability {100 * p:.0f} %"
        reason += "" if with_ is None else "; likely exchanged with the other caption"
        proposal = "swap" if with_ is not None else "drop" if p >= 0.5 else ""
        found.append(Fault("misfit", p, int(image_of[c]), c, other, reason, with_, proposal))
    for c, margin in _worst(fit.margin, sound & (fit.better != image_of) & (fit.margin > 0)):
        reason = f"fits the other photo better by {margin:.1f} standard deviations"
        other = int(fit.better[c])
        found.append(Fault("missing positive", margin, int(image_of[c]), c, other, reason))
    unsure = -fit.features[:, 1] if uncertainty is None else uncertainty
    share = unsure.argsort().argsort() / len(unsure)
    for c, part in _worst(share, sound)[: max(1, len(share) // 20)]:
        reason = f"vaguer than {min(99, int(100 * part))} % of the captions"
        found.append(Fault("vague", part, int(image_of[c]), c, None, reason))
    found += [*_odd(images), *_copied(_twins(images) if copies is None else copies, splits)]
    return sorted(found, key=lambda f: (list(ISSUES).index(f.issue), -f.severity))


def _worst(values: Tensor, among: Tensor) -> list[tuple[int, float]]:
    """Positions and values of some, the highest first."""
    rows = among.nonzero()[:, 0]
    order = rows[values[rows].argsort(descending=True)]
    return list(zip(order.tolist(), values[order].tolist(), strict=True))


def _copied(copies: Sequence[Copies], splits: Sequence[str] | None) -> list[Fault]:
    """For each photo of a group but the one to keep, a finding. Of copies in two splits that of
    test, or else of dev, is kept: to drop it would change what is measured."""
    found = []
    for group in copies:
        members = list(zip(group.members, group.likeness, strict=True))
        if splits is not None:
            rank = {"test": 0, "dev": 1}
            members.sort(key=lambda member: rank.get(splits[member[0]], 2))
        (keep, _), *others = members
        for image, likeness in others:
            issue, reason = "near-duplicate", f"a copy by {100 * likeness:.0f} % of its details"
            reason += f"; {len(members)} alike" if len(members) > 2 else ""
            if splits is not None and splits[image] != splits[keep]:
                issue = "leakage"
                reason += f"; one is in {splits[image]}, the other in {splits[keep]}"
            found.append(Fault(issue, likeness, image, None, keep, reason, None, "drop"))
    return found


def _odd(images: Tensor) -> list[Fault]:
    """Photos far from all others: robust z-scores of the distance to the nearest of them."""
    apart = 1 - nearest(images)[0][:, 0]
    median = apart.median()
    z = (apart - median) / (1.4826 * (apart - median).abs().median()).clamp_min(1e-12)
    return [
        Fault("odd photo", out, image, None, None, f"{out:.1f} robust deviations out")
        for image, out in _worst(z, z > ODD)
    ]


def _twins(images: Tensor) -> list[Copies]:
    """Groups of photos whose vectors nearly agree."""
    alike, other = (found[:, 0] for found in nearest(images))
    rows = (alike >= TWINS).nonzero()[:, 0]
    return grouped(torch.stack([rows, other[rows]], 1), alike[rows])
