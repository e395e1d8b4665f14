"""Is cleaning worth it? Captions are exchanged, and heads trained on what the audit makes of them.

    python benchmarks/audit_worth.py flickr8k DATA/flickr8k
    python benchmarks/audit_worth.py coco DATA/coco_real --images 8000 --test 1000

5, 10 and 20 % of the training captions are exchanged in pairs. Linear heads on frozen features
(packed features of the photos, all-MiniLM-L6-v2) are trained on the captions as they are; as the
audit proposes (misfits dropped, or swapped if it names the other one); with the same number
dropped at random, or by the lowest score (of a caption with its photo under the audit's map), or
three times the number by score; *oracle* drops exactly the planted ones. Mean of R@1, R@5, R@10 in
both directions on the test split, which has no planted faults. With a share of 0, three times 5 %
are dropped by score: what that gains has nothing to do with faults.

Then, what to check next: how many mistakes of dropping every misfit are left after 5 % of the
captions were checked, in the order of the audit, by the highest probability, and at random.
"""

from __future__ import annotations

import argparse
import time

import torch
from audit_planted import vectors
from torch import Tensor

from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.search.trust.audit import cross_fitted, exchanged
from gaussmatch.search.trust.worth import Captioned, head_recall, next_to_check, worth

SHARES = (0.05, 0.1, 0.2)
CHECKED = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=("flickr8k", "coco"))
    parser.add_argument("root")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, help="so many training images, drawn at random")
    parser.add_argument("--test", type=int, help="so many test images, drawn at random")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    options = parser.parse_args()
    data = load_data(DataRecipe(options.data, root=options.root, extracted="lite2.npz"))
    x, t, image_of = vectors(data.train, options.images)
    test_x, test_t, test_image_of = vectors(data.test, options.test)
    images, captions = torch.cat([x, test_x]), torch.cat([t, test_t])
    test = Captioned(torch.arange(len(t), len(captions)), test_image_of + len(x))
    for share in options.shares:
        measured(images, captions, image_of, test, len(x), share, options.seeds)


def measured(
    images: Tensor,
    captions: Tensor,
    image_of: Tensor,
    test: Captioned,
    n: int,
    share: float,
    seeds: int,
) -> None:
    m, start = len(image_of), time.perf_counter()
    chance = torch.Generator().manual_seed(1)
    moved = torch.randperm(m, generator=chance)[: round(share * m)]
    given = image_of.clone()
    one, other = moved[: len(moved) // 2 * 2].view(-1, 2).T
    given[one], given[other] = image_of[other], image_of[one]
    wrong = given != image_of
    fit = cross_fitted(images[:n], captions[:m], given)
    flagged = fit.misfit >= 0.5
    every = torch.arange(m)
    swapped = exchanged(images[:n], captions[:m], given, fit.suspect)
    proposed, stays = given.clone(), ~flagged
    for a, b in swapped.items():
        proposed[a], stays[a] = given[b], True
    found = worth(
        images,
        captions,
        Captioned(every, given),
        test,
        Captioned(every[stays], proposed[stays]),
        fit.score,
        seeds,
    )
    lowest = fit.score.argsort()[: 3 * int(flagged.sum() if share else 0.05 * m)]
    for name, keep in (("3 × as many by score", ~torch.isin(every, lowest)), ("oracle", ~wrong)):
        part = Captioned(every[keep], given[keep])
        each = [head_recall(images, captions, part, test, seed) for seed in range(seeds)]
        found[name] = torch.tensor(each)
    back = sum(int(proposed[a]) == int(image_of[a]) for a in swapped)
    right = (flagged & wrong).sum()
    print(
        f"{share:.0%} exchanged: {int(flagged.sum())} of {m} misfits, precision "
        f"{float(right / flagged.sum()):.3f}, recall {float(right / wrong.sum()):.3f}; "
        f"{back} of {len(swapped)} proposed swaps are right"
    )
    for name, values in found.items():
        print(f"  {name:20} {float(values.mean()):.2f} ± {float(values.std(correction=0)):.2f}")
    orders = {
        "what to check next": next_to_check(fit.misfit),
        "highest probability": fit.misfit.argsort(descending=True),
        "at random": torch.randperm(m, generator=chance),
    }
    mistakes = flagged != wrong
    left = {
        name: int(mistakes[order[round(CHECKED * m) :]].sum()) for name, order in orders.items()
    }
    print(f"  mistakes {int(mistakes.sum())}; after {CHECKED:.0%} are checked: {left}")
    print(f"  {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
