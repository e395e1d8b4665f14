"""Plots that read well on light and on dark pages, as SVG text or as files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmatch.files import atomic, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#6f757d"  # axes and text: enough contrast on white and on near-black
COLOURS = ("#3b82d6", "#e0703a", "#3fa66b", "#a463c8", "#c9a227", "#5f9ea0", "#d65a8a", "#7d8b3a")
WAYS = {"i2t": "image to text", "t2i": "text to image"}


def curves(
    series: Mapping[str, Sequence[float]], title: str, ylabel: str, log: bool = False
) -> Figure:
    """One line for each model over the epochs."""
    figure, axes = _blank(title, "epoch", ylabel)
    axes.locator_params(axis="x", integer=True)
    axes.set_yscale("log" if log else "linear")
    for i, (name, values) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(range(1, len(values) + 1), values, marker="o", ms=3, color=colour, label=name)
    _legend(axes, len(series))
    return figure


def cloud(x: Sequence[float], y: Sequence[float], title: str, xlabel: str, ylabel: str) -> Figure:
    """Many items as dots on a logarithmic x, with the median of y along it."""
    import numpy as np

    figure, axes = _blank(title, xlabel, ylabel)
    axes.set_xscale("log")
    axes.scatter(x, y, s=5, alpha=0.25, color=COLOURS[0], linewidths=0, rasterized=True)
    xs, ys = np.asarray(x), np.asarray(y)
    edges = np.unique(np.round(np.geomspace(1, max(2, xs.max()) + 1, 12)).astype(int))
    centres, medians = [], []
    for low, high in pairwise(edges):
        inside = (xs >= low) & (xs < high)
        if inside.any():
            centres.append(np.sqrt(low * max(low, high - 1)))
            medians.append(np.median(ys[inside]))
    axes.plot(centres, medians, color=COLOURS[1], marker="o", ms=4, label="median")
    _legend(axes, 1)
    return figure


def deciles(measures: Mapping[str, Any]) -> Figure:
    """R@1 in ten bins of uncertainty, from the surest queries to the least sure, both ways."""
    figure, axes = _blank("Recall by uncertainty", "decile of uncertainty, sure to unsure", "R@1")
    for colour, (way, name) in zip(COLOURS, WAYS.items(), strict=False):
        if f"{way}_deciles" in measures:
            heights = [one["accuracy"] for one in measures[f"{way}_deciles"]]
            places = range(1, len(heights) + 1)
            axes.plot(places, heights, marker="o", ms=4, color=colour, label=name)
    axes.set_ylim(bottom=0)
    _legend(axes, 2)
    return figure


def bars(
    values: Mapping[str, Sequence[float]], groups: Mapping[str, str], title: str, xlabel: str
) -> Figure:
    """A bar for each row, coloured by group: the mean of its runs, each run as a dot."""
    names = [name for name, runs in values.items() if runs]
    figure, axes = _blank(title, xlabel, "", height=max(2.0, 0.6 + 0.28 * len(names)))
    colour_of = list(dict.fromkeys(groups.values()))
    for place, name in enumerate(reversed(names)):
        runs, colour = values[name], COLOURS[colour_of.index(groups[name]) % len(COLOURS)]
        mean = sum(runs) / len(runs)
        axes.barh(place, mean, color=colour, alpha=0.75, height=0.62)
        if len(runs) > 1:
            axes.scatter(runs, [place] * len(runs), s=14, color=INK, zorder=3, linewidths=0)
    axes.set_yticks(range(len(names)), list(reversed(names)), fontsize=8)
    low = min((min(runs) for runs in values.values() if runs), default=0.0)
    high = max((max(runs) for runs in values.values() if runs), default=1.0)
    room = max(high - low, 0.02 * abs(high), 1e-6)
    axes.set_xlim(max(0.0, low - 1.5 * room) if low >= 0 else low - room, high + 0.15 * room)
    return figure


def lines(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str,
    ylabel: str,
    dashed: Sequence[str] = (),
) -> Figure:
    """Named lines over a common x; those named in ``dashed`` are dashed."""
    figure, axes = _blank(title, xlabel, ylabel)
    for i, (name, values) in enumerate(series.items()):
        style, colour = "--" if name in dashed else "-", COLOURS[i % len(COLOURS)]
        axes.plot(x, values, style, marker="o", ms=4, color=colour, label=name)
    _legend(axes, len(series))
    return figure


def svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element, without the file header; the same bytes every time."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "gaussmatch", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save(figure: Figure, stem: Path) -> str:
    """``stem.svg`` and ``stem.png``, the latter on white, for papers and slides; gives the SVG."""
    text = svg(figure)
    write_text(stem.with_name(f"{stem.name}.svg"), text)
    with atomic(stem.with_name(f"{stem.name}.png")) as temporary:
        figure.savefig(temporary, format="png", dpi=160, facecolor="white")
    return text


def _legend(axes: Axes, entries: int) -> None:
    if entries <= 4:
        axes.legend(frameon=False, labelcolor=INK, fontsize=8.5)
        return
    figure: Any = axes.figure  # many lines: below, where they hide nothing
    figure.legend(loc="outside lower center", ncols=3, frameon=False, labelcolor=INK, fontsize=7.5)


def _blank(title: str, xlabel: str, ylabel: str, height: float = 3.4) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'gaussmatch[report]'") from error
    figure = Figure(figsize=(5.2, height), layout="constrained")
    axes: Any = figure.subplots()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    axes.set_title(title, color=INK, fontsize=11)
    axes.set_xlabel(xlabel, color=INK)
    axes.set_ylabel(ylabel, color=INK)
    axes.tick_params(colors=INK)
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in ("left", "bottom"))
    axes.grid(color=INK, alpha=0.18)
    axes.set_axisbelow(True)
    return figure, axes
