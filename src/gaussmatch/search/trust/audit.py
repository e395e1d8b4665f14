"""Faults of data: pairs that do not fit, vague captions, missing positives, odd photos, twins.

Works on any vectors of images and captions: features, or the means of a model. What fits is
learned from the data itself and cross-fitted: only pairs of the other folds say what a pair should
look like. Three views score it: a map from captions to images (ridge regression in closed form),
the captions of the most similar photos, and the photos of the most similar captions. How to weigh
them is learned from mismatches made for the purpose, by exchanging captions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

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
STANDING = 4
"""Columns of evidence about a pair, see ``_standing``."""
TWINS = 0.98
"""Cosine of two photos without pictures from which they count as near-duplicates."""
SUSPECT = 0.1
"""Probability of a mismatch from which on a caption is shown; from 0.5 on it is proposed to go."""
SHARE, ROUNDS = 0.1, 20
"""Of mismatches at first, and how often it is estimated again, see ``_mismatch``."""
LIKELY = 2.0
"""Standard deviations by which two captions must fit each other's photo, and gain by it, to be
called exchanged; each of them at least half of it."""
ELSEWHERE = 1.0
"""Standard deviations by which another photo must fit a caption better to make it a suspect."""
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

    @property
    def suspect(self) -> Tensor:
        """(m), whether a caption may belong to another photo."""
        return (self.misfit >= SUSPECT) | (self.margin >= ELSEWHERE)


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
    features, wrong = torch.zeros(2, len(t), STANDING).double()
    beside = torch.arange(len(t))
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
        beside[mine] = mine[exchanged]
        for found, turn in ((features, slice(None)), (wrong, exchanged)):
            found[mine] = torch.stack(_standing(scores, own[turn]), 1).double()
        score[mine] = scores[torch.arange(len(mine)), own]
        best, spread = scores.max(1), _spread(scores, 1)
        better[mine] = here[best.indices]
        margin[mine] = (best.values - score[mine]) / spread
        both = (fold[image_of[c]] == f) & (fold[i] == f)
        rows = row[c[both]]
        of_others[both] = (scores[rows, place[i[both]]] - score[c[both]]) / spread[rows]
    likeness = partial(_likeness, t, image_of, beside)
    misfit = _mismatch(features, wrong, likeness)
    return Fit(score, features, misfit, better, margin, of_others)


def _mismatch(given: Tensor, made: Tensor, likeness: Callable[[Tensor], Tensor]) -> Tensor:
    """(m), the probability that a given pair is a mismatch, from features (m, f) of those and of
    mismatches that were made. Given pairs are a mixture: an unknown share of them is like those
    made. Share and weights are found together, by expectation and maximization; and so is how much
    a caption counts for its siblings: as much as it probably fits."""
    labels = torch.cat([torch.zeros(len(given)), torch.ones(len(made))])
    right, share = torch.ones(len(given)).double(), torch.tensor(SHARE).double()
    weight = None
    for _ in range(ROUNDS + 1):
        x = torch.cat([torch.cat([given, made]), likeness(right)], 1)
        fitted = ResultProbability.fit(x, labels, weight)
        odds = torch.from_numpy(fitted.logit(x[: len(given)].numpy()))
        wrong = torch.sigmoid(odds + torch.logit(share))
        share = wrong.mean().clamp(0.5 / len(given), 0.5)
        right = 1 - wrong
        weight = torch.cat([right, right.mean().expand(len(made))])
    return wrong


Scorer = Callable[[Tensor, Tensor], Tensor]
"""Positions of captions and of images → captions × images, the scores of a model."""


def exchanged(
    images: Tensor,
    captions: Tensor,
    image_of: Tensor,
    suspect: Tensor,
    scorer: Scorer | None = None,
) -> dict[int, int]:
    """Captions that were probably exchanged: two suspects that fit each other's photo best, far
    better than their own. Judged by the pairs that are not suspect, and by the model if there is
    one: the scores of both ways in standard deviations of the caption's scores with many photos,
    averaged.

    Args:
        suspect: (m), whether a caption may belong to another photo, ``Fit.suspect``.
    """
    wrong, sound = suspect.nonzero()[:, 0], (~suspect).nonzero()[:, 0]
    if len(wrong) < 2 or len(sound) < 2:
        return {}
    x, t = _prepared(images, captions)
    many = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:BLOCK]
    shown = torch.cat([image_of[wrong], many])  # two suspects alone have no deviation
    views = [_scores(t[wrong], x[shown], t[sound], x[image_of[sound]])]
    views += [] if scorer is None else [scorer(wrong, shown)]
    rows, k = torch.arange(len(wrong)), len(wrong)
    fits = torch.stack(
        [(v - v[:, k:].mean(1, keepdim=True)) / _spread(v[:, k:], 1)[:, None] for v in views]
    ).mean(0)[:, :k]
    gain = fits - fits.diagonal()[:, None]
    apart = image_of[wrong][:, None] != image_of[wrong]
    each = torch.minimum(fits, fits.T) >= LIKELY / 2
    scores = _both(fits).where(apart & each & (_both(gain) >= LIKELY), -torch.inf)
    best = scores.max(1)
    sure = (best.indices[best.indices] == rows) & (best.values >= LIKELY)
    return {int(wrong[a]): int(wrong[best.indices[a]]) for a in rows[sure].tolist()}


def _both(scores: Tensor) -> Tensor:
    """The mean of both ways."""
    return (scores + scores.T) / 2


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


def _likeness(t: Tensor, image_of: Tensor, beside: Tensor, right: Tensor) -> Tensor:
    """(2m, 2), how like its siblings, the other captions of its photo, each caption is, and whether
    it has any; of all captions, then of each with the siblings of another, ``beside``. A sibling
    counts as much as it is ``right``: one that is out of place says nothing about the others."""
    here = torch.arange(len(t))
    count = int(image_of.max()) + 1
    total = t.new_zeros(count, t.shape[1]).index_add_(0, image_of, t * right[:, None].float())
    none = torch.zeros(count).double().index_add_(0, image_of, (1 - right).clamp_min(1e-9).log())
    parts = []
    for of in (here, beside):
        others = total[image_of[of]] - t[of] * right[of, None].float()
        some = 1 - (none[image_of[of]] - (1 - right[of]).clamp_min(1e-9).log()).exp()
        parts.append(torch.stack([(normalize(others) * t).sum(1) * some, some], 1))
    return torch.cat(parts)


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
    swapped = exchanged(images, captions, image_of, fit.suspect, scorer)
    sound = fit.misfit < SUSPECT
    found = []
    for c, p in _worst(fit.misfit, ~sound):
        reason = f"a mismatch with probability {100 * p:.0f} %"
        proposal = "drop" if p >= 0.5 else ""
        found.append(Fault("misfit", p, int(image_of[c]), c, None, reason, None, proposal))
    for c, margin in _worst(fit.margin, sound & (fit.better != image_of) & (fit.margin > 0)):
        reason = f"fits the other photo better by {margin:.1f} standard deviations"
        other = int(fit.better[c])
        found.append(Fault("missing positive", margin, int(image_of[c]), c, other, reason))
    found = [_exchange(f, swapped, image_of) for f in found]
    unsure = -fit.features[:, 1] if uncertainty is None else uncertainty
    share = unsure.argsort().argsort() / len(unsure)
    for c, part in _worst(share, sound)[: max(1, len(share) // 20)]:
        reason = f"vaguer than {min(99, int(100 * part))} % of the captions"
        found.append(Fault("vague", part, int(image_of[c]), c, None, reason))
    found += [*_odd(images), *_copied(_twins(images) if copies is None else copies, splits)]
    return sorted(found, key=lambda f: (list(ISSUES).index(f.issue), urgency(f)))


class Proposing(Protocol):
    """A finding, by positions or by names."""

    @property
    def severity(self) -> float: ...
    @property
    def proposal(self) -> str: ...


def _exchange(one: Fault, swapped: Mapping[int, int], image_of: Tensor) -> Fault:
    """The finding with a swap proposed, if its caption was exchanged."""
    with_ = None if one.caption is None else swapped.get(one.caption)
    if with_ is None:
        return one
    reason = f"{one.reason}; likely exchanged with the other caption"
    other = int(image_of[with_])
    return replace(one, other=other, reason=reason, other_caption=with_, proposal="swap")


def urgency(one: Proposing) -> tuple[bool, float]:
    """What comes first within an issue: what something is proposed for, then the worst."""
    return not one.proposal, -one.severity


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
