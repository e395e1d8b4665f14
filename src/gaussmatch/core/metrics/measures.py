"""Every measure once: its name, its label, which way is better, and how many digits are shown.

A key in an evaluation is a measure with what it was taken on before it: ``i2t_r1``,
``1k_t2i_pmrp``, ``caption_rho``, ``10%_crop_a``. Tables, reports and the command line look up the
rest here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """One entry of ``MEASURES``.

    Args:
        key: its name, without direction or protocol.
        label: what a table calls it.
        digits: shown after the point.
        lower: whether the smallest is the best; ``None`` if neither is.
    """

    key: str
    label: str
    digits: int = 1
    lower: bool | None = False


MEASURES: dict[str, Measure] = {
    m.key: m
    for m in (
        Measure("r1", "R@1"),
        Measure("r5", "R@5"),
        Measure("r10", "R@10"),
        Measure("median_rank", "median rank", lower=True),
        Measure("rsum", "rsum"),
        Measure("true_r1", "R@1, known truth"),
        Measure("true_r5", "R@5, known truth"),
        Measure("true_r10", "R@10, known truth"),
        Measure("r_precision", "R-Precision"),
        Measure("map_at_r", "mAP@R"),
        Measure("eccv_r1", "R@1, ECCV Caption"),
        Measure("eccv_r_precision", "R-Precision, ECCV Caption"),
        Measure("eccv_map_at_r", "mAP@R, ECCV Caption"),
        Measure("pmrp_0", "PMRP, ζ = 0"),
        Measure("pmrp_1", "PMRP, ζ = 1"),
        Measure("pmrp_2", "PMRP, ζ = 2"),
        Measure("pmrp", "PMRP"),
        Measure("r1_surest_half", "R@1 of the surest half"),
        Measure("r1_surest_fifth", "R@1 of the surest fifth"),
        Measure("aurc", "AURC", 3, lower=True),
        Measure("aurc_oracle", "AURC, oracle", 3, lower=None),
        Measure("aurc_random", "AURC, random", 3, lower=None),
        Measure("aurc_gain", "AURC gain", 3),
        Measure("score_aurc", "AURC by score", 3, lower=True),
        Measure("score_aurc_gain", "AURC gain by score", 3),
        Measure("rho", "ρ", 3),
        Measure("people_rho", "ρ people's counts", 3),
        Measure("specificity_rho", "ρ people's specificity", 3),
        Measure("chain_steps", "chain steps in order", 3),
        Measure("set_size", "size of a 90 % set", lower=True),
        Measure("set_holds", "90 % set holds", 3, lower=None),
        Measure("ood_auroc", "AUROC other domains", 3),
        Measure("step_ms", "CPU ms a step", lower=True),
        Measure("item_bytes", "bytes an item", 0, lower=True),
        Measure("queries_per_s", "queries a CPU second", 0),
        *(
            Measure(f"{side}_{name}", f"{side} {name.upper()}")
            for side in ("crop", "caption")
            for name in "ac"
        ),
        *(
            Measure(f"{side}_{name}_uncertainty", f"{side} {name.upper()}", 2, lower=None)
            for side in ("crop", "caption")
            for name in "ac"
        ),
    )
}
"""A new measure is one entry here and the line that computes it."""

_BEFORE = {"1k": "1K", "i2t": "i2t", "t2i": "t2i"}
_AFTER = {"image": "images", "caption": "captions"}


def measure(key: str) -> Measure:
    """The entry of a measure, whatever it was taken on.

    >>> measure("1k_i2t_median_rank").lower, measure("caption_rho").digits
    (True, 3)
    """
    rest = key
    while rest and rest not in MEASURES:
        _, _, rest = rest.partition("_")
    if not rest:
        raise ValueError(f"unknown measure {key!r}; known are {', '.join(MEASURES)}")
    return MEASURES[rest]


def heading(key: str) -> str:
    """A measure in one line, with what it was taken on.

    >>> heading("1k_t2i_r5"), heading("caption_rho"), heading("rsum")
    ('1K t2i R@5', 'ρ captions', 'rsum')
    """
    entry = measure(key)
    words = key.removesuffix(entry.key).strip("_").split("_")
    before = [_BEFORE.get(word, word) for word in words if word not in _AFTER]
    return " ".join(filter(None, [*before, entry.label, *(_AFTER.get(w, "") for w in words)]))


def shown(key: str, value: float) -> str:
    """A value with the digits of its measure.

    >>> shown("rsum", 311.25), shown("image_rho", 0.5)
    ('311.2', '0.500')
    """
    return f"{value:.{measure(key).digits}f}"
