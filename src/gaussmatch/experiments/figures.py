"""Plots as SVG text that reads well on light and on dark pages."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#7a7f87"  # axes and text: enough contrast on white and on near-black
COLOURS = ("#3b82d6", "#e0703a", "#3fa66b", "#a463c8")
WAYS = {"i2t": "image to text", "t2i": "text to image"}


def curves(
    series: Mapping[str, Sequence[float]], title: str, ylabel: str, log: bool = False
) -> str:
    """One line for each model over the epochs."""
    figure, axes = _blank(title, "epoch", ylabel)
    axes.locator_params(axis="x", integer=True)
    axes.set_yscale("log" if log else "linear")
    for colour, (name, values) in zip(COLOURS, series.items(), strict=False):
        axes.plot(range(1, len(values) + 1), values, marker="o", ms=3, color=colour, label=name)
    axes.legend(frameon=False, labelcolor=INK)
    return _svg(figure)


def cloud(x: Sequence[float], y: Sequence[float], title: str, xlabel: str, ylabel: str) -> str:
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
    axes.legend(frameon=False, labelcolor=INK)
    return _svg(figure)


def deciles(measures: Mapping[str, Any]) -> str:
    """R@1 in ten bins of uncertainty, from the surest queries to the least sure, both ways."""
    figure, axes = _blank("Recall by uncertainty", "decile of uncertainty, sure to unsure", "R@1")
    for colour, (way, name) in zip(COLOURS, WAYS.items(), strict=False):
        if f"{way}_deciles" in measures:
            heights = [one["accuracy"] for one in measures[f"{way}_deciles"]]
            places = range(1, len(heights) + 1)
            axes.plot(places, heights, marker="o", ms=4, color=colour, label=name)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, labelcolor=INK)
    return _svg(figure)


def _blank(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'gaussmatch[report]'") from error
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
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
    return figure, axes


def _svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element, without the file header."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
