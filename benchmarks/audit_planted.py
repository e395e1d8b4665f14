"""Does the audit find planted faults, and the matches that people found missing?

    python benchmarks/audit_planted.py flickr8k DATA/flickr8k
    python benchmarks/audit_planted.py coco DATA/coco_real --cxc DATA/cxc
    python benchmarks/audit_planted.py copies DATA/flickr8k/images

*copies*: of 2,000 photos (``--images``) one copy each is planted, resized, cropped to 80 %,
recompressed, mirrored, rotated by 3 to 8 degrees, or with a border; precision over all pairs, and
recall for each kind, of what the audit does, of the encoder's cosine alone and of a perceptual hash
(dHash, both ways round). The thresholds of the two others are those of the best F1, chosen on the
same photos: an advantage that the audit does not have.

The others:

Captions of the training split are exchanged at random, 5 % and 20 % of them; precision at the
number planted, by the audit and by its score alone. Encoders are frozen and have never seen the
pairs: packed features of the photos (lite2.npz in the folder) and all-MiniLM-L6-v2. Then the test
split: how far above other pairs the audit puts captions with *another* photo that people judged to
fit (the crowd of Flickr8k, CxC), and how many of its first missing positives are among them.
"""

from __future__ import annotations

import argparse
import io
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from gaussmatch.core.metrics import auroc
from gaussmatch.data.pairs import Pairs, image_batches
from gaussmatch.models.encoders.pretrained import text_tower
from gaussmatch.models.features import embedded_once, load_data
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.models.run import load
from gaussmatch.search.trust import duplicates
from gaussmatch.search.trust.audit import cross_fitted

SHARES = (0.05, 0.2)
FIRST = 100
"""Missing positives that are looked at."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=("flickr8k", "coco", "copies"))
    parser.add_argument("root")
    parser.add_argument("--cxc", help="with coco: the folder of Crisscrossed Captions")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the photos drawn for copies")
    parser.add_argument("--images", type=int, help="so many training images, drawn at random")
    options = parser.parse_args()
    if options.data == "copies":
        copies(Path(options.root), options.images or 2000, options.seed)
        return
    recipe = DataRecipe(options.data, root=options.root, extracted="lite2.npz", cxc=options.cxc)
    data = load_data(recipe)
    for share in SHARES:
        found = [
            planted(*vectors(data.train, options.images, seed), share, seed)
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


def vectors(pairs: Pairs, most: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The features of the photos, the sentence embeddings of the captions, both frozen, and the
    photo of each caption; of everything, or of ``most`` photos drawn at random."""
    order = torch.randperm(len(pairs.images), generator=torch.Generator().manual_seed(seed))
    chosen = order[:most].sort().values
    said = torch.isin(pairs.image_of, chosen).nonzero()[:, 0]
    texts = [pairs.captions[c] for c in said.tolist()]
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    embedded = embedded_once(text_tower("st:all-MiniLM-L6-v2"), list(rows))
    captions = torch.from_numpy(np.asarray(embedded[[rows[text] for text in texts]]))
    images = torch.cat(list(image_batches(pairs, 1024)))
    return images[chosen], captions, torch.searchsorted(chosen, pairs.image_of[said])


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
    fit = cross_fitted(*vectors(pairs), others=both)
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


KINDS = ("resized", "cropped", "recompressed", "mirrored", "rotated", "bordered")


def copy_of(picture: Image.Image, kind: str, chance: random.Random) -> Image.Image:
    """A copy as it comes back from a file."""
    w, h = picture.size
    quality = 92
    if kind == "resized":
        share = chance.choice((0.3, 0.5, 0.7))
        picture = picture.resize((round(w * share), round(h * share)), Image.Resampling.BICUBIC)
    elif kind == "cropped":
        cw, ch = round(0.8 * w), round(0.8 * h)
        x, y = chance.randint(0, w - cw), chance.randint(0, h - ch)
        picture = picture.crop((x, y, x + cw, y + ch))
    elif kind == "recompressed":
        quality = chance.choice((10, 20, 35))
    elif kind == "mirrored":
        picture = ImageOps.mirror(picture)
    elif kind == "rotated":
        angle = chance.uniform(3, 8) * chance.choice((-1, 1))
        expand = chance.random() < 0.5
        picture = picture.rotate(angle, Image.Resampling.BICUBIC, expand=expand)
    else:
        border = round(max(w, h) * chance.uniform(0.03, 0.12))
        picture = ImageOps.expand(picture, border, chance.choice(("black", "white", "gray", "red")))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return Image.open(out).convert("RGB")


def copies(folder: Path, count: int, seed: int) -> None:
    names = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".png"))
    chosen = random.Random(seed).sample(names, min(count, len(names)))
    kinds = [KINDS[i % len(KINDS)] for i in range(len(chosen))]
    model, n, start = load("photos"), len(chosen), time.perf_counter()
    vectors, smalls = [], []
    for some in range(0, 2 * n, 64):
        pictures = []
        for i in range(some, min(some + 64, 2 * n)):
            picture = Image.open(chosen[i % n]).convert("RGB")
            if i >= n:
                picture = copy_of(picture, kinds[i - n], random.Random(chosen[i - n].name))
            pictures.append(picture)
        vectors.append(model.encode_images(pictures).mean.flatten(1))
        smalls += [duplicates.small(picture) for picture in pictures]
    x, gray = torch.cat(vectors), torch.stack(smalls)
    print(f"{n} photos, {n} copies; encoded in {time.perf_counter() - start:.0f} s", flush=True)
    start = time.perf_counter()
    pairs = duplicates.candidates(x)
    likeness = duplicates.overlaid(gray[pairs[:, 0]], gray[pairs[:, 1]])
    seconds = time.perf_counter() - start
    found = pairs[likeness >= duplicates.COPY]
    report("audit", found, kinds, f"{len(pairs)} pairs compared in {seconds:.0f} s")
    centered = torch.nn.functional.normalize(x - x.mean(0), dim=1)
    report("cosine alone", best(centered @ centered.T, n), kinds)
    bits, mirrored = dhash(gray), dhash(gray.flip(2))
    same = torch.maximum(bits @ bits.T, bits @ mirrored.T)
    report("dHash", best(same, n), kinds)


def dhash(gray: Tensor) -> Tensor:
    """(n, 64) of ±1: whether each of 8 × 9 fields is lighter than the one to its left."""
    fields = adaptive_avg_pool2d(gray[:, None], (8, 9))[:, 0]
    return torch.sign(fields[:, :, 1:] - fields[:, :, :-1] + 1e-9).flatten(1)


def best(scores: Tensor, n: int) -> Tensor:
    """The pairs above the threshold with the highest F1."""
    row, column = torch.triu_indices(2 * n, 2 * n, 1)
    values, order = scores[row, column].sort(descending=True)
    values, order = values[: 20 * n], order[: 20 * n]
    right = (column - row == n)[order].cumsum(0)
    f1 = 2 * right / (torch.arange(1, len(order) + 1) + n)
    last = torch.cat([values[1:] < values[:-1], torch.tensor([True])])  # ties stay together
    cut = int(torch.where(last, f1, 0.0).argmax()) + 1
    return torch.stack([row[order[:cut]], column[order[:cut]]], 1)


def report(name: str, found: Tensor, kinds: list[str], note: str = "") -> None:
    n = len(kinds)
    right = found[found[:, 1] - found[:, 0] == n, 0].tolist()
    recall = {kind: sum(kinds[i] == kind for i in right) / kinds.count(kind) for kind in KINDS}
    each = ", ".join(f"{kind} {share:.3f}" for kind, share in recall.items())
    print(
        f"{name}: precision {len(right) / max(1, len(found)):.3f}, recall {len(right) / n:.3f} "
        f"({each}) {note}",
        flush=True,
    )


if __name__ == "__main__":
    main()
