"""``gaussmatch probe RUN [--fitting FILE.jsonl] [--chains FILE.csv] [--json OUT.json]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gaussmatch.cli.parser import Parser
from gaussmatch.cli.tables import plain_table
from gaussmatch.data import load_data
from gaussmatch.files import write_json
from gaussmatch.run import load
from gaussmatch.trust.kept import PROBE, keep_probe, kept_calibration
from gaussmatch.trust.probe import probe

OTHERS = {"words": "words", "best_score": "best score", "perplexity": "perplexity"}


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "probe",
        "Judge the uncertainty of a run: against people's judgements, truth where it is known, and "
        "edits of known effect, each beside what needs no variances. The verdict is kept in the "
        "run: a gauge that failed is not shown.",
        examples=[
            "gaussmatch probe runs/demo/probabilistic",
            "gaussmatch probe RUN --fitting fitting_photos.jsonl --chains chains.csv --json p.json",
        ],
        computes=True,
    )
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--split", default="test", choices=("dev", "test"))
    parser.add_argument(
        "--fitting", type=Path, help="JSON lines of caption and fits, the photos that it fits"
    )
    parser.add_argument("--chains", type=Path, help="CSV: level_1 … level_n, general to specific")
    parser.add_argument(
        "--crowd", type=Path, help="Flickr8k's CrowdFlowerAnnotations.txt, captions beside it"
    )
    parser.add_argument("--unfamiliar", type=Path, help="queries of other domains, one a line")
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="a copy of the figures")
    options = parser.parse(argv)
    model = load(options.run)
    data = load_data(model.recipe.data)
    found = probe(
        model,
        data,
        kept_calibration(options.run, data),
        split=options.split,
        fitting=options.fitting,
        chains=options.chains,
        crowd=options.crowd,
        unfamiliar=options.unfamiliar,
    )
    keep_probe(options.run, found)
    print(plain_table([("", "Σ", *OTHERS.values(), "combined"), *_rows(found)]))
    for side, judged in found["verdict"].items():
        why = "" if judged["passed"] else f": {'; '.join(judged['failed'])}"
        print(f"\nthe gauge of {side} {'passed' if judged['passed'] else 'failed'}{why}")
    if options.json is not None:
        write_json(options.json, found)
    print(f"\nwritten: {', '.join(map(str, filter(None, [options.run / PROBE, options.json])))}")


def _rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Measure, the variance, and what needs none."""
    rows = []
    names = {
        "fitting_photos": "photos that fit",
        "true_counts": "true photos",
        "balanced": "true photos, equal length",
        "crowd": "the crowd's judgement",
    }
    for key, title in names.items():
        if key in found:
            rho = found[key]
            values = [rho.get("rho"), rho["rho_length"], rho["rho_best_score"]]
            rows.append(_row(f"{title}, ρ", [*values, rho["rho_perplexity"]]))
            rows.append(_row("  given length", [rho.get("rho_given_length")]))
    if "chains" in found:
        chains = found["chains"]
        for figure in ("steps", "whole"):
            others = [chains[name][figure] for name in OTHERS]
            rows.append(_row(f"chains, {figure} in order", [chains.get(figure), *others]))
    edits = found.get("edits", {})
    for name, shares in edits.get("by_others", {}).items():
        others = [shares[gauge] for gauge in OTHERS]
        rows.append(_row(f"{name}, less sure", [edits.get(name), *others]))
    for name in ("fillers", "fillers_as_typed"):
        if name in edits:
            rows.append(_row(f"{name.replace('_', ' ')}, unmoved", [edits[name]]))
    for name, share in found.get("photo_edits", {}).items():
        if name != "cases":
            rows.append(_row(f"photo: {name}, less sure", [share]))
    for side, by in found["surest_half"].items():
        for figure, title in (("ratio", "R@1 of surest half / all"), ("aurc", "AURC")):
            names_of = ("sigma", *OTHERS, "probability")
            rows.append(_row(f"{side}: {title}", [by.get(n, {}).get(figure) for n in names_of]))
    if "unfamiliar" in found:
        strange = found["unfamiliar"]
        values = [*(strange.get(f"auroc_{n}") for n in ("sigma", *OTHERS)), strange.get("auroc")]
        rows.append(_row("other domains, AUROC", values))
    return rows


def _row(title: str, values: Sequence[float | None]) -> tuple[str, ...]:
    cells = ["" if value is None else f"{value:.3f}" for value in values]
    return (title, *cells, *[""] * (5 - len(cells)))
