"""A curator's whole way on real photos: check, audit, review, apply, train again.

    python benchmarks/audit_trial.py DATA/flickr8k WORK [--captions 5] [--seed 0] [--seeds 3]

500 photos with captions go into WORK/my-photos, with planted faults: 25 captions exchanged with
those of other photos, 10 that say nothing, 10 copies of photos. The commands of docs/curate.md run
on them; all findings are decided as proposed, as the button of Review does. Prints how many planted
faults were found and repaired; then trains on the data as it was and as cleaned with several seeds,
and evaluates all on other photos without planted faults: 50 test photos of 510 would say little.
"""

from __future__ import annotations

import argparse
import csv
import random
from pathlib import Path
from statistics import mean, pstdev

from audit_planted import KINDS, copy_of
from PIL import Image

from gaussmatch.apps.cli import main as gaussmatch
from gaussmatch.data import source
from gaussmatch.data.listing import Photo
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.learn.evaluation.evaluate import measure_run
from gaussmatch.models.features import load_data
from gaussmatch.models.run import read_recipe
from gaussmatch.search.trust.audit_report import Row, read_table

PHOTOS, SWAPPED, USELESS, COPIES = 500, 25, 10, 10
NOTHING = ("n/a", "photo 23", "IMG_2041", "image", "untitled", "a picture", "DSC_0042.jpg", "-",
           "todo", "123")  # fmt: skip
BACKBONE = "timm:tf_efficientnet_lite2+whole"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="Flickr8k with its photos")
    parser.add_argument("work", type=Path, help="a new folder")
    parser.add_argument("--captions", type=int, default=5, help="of each photo")
    parser.add_argument("--seed", type=int, default=0, help="of the faults planted")
    parser.add_argument("--seeds", type=int, default=3, help="of training")
    parser.add_argument("--test", type=int, default=500, help="other photos to measure on")
    options = parser.parse_args()
    photos, audit, clean = (options.work / name for name in ("my-photos", "audit", "clean"))
    chance, each = random.Random(options.seed), options.captions
    drawn = chance.sample(photos_of(options.data), PHOTOS + options.test)
    truth = planted(drawn[:PHOTOS], photos, each, chance)
    others = drawn[PHOTOS:]
    split = {p.id: ("train", "dev")[i] if i < 2 else "test" for i, p in enumerate(others)}
    rows = [[p.id, c.text, split[p.id]] for p in others for c in p.captions]
    written(options.work / "test", rows, others, ("image", "caption", "split"))
    sheet = options.work / "sheet.png"
    run("data", "check", photos, "--sheet", sheet, expected=2)  # it names useless captions
    run("audit", photos, "--out", audit)
    rows = read_table(audit)
    found(rows, truth)
    decide(rows, audit / "decisions.csv")
    run("audit", "apply", photos, audit / "decisions.csv", "--out", clean, "--yes")
    repaired(clean, truth)
    for root in (photos, clean):
        rsums = []
        for seed in range(options.seeds):
            out = options.work / "runs" / f"{root.name}-{seed}"
            fields = ("--data.root", root, "--data.backbone", BACKBONE, "--training.seed", seed)
            run("train", "folder/vsepp-kl", *fields, "--out", out)
            other = {"data.root": str(options.work / "test")}
            data = load_data(read_recipe(out, other).data)
            rsums.append(round(measure_run(out, "test", data, other).measures["rsum"], 1))
        print(f"{root.name}: rsum {mean(rsums):.1f} ± {pstdev(rsums):.1f} {rsums}", flush=True)


def photos_of(data: Path) -> list[Photo]:
    one = source("flickr8k")
    recipe = DataRecipe("flickr8k", root=str(data))
    return list(one.listing(recipe, one.root(recipe)).photos)


def written(out: Path, rows: list[list[str]], photos: list[Photo], header: tuple[str, ...]) -> None:
    """A folder of photos with a table of captions."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    for photo in photos:
        (out / "images" / photo.id).write_bytes(photo.path.read_bytes())
    with (out / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def planted(
    chosen: list[Photo], out: Path, each: int, chance: random.Random
) -> dict[str, dict[str, str]]:
    """Photos and captions with faults; what was planted: caption or photo → its truth."""
    (out / "images").mkdir(parents=True)
    rows = [[p.id, c.text] for p in chosen for c in chance.sample(p.captions, each)]
    *moved, _ = chance.sample(range(len(rows)), SWAPPED + USELESS + 2)
    exchanged, useless = moved[: SWAPPED + 1], moved[SWAPPED + 1 :]
    texts = [rows[i][1] for i in exchanged]
    pairs = list(zip(exchanged[::2], exchanged[1::2], strict=True))
    for a, b in pairs:
        rows[a][1], rows[b][1] = rows[b][1], rows[a][1]
    truth = {
        "swapped": {rows[i][1]: text for i, text in zip(exchanged, texts, strict=True)},
        "useless": dict(zip(NOTHING, (rows[i][1] for i in useless), strict=True)),
        "copies": {},
    }
    for i, text in zip(useless, NOTHING, strict=True):
        rows[i][1] = text
    for n, photo in enumerate(chance.sample(chosen, COPIES)):
        name = f"copy{n}.jpg"
        copy_of(Image.open(photo.path).convert("RGB"), KINDS[n % len(KINDS)], chance).save(
            out / "images" / name, quality=90
        )
        rows.append([name, chance.choice(photo.captions).text])
        truth["copies"][name] = photo.id
    written(out, rows, chosen, ("image", "caption"))
    return truth


def run(*words: object, expected: int = 0) -> None:
    print("$ gaussmatch", *words, flush=True)
    code = gaussmatch([str(word) for word in words])
    if code != expected:
        raise SystemExit(f"exit code {code} instead of {expected}")
    print(flush=True)


def found(rows: list[Row], truth: dict[str, dict[str, str]]) -> None:
    misfits = [row for row in rows if row.issue == "misfit"]
    swapped = [row.text in truth["swapped"] for row in misfits]
    swaps = [r for r in rows if r.proposal == "swap"]  # of missing positives too
    right = sum(truth["swapped"].get(r.text) == r.other_text for r in swaps)
    drops = [r.text in truth["swapped"] for r in misfits if r.proposal == "drop"]
    useless = {row.text for row in rows if row.issue == "says nothing"}
    copies = {
        frozenset((r.image, r.other)) for r in rows if r.issue in ("leakage", "near-duplicate")
    }
    there = {frozenset(pair) for pair in truth["copies"].items()}
    print(
        f"exchanged captions: {sum(swapped)} of {len(truth['swapped'])} among {len(misfits)} "
        f"misfits, {sum(swapped[: len(truth['swapped'])])} of the first {len(truth['swapped'])}; "
        f"{right} of {len(swaps)} proposed swaps and {sum(drops)} of {len(drops)} drops are right; "
        f"says nothing: {len(useless & truth['useless'].keys())} of {USELESS}, "
        f"{len(useless - truth['useless'].keys())} others; "
        f"copies: {len(copies & there)} of {COPIES}, "
        f"others: {sorted(map(sorted, copies - there))}\n"
    )


def decide(rows: list[Row], path: Path) -> None:
    """All findings as proposed."""
    names = ("issue", "image", "caption", "text", "other", "other_caption", "decision")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in rows:
            writer.writerow([getattr(row, name) for name in names[:-1]] + [row.proposal])


def repaired(clean: Path, truth: dict[str, dict[str, str]]) -> None:
    with (clean / "captions.csv").open(newline="", encoding="utf-8") as file:
        left = [row["caption"] for row in csv.DictReader(file)]
    print(f"useless captions left: {sum(text in truth['useless'] for text in left)}\n")


if __name__ == "__main__":
    main()
