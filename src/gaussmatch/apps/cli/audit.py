"""``gaussmatch audit DATA [--out AUDIT]``, ``audit apply`` and ``audit export``."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shlex import join, quote

from torch import Tensor

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.data import SOURCES, clean, exchange, recognize
from gaussmatch.data.clean import DECIDED, read_decisions
from gaussmatch.data.pairs import SPLITS
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.files import claim_file, claim_folder, write_json, write_text
from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.models.model import Model
from gaussmatch.models.run import PHOTOS, load, locate, read_recipe
from gaussmatch.search.trust import audit_report
from gaussmatch.search.trust.audit import ISSUES, SUSPECT

NONE = "none"
FORMATS = [name for name, source in SOURCES.items() if source.signs]


def run(argv: Sequence[str]) -> None:
    options = _options(argv)
    claim_folder(options.out)
    decided = [d for path in options.decided for d in read_decisions(path)]
    model, recipe = _model(options)
    splits = [options.split] if options.split else SPLITS
    data = audit_report.gather(recipe, splits)
    earlier = Path(options.data) / DECIDED
    if earlier.is_file():
        decided += read_decisions(earlier)
    found = audit_report.audit_data(data, model, options.most, decided)
    rows = found.rows
    named = None if options.data in SOURCES else (Path(options.data), options.format)
    audit_report.write(options.out, found, data, options.most, named)
    counts = Counter(row.issue for row in rows)
    sizes = ", ".join(
        f"{data.splits.count(split):,} {split}" for split in dict.fromkeys(data.splits)
    )
    judge = "features and words" if model is None else Path(options.run or PHOTOS).name
    print(
        f"{options.data}: {len(data.images):,} images ({sizes}), {len(data.captions):,} captions; "
        f"judged by {judge}\n"
    )
    table = [(issue, str(counts[issue]), meaning) for issue, meaning in ISSUES.items()]
    print(plain_table([("", "found", ""), *table]))
    misfits = int((found.misfit >= SUSPECT).sum())
    if counts["misfit"] == options.most < misfits:
        print(f"{misfits:,} captions are misfits; --most {misfits} shows all")
    for row in [row for row in rows if row.issue == "leakage"][:5]:
        print(f"leakage: {row.image} ({row.split}) = {row.other} ({row.other_split})")
    if decided:
        print(f"leaving out what {len(decided):,} earlier decisions settled")
    if options.worth:
        _print_gain(audit_report.gain(data, found, options.worth))
    files = (audit_report.TABLE, audit_report.PAGE, audit_report.NEXT)
    print(f"\nwritten: {', '.join(str(options.out / file) for file in files)}")
    print(f"next: gaussmatch review {quote(str(options.out))}", file=sys.stderr)


def _print_gain(found: Mapping[str, Tensor]) -> None:
    """What cleaning as proposed gains, beside dropping as many in other ways."""
    base = found["as it is"].mean()
    rows = [("heads trained on the captions", "mean recall", "")]
    for name, values in found.items():
        change = "" if name == "as it is" else f"{float(values.mean() - base):+.2f}"
        shown = f"{float(values.mean()):.2f} ± {float(values.std(correction=0)):.2f}"
        rows.append((name, shown, change))
    print("\n" + plain_table(rows))


def _options(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "audit",
        "Look for faults in a data set: photos in two splits, captions that do not fit their "
        "photo, say nothing or fit other photos too, copies and odd photos. Pairs are judged by "
        "a map that has not seen them. Writes a table and a page with pictures; changes nothing.",
        examples=[
            "my-photos",
            "my-photos --split train --run runs/photos",
            "flickr8k --extracted resnet50.npy --out audit",
        ],
        notes="\n".join(
            f"  gaussmatch audit {name:8} {verb.__doc__}" for name, verb in VERBS.items()
        ),
        computes=True,
    )
    parser.take("data", "a folder of data, or scenes")
    parser.take(
        "--run",
        "whose embeddings are compared (default: the photo model; with --extracted, or data "
        f"without photos, features and words, as with '{NONE}')",
    )
    parser.take("--split", "only this one (default: all)", choices=SPLITS)
    parser.take("--format", "detected by default", choices=FORMATS)
    parser.take("--extracted", "features of the photos, see data.extracted")
    parser.take("--weights", "of the image network, a local file; see data.weights")
    parser.take("--most", "findings per issue", 100)
    parser.many(
        "--decided",
        "decisions made before; what they settled is left out",
        type=Path,
        metavar="FILE",
    )
    parser.take(
        "--worth",
        "also train small heads on the data as it is and as cleaned (3 seeds), and compare",
        type=int,
        nargs="?",
        const=3,
        metavar="SEEDS",
    )
    parser.take("--out", "the output folder", Path("audit"))
    return parser.parse(argv)


def _model(options: Namespace) -> tuple[Model | None, DataRecipe]:
    """The model that judges, or none, and the data as it takes it."""
    fields = {"extracted": options.extracted, "weights": options.weights}
    photos = options.data not in SOURCES
    if photos:
        name = options.format or recognize(Path(options.data)).name
        fields |= {"name": name, "root": options.data}
        photos = SOURCES[name].read is not None
    given = {name: value for name, value in fields.items() if value is not None}
    run = options.run or (PHOTOS if photos and options.extracted is None else NONE)
    if run == NONE:
        return None, replace(DataRecipe(), **given)
    place = locate(run)
    return load(place), read_recipe(place, {f"data.{n}": v for n, v in given.items()}).data


def _apply(argv: Sequence[str]) -> None:
    """DATA DECISIONS --out CLEAN   a cleaned copy; shows what changes first"""
    parser = Parser(
        "audit apply",
        "Make a cleaned copy of a data set by decisions about its findings: the table of the "
        "audit with its column 'decision' filled in, what Review wrote, or an export of Label "
        "Studio or FiftyOne. Shows what changes and asks before it writes; the original stays.",
        examples=[
            "my-photos audit/decisions.csv --out clean",
            "my-photos audit/decisions.csv --out clean --yes --link",
        ],
    )
    parser.path("data", "the folder of the data set that was audited")
    parser.path("decisions", "files of decisions", nargs="+")
    parser.path("--out", "a new folder", required=True)
    parser.take("--format", "detected by default", choices=FORMATS)
    parser.flag("--link", "link to the photos, do not copy them")
    parser.flag("--dry-run", "show what changes, write nothing")
    parser.flag("--yes", "do not ask")
    options = parser.parse(argv)
    claim_folder(options.out, proof=None)
    source = SOURCES[options.format] if options.format else recognize(options.data)
    recipe = DataRecipe(name=source.name, root=str(options.data))
    listing = source.listing(recipe, source.root(recipe))
    decisions = [d for path in options.decisions for d in read_decisions(path)]
    changes = clean.plan(listing, decisions)
    print("\n".join([*changes.diff, "", changes.summary()]))
    if options.dry_run or not (options.yes or _agreed(options.out)):
        print(f"nothing was written; add --yes to write {options.out}")
        return
    clean.write(source.name, options.data, options.out, listing, changes, link=options.link)
    print(f"written: {options.out}")
    words = [str(options.out), "--out", f"{options.out}-audit"]
    print(f"next: gaussmatch audit {join(words)}", file=sys.stderr)


def _agreed(out: Path) -> bool:
    """Ask, where somebody can answer."""
    return sys.stdin.isatty() and input(f"write {out}? [y/N] ").strip().lower() in ("y", "yes")


def _export(argv: Sequence[str]) -> None:
    """AUDIT --to TOOL --out FILE    findings for Label Studio or FiftyOne"""
    parser = Parser(
        "audit export",
        "Write findings as tasks of Label Studio (and its labeling configuration beside them) or "
        "as a data set of FiftyOne. What is decided there, 'gaussmatch audit apply' reads.",
        examples=[
            "audit --to label-studio --out tasks.json",
            "audit --to fiftyone --out findings.json",
        ],
    )
    parser.path("audit", "what 'gaussmatch audit' wrote")
    parser.add_argument("--to", choices=("label-studio", "fiftyone"), required=True)
    parser.path("--out", "a JSON file", required=True)
    options = parser.parse(argv)
    config = options.out.with_suffix(".xml")
    for path in (options.out, *((config,) if options.to == "label-studio" else ())):
        claim_file(path, "gaussmatch")
    rows = [asdict(row) for row in audit_report.read_table(options.audit)]
    if options.to == "fiftyone":
        write_json(options.out, exchange.fiftyone(rows, options.audit.resolve().name))
        print(
            f"written: {options.out}; in Python: fiftyone.Dataset.from_json({str(options.out)!r})"
        )
        return
    photo = partial(audit_report.picture_of, options.audit)
    write_json(options.out, exchange.label_studio(rows, photo))
    write_text(config, exchange.LABELING)
    print(f"written: {options.out}, and its labeling configuration {config}")


VERBS = {"apply": _apply, "export": _export}
