"""An audit of a data set from its files: what is wrong, in the names that its user knows, as a
table and as a page with pictures that needs nothing else."""

from __future__ import annotations

import base64
import csv
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from shlex import join
from typing import Any

import torch
from torch import Tensor

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data import source
from gaussmatch.data.check import repeated, says_nothing
from gaussmatch.data.clean import Decision
from gaussmatch.data.language import words_of
from gaussmatch.data.listing import Caption, Photo, pairs_of
from gaussmatch.data.pairs import SPLITS, Pairs, image_batches, joined
from gaussmatch.data.pictures import jpeg, read_picture
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.files import (
    atomic,
    claim_folder,
    read_csv,
    read_json,
    rendered,
    write_csv,
    write_json,
    write_text,
)
from gaussmatch.models.features import load_data, photo_images
from gaussmatch.models.model import Model
from gaussmatch.search.trust.audit import ISSUES, Fault, Scorer, audit, cross_fitted, urgency
from gaussmatch.search.trust.duplicates import Copies, copies_of, small
from gaussmatch.search.trust.worth import Captioned, next_to_check, worth

SAMPLED = 100  # photos by which it is seen whether there are files
WORDS = 1000
"""Frequent words that captions are counted by if no model reads them."""
SIDE = 160  # pixels of a picture in the page
LARGE = 1024  # and of one to be reviewed
TABLE, PAGE, PICTURES, NEXT = "audit.csv", "audit.html", "pictures", "next.csv"
SOURCE = "source.json"
"""What is in the folder of an audit."""
NEXT_FIELDS = ("image", "split", "caption", "place", "text")


@dataclass(frozen=True)
class Row:
    """A finding as its user names things: one line of ``audit.csv``."""

    issue: str
    """One of ``ISSUES``."""
    severity: float
    """Comparable within an issue; higher is worse."""
    image: str
    """The photo: its file name, or its number in COCO."""
    split: str
    caption: str = ""
    """The caption's own id; empty if the finding is about the photo."""
    place: str = ""
    """Where the caption stands: the table and the line, or the file and the annotation."""
    text: str = ""
    other: str = ""
    """Another photo that it is about."""
    other_split: str = ""
    other_caption: str = ""
    """The caption that it was probably exchanged with."""
    other_text: str = ""
    reason: str = ""
    proposal: str = ""
    """The decision that the audit proposes; empty if only people can tell."""
    file: str = ""
    """Where the photo is."""
    picture: int | None = None
    """The number of its picture in the folder of the audit."""
    other_picture: int | None = None
    decision: str = ""
    """For people to fill in, one of ``exchange.DECISIONS``."""
    fixed: str = ""
    """The new caption, if the decision is fix."""


FIELDS = tuple(field.name for field in fields(Row))


@dataclass(frozen=True, eq=False)
class Audited:
    """A data set, or some splits of it, as one list of photos and one of captions.

    Args:
        pairs: what can be encoded: readable photos, and captions that are not empty.
        images: the names of the photos.
        files: where each photo is, if it is a file.
        splits: of each photo.
        captions: as the files name them.
        beside: findings about what cannot be encoded.
    """

    pairs: Pairs
    images: Sequence[str]
    files: Sequence[Path | None]
    splits: Sequence[str]
    captions: Sequence[Caption]
    beside: Sequence[Row] = ()


def gather(recipe: DataRecipe, splits: Collection[str] = SPLITS) -> Audited:
    """What there is to audit; unreadable photos and empty captions do not stop it."""
    one = source(recipe.name)
    if one.read is None:
        data = load_data(recipe)
        return _by_position([(name, data.split(name)) for name in SPLITS if name in splits])
    root = one.root(recipe)
    listing = one.listing(recipe, root)
    chosen = [(s, photo) for s in SPLITS if s in splits for photo in listing.splits.get(s, ())]
    told = {s: [_told(photo) for of, photo in chosen if of == s] for s in dict(chosen)}
    if recipe.extracted is None:
        told = {s: [p for p in photos if p.path.is_file()] for s, photos in told.items()}
    listing, images = photo_images(
        recipe, root, replace(listing, splits=told), skip_unreadable=True
    )
    held = {s: photos for s, photos in listing.splits.items() if any(p.captions for p in photos)}
    if not held:
        raise ValueError(f"{root}: no photos with captions in {', '.join(splits)}")
    parts = [pairs_of(listing, s, photos, images(s, photos)) for s, photos in held.items()]
    kept = [photo for photos in held.values() for photo in photos]
    return Audited(
        joined(parts) if len(parts) > 1 else parts[0],
        [photo.id for photo in kept],
        [photo.path for photo in kept],
        [split for split, photos in held.items() for _ in photos],
        [caption for photo in kept for caption in photo.captions],
        _not_encoded(chosen, {photo.id: at for at, photo in enumerate(kept)}),
    )


def _told(photo: Photo) -> Photo:
    return replace(photo, captions=tuple(c for c in photo.captions if c.text))


def _not_encoded(chosen: Sequence[tuple[str, Photo]], place: Mapping[str, int]) -> list[Row]:
    """Findings about empty captions, and about photos that have no place among those encoded."""
    rows = []
    for split, photo in chosen:
        about = partial(Row, severity=1.0, image=photo.id, split=split, proposal="drop",
                        file=str(photo.path), picture=place.get(photo.id))  # fmt: skip
        rows += [
            about("says nothing", caption=c.id, place=c.place, reason="empty")
            for c in photo.captions
            if not c.text
        ]
        if photo.id not in place:
            why = "cannot be decoded" if photo.path.is_file() else "is missing"
            rows.append(about("unreadable", reason=f"the file {why}"))
    return rows


def _by_position(parts: Sequence[tuple[str, Pairs]]) -> Audited:
    """Data without a list of files: what its publisher calls things, or their positions."""
    images: list[str] = []
    captions: list[Caption] = []
    splits: list[str] = []
    for split, pairs in parts:
        n, m = len(pairs.images), len(pairs.captions)
        ids = pairs.ids or ([f"{split}/{i}" for i in range(n)], [f"{split}/{c}" for c in range(m)])
        images += ids[0]
        splits += [split] * n
        captions += [
            Caption(id_, text, f"{split}, caption {c}")
            for c, (id_, text) in enumerate(zip(ids[1], pairs.captions, strict=True))
        ]
    pairs = joined([pairs for _, pairs in parts])
    return Audited(pairs, images, [None] * len(images), splits, captions)


@dataclass(frozen=True, eq=False)
class Result:
    """What an audit found.

    Args:
        rows: the worst findings, for people.
        faults: all of them, by position.
        vectors: of images and captions, by which they were judged.
        misfit: (m), the probability that a caption does not fit its photo; 1 if it says nothing.
        score: (m), of each caption with its photo, by the model or else by the audit's own map.
    """

    rows: list[Row]
    faults: list[Fault]
    vectors: tuple[Tensor, Tensor]
    misfit: Tensor
    score: Tensor


def audit_data(
    data: Audited,
    model: Model | None = None,
    most: int = 100,
    decided: Iterable[Decision] = (),
) -> Result:
    """Audit by the Gaussians of a model; or without one by the features of the images and the words
    of the captions. What was decided before is left out. A caption that says nothing is a finding
    by itself, and whether it fits is not asked."""
    pairs, unsure, scorer = data.pairs, None, None
    nothing, same = _words(data)
    useless = {fault.caption for fault in nothing}
    told = torch.tensor([c for c in range(len(data.captions)) if c not in useless])
    if model is not None:
        images, captions = model.encode_pairs(pairs)
        vectors = images.mean.flatten(1), captions.mean.flatten(1)
        scorer = _scorer(model, images, captions[told])
        unsure = None if captions.is_point else captions.uncertainty()[told]
    else:
        features = torch.cat([batch.flatten(1) for batch in image_batches(pairs, 256)])
        vectors = features, word_vectors(pairs.captions)
    judged = vectors[0], vectors[1][told], pairs.image_of[told]
    fit = cross_fitted(*judged)
    found = audit(
        *judged,
        uncertainty=unsure,
        copies=_copies(data, vectors[0]),
        splits=data.splits,
        scorer=scorer,
        fit=fit,
    )
    at: dict[int | None, int | None] = {None: None, **dict(enumerate(told.tolist()))}
    faults = [*nothing, *same] + [
        replace(f, caption=at[f.caption], other_caption=at[f.other_caption]) for f in found
    ]

    def whole(values: Tensor, otherwise: float) -> Tensor:
        return values.new_full((len(data.captions),), otherwise).index_copy(0, told, values)

    score = whole(fit.score, -torch.inf)
    if model is not None:
        with torch.no_grad():
            paired = model.matcher.similarity.for_query("captions").paired
            score = paired(images[pairs.image_of], captions)
    rows = [*data.beside, *(_row(data, fault) for fault in faults)]
    first = _first(rows, Known(decided), most)
    return Result(first, faults, vectors, whole(fit.misfit, 1.0), score)


def _first(rows: Sequence[Row], known: Known, most: int) -> list[Row]:
    """The worst ``most`` rows of each issue that were not decided before."""
    left = [row for row in rows if row not in known]
    return [
        row
        for issue in ISSUES
        for row in sorted((r for r in left if r.issue == issue), key=urgency)[:most]
    ]


LEAST = 100
"""Captions of a test split by which it can be said whether cleaning is worth it."""


def gain(data: Audited, found: Result, seeds: int = 3) -> dict[str, Tensor]:
    """What cleaning as proposed would gain, see ``worth``: heads trained on the captions of train,
    judged by those of test, or of dev if there is no test."""
    image_of = data.pairs.image_of
    split_of = [data.splits[i] for i in image_of.tolist()]
    judged = next((s for s in ("test", "dev") if split_of.count(s) >= LEAST), None)
    if judged is None or "train" not in split_of:
        raise ValueError(
            f"--worth trains on 'train' and measures on 'test' or 'dev', which needs {LEAST} "
            "captions; audit all splits of a data set that has both"
        )
    train, test = (
        torch.tensor([c for c, of in enumerate(split_of) if of == s]) for s in ("train", judged)
    )
    dropped = {(f.image, f.caption) for f in found.faults if f.proposal == "drop"}
    moved = image_of.clone()
    for f in found.faults:
        if f.proposal == "swap":
            moved[f.caption] = image_of[f.other_caption]
    kept = torch.tensor(
        [
            c
            for c in train.tolist()
            if not dropped & {(int(image_of[c]), None), (int(image_of[c]), c)}
            and data.splits[int(moved[c])] == "train"  # no photo of the test split is trained on
        ]
    )
    return worth(
        *found.vectors,
        Captioned(train, image_of[train]),
        Captioned(test, image_of[test]),
        Captioned(kept, moved[kept]),
        found.score[train],
        seeds,
    )


def write_next(path: Path, data: Audited, found: Result, most: int) -> None:
    """The captions to check next, those first whose check prevents most mistakes."""
    image_of = data.pairs.image_of.tolist()
    rows = []
    for c in next_to_check(found.misfit)[:most].tolist():
        row = asdict(_row(data, Fault("misfit", float(found.misfit[c]), image_of[c], c)))
        rows.append({name: row[name] for name in NEXT_FIELDS} | {"misfit": row["severity"]})
    write_csv(path, (*NEXT_FIELDS, "misfit"), rows)


def _scorer(model: Model, images: Gaussian, captions: Gaussian) -> Scorer:
    def scores(said: Tensor, shown: Tensor) -> Tensor:
        return model.similarity(images[shown], captions[said], "captions").T

    return scores


class Known:
    """What was decided: the same finding about the same text is not shown again, and a caption that
    a person wrote or exchanged (a decision without an issue) is shown for no reason at all."""

    def __init__(self, decisions: Iterable[Decision]) -> None:
        made = list(decisions)
        self._findings = {(d.issue, *self._key(d)) for d in made if d.issue}
        self._captions = {(d.image, d.text) for d in made if not d.issue}

    @staticmethod
    def _key(one: Decision | Row) -> tuple[str, frozenset[str]]:
        return one.text, frozenset((one.image, one.other))

    def __len__(self) -> int:
        return len(self._findings) + len(self._captions)

    def __contains__(self, row: Row) -> bool:
        if row.caption and (row.image, row.text) in self._captions:
            return True
        return (row.issue, *self._key(row)) in self._findings


def _copies(data: Audited, vectors: Tensor) -> list[Copies] | None:
    """Groups of copies by their pictures; ``None`` for data without any."""
    shown = any(file is not None and file.is_file() for file in data.files[:SAMPLED])
    if not shown and data.pairs.images.picture(0) is None:
        return None
    captions = torch.bincount(data.pairs.image_of, minlength=len(vectors)).tolist()

    def read(image: int) -> tuple[Tensor, int] | None:
        file = data.files[image]
        if file is not None:
            try:
                opened = read_picture(file)
            except (OSError, ValueError):  # features were given, so nobody opened it before
                return None
            return small(opened.picture), opened.size[0] * opened.size[1]
        picture = data.pairs.images.picture(image)
        return None if picture is None else (small(picture), picture.width * picture.height)

    return copies_of(vectors, read, captions)


def _words(data: Audited) -> tuple[list[Fault], list[Fault]]:
    """Captions that say nothing, and the same words for several photos: the longer, the less
    likely by chance."""
    nothing, repeats = [], []
    often, image_of = repeated(c.text for c in data.captions), data.pairs.image_of.tolist()
    same: dict[str, list[int]] = {}
    for c, caption in enumerate(data.captions):
        why = says_nothing(caption.text, often)
        if why is not None:
            nothing.append(Fault("says nothing", 1.0, image_of[c], c, None, why, None, "drop"))
        else:
            same.setdefault(" ".join(words_of(caption.text)), []).append(c)
    for text, captions in same.items():
        first, photos = image_of[captions[0]], len({image_of[c] for c in captions})
        reason, words = f"{photos} photos have this caption", float(len(text.split()))
        repeats += [
            Fault("same caption", words, image_of[c], c, first, reason)
            for c in captions
            if words and image_of[c] != first
        ]
    return nothing, repeats


def _row(data: Audited, f: Fault) -> Row:
    said, with_ = (
        Caption("", "") if c is None else data.captions[c] for c in (f.caption, f.other_caption)
    )
    return Row(
        f.issue,
        round(f.severity, 4),
        data.images[f.image],
        data.splits[f.image],
        said.id,
        said.place,
        said.text,
        "" if f.other is None else data.images[f.other],
        "" if f.other is None else data.splits[f.other],
        with_.id,
        with_.text,
        f.reason,
        f.proposal,
        str(data.files[f.image] or ""),
        f.image,
        f.other,
    )


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


# ---- the folder of an audit ----


def write(
    folder: Path,
    found: Result,
    data: Audited,
    most: int = 100,
    source: tuple[Path, str | None] | None = None,
) -> None:
    """The table, the page, the pictures that the findings are about, for Review, and what to check
    next. A folder that holds anything else is refused.

    Args:
        source: the folder of the data and its format, if that was given, for ``apply_command``.
    """
    rows = found.rows
    shown = sorted({i for r in rows for i in (r.picture, r.other_picture) if i is not None})
    names = {number: f"{PICTURES}/{number}.jpg" for number in shown}
    claim_folder(folder, names=[TABLE, PAGE, NEXT, SOURCE, *names.values()])
    for number, name in names.items():
        content = _jpeg(data.pairs, number, LARGE)
        if content is not None:
            with atomic(folder / name) as temporary:
                temporary.write_bytes(content)
    write_csv(folder / TABLE, FIELDS, (asdict(row) for row in rows))
    write_page(folder / PAGE, rows, data)
    write_next(folder / NEXT, data, found, most)
    if source is not None:
        root, format_ = source
        write_json(folder / SOURCE, {"data": str(root.resolve()), "format": format_})


def apply_command(audit: Path, decisions: Path | None) -> str:
    """The command that makes a cleaned copy of the data that was audited; empty if that is not
    known.

    Args:
        audit: the folder of the audit, or the table in it.
        decisions: the file, as seen from the current folder; ``None`` for one that the browser
            saves, wherever that is.
    """
    file = (audit if audit.is_dir() else audit.parent) / SOURCE
    if not file.is_file():
        return ""
    source = read_json(file, dict)
    root = Path(source["data"])
    if decisions is not None and root.is_relative_to(Path.cwd()):
        root = root.relative_to(Path.cwd())
    words = [str(root), str(decisions or "decisions.csv"), "--out", f"{root}-clean"]
    words += ["--format", source["format"]] if source["format"] else []
    return f"gaussmatch audit apply {join(words)}"


def read_table(path: Path) -> list[Row]:
    """The findings of an audit: its folder, or the table in it."""
    path = path / TABLE if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no findings; make them with 'gaussmatch audit'")
    try:
        rows = read_csv(path, FIELDS)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path}: not the table of an audit ({error})") from error
    return [_read(row, f"{path}, line {line}") for line, row in enumerate(rows, start=2)]


def _read(row: Mapping[str, str], place: str) -> Row:
    if row["issue"] not in ISSUES:
        raise ValueError(f"{place}: no issue {row['issue']!r}; there are {', '.join(ISSUES)}")
    try:
        numbers = {n: int(row[n]) if row[n] else None for n in ("picture", "other_picture")}
        return Row(**{**row, **numbers, "severity": float(row["severity"])})  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def write_page(path: Path, rows: Sequence[Row], data: Audited) -> None:
    """HTML with the pictures inside; each opens the photo itself."""

    @cache
    def picture(image: int) -> str:
        content = _jpeg(data.pairs, image, SIDE)
        return inline(content) if content else ""

    def link(image: int) -> str:
        file = data.files[image]
        return f"{PICTURES}/{image}.jpg" if file is None else file.resolve().as_uri()

    template = Path(__file__).parent / "templates" / "audit.html.j2"
    values = {"name": data.pairs.name, "rows": rows, "issues": ISSUES}
    write_text(path, rendered(template, **values, picture=picture, link=link))


def inline(content: bytes) -> str:
    """A JPEG as an address that holds it."""
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def picture_of(audit: Path, row: Mapping[str, Any]) -> str:
    """The address of the photo of a finding: it itself, or its file if the audit has no picture."""
    file = audit / PICTURES / f"{row['picture']}.jpg"
    return inline(file.read_bytes()) if file.is_file() else str(row["file"])


def _jpeg(pairs: Pairs, image: int, side: int) -> bytes | None:
    try:
        picture = pairs.images.picture(image)
    except (OSError, ValueError):  # as above
        return None
    return None if picture is None else jpeg(picture, side)
