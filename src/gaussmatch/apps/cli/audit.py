"""``gaussmatch audit DATA [--run RUN] [--split train] [--out FOLDER]``."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.data import SOURCES, recognise
from gaussmatch.data.pairs import SPLITS
from gaussmatch.files import claim_folder
from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.models.run import load, locate, read_recipe
from gaussmatch.search.trust import audit_report
from gaussmatch.search.trust.audit import ISSUES


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "audit",
        "Look for faults in a data set: pairs that do not fit, vague captions, captions that fit "
        "other photos too, odd photos and near-duplicates. Pairs are judged by a map that has not "
        "seen them. Writes a table and a page with pictures; changes nothing.",
        examples=[
            "gaussmatch audit my-photos --run runs/photos",
            "gaussmatch audit flickr8k --extracted resnet50.npy --out audit",
        ],
        computes=True,
    )
    parser.add_argument("data", help="a folder of data, or scenes")
    parser.add_argument(
        "--run",
        type=locate,
        help="whose embeddings are compared, or photos; else features and words",
    )
    parser.add_argument("--split", default="train", choices=SPLITS)
    parser.add_argument(
        "--format", choices=[n for n, s in SOURCES.items() if s.signs], help="detected by default"
    )
    parser.add_argument("--extracted", help="features of the photos, see data.extracted")
    parser.add_argument("--weights", help="of the image network, a local file; see data.weights")
    parser.add_argument("--most", type=int, default=100, help="findings per issue")
    parser.add_argument("--out", type=Path, default=Path("audit"), help="the output folder")
    options = parser.parse(argv)
    claim_folder(options.out)
    model = None if options.run is None else load(options.run)
    fields = {"extracted": options.extracted, "weights": options.weights}
    if options.data not in SOURCES:
        name = options.format or recognise(Path(options.data)).name
        fields |= {"name": name, "root": options.data}
    given = {name: value for name, value in fields.items() if value is not None}
    recipe = replace(DataRecipe(), **given)
    if options.run is not None:
        recipe = read_recipe(options.run, {f"data.{n}": v for n, v in given.items()}).data
    pairs = load_data(recipe).split(options.split)
    findings = audit_report.audit_pairs(pairs, model, options.most)
    audit_report.write(options.out, findings, pairs)
    counts = Counter(f.issue for f in findings)
    print(f"{pairs.name}: {len(pairs.images)} images, {len(pairs.captions)} captions\n")
    rows = [(issue, str(counts[issue]), meaning) for issue, meaning in ISSUES.items()]
    print(plain_table([("", "found", ""), *rows]))
    print(f"\nwritten: {options.out / audit_report.TABLE}, {options.out / audit_report.PAGE}")
    print(f"next: gaussmatch serve INDEX --review {options.out}", file=sys.stderr)
