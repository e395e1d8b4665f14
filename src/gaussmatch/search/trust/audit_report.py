"""What an audit found, for people: a table, and a page with pictures that needs nothing else."""

from __future__ import annotations

import base64
import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from gaussmatch.data.language import words_of
from gaussmatch.data.pairs import Pairs, image_batches
from gaussmatch.data.pictures import jpeg
from gaussmatch.files import atomic, claim_folder, read_csv, rendered, write_csv, write_text
from gaussmatch.models.model import Model
from gaussmatch.search.trust.audit import ISSUES, Finding, audit

WORDS = 1000
"""Frequent words that captions are counted by where no model reads them."""
SIDE = 160  # pixels of a picture in the page
LARGE = 512  # and of one to be reviewed
TABLE, PAGE, PICTURES = "audit.csv", "audit.html", "pictures"
"""What is in the folder of an audit."""
FIELDS = tuple(Finding.__dataclass_fields__)


def audit_pairs(pairs: Pairs, model: Model | None = None, most: int = 100) -> list[Finding]:
    """Audit a split by the Gaussians of a model; or without one by the features of its images and
    the words of its captions."""
    if model is not None:
        images, captions = model.encode_pairs(pairs)
        vectors = images.mean.flatten(1), captions.mean.flatten(1)
        unsure = None if captions.is_point else captions.uncertainty()
    else:
        features = torch.cat([batch.flatten(1) for batch in image_batches(pairs, 256)])
        vectors, unsure = (features, word_vectors(pairs.captions)), None
    found = audit(*vectors, pairs.image_of, uncertainty=unsure, most=most)
    return [f if f.caption is None else replace(f, text=pairs.captions[f.caption]) for f in found]


def word_vectors(texts: Sequence[str]) -> Tensor:
    """(m, ≤ WORDS), frequent words of each text, the rarer the heavier: 1 + ln(m / texts with it).

    >>> word_vectors(["a dog", "a cat", "a dog"]).shape
    torch.Size([3, 3])
    """
    split = [set(words_of(text)) for text in texts]
    known = Counter(word for words in split for word in words).most_common(WORDS)
    column = {word: at for at, (word, _) in enumerate(known)}
    vectors = torch.zeros(len(texts), max(1, len(known)))
    for row, words in enumerate(split):
        for word in words & column.keys():
            at = column[word]
            vectors[row, at] = 1 + math.log(len(texts) / known[at][1])
    return vectors


def write(folder: Path, findings: Sequence[Finding], pairs: Pairs) -> None:
    """The table, the page, and the pictures that the findings are about, named by position, for
    ``serve --review``. A folder that holds anything else is refused."""
    shown = sorted({i for f in findings for i in (f.image, f.other) if i is not None})
    names = {number: f"{PICTURES}/{number}.jpg" for number in shown}
    claim_folder(folder, names=[TABLE, PAGE, *names.values()])
    for number, name in names.items():
        data = _jpeg(pairs, number, LARGE)
        if data is not None:
            with atomic(folder / name) as temporary:
                temporary.write_bytes(data)
    write_table(folder / TABLE, findings)
    write_page(folder / PAGE, findings, pairs)


def write_table(path: Path, findings: Sequence[Finding]) -> None:
    """CSV, one finding a line, worst first within each issue."""
    write_csv(path, FIELDS, ({**asdict(f), "severity": round(f.severity, 4)} for f in findings))


def read_table(path: Path) -> list[Finding]:
    """What ``write_table`` wrote."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no findings; make them with 'gaussmatch audit'")
    try:
        rows = read_csv(path, FIELDS)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: not the table of an audit ({error})") from error
    return [_finding(row, f"{path}, line {line}") for line, row in enumerate(rows, start=2)]


def _finding(row: Mapping[str, str], place: str) -> Finding:
    if row["issue"] not in ISSUES:
        raise ValueError(f"{place}: no issue {row['issue']!r}; there are {', '.join(ISSUES)}")
    try:
        caption, other = (int(row[n]) if row[n] else None for n in ("caption", "other"))
        image, severity = int(row["image"]), float(row["severity"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from error
    return Finding(row["issue"], severity, image, caption, other, row["reason"], row["text"])


def write_page(path: Path, findings: Sequence[Finding], pairs: Pairs) -> None:
    """HTML with the pictures inside."""

    @cache
    def picture(image: int) -> str:
        data = _jpeg(pairs, image, SIDE)
        return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}" if data else ""

    template = Path(__file__).parent / "templates" / "audit.html.j2"
    values = {"name": pairs.name, "findings": findings, "issues": ISSUES, "picture": picture}
    write_text(path, rendered(template, **values))


def _jpeg(pairs: Pairs, image: int, side: int) -> bytes | None:
    picture = pairs.images.picture(image)
    return None if picture is None else jpeg(picture, side)
