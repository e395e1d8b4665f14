"""``gaussmatch search INDEX "two dogs in the snow"``, ``--image photo.jpg`` or ``--like ID``."""

from __future__ import annotations

import json
import math
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.search import GALLERIES, Hit, Hits, Index, Query
from gaussmatch.search.backends import place
from gaussmatch.search.catalog import NameHits
from gaussmatch.search.merge import join
from gaussmatch.search.trust.calibration import PROMISES
from gaussmatch.search.where import unknown_field

_CONDITION = re.compile(r"([^=<>!]+)(>=|<=|!=|=|<|>)(.*)", re.DOTALL)
MOST = 60  # letters of a caption
_NAMES = {"=": "in", "!=": "not", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


def run(argv: Sequence[str]) -> None:
    options = _options(argv)
    opened = [Index.open(p, verify=options.verify) for p in (options.index, *options.also)]
    index = join(opened) if options.also else opened[0]
    if not index.size(options.gallery):
        raise ValueError(f"{options.index} holds no {options.gallery}")
    where, order = conditions(options.where), options.sort.removeprefix("-")
    for lost in unknown_field([order], index.fields(options.gallery)) if order else ():
        raise ValueError(lost)
    settings: dict[str, Any] = {"gallery": options.gallery, "where": where}
    for promise in PROMISES:
        if (level := getattr(options, promise)) is not None:
            settings |= {"guarantee": level, "promise": promise}
    query = Query(options.text, options.image, options.like)
    (hits,) = index.search(query, options.k, **settings)
    if order:
        hits = hits.sorted(order, descending=options.sort != order)
    if options.json:
        print(json.dumps(asdict(hits), indent=2, ensure_ascii=False))
        return
    _show(hits)
    if options.text is not None and options.gallery == "images":
        _show_names(index.search_names(options.text, options.k))
    if hits.level == "vague" and options.text is not None:
        for suggestion in opened[0].suggest(options.text, 3):
            print(f"more specific: {plain(suggestion.text)}")


def _options(argv: Sequence[str]) -> Namespace:
    parser = Parser(
        "search",
        "Search an index in words, with a picture, or with one of its images.",
        examples=[
            "photos.index 'two dogs in the snow'",
            "photos.index -k 3 --where 'taken>=2023-05' --sort taken 'two dogs'",
            "photos.index --image dog.jpg --json",
        ],
        computes=True,
    )
    parser.take("index", "a folder, or milvus:…", type=place)
    parser.take("text", "the query in words", nargs="?")
    parser.path("--image", "a picture as the query")
    parser.take("--like", "the id of an image in the index, as the query", metavar="ID")
    parser.take("-k", "number of results (default: 10)", type=int)
    parser.take("--gallery", "what to search", "images", choices=GALLERIES)
    parser.many(
        "--where",
        "only items with this metadata; also FIELD!=VALUE, FIELD>=VALUE, …; may be repeated",
        metavar="FIELD=VALUE",
    )
    parser.take(
        "--sort",
        "sort the results by a field, such as taken; --sort=-taken for descending order",
        "",
        metavar="FIELD",
    )
    parser.many(
        "--also",
        "another index of the same model to search as well; may be repeated",
        type=place,
        metavar="INDEX",
    )
    parser.flag("--verify", "verify every file first")
    parser.take(
        "--recall",
        "return as many results as needed to hold this share of all that fits",
        type=float,
        metavar="0.9",
    )
    parser.take(
        "--one",
        "return as many results as needed to hold the one you mean with this probability",
        type=float,
        metavar="0.9",
    )
    parser.flag("--json", "print JSON")
    parser.set_defaults(threads=1)  # for one question, not worth a trial of how many help
    options = parser.parse(argv)
    if sum(q is not None for q in (options.text, options.image, options.like)) != 1:
        parser.error("give one query: a text, --image or --like")
    given = [name for name in ("k", *PROMISES) if getattr(options, name) is not None]
    if len(given) > 1:
        parser.error(
            "give one of -k, --recall and --one: a guarantee decides the number of results"
        )
    options.k = 10 if options.k is None else options.k
    return options


def conditions(words: Sequence[str]) -> dict[str, Any]:
    """Conditions as they are typed. A number is compared as a number and as a text.

    >>> conditions(["split=test", "taken>=2023-05", "year<2020"])
    {'split': {'in': ['test']}, 'taken': {'gte': ['2023-05']}, 'year': {'lt': ['2020', 2020]}}
    >>> conditions(["room=12"])
    {'room': {'in': ['12', 12]}}
    """
    found: dict[str, dict[str, Any]] = {}
    for word in words:
        match = _CONDITION.fullmatch(word)
        if match is None:
            raise ValueError(
                f"--where {word}: write FIELD=VALUE, FIELD!=VALUE or 'FIELD>=VALUE'; quote it: a "
                "shell reads > and < as redirection"
            )
        field, sign, value = (part.strip() for part in match.groups())
        values = [value, *_as_json(value)]
        name = _NAMES[sign]
        if name in ("in", "not"):
            known = found.setdefault(field, {}).setdefault(name, [])
            known += values  # several values of one field: any of them
        else:
            texts_and_numbers = [v for v in values if not isinstance(v, bool)]
            found.setdefault(field, {})[name] = texts_and_numbers
    return found


def _as_json(value: str) -> list[Any]:
    try:
        read = json.loads(value)
    except ValueError:
        return []
    if isinstance(read, bool):
        return [read]
    fits = isinstance(read, int | float) and math.isfinite(read) and abs(read) < 2**63
    return [read] if fits else []


def _show(hits: Hits) -> None:
    print(f"{hits.verdict.sentence}. {hits.verdict.reason}")
    if hits.percentile is not None:
        print(f"query: {hits.phrase}")
    if hits.unknown and hits.known:
        print(f"note: the model does not know {', '.join(map(repr, hits.unknown))}")
    for note in (*hits.remarks, *hits.notes):
        print(f"note: {note}")
    if not len(hits):
        return
    columns, legend = {"score": [f"{hit.score:.3f}" for hit in hits.hits]}, []
    if hits.hits[0].probability is not None:
        columns["fits"] = [_percent(hit.probability, 100) for hit in hits.hits]
        legend.append("fits: the chance that it fits the query")
    if hits.hits[0].percentile is not None:
        name = "general" if hits.gallery == "captions" else "ambiguous"
        columns[name] = [_percent(hit.percentile) for hit in hits.hits]
        legend.append(f"{name}: the share of training {hits.gallery} that are less {name}")
    widths = [max(map(len, (name, *cells))) for name, cells in columns.items()]
    wide = max(len(plain(hit.id)) for hit in hits.hits)
    rows = [*zip(*columns.values(), strict=True)]
    print(f"\n    {_right(list(columns), widths)}  id")
    for rank, (hit, row) in enumerate(zip(hits.hits, rows, strict=True), start=1):
        print(f"{rank:3} {_right(row, widths)}  {plain(hit.id):{wide}}  {_about(hit)}".rstrip())
    if legend:
        print("", *legend, sep="\n")


def _show_names(found: NameHits) -> None:
    """Pictures whose names hold the words."""
    if found.total:
        print(f"\n{found.total:,} by name:")
    for album in found.folders:
        print(f"  folder {plain(album.folder)}: {album.count:,} pictures")
    for hit in found.hits:
        print(f"  {plain(hit.id)}  ({', '.join(hit.named)})")


def _right(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _percent(share: float | None, times: int = 1) -> str:
    return "" if share is None else f"{times * share:.0f} %"


def _about(hit: Hit) -> str:
    said = hit.meta.get("caption") or next(iter(hit.meta.get("captions") or []), "")
    text = plain(str(said))
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"


def plain(text: str) -> str:
    """On one line, and nothing that a terminal would obey: file names may hold anything.

    >>> plain("two\\nlines\\x1b[2J")
    'two�lines�[2J'
    """
    return "".join(c if c.isprintable() else "�" for c in text)
