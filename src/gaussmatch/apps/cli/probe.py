"""What the numbers of a run mean: ``gaussmatch calibrate RUN`` learns it, ``gaussmatch probe RUN
[--fitting FILE.jsonl] [--chains FILE.csv] [--json OUT.json]`` judges it."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.files import claim_file, claim_folder, write_json
from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.learn.evaluation.triplets import crop_pairs
from gaussmatch.learn.plot import bars, lines, save
from gaussmatch.models import run as runs
from gaussmatch.models.features import load_data
from gaussmatch.search.trust.calibration import GALLERIES
from gaussmatch.search.trust.gauges import TITLES, verdict_lines
from gaussmatch.search.trust.learn import SUMMARY, calibrate_run, keep_probe, kept_calibration
from gaussmatch.search.trust.probe import probe


def run_calibrate(argv: Sequence[str]) -> None:
    parser = Parser(
        "calibrate",
        "Learn what the numbers of a run mean, from its training and validation data: "
        "percentiles, familiarity, what fits, how many fit, and guarantees. It is kept in the run "
        "and copied with it.",
        examples=[
            "runs/demo/probabilistic",
            "runs/photos --data.name folder --data.root my-photos",
            "photos --data.root COCO --data.also '{flickr8k: FLICKR8K}' --fitting "
            "fitting_photos.jsonl --out calibration.json",
        ],
        notes="Fields of the recipe's data can be given too, to learn from other data.",
        fields=("data",),
        computes=True,
    )
    parser.take("run", "a run folder", type=runs.locate)
    parser.path(
        "--fitting",
        "captions with the photos that people say they fit, as JSON lines: caption, image, photos",
        metavar="FILE",
    )
    parser.path("--out", "write the calibration to this file, not into the run", metavar="FILE")
    options = parser.parse(argv)
    if runs.is_shipped(options.run) and options.out is None:
        name = options.run.name
        raise ValueError(
            f"{name} comes with the package, calibrated. For your own data copy it, in Python: "
            f"gm.save_pretrained({name!r}, 'runs/{name}'), and calibrate the copy: "
            f"gaussmatch calibrate runs/{name} --data.name folder --data.root FOLDER"
        )
    if options.out is not None:
        claim_file(options.out, '"quantiles"')
    start = time.monotonic()

    def say(step: str) -> None:
        print(f"{time.monotonic() - start:5.0f} s  {step}", file=sys.stderr, flush=True)

    calibration = calibrate_run(options.run, options.overrides, options.fitting, options.out, say)
    titles = ("ECE", "softmax", "80 %", "recall", "the one", "absent")
    rows = [
        (f"{kind}, among {g}", *(f"{found.get(n, float('nan')):.4f}" for n in SUMMARY))
        for g in GALLERIES
        for kind, found in calibration.about[g].items()
    ]
    print(plain_table([("held-out queries", *titles), *rows]))
    if options.out is None:
        print(*verdict_lines(runs.read_listed(options.run, runs.PROBE)), sep="\n")
    written = (
        f"in {options.run}: {runs.CALIBRATION}, {runs.PROBE}"
        if options.out is None
        else options.out
    )
    print(f"written {written}")


OTHERS = {"words": "words", "best_score": "best score", "perplexity": "perplexity"}
COLUMNS = ("Σ", *OTHERS.values(), "combined", *TITLES.values())
COUNTS = {
    "fitting_photos": "photos that fit",
    "true_counts": "true photos",
    "judged_counts": "photos judged true, of a few",
    "balanced": "true photos, equal length",
    "crowd": "the crowd's judgment",
}
"""What the uncertainty of captions is held against, and its title."""
IMAGES = {
    "crowd_images": "photos: other captions that the crowd accepts",
    "near_captions": "images: captions of others that say the same",
    "specificity": "photos: people's descriptions differ",
    "agreement": "photos: many sentences differ",
    "own_disagreement": "images: own captions differ",
}
"""What gauges of images are held against, and its title."""
PEOPLE = ("fitting", "chains", "crowd", "specificity")
"""Files of what people said."""


def run_probe(argv: Sequence[str]) -> None:
    options = _probe_parser().parse(argv)
    if options.plots is not None:
        claim_folder(options.plots)
    if options.json is not None:
        claim_file(options.json, '"verdict"')
    found = _probed(options)
    kept, written = _kept(options, found), [options.json]
    if kept is found:
        written.append(options.run / runs.PROBE)
    print(plain_table([(found["data"], *COLUMNS), *_rows(found)]))
    print("", *verdict_lines(kept, found), sep="\n")
    if options.json is not None:
        write_json(options.json, found)
    if options.plots is not None:
        claim_folder(options.plots, names=[f"{s}.{e}" for s in PLOTS for e in ("svg", "png")])
        written += _draw(options.plots, found)
    print(f"\nwritten: {', '.join(map(str, filter(None, written))) or 'nothing'}")


def _probed(options: Namespace) -> dict[str, Any]:
    """Everything that is measured."""
    recipe = runs.read_recipe(options.run, options.overrides).data
    return probe(
        runs.load(options.run),
        load_data(recipe),
        kept_calibration(options.run),
        split=options.split,
        crops=crop_pairs(recipe) if options.crops else None,
        **{name: getattr(options, name) for name in (*PEOPLE, "unfamiliar", "photos")},
    )


def _kept(options: Namespace, found: dict[str, Any]) -> dict[str, Any] | None:
    """What the run keeps: the first probe of its own data, or the last with people's judgments."""
    kept: dict[str, Any] | None = runs.read_listed(options.run, runs.PROBE)
    people = any(getattr(options, name) is not None for name in PEOPLE)
    own = not options.overrides and not runs.is_shipped(options.run)
    if not own or (kept is not None and not people):
        return kept
    keep_probe(options.run, found)
    return found


def _probe_parser() -> Parser:
    parser = Parser(
        "probe",
        "Judge the uncertainty of a run against people's judgments, known truth and edits of "
        "known effect, each next to baselines that need no variances. A run has one verdict, "
        "made on validation by train, adapt or calibrate; a probe with people's judgments "
        "replaces it. Searches do not show a gauge that failed.",
        examples=[
            "runs/demo/probabilistic",
            "RUN --fitting fitting_photos.jsonl --chains chains.csv --json p.json",
            "photos --specificity people.jsonl --crowd CrowdFlowerAnnotations.txt --data.name "
            "flickr8k --data.root DATA",
        ],
        notes="Fields of the recipe's data can be given too; a verdict on other data than the "
        "run's own is not kept.",
        fields=("data",),
        computes=True,
    )
    parser.take("run", "a run folder, or photos", type=runs.locate)
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.path("--fitting", "JSON lines with caption and fits (how many photos it fits)")
    parser.path("--chains", "CSV: level_1 … level_n, general to specific")
    parser.path(
        "--crowd", "Flickr8k's CrowdFlowerAnnotations.txt, with the captions and images/ beside it"
    )
    parser.path(
        "--specificity",
        "JSON lines with image (a file beside it) and specificity (how alike people describe "
        "it) or sentences",
    )
    parser.flag("--crops", "cut crops of one and of two things from test photos")
    parser.path("--unfamiliar", "queries of other domains, one per line")
    parser.path("--photos", "a folder of pictures of another kind than the model's")
    parser.path("--plots", "also draw the figures", metavar="FOLDER")
    parser.path("--json", "a copy of the figures", metavar="OUT.json")
    return parser


PLOTS = (*(f"risk-coverage-{side}" for side in GALLERIES), "edits")


def _draw(folder: Path, found: Mapping[str, Any]) -> list[Path]:
    """Risk and coverage of each side, and the shares that should be high, as SVG and PNG."""
    names = {"sigma": "log det Σ", **OTHERS, "probability": "match probability"}
    stems = []
    for side, by in found["surest_half"].items():
        named = {title: by[n]["curve"] for n, title in names.items() if n in by}
        x = [coverage for coverage, _ in next(iter(named.values()))]
        series = {title: [risk for _, risk in curve] for title, curve in named.items()}
        series["chance"] = [by["aurc_random"]] * len(x)
        axes = lines(
            x, series, f"{side} as queries", "share of queries answered", "share wrong", ["chance"]
        )
        stems.append(folder / f"risk-coverage-{side}")
        save(axes, stems[-1])
    shares = {**found.get("edits", {}), **found.get("photo_edits", {})}
    bars_of = {n: [v] for n, v in shares.items() if isinstance(v, float)}
    bars_of |= {f"chains, {n}": [found["chains"][n]] for n in ("steps",) if "chains" in found}
    if bars_of:
        groups = {n: "photos" if n in found.get("photo_edits", {}) else "texts" for n in bars_of}
        title = "Less sure after an edit (fillers: unmoved)"
        stems.append(folder / "edits")
        save(bars(bars_of, groups, title, "share of cases"), stems[-1])
    return [stem.with_name(f"{stem.name}.svg") for stem in stems]


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for title, values in _figures(found):
        cells = ["" if value is None else f"{value:.3f}" for value in values]
        yield (title, *cells, *[""] * (len(COLUMNS) - len(cells)))


def _figures(found: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[float | None]]]:
    """Measure → of the variance, and of what needs none."""
    for key, title in COUNTS.items():
        if key in found:
            rho = found[key]
            others = [rho[f"rho_{name}"] for name in ("length", "best_score", "perplexity")]
            yield f"{title}, ρ", [rho.get("rho"), *others]
            yield "  given length", [rho.get("rho_given_length")]
    if "chains" in found:
        chains = found["chains"]
        for figure in ("steps", "whole"):
            others = [chains[name][figure] for name in OTHERS]
            yield f"chains, {figure} in order", [chains.get(figure), *others]
    edits = found.get("edits", {})
    for name, shares in edits.get("by_others", {}).items():
        yield f"{name}, less sure", [edits.get(name), *(shares[gauge] for gauge in OTHERS)]
    for name in ("fillers", "fillers_as_typed"):
        if name in edits:
            yield f"{name.replace('_', ' ')}, unmoved", [edits[name]]
    learned = ("sigma", *OTHERS, "", *TITLES)
    for key, title in IMAGES.items():
        if key in found:
            yield f"{title}, ρ", [found[key].get(n) for n in learned]
    for area, gaps in found.get("crops", {}).items():
        values = [gaps.get(name, {}).get("gap") for name in learned]
        yield f"crops below {area}: two things − one, in σ", values
    photos = found.get("photo_edits", {})
    for name, by_others in photos.get("by_others", {}).items():
        values = [photos.get(name), None, by_others["best_score"], by_others["perplexity"]]
        yield f"photo: {name}, less sure", values
    for side, by in found["surest_half"].items():
        for figure, title in (("ratio", "R@1 of surest half / all"), ("aurc", "AURC")):
            names = ("sigma", *OTHERS, "probability")
            yield f"{side}: {title}", [by.get(n, {}).get(figure) for n in names]
    for key, title in (("unfamiliar", "other domains"), ("unfamiliar_photos", "other photos")):
        if strange := found.get(key, {}):
            values = [strange.get(f"auroc_{n}") for n in ("sigma", *OTHERS)]
            yield f"{title}, AUROC (last: familiarity)", [*values, strange.get("auroc")]
