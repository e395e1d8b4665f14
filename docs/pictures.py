"""The drawings of the documentation: ``python docs/pictures.py`` writes them as SVG into docs/.

architecture.svg   the six packages and what flows through them
idea.svg           a point against a Gaussian; vague against specific; what the variance does
verdict.svg        what a verdict is made of
audit.svg          a data set before and after an audit

Each follows the color scheme of its reader and loads nothing. A test compares the files with what
this script draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

STYLE = """
.bg{fill:#fff} .b{fill:#eef4fc;stroke:#3b82d6} .c{fill:#fdf1ea;stroke:#e0703a}
.f{fill:#f3f4f6;stroke:#9ca3af} .g{fill:#e8f5ee;stroke:#2f8f5b} .r{fill:#fdecec;stroke:#d64545}
.h{fill:#111827;font-weight:650} .t{fill:#1f2937;font-weight:600} .s{fill:#4b5563;font-size:12.5px}
.w{fill:#9a3412;font-size:12.5px;font-weight:600} .y{fill:#1b6b41;font-size:12.5px;font-weight:600}
.l{stroke:#6b7280;stroke-width:1.6;fill:none;marker-end:url(#a)}
.n{marker-end:none} .k{fill:#6b7280}
.d{stroke:#9ca3af;stroke-width:1.2;fill:none;stroke-dasharray:4 4} .q{fill:#e0703a} .p{fill:#3b82d6}
.e{fill:#e0703a;fill-opacity:.16;stroke:#e0703a;stroke-width:1.4} .m{text-anchor:middle}
@media (prefers-color-scheme:dark){
.bg{fill:#111827} .b{fill:#172a45} .c{fill:#3a2318} .f{fill:#1f2937}
.g{fill:#12301f} .r{fill:#3b1717}
.h{fill:#f9fafb} .t{fill:#e5e7eb} .s{fill:#a8b0bd} .w{fill:#fdba8c} .y{fill:#7fd6a5}
.k{fill:#9ca3af} .l{stroke:#9ca3af} .d{stroke:#6b7280}}
"""


def svg(width: int, height: int, about: str, *parts: str) -> str:
    """A whole picture, described for those who cannot see it."""
    arrow = (
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse">'
        '<path class="k" d="M0 0L10 5L0 10z"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family='
        f'"system-ui, sans-serif" font-size="15" role="img" aria-label="{escape(about)}">'
    )
    ground = f'<rect class="bg" width="{width}" height="{height}"/>'
    return "\n".join([head, arrow, f"<style>{STYLE}</style>", ground, *parts, "</svg>", ""])


def text(x: float, y: float, said: str, kind: str = "s m") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(said)}</text>'


def box(x: float, y: float, w: float, h: float, kind: str, title: str = "", *lines: str) -> str:
    """A rounded box with a title and lines below it, all centered."""
    shown = [f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="9"/>']
    top = y + h / 2 + 5 - 10.5 * len(lines)
    shown += [text(x + w / 2, top, title, "t m")] if title else []
    shown += [text(x + w / 2, top + 21 * (i + 1), line) for i, line in enumerate(lines)]
    return "".join(shown)


def arrow(path: str) -> str:
    return f'<path class="l" d="{path}"/>'


def dot(x: float, y: float, kind: str = "p", r: float = 5) -> str:
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{r:g}"/>'


def ellipse(x: float, y: float, rx: float, ry: float, turn: float = 0) -> str:
    turned = f' transform="rotate({turn:g} {x:g} {y:g})"' if turn else ""
    return f'<ellipse class="e" cx="{x:g}" cy="{y:g}" rx="{rx:g}" ry="{ry:g}"{turned}/>'


def architecture() -> str:
    return svg(
        920, 460,
        "Six packages: apps above learn and search, above models, above data, above core. Imports "
        "point down. Photos and captions flow from data through models to Gaussians, which learn "
        "trains and measures and search ranks.",
        box(20, 20, 880, 66, "b", "apps", "command line · service and page · demo"),
        box(20, 116, 420, 66, "b", "learn", "training · evaluation · studies · plots"),
        box(470, 116, 430, 66, "b", "search", "index · backends · hits · trust · bulk embedding"),
        box(20, 212, 240, 66, "b", "data", "readers · pictures · language"),
        box(300, 212, 380, 66, "b", "models", "encoders · features · recipe · matcher · run"),
        box(720, 212, 180, 66, "c", "Gaussian", "mean, log-variance"),
        box(20, 312, 880, 66, "c", "core",
            "gaussian · similarities · losses · metrics: torch and numpy, a home for each formula"),
        box(20, 398, 880, 42, "f"),
        text(460, 424, "tools: checks, device, files. Imports point down, data flows up."),
        arrow("M260 245H297"), arrow("M680 245H717"), arrow("M770 212V185"),
        arrow("M745 212V197H330V185"), arrow("M230 116V89"), arrow("M685 116V89"),
        arrow("M810 312V281"),
    )  # fmt: skip


PHOTOS = ((70, 215), (120, 160), (95, 265), (165, 235), (190, 175), (225, 255), (140, 300))


def idea() -> str:
    def panel(x: int, title: str, *parts: str) -> str:
        frame = '<rect class="f" x="0" y="48" width="280" height="292" rx="9" fill-opacity=".4"/>'
        inside = "".join((text(140, 32, title, "h m"), frame, *parts))
        return f'<g transform="translate({x} 0)">{inside}</g>'

    photos = "".join(dot(x, y) for x, y in PHOTOS)
    near, far = (156, 150), (226, 208)
    return svg(
        920, 430,
        "Left: as a point, the query a dog has only distances. Middle: as a Gaussian, a dog is "
        "wide and covers many photos, a precise caption is narrow and covers one. Right: the "
        "query's variance divides, so a photo far along a wide direction can rank before a near "
        "one along a narrow direction.",
        panel(
            20, "a point", photos, dot(130, 215, "q", 7), text(130, 200, "“a dog”", "w m"),
            text(140, 362, "Every query is equally sharp:"),
            text(140, 382, "“a dog” has one nearest photo"),
            text(140, 402, "and six misses."),
        ),
        panel(
            320, "a Gaussian", ellipse(138, 222, 118, 90, -12), ellipse(225, 256, 24, 17), photos,
            text(140, 118, "“a dog”: wide", "w m"),
            text(140, 330, "“a brown dog with a ball”: narrow", "w m"),
            text(140, 362, "The width says how many photos"),
            text(140, 382, "the words fit. It is learned"),
            text(140, 402, "from pairs alone."),
        ),
        panel(
            620, "what the variance does", ellipse(120, 208, 112, 36),
            f'<path class="d" d="M120 208L{near[0]} {near[1]}M120 208L{far[0]} {far[1]}"/>',
            dot(120, 208, "q", 7), dot(*near), dot(*far),
            text(96, 190, "query", "w m"), text(near[0] + 12, near[1] - 6, "B", "t"),
            text(far[0] + 10, far[1] - 6, "A", "t"),
            text(140, 300, "points: B before A"), text(140, 322, "Gaussians: A before B", "y m"),
            text(140, 362, "The query's variance divides each"),
            text(140, 382, "difference: what the words leave"),
            text(140, 402, "open counts less."),
        ),
    )  # fmt: skip


def verdict() -> str:
    return svg(
        920, 450,
        "A verdict answers three questions. Does the model know such a query? If not: I don't "
        "know. Does anything here fit? If not: nothing here seems to fit. How many fit? If the "
        "interval is narrow: about that many; otherwise: best first. With a guarantee: at least 90 "
        "percent of what fits is among these.",
        box(20, 30, 240, 66, "c", "the query", "“two dogs in the snow”"),
        box(20, 140, 240, 86, "b", "P(fits) of each result", "score · place in the gallery",
            "uncertainty and length of the query"),
        box(310, 20, 250, 86, "b", "familiar?", "distance from the training data",
            "how usual its words are"),
        box(310, 140, 250, 86, "b", "does anything fit?", "best P(fits) and their sum, against",
            "searches with nothing to find"),
        box(310, 260, 250, 86, "b", "how many fit?", "the sum of P(fits), 80 % interval",
            "from searches that were set aside"),
        box(640, 36, 260, 54, "c", "“I don’t know …”"),
        box(640, 156, 260, 54, "c", "“Nothing here seems to fit”"),
        box(640, 236, 260, 54, "c", "“Best first”"),
        box(640, 306, 260, 54, "g", "“About 230–270 of 1,173 fit”"),
        box(310, 376, 250, 54, "b", "--recall 0.9", "as many results as it takes"),
        box(640, 376, 260, 54, "g", "“… 90 % of what fits is here”"),
        arrow("M140 96V137"), arrow("M260 63H307"), arrow("M260 183H307"),
        arrow("M435 106V137"), text(455, 127, "yes", "y m"),
        arrow("M435 226V257"), text(455, 247, "yes", "y m"),
        arrow("M560 63H637"), text(598, 56, "no", "w m"),
        arrow("M560 183H637"), text(598, 176, "no", "w m"),
        arrow("M560 290H598V263H637"), text(584, 258, "wide", "w m"),
        arrow("M560 318H598V333H637"), text(584, 352, "narrow", "y m"),
        arrow("M560 403H637"),
    )  # fmt: skip


def audit() -> str:
    rows = (
        ("dog", "two dogs run through snow", "", "fits", "two dogs run through snow"),
        ("cup", "a man rides a bike", "does not fit", "fixed", "a cup of coffee on a table"),
        ("bike", "a nice picture", "vague", "fixed", "a man rides a red bike"),
        ("bike", "a man rides a bike", "near-duplicate", "dropped", ""),
        ("scan", "black and white lines", "odd photo", "dropped", ""),
    )
    parts = [
        text(230, 32, "before: what the audit found", "h m"),
        text(690, 32, "after: your decisions", "h m"),
    ]
    for i, (photo, caption, finding, decision, kept) in enumerate(rows):
        y = 52 + 68 * i
        parts.append(box(20, y, 420, 56, "r" if finding else "f"))
        parts += [_photo(36, y + 8, photo), text(96, y + 25, caption, "t")]
        parts.append(text(96, y + 44, finding or "nothing to say", "w" if finding else "s"))
        parts.append(arrow(f"M448 {y + 28}H482"))
        if kept:
            parts += [box(490, y, 410, 56, "g"), _photo(506, y + 8, photo)]
            parts += [text(566, y + 25, kept, "t"), text(566, y + 44, decision, "y")]
        else:
            parts.append(f'<rect class="d" x="490" y="{y}" width="410" height="56" rx="9"/>')
            parts.append(text(695, y + 33, decision))
    return svg(
        920, 400,
        "A table of photos and captions before and after an audit: a caption that does not fit is "
        "fixed, a vague one is made precise, a near-duplicate and an odd photo are dropped.",
        *parts,
    )  # fmt: skip


def _photo(x: float, y: float, what: str) -> str:
    """A small drawing that stands for a photo."""
    wheels = f"M{x + 12} {y + 25}L{x + 20} {y + 12}L{x + 30} {y + 25}"
    bars = (f'<rect class="k" x="{x + k}" y="{y + 8}" width="3" height="24"/>' for k in (8, 15, 22))
    inside = {
        "dog": dot(x + 14, y + 24, "q", 6) + dot(x + 28, y + 22, "q", 7),
        "cup": f'<rect class="q" x="{x + 13}" y="{y + 12}" width="15" height="18" rx="3"/>',
        "bike": dot(x + 12, y + 25, "q", 6)
        + dot(x + 30, y + 25, "q", 6)
        + f'<path class="l n" d="{wheels}"/>',
        "scan": "".join(bars),
    }[what]
    return f'<rect class="b" x="{x}" y="{y}" width="42" height="40" rx="4"/>{inside}'


PICTURES = {"architecture": architecture, "idea": idea, "verdict": verdict, "audit": audit}


def main() -> None:
    for name, draw in PICTURES.items():
        path = Path(__file__).with_name(f"{name}.svg")
        path.write_text(draw(), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
