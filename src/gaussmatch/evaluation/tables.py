"""The measures of one run as a page: plain rows, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = tuple[str, str, str]
"""Name, image-to-text, text-to-image (or images, captions)."""

BOTH_WAYS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "median_rank": "median rank",
    "true_r1": "R@1, known truth",
    "true_r5": "R@5, known truth",
    "true_r10": "R@10, known truth",
    "r_precision": "R-Precision",
    "map_at_r": "mAP@R",
    "pmrp_0": "PMRP, ζ = 0",
    "pmrp_1": "PMRP, ζ = 1",
    "pmrp_2": "PMRP, ζ = 2",
    "pmrp": "PMRP",
    "r1_surest_half": "R@1 of the surest half",
    "r1_surest_fifth": "R@1 of the surest fifth",
    "aurc": "AURC",
    "aurc_oracle": "AURC, oracle",
    "aurc_random": "AURC, random",
    "aurc_gain": "AURC gain",
    "score_aurc": "AURC by score",
    "score_aurc_gain": "AURC gain by score",
    "ece": "ECE of the match probability",
}
FINE = ("aurc", "ece", "rho")  # shown with three digits


def rows(measures: Mapping[str, Any]) -> list[Row]:
    """Every measure that was taken, both ways side by side, with 95 % intervals."""
    shown: list[Row] = []
    for prefix, note in (("", ""), ("1k_", " (1K)")):
        for key, label in BOTH_WAYS.items():
            cells = [_cell(measures, f"{prefix}{way}_{key}") for way in ("i2t", "t2i")]
            if any(cells):
                shown.append((label + note, *cells))  # type: ignore[arg-type]
        if f"{prefix}rsum" in measures:
            shown.append((f"rsum{note}", f"{measures[f'{prefix}rsum']:.1f}", ""))
    rho = [_cell(measures, key) for key in ("image_rho", "caption_rho")]
    if any(rho):
        shown.append(("ρ of uncertainty with ambiguity", rho[0], rho[1]))
    for limit, chosen in measures.get("selection", {}).items():
        threshold = f"{limit} ({chosen['triplets']:.0f} triplets)"
        for name in "ac":
            cells = [f"{chosen[f'{kind}_{name}']:.1f}" for kind in ("crop", "caption")]
            shown.append((f"selection by {name.upper()}, area < {threshold}", *cells))  # type: ignore[arg-type]
            if f"crop_{name}_uncertainty" in chosen:
                cells = [
                    f"{chosen[f'{kind}_{name}_uncertainty']:.2f}" for kind in ("crop", "caption")
                ]
                shown.append((f"uncertainty of {name.upper()}, area < {threshold}", *cells))  # type: ignore[arg-type]
    return shown


def markdown(title: str, measures: Mapping[str, Any]) -> str:
    """One table; the second column is about images as queries, the third about captions."""
    lines = [
        f"# {title}",
        "",
        _about(measures),
        "",
        "| measure | images | captions |",
        "|---|--:|--:|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows(measures)]
    return "\n".join(lines) + "\n"


def latex(title: str, measures: Mapping[str, Any]) -> str:
    """A ``tabular`` that needs no package."""
    lines = [f"% {title}: {_about(measures)}", r"\begin{tabular}{lrr}", r"\hline"]
    lines += [r"measure & images & captions \\", r"\hline"]
    lines += [" & ".join(_tex(cell) for cell in row) + r" \\" for row in rows(measures)]
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


def comparison(result: Mapping[str, Mapping[str, float]]) -> list[Sequence[str]]:
    """Rows of a paired test, for a plain table."""
    cells: list[Sequence[str]] = [("measure", "ours", "theirs", "difference", "95 %", "p")]
    for name, r in result.items():
        interval = f"[{r['low']:+.2f}, {r['high']:+.2f}]"
        cells.append(
            (name, f"{r['ours']:.2f}", f"{r['theirs']:.2f}", f"{r['difference']:+.2f}", interval,
             f"{r['p']:.4f}")
        )  # fmt: skip
    return cells


def _about(measures: Mapping[str, Any]) -> str:
    return f"{measures['data']}: {measures['images']} images, {measures['captions']} captions"


def _cell(measures: Mapping[str, Any], key: str) -> str:
    if key not in measures:
        return ""
    digits = 3 if any(word in key for word in FINE) else 1
    text = f"{measures[key]:.{digits}f}"
    interval = measures.get("intervals", {}).get(key)
    return text if interval is None else f"{text} [{interval[0]:.1f}, {interval[1]:.1f}]"


def _tex(text: str) -> str:
    for plain, escaped in (("%", r"\%"), ("ζ", r"$\zeta$"), ("ρ", r"$\rho$"), ("<", "$<$")):
        text = text.replace(plain, escaped)
    return text
