"""Plots of uncertainty, as matplotlib axes. The reports draw with the same functions.

Every function takes plain values (and ``axes=`` to draw on) and returns the axes:

.. code-block:: python

    import matplotlib.pyplot as plt
    import gaussmatch as gm

    _, axes = plt.subplots(1, 2, figsize=(10, 4))
    gm.plot.ellipses({"captions": captions, "images": images}, axes=axes[0])
    gm.plot.reliability(probability, correct, axes=axes[1])

Without ``axes`` a new figure is made outside pyplot, so that a server keeps none alive;
``axes.figure`` is the figure. Colors read well on light and on dark pages. Needs matplotlib:
``pip install 'gaussmatch[report]'``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gaussmatch.checks import SCHEMA, extra
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import risk_coverage as risk_coverage_curve
from gaussmatch.files import atomic, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

INK = "#6f757d"  # axes and text: enough contrast on white and on near-black
COLOURS = ("#3b82d6", "#e0703a", "#3fa66b", "#a463c8", "#c9a227", "#5f9ea0", "#d65a8a", "#7d8b3a")
WAYS = {"i2t": "image to text", "t2i": "text to image"}


# ---- uncertainty ----


def ellipses(
    items: Gaussian | Mapping[str, Gaussian],
    labels: Sequence[str] | None = None,
    title: str = "The joint space",
    axes: Axes | None = None,
) -> Axes:
    """Items on the principal plane of their means, each as its one-σ ellipse; points as dots.

    Args:
        items: (n, D), or several groups by name, each with its color. All share one plane.
        labels: a short text for each item, in the order of the groups.

    >>> g = Gaussian(torch.randn(5, 8), torch.zeros(5, 8))
    >>> len(ellipses(g, labels=list("abcde")).patches)
    5
    """
    from matplotlib.patches import Ellipse

    groups = {"": items} if isinstance(items, Gaussian) else dict(items)
    means = torch.cat([g.mean.detach().cpu() for g in groups.values()])
    plane = PlaneProjection.fit(means)
    axes = _axes(axes, title, "", "", height=4.4)
    texts = iter(labels or [])
    for colour, (name, group) in zip(cycle(COLOURS), groups.items(), strict=False):
        places = plane(group.detach().to("cpu"))
        xs, ys = [at.x for at in places], [at.y for at in places]
        axes.scatter(xs, ys, s=9, color=colour, linewidths=0, label=name or None)
        for at in places:
            if at.a is not None and at.b is not None and at.angle is not None:
                shape = {"width": 2 * at.a, "height": 2 * at.b, "angle": math.degrees(at.angle)}
                axes.add_patch(Ellipse((at.x, at.y), **shape, alpha=0.16, color=colour))
        for at, text in zip(places, texts, strict=False):
            place = (at.x, at.y)
            axes.annotate(text, place, (4, 3), textcoords="offset points", color=INK, fontsize=8)
    axes.set_aspect("equal", adjustable="datalim")
    axes.autoscale_view()
    axes.set_xlabel(f"two principal axes: {plane.explained:.0%} of the variance of the means")
    if len(groups) > 1:
        _legend(axes, len(groups))
    return axes


def ambiguity(
    matches: ArrayLike,
    uncertainty: ArrayLike,
    title: str = "Uncertainty against true ambiguity",
    xlabel: str = "images that the caption is true of",
    ylabel: str = "log det Σ",
    axes: Axes | None = None,
) -> Axes:
    """Items as dots over their number of true matches (logarithmic), with the running median.

    >>> ambiguity([1, 2, 8, 40], [-3.0, -2.5, 0.1, 2.0]).get_xscale()
    'log'
    """
    axes = _axes(axes, title, xlabel, ylabel)
    axes.set_xscale("log")
    x, y = np.asarray(matches), np.asarray(uncertainty)
    axes.scatter(x, y, s=5, alpha=0.25, color=COLOURS[0], linewidths=0, rasterized=True)
    edges = np.unique(np.round(np.geomspace(1, max(2, x.max()) + 1, 12)).astype(int))
    centers, medians = [], []
    for low, high in pairwise(edges):
        inside = (x >= low) & (x < high)
        if inside.any():
            centers.append(np.sqrt(low * max(low, high - 1)))
            medians.append(np.median(y[inside]))
    axes.plot(centers, medians, color=COLOURS[1], marker="o", ms=4, label="median")
    _legend(axes, 1)
    return axes


def risk_coverage(
    correct: ArrayLike,
    uncertainty: ArrayLike | Mapping[str, ArrayLike],
    title: str = "Risk and coverage",
    axes: Axes | None = None,
) -> Axes:
    """The share of wrong answers when only the surest queries are answered.

    Args:
        correct: 1 where the answer of a query is right, else 0.
        uncertainty: higher where less sure; several measures by name give a line each.

    >>> axes = risk_coverage([1, 1, 0, 0], {"log det Σ": [0.1, 0.2, 0.5, 0.9]})
    >>> [line.get_label() for line in axes.lines]
    ['log det Σ, gain 1.00', 'oracle', 'chance']
    """
    axes = _axes(axes, title, "coverage: share of queries answered", "risk: share wrong")
    right = torch.as_tensor(np.asarray(correct), dtype=torch.float64)
    named = uncertainty if isinstance(uncertainty, Mapping) else {"uncertainty": uncertainty}
    for colour, (name, values) in zip(cycle(COLOURS), named.items(), strict=False):
        curve = risk_coverage_curve(right, torch.as_tensor(np.asarray(values)).double())
        label = f"{name}, gain {curve.gain:.2f}"
        axes.plot(curve.coverage, curve.risk, color=colour, label=label)
    best = risk_coverage_curve(right, -right)
    axes.plot(best.coverage, best.risk, ":", color=INK, label="oracle")
    axes.axhline(best.random, ls="--", lw=1, color=INK, label="chance")
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    _legend(axes, 4)
    return axes


def reliability(
    probability: ArrayLike,
    correct: ArrayLike,
    bins: int = 10,
    title: str = "Reliability",
    axes: Axes | None = None,
) -> Axes:
    """How often a result of a stated probability is right; honest probabilities lie on the line.

    Equally filled bins; a dot's area grows with its number of results.

    >>> axes = reliability([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], bins=2)
    >>> axes.collections[0].get_offsets().tolist()
    [[0.15000000000000002, 0.0], [0.8500000000000001, 1.0]]
    """
    axes = _axes(axes, title, "stated probability of a match", "share that matched")
    p, right = np.asarray(probability, dtype=float), np.asarray(correct, dtype=float)
    parts = [part for part in np.array_split(np.argsort(p, kind="stable"), bins) if len(part)]
    xs, ys = [p[part].mean() for part in parts], [right[part].mean() for part in parts]
    sizes = [18 + 60 * len(part) * len(parts) / max(1, len(p)) for part in parts]
    axes.plot([0, 1], [0, 1], "--", lw=1, color=INK, label="honest")
    axes.plot(xs, ys, color=COLOURS[0], lw=1)
    axes.scatter(xs, ys, s=sizes, color=COLOURS[0], linewidths=0, label="results", zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.02)
    axes.set_aspect("equal")
    _legend(axes, 2)
    return axes


def strip(
    pictures: Sequence[Any],
    notes: Sequence[str] = (),
    title: str = "",
    right: Sequence[bool] | None = None,
    axes: Axes | None = None,
) -> Axes:
    """Ranked pictures side by side, best first, with a note below each.

    Args:
        pictures: PIL images or arrays (H, W, 3).
        notes: such as the match probability of each.
        right: where known, a match gets a green frame and anything else a gray one.

    >>> from PIL import Image
    >>> axes = strip([Image.new("RGB", (8, 6)), Image.new("RGB", (6, 8))], ["92 %", "40 %"])
    >>> [text.get_text() for text in axes.texts]
    ['92 %', '40 %']
    """
    from matplotlib.patches import Rectangle

    axes = _axes(axes, title, "", "", width=max(2.6, 1.3 * len(pictures)), height=1.9)
    axes.axis("off")
    axes.set_aspect("equal")
    x = 0.0
    for rank, picture in enumerate(pictures):
        array = np.asarray(picture)
        width = array.shape[1] / array.shape[0]
        axes.imshow(array, extent=(x, x + width, 0, 1), interpolation="antialiased")
        if right is not None:
            colour = COLOURS[2] if right[rank] else INK
            axes.add_patch(Rectangle((x, 0), width, 1, fill=False, lw=2.5, color=colour))
        if rank < len(notes):
            place = (x + width / 2, -0.05)
            axes.text(*place, notes[rank], ha="center", va="top", color=INK, fontsize=8)
        x += width + 0.08
    axes.set_xlim(0, max(x - 0.08, 1e-6))
    axes.set_ylim(-0.25 if notes else 0, 1)
    return axes


def deciles(measures: Mapping[str, Any], axes: Axes | None = None) -> Axes:
    """R@1 in ten bins of uncertainty, from the surest queries to the least sure, both ways.

    Args:
        measures: of ``gm.evaluate``.
    """
    axes = _axes(axes, "Recall by uncertainty", "decile of uncertainty, sure to unsure", "R@1")
    for colour, (way, name) in zip(COLOURS, WAYS.items(), strict=False):
        if f"{way}_deciles" in measures:
            heights = [one["accuracy"] for one in measures[f"{way}_deciles"]]
            places = range(1, len(heights) + 1)
            axes.plot(places, heights, marker="o", ms=4, color=colour, label=name)
    axes.set_ylim(bottom=0)
    _legend(axes, 2)
    return axes


# ---- runs and tables ----


def curves(
    series: Mapping[str, Sequence[float]],
    title: str,
    ylabel: str,
    log: bool = False,
    axes: Axes | None = None,
) -> Axes:
    """One line for each model over the epochs."""
    axes = _axes(axes, title, "epoch", ylabel)
    axes.locator_params(axis="x", integer=True)
    axes.set_yscale("log" if log else "linear")
    for colour, (name, values) in zip(cycle(COLOURS), series.items(), strict=False):
        axes.plot(range(1, len(values) + 1), values, marker="o", ms=3, color=colour, label=name)
    _legend(axes, len(series))
    return axes


def bars(
    values: Mapping[str, Sequence[float]],
    groups: Mapping[str, str],
    title: str,
    xlabel: str,
    axes: Axes | None = None,
) -> Axes:
    """A bar for each row, colored by group: the mean of its runs, each run as a dot."""
    names = [name for name, runs in values.items() if runs]
    axes = _axes(axes, title, xlabel, "", height=max(2.0, 0.6 + 0.28 * len(names)))
    colour_of = dict(zip(dict.fromkeys(groups.values()), cycle(COLOURS), strict=False))
    for place, name in enumerate(reversed(names)):
        runs = values[name]
        mean = sum(runs) / len(runs)
        axes.barh(place, mean, color=colour_of[groups[name]], alpha=0.75, height=0.62)
        if len(runs) > 1:
            axes.scatter(runs, [place] * len(runs), s=14, color=INK, zorder=3, linewidths=0)
    axes.set_yticks(range(len(names)), list(reversed(names)), fontsize=8)
    low = min((min(runs) for runs in values.values() if runs), default=0.0)
    high = max((max(runs) for runs in values.values() if runs), default=1.0)
    room = max(high - low, 0.02 * abs(high), 1e-6)
    axes.set_xlim(max(0.0, low - 1.5 * room) if low >= 0 else low - room, high + 0.15 * room)
    return axes


def lines(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    title: str,
    xlabel: str,
    ylabel: str,
    dashed: Sequence[str] = (),
    axes: Axes | None = None,
) -> Axes:
    """Named lines over a common x; those named in ``dashed`` are dashed."""
    axes = _axes(axes, title, xlabel, ylabel)
    for colour, (name, values) in zip(cycle(COLOURS), series.items(), strict=False):
        style = "--" if name in dashed else "-"
        axes.plot(x, values, style, marker="o", ms=4, color=colour, label=name)
    _legend(axes, len(series))
    return axes


# ---- files ----


def svg(axes: Axes) -> str:
    """The figure as an ``<svg>`` element, without the file header; the same bytes every time."""
    from matplotlib import rc_context

    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "gaussmatch", "svg.fonttype": "none"}):
        _figure(axes).savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save(axes: Axes, stem: Path) -> str:
    """``stem.svg`` and ``stem.png``, the latter on white, for papers and slides; gives the SVG."""
    text = svg(axes)
    write_text(stem.with_name(f"{stem.name}.svg"), text)
    with atomic(stem.with_name(f"{stem.name}.png")) as temporary:
        _figure(axes).savefig(temporary, format="png", dpi=160, facecolor="white")
    return text


def _figure(axes: Axes) -> Any:
    return axes.figure


def _legend(axes: Axes, entries: int) -> None:
    if entries <= 4:
        axes.legend(frameon=False, labelcolor=INK, fontsize=8.5)
        return
    _figure(axes).legend(  # many lines: below, where they hide nothing
        loc="outside lower center", ncols=3, frameon=False, labelcolor=INK, fontsize=7.5
    )


def _axes(
    axes: Axes | None, title: str, xlabel: str, ylabel: str, width: float = 5.2, height: float = 3.4
) -> Axes:
    """The axes to draw on, in the style of all plots; of a new figure if none are given."""
    if axes is None:
        with extra("report", "a plot"):
            from matplotlib.figure import Figure
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.subplots()
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
    return axes


# ---- the joint space on a plane ----


@dataclass(frozen=True, slots=True)
class Place:
    """A Gaussian on the plane: its mean, and an ellipse one standard deviation wide."""

    __pydantic_config__ = SCHEMA

    x: float
    y: float
    a: float | None
    """The semi-major axis; null for a point model."""
    b: float | None
    """The semi-minor axis; null for a point model."""
    angle: float | None
    """Of the major axis against x, in radians; null for a point model."""


@dataclass(frozen=True, eq=False)
class PlaneProjection:
    """A linear map from the joint space to the plane: x ↦ Aᵀ(x − center), A orthonormal (D, 2).

    A Gaussian N(μ, Σ) becomes N(Aᵀ(μ − center), AᵀΣA): its mean a point, its covariance an ellipse.
    """

    center: Float[Tensor, "d"]
    axes: Float[Tensor, "d 2"]
    explained: float  #: share of the variance of the means that the plane shows

    @staticmethod
    def fit(means: Float[Tensor, "n d"]) -> PlaneProjection:
        """The principal plane of some means.

        >>> means = torch.tensor([[0.0, 0, 1], [4, 0, 1], [0, 1, 1], [4, 1, 1]])
        >>> plane = PlaneProjection.fit(means)
        >>> plane.explained, plane.axes.abs().round().tolist()
        (1.0, [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
        """
        if means.ndim != 2 or not len(means):
            raise ValueError(f"a map needs means (n, D) with n ≥ 1, got {tuple(means.shape)}")
        x = means.double()
        center = x.mean(0)
        spread = (x - center).T @ (x - center) / len(x)
        values, vectors = torch.linalg.eigh(spread)
        axes = vectors.flip(1)[:, :2]
        if axes.shape[1] < 2:  # one dimension: a line
            axes = torch.cat([axes, torch.zeros_like(axes)], 1)
        largest = axes.abs().argmax(0)
        axes = axes * torch.where(axes[largest, [0, 1]] < 0, -1.0, 1.0)  # the same on any machine
        total = float(values.clamp_min(0).sum())
        shown = float(values.clamp_min(0).flip(0)[:2].sum())
        return PlaneProjection(center, axes, shown / total if total else 1.0)

    def __call__(self, g: Gaussian) -> list[Place]:
        """Where Gaussians (n, D) fall.

        >>> plane = PlaneProjection(torch.zeros(3), torch.eye(3)[:, :2], 1.0)
        >>> g = Gaussian(torch.tensor([[1.0, 2, 3]]), torch.tensor([[1.0, 4, 9]]).log())
        >>> plane(g)
        [Place(x=1.0, y=2.0, a=2.0, b=1.0, angle=1.5708)]
        """
        axes = self.axes.double()
        x, y = ((g.mean.double() - self.center) @ axes).unbind(-1)
        if g.is_point:
            return [Place(*at, None, None, None) for at in zip(_listed(x), _listed(y), strict=True)]
        variance = g.expand().variance.double()
        a, b = axes.unbind(-1)
        xx, xy, yy = variance @ (a * a), variance @ (a * b), variance @ (b * b)
        mean, half = (xx + yy) / 2, (xx - yy) / 2
        radius = torch.hypot(half, xy)
        major, minor = (mean + radius).sqrt(), (mean - radius).clamp_min(0).sqrt()
        return list(map(Place, *map(_listed, (x, y, major, minor, torch.atan2(xy, half) / 2))))


def _listed(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]
