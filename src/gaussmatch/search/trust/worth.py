"""Is cleaning worth it? Heads on frozen features, trained on captions as they are and as cleaned.

Both sides are mapped linearly into one space and trained with InfoNCE, in seconds; what differs is
the captions alone. Dropping as many at random, or by their score alone, is what cleaning has to
beat. Then: which captions to check next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

DIM, BATCH, EPOCHS, STEPS, RATE, SCALE = 256, 256, 8, 300, 2e-3, 20.0
"""Of the heads: the least number of epochs, and of steps."""
AT = (1, 5, 10)


@dataclass(frozen=True)
class Captioned:
    """Captions and the image of each, as rows of the features."""

    captions: Tensor
    images: Tensor


def head_recall(
    images: Tensor, captions: Tensor, train: Captioned, test: Captioned, seed: int = 0
) -> float:
    """The mean of R@1, R@5 and R@10 in both directions on ``test``, in percent, of heads that were
    trained on ``train``; images (n, F) and captions (m, G) are frozen features."""
    chance = torch.Generator().manual_seed(seed)
    x, t = (normalize(v.float() - v.float().mean(0), dim=1) for v in (images, captions))
    heads = [
        (torch.randn(v.shape[1], DIM, generator=chance) / v.shape[1] ** 0.5).requires_grad_()
        for v in (x, t)
    ]
    each = max(1, len(train.captions) // BATCH)  # steps of an epoch
    epochs = max(EPOCHS, -(-STEPS // each))
    optimizer = torch.optim.AdamW(heads, RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * each + 1)
    for _ in range(epochs):
        order = torch.randperm(len(train.captions), generator=chance)
        for some in order.split(BATCH)[:each]:
            shown, said = train.images[some], train.captions[some]
            scores = SCALE * _mapped(t[said], heads[1]) @ _mapped(x[shown], heads[0]).T
            same = shown[:, None] == shown
            apart = same & ~torch.eye(len(some), dtype=torch.bool)  # never a negative of its own
            scores = scores.masked_fill(apart, -torch.inf)
            at = torch.arange(len(some))
            loss = cross_entropy(scores, at) + cross_entropy(scores.T, at)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        shown, place = test.images.unique(return_inverse=True)
        scores = _mapped(t[test.captions], heads[1]) @ _mapped(x[shown], heads[0]).T
    return _recall(scores, place)


def _mapped(x: Tensor, head: Tensor) -> Tensor:
    return normalize(x @ head, dim=1)


def _recall(scores: Tensor, image_of: Tensor) -> float:
    """Captions × images."""
    own = scores[torch.arange(len(scores)), image_of]
    of_captions = (scores > own[:, None]).sum(1)
    order = scores.T.argsort(1, descending=True)  # images × captions
    hit = image_of[order] == torch.arange(scores.shape[1])[:, None]
    of_images = hit.long().argmax(1)
    shares = [(rank < k).double().mean() for rank in (of_captions, of_images) for k in AT]
    return 100 * float(torch.stack(shares).mean())


def worth(
    images: Tensor,
    captions: Tensor,
    train: Captioned,
    test: Captioned,
    cleaned: Captioned,
    score: Tensor,
    seeds: int = 3,
    done: Callable[[], object] = lambda: None,
) -> dict[str, Tensor]:
    """Recall (seeds) of heads trained on the captions as they are, as cleaned, and with as many as
    cleaning drops or moves dropped at random or by the lowest ``score`` (of each of ``train``)."""
    was = dict(zip(train.captions.tolist(), train.images.tolist(), strict=True))
    said = zip(cleaned.captions.tolist(), cleaned.images.tolist(), strict=True)
    kept = sum(was[caption] == image for caption, image in said)
    by_score = score.argsort(descending=True)[:kept]
    arms: Mapping[str, Callable[[int], Captioned]] = {
        "as it is": lambda seed: train,
        "cleaned": lambda seed: cleaned,
        "dropped at random": lambda seed: _part(train, _random(len(score), seed)[:kept]),
        "dropped by score": lambda seed: _part(train, by_score),
    }
    found: dict[str, Tensor] = {}
    for name, arm in arms.items():
        each = []
        for seed in range(seeds):
            each.append(head_recall(images, captions, arm(seed), test, seed))
            done()
        found[name] = torch.tensor(each)
    return found


def _random(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(1000 + seed))


def _part(split: Captioned, rows: Tensor) -> Captioned:
    return Captioned(split.captions[rows], split.images[rows])


def next_to_check(misfit: Tensor) -> Tensor:
    """Positions of captions, those first whose check prevents most mistakes: dropping what is more
    likely wrong than right errs with probability min(p, 1 − p).

    >>> next_to_check(torch.tensor([0.02, 0.95, 0.6, 0.4])).tolist()[2:]
    [1, 0]
    """
    return torch.minimum(misfit, 1 - misfit).argsort(descending=True)
