"""Does the audit find planted faults, and the matches that people found missing?

    python benchmarks/audit_planted.py flickr8k DATA/flickr8k
    python benchmarks/audit_planted.py coco DATA/coco_real --cxc DATA/cxc

Captions of the training split are exchanged at random, 5 % and 20 % of them; precision at the
number planted, by the audit and by its score alone. Encoders are frozen and have never seen the
pairs: packed features of the photos (lite2.npz in the folder) and all-MiniLM-L6-v2. Then the test
split: how far above other pairs the audit puts captions with *another* photo that people judged to
fit (the crowd of Flickr8k, CxC), and how many of its first missing positives are among them.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core.metrics import auroc
from gaussmatch.data.pairs import Pairs, image_batches
from gaussmatch.models.encoders.pretrained import text_tower
from gaussmatch.models.features import load_data
from gaussmatch.models.features.texts import embedded_once
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.search.trust.audit import cross_fitted

SHARES = (0.05, 0.2)
FIRST = 100
"""Missing positives that are looked at."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=("flickr8k", "coco"))
    parser.add_argument("root")
    parser.add_argument("--cxc", help="with coco: the folder of Crisscrossed Captions")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, help="so many training images, drawn at random")
    options = parser.parse_args()
    recipe = DataRecipe(options.data, root=options.root, extracted="lite2.npz", cxc=options.cxc)
    data = load_data(recipe)
    images, captions = vectors(data.train)
    for share in SHARES:
        found = [
            planted(*part(images, captions, data.train.image_of, options.images, seed), share, seed)
            for seed in range(options.seeds)
        ]
        ours, score, seconds = np.mean(found, 0)
        print(
            f"{data.train.name}, {share:.0%} exchanged: precision {ours:.3f} ± "
            f"{np.std([f[0] for f in found]):.3f}, by score alone {score:.3f}, {seconds:.0f} s",
            flush=True,
        )
    if data.test.relevance is not None:
        missing(data.test)


def vectors(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The features of the photos and the sentence embeddings of the captions, frozen."""
    rows = {text: row for row, text in enumerate(dict.fromkeys(pairs.captions))}
    embedded = embedded_once(text_tower("st:all-MiniLM-L6-v2"), list(rows))
    captions = torch.from_numpy(np.asarray(embedded[[rows[text] for text in pairs.captions]]))
    return torch.cat(list(image_batches(pairs, 1024))), captions


def part(
    images: Tensor, captions: Tensor, image_of: Tensor, most: int | None, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A random part of the images with their captions, or everything."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    chosen = order[:most].sort().values
    inside = torch.isin(image_of, chosen)
    return images[chosen], captions[inside], torch.searchsorted(chosen, image_of[inside])


def planted(
    images: Tensor, captions: Tensor, image_of: Tensor, share: float, seed: int
) -> tuple[float, float, float]:
    """Precision at the number planted: of the audit, and of its score alone; and seconds."""
    chance = torch.Generator().manual_seed(1000 + seed)
    moved = torch.randperm(len(captions), generator=chance)[: round(share * len(captions))]
    given = image_of.clone()
    given[moved] = image_of[moved.roll(1)]
    wrong, start = (given != image_of).double(), time.perf_counter()
    fit = cross_fitted(images, captions, given, seed)
    count = int(wrong.sum())
    ours = wrong[fit.misfit.argsort(descending=True)[:count]].mean()
    return (
        float(ours),
        float(wrong[fit.score.argsort()[:count]].mean()),
        time.perf_counter() - start,
    )


def missing(pairs: Pairs) -> None:
    """Captions with another photo that people judged to fit, against any other photo."""
    truth, n = pairs.relevance, len(pairs.images)
    assert truth is not None
    extra = pairs.image_of[truth.query_of] != truth.items
    known = truth.query_of[extra], truth.items[extra]
    random = torch.randint(n, (len(known[0]),), generator=torch.Generator().manual_seed(0))
    both = torch.cat([known[0], known[0]]), torch.cat([known[1], random])
    fit = cross_fitted(*vectors(pairs), pairs.image_of, others=both)
    margins = [part[~part.isnan()] for part in fit.others.split(len(random))]
    ahead = torch.where(fit.better != pairs.image_of, fit.margin, -1.0).argsort(descending=True)
    pair = set(zip(known[0].tolist(), known[1].tolist(), strict=True))
    first = [(c, int(fit.better[c])) in pair for c in ahead[:FIRST].tolist()]
    print(
        f"{pairs.name}: {len(margins[0])} pairs that people added, AUROC {auroc(*margins):.3f} "
        f"against random ones; {sum(first)} of the first {FIRST} missing positives are among them "
        f"(by chance {FIRST * len(pair) / (len(pairs.captions) * n):.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
