"""Decisions about a data set, applied: a cleaned copy in the format of the original.

A decision is about a caption or a photo: *accept* it as it is, say that a caption fits only its
*own* photo, *fix* it, *swap* two captions, or *drop* it. ``plan`` checks decisions against the data
as it is now; ``write`` makes the copy, and leaves ``audited.json`` in it, by which the next audit
knows what has been decided.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gaussmatch.checks import did_you_mean
from gaussmatch.data import datasets, exchange, folder
from gaussmatch.data.exchange import CHECKED, DECISIONS
from gaussmatch.data.language import words_of
from gaussmatch.data.listing import Listing
from gaussmatch.files import atomic, claim_folder, read_csv, read_json, write_json

NEEDED, MORE = (
    ("image", "decision"),
    ("issue", "caption", "text", "other", "other_caption", "fixed"),
)
"""Columns of a table of decisions: those it must have, and those it may have."""
DECIDED = "audited.json"
"""The file in a cleaned data set that holds the decisions it was made by."""


@dataclass(frozen=True)
class Decision:
    """What a person decided about one finding; see ``Row`` of the audit for the fields."""

    image: str
    decision: str
    issue: str = ""
    caption: str = ""
    text: str = ""
    other: str = ""
    other_caption: str = ""
    fixed: str = ""
    place: str = field(default="", compare=False)  #: where the decision stands, for messages

    def __post_init__(self) -> None:
        if self.decision not in DECISIONS:
            hint = did_you_mean(self.decision, DECISIONS) or f"choose from {', '.join(DECISIONS)}"
            raise ValueError(f"{self.place}: no decision {self.decision!r}; {hint}")
        if self.decision == "fix" and not self.fixed.strip():
            raise ValueError(f"{self.place}: 'fix' needs the new caption in the column 'fixed'")
        if self.decision in ("fix", "swap") and not self.caption:
            raise ValueError(f"{self.place}: {self.decision!r} needs a caption; {self.image} has "
                             "to be named together with one")  # fmt: skip
        if self.decision == "swap" and not self.other_caption:
            raise ValueError(f"{self.place}: 'swap' needs the column 'other_caption'")


def read_decisions(path: Path) -> list[Decision]:
    """The decisions of a table (CSV: ``audit.csv`` with its last columns filled in, or what Review
    wrote), of a cleaned data set (``audited.json``), or as Label Studio and FiftyOne export them.
    Rows without a decision are left out."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of decisions")
    if path.suffix.lower() == ".json":
        held = exchange.decided(read_json(path), path)
        made = [(f"{path}, entry {i}", entry) for i, entry in enumerate(held)]
    else:
        with open(path, encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
        rows = read_csv(path, [*NEEDED, *(name for name in MORE if name in header)])
        made = [(f"{path}, line {line}", row) for line, row in enumerate(rows, start=2)]
    return [_decision(row, place) for place, row in made if _said(row, place)]


def _said(row: Any, place: str) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("image"), str):
        raise ValueError(f"{place}: not a decision: it has no 'image'")
    return bool(str(row.get("decision") or "").strip())


def _decision(row: dict[str, Any], place: str) -> Decision:
    given = {name: str(row.get(name) or "") for name in (*NEEDED, *MORE)}
    given["decision"] = given["decision"].strip().lower()
    return Decision(**given, place=place)


# ---- what they change ----


@dataclass
class Cleaning:
    """What decisions do to a data set.

    Args:
        photos: ids of photos that go, with all their captions.
        texts: caption id → its new text; ``None`` if it goes alone.
        diff: the same for people, line by line.
        decisions: all of them, those that change nothing included.
        checked: what the next audit leaves out.
    """

    photos: set[str] = field(default_factory=set)
    texts: dict[str, str | None] = field(default_factory=dict)
    diff: list[str] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    checked: list[Decision] = field(default_factory=list)

    def text(self, photo: str, caption: str, text: str) -> str | None:
        """A caption after the changes; ``None`` if it is gone."""
        return None if photo in self.photos else self.texts.get(caption, text)

    def summary(self) -> str:
        made = Counter(d.decision for d in self.decisions)
        words = [f"{made[name]} {name}" for name in DECISIONS if made[name]]
        gone = sum(text is None for text in self.texts.values())
        return (
            f"{len(self.decisions)} decisions ({', '.join(words)}): remove {len(self.photos)} "
            f"photos and {gone} more captions, change {len(self.texts) - gone} captions"
        )


def plan(listing: Listing, decisions: Iterable[Decision]) -> Cleaning:
    """What decisions change, checked against the data: what they name must be there, with the text
    that was judged, and no two may contradict each other."""
    photos = {photo.id for photo in listing.photos}
    said = {c.id: c.text for photo in listing.photos for c in photo.captions}
    photo_of = {c.id: photo.id for photo in listing.photos for c in photo.captions}
    made = Cleaning(decisions=list(decisions))
    by: dict[str, Decision] = {}  # caption → the decision that changes it

    def change(caption: str, decision: Decision, text: str | None) -> None:
        first = by.setdefault(caption, decision)
        if made.texts.setdefault(caption, text) != text:
            raise ValueError(
                f"{decision.place}: {first.place} decides otherwise about {caption}; keep one"
            )

    for one in made.decisions:
        _check(one, photos, said, listing.name)
        if one.decision == "drop" and not one.caption:
            made.photos.add(one.image)
        elif one.decision == "drop":
            change(one.caption, one, None)
        elif one.decision == "fix":
            change(one.caption, one, " ".join(one.fixed.split()))
        elif one.decision == "swap":
            change(one.caption, one, said[one.other_caption])
            change(one.other_caption, one, said[one.caption])
    made.photos |= {  # a photo without a caption is of no use
        p.id
        for p in listing.photos
        if p.captions and all(made.text(p.id, c.id, c.text) is None for c in p.captions)
    }
    made.texts = {c: text for c, text in made.texts.items() if photo_of[c] not in made.photos}
    made.diff = _diff(listing, made)
    touched = {*made.photos, *made.texts}
    made.checked = [
        *(d for d in made.decisions
          if d.decision in CHECKED and not touched & {d.image, d.other, d.caption}),
        *(Decision(photo_of[c], "accept", text=text) for c, text in made.texts.items() if text),
    ]  # fmt: skip
    for split, held in listing.splits.items():
        if held and all(photo.id in made.photos for photo in held):
            raise ValueError(f"nothing would be left of {split}; keep some of its photos")
    return made


def _check(one: Decision, photos: Collection[str], said: Mapping[str, str], data: str) -> None:
    """Whether the data still is what a decision is about."""
    for kind, known, names in (
        ("photo", photos, (one.image, one.other)),
        ("caption", said, (one.caption, one.other_caption)),
    ):
        for name in names:
            if name and name not in known:
                raise ValueError(f"{one.place}: no {kind} {name!r} in {data}")
    if one.caption and one.text and said[one.caption] != one.text:
        raise ValueError(
            f"{one.place}: {one.caption} now says {said[one.caption]!r}, not {one.text!r}; the "
            "data has changed since: audit it again"
        )


def _diff(listing: Listing, changes: Cleaning) -> list[str]:
    lines = []
    for split, photos in listing.splits.items():
        for photo in photos:
            if photo.id in changes.photos:
                lines.append(f"{photo.id} ({split}): the photo is dropped")
            for said in photo.captions:
                after = changes.text(photo.id, said.id, said.text)
                if after == said.text:
                    continue
                if photo.id not in changes.photos:
                    lines.append(f"{photo.id} ({split}), {said.place or said.id}")
                lines += [f"- {said.text}", *([] if after is None else [f"+ {after}"])]
    return lines


# ---- the copy ----

Files = dict[str, bytes]
"""Name below the folder → content."""


def write(name: str, root: Path, out: Path, listing: Listing, changes: Cleaning, *,
          link: bool = False) -> None:  # fmt: skip
    """The cleaned data set in ``out``, a new folder; the original is only read.

    Args:
        name: of the source, one of ``WRITERS``.
        link: link to the photos where they are, and do not copy them.
    """
    if name not in WRITERS:
        raise ValueError(f"{name}: no cleaned copy can be made of this format; it can be of "
                         f"{', '.join(WRITERS)}")  # fmt: skip
    if out.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"--out {out} lies inside {root}, which is not changed; choose another")
    claim_folder(out, proof=None)
    tables = WRITERS[name](root, out, changes)
    if name != "datasets":
        for photo in listing.photos:
            if photo.id not in changes.photos and photo.path.is_file():
                _take(photo.path, out / _below(photo.path, root), link)
    for file, content in tables.items():  # last: without them it is not a data set
        with atomic(out / file) as temporary:
            temporary.write_bytes(content)
    kept = [{k: v for k, v in asdict(d).items() if v and k != "place"} for d in changes.checked]
    before = read_json(root / DECIDED, list) if (root / DECIDED).is_file() else []
    write_json(out / DECIDED, [*before, *kept])


def _below(path: Path, root: Path) -> Path:
    """Where a photo goes: at the same place below the folder, or by its name."""
    return path.relative_to(root) if path.is_relative_to(root) else Path(path.name)


def _take(photo: Path, target: Path, link: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if link:
        os.symlink(photo.resolve(), target)
    else:
        with atomic(target) as temporary:
            shutil.copyfile(photo, temporary)


def _folder(root: Path, out: Path, changes: Cleaning) -> Files:
    table = folder.find_table(root)
    numbers: Counter[str] = Counter()

    def edited(image: str, text: str) -> str | None:
        name = folder.photo_name(image)
        numbers[name] += 1
        after = changes.text(name, f"{name}#{numbers[name] - 1}", " ".join(text.split()))
        return text if after == " ".join(text.split()) else after

    ending = table.suffix.lower()
    make = {".jsonl": _json_lines, folder.PARQUET: _parquet}.get(ending, _csv)
    return {table.name: make(table, edited)}


Edit = Callable[[str, str], str | None]


def _csv(table: Path, edited: Edit) -> bytes:
    """Only captions that change are written anew; the rest stays byte for byte."""
    mark, lines = _raw_lines(table)
    separator = folder.delimiter(table, lines[0])
    reader = csv.reader(lines, delimiter=separator, strict=True)
    names = [word.strip().lower() for word in next(reader)]
    image, caption = (folder.column(table, names, role) for role in ("image", "caption"))
    at = reader.line_num
    out = [mark, *lines[:at]]
    for fields in reader:
        raw, at = "".join(lines[at : reader.line_num]), reader.line_num
        if any(word.strip() for word in fields):
            after = edited(fields[image].strip(), fields[caption])
            if after is None:
                continue
            if after != fields[caption]:
                raw = _with_field(raw, separator, caption, after)
        out.append(raw)
    return "".join(out).encode()


def _with_field(record: str, separator: str, number: int, text: str) -> str:
    """A record of CSV with another text in one field, in quotes if the old one was or if needed.

    >>> _with_field('a.jpg,"old",me', ",", 1, 'the "new" one')
    'a.jpg,"the ""new"" one",me'
    """
    one = rf'("(?:[^"]|"")*"|[^{separator}\r\n]*)(?:{separator}|\r?\n|$)'
    one = rf'("(?:[^"]|"")*"|[^{separator}\r\n]*)(?:{separator}|\r?\n|$)'
    fields = re.finditer(one, record)
    start, end = next(islice(fields, number, None)).span(1)
    quoted = record[start:end].startswith('"') or any(c in text for c in f'{separator}"\r\n')
    new = '"' + text.replace('"', '""') + '"' if quoted else text
    return record[:start] + new + record[end:]


def _json_lines(table: Path, edited: Edit) -> bytes:
    def line_of(line: str) -> str | None:
        record = json.loads(line)
        image, caption = (folder.field(record, str(table), role) for role in ("image", "caption"))
        several = isinstance(record[caption], list)
        said = record[caption] if several else [record[caption]]
        left = [t for t in (edited(record[image], text) for text in said) if t is not None]
        if not left:
            return None
        changed = {**record, caption: left if several else left[0]}
        return line if changed == record else json.dumps(changed, ensure_ascii=False)

    return _edited_lines(table, line_of)


def _parquet(table: Path, edited: Edit) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    content = folder.read_parquet(table)
    header = [name.lower() for name in content.column_names]
    image, caption = (folder.column(table, header, role) for role in ("image", "caption"))
    pairs = zip(content[image].to_pylist(), content[caption].to_pylist(), strict=True)
    texts = [edited(name or "", text or "") for name, text in pairs]
    column = pa.array(texts, content.schema.types[caption])
    changed = content.set_column(caption, content.column_names[caption], column)
    out = io.BytesIO()
    parquet.write_table(changed.filter(pa.array([text is not None for text in texts])), out)
    return out.getvalue()


def _coco(root: Path, out: Path, changes: Cleaning) -> Files:
    base = root / "annotations" if (root / "annotations").is_dir() else root
    files: Files = {}
    gone = {int(photo) for photo in changes.photos}
    lost: set[int] = set()  # captions

    def without(content: dict[str, Any], key: str, photo: str) -> dict[str, Any]:
        left = [entry for entry in content.get(key, ()) if entry[photo] not in gone]
        return {**content, key: left} if key in content else content

    for path in sorted(base.glob("captions_*.json")):
        content = read_json(path, dict)
        left = []
        for said in content["annotations"]:
            image, id_ = str(said["image_id"]), str(said["id"])
            after = changes.text(image, id_, said["caption"])
            if after is None:
                lost.add(said["id"])
            else:
                left.append({**said, "caption": after})
        content["annotations"] = left
        files[_name(path, root)] = _json(without(content, "images", "id"))
    for path in sorted(base.glob("instances_*.json")):
        content = without(read_json(path, dict), "images", "id")
        files[_name(path, root)] = _json(without(content, "annotations", "image_id"))
    for place in {root, base}:
        for path in sorted(place.glob("coco_*_ids.npy")):
            numbers, kept = np.load(path, allow_pickle=False), io.BytesIO()
            np.save(kept, numbers[~np.isin(numbers, sorted(lost))])
            files[_name(path, root)] = kept.getvalue()
        path = place / "dataset_coco.json"
        if path.is_file():
            files[_name(path, root)] = _karpathy(path, changes)
    return files


def _karpathy(path: Path, changes: Cleaning) -> bytes:
    """Karpathy's file, whose photos are known by COCO's number or by their file name."""
    content = read_json(path, dict)
    images = []
    for image in content["images"]:
        photo = str(image["cocoid"]) if "cocoid" in image else image["filename"]
        left = []
        for said in image["sentences"]:
            before = " ".join(said["raw"].split())
            after = changes.text(photo, str(said["sentid"]), before)
            if after is not None and after != before:
                said = {**said, "raw": after, "tokens": words_of(after)}
            left += [] if after is None else [said]
        if left:
            numbers = [said["sentid"] for said in left]
            images.append({**image, "sentences": left, "sentids": numbers})
    return _json({**content, "images": images})


def _flickr(root: Path, out: Path, changes: Cleaning) -> Files:
    path = root / "dataset_flickr30k.json"
    if path.is_file():
        return {path.name: _karpathy(path, changes)}
    files: Files = {}
    for path in [*root.glob("*.token.txt"), *root.glob("*.token")]:
        files[path.name] = _edited_lines(path, partial(_token, changes))
    judged = root / "CrowdFlowerAnnotations.txt"
    if judged.is_file():  # of captions as they were

        def judgment(line: str) -> str | None:
            photo, caption = line.split("\t")[:2]
            gone = changes.photos & {photo, caption.rpartition("#")[0]}
            return None if gone or caption in changes.texts else line

        files[judged.name] = _edited_lines(judged, judgment)
    lists = [root / f"{split}.txt" for split in ("train", "val", "test")]
    gone = changes.photos
    for path in [*root.glob("Flickr_8k.*Images.txt"), *(p for p in lists if p.is_file())]:
        files[path.name] = _edited_lines(
            path, lambda n: None if gone & {n, n.removesuffix(".jpg") + ".jpg"} else n
        )
    return files


def _token(changes: Cleaning, line: str) -> str | None:
    """A line of a file of tokens: the caption's id, a tab, its text."""
    key, _, text = line.partition("\t")
    after = changes.text(key.rpartition("#")[0], key, text.strip())
    return line if after == text.strip() else after and f"{key}\t{after}"


def _datasets(root: Path, out: Path, changes: Cleaning) -> Files:
    """``save_to_disk`` of the same rows; the photos are inside."""
    import datasets as library

    def bare(id_: str) -> str:
        return id_.replace(".jpg", "").replace(".png", "")

    texts = {bare(caption): text for caption, text in changes.texts.items()}
    ours = Cleaning({bare(photo) for photo in changes.photos}, texts)
    made = {}
    for split, rows in datasets.opened(str(root)).items():
        _, said = datasets.columns(str(root), rows)

        def edited(row: dict[str, Any], number: int, split: str = split, said: str = said) -> Any:
            several, photo = isinstance(row[said], list), f"{split}-{number:07}"
            held = [entry for entry in (row[said] if several else [row[said]]) if entry]
            left: list[Any] = []
            for place, entry in enumerate(held):
                raw = entry["raw"] if isinstance(entry, dict) else str(entry)
                after = ours.text(photo, f"{photo}#{place}", raw)
                if after is not None:
                    left.append({**entry, "raw": after} if isinstance(entry, dict) else after)
            return {said: left if several else (left or [""])[0]}

        changed = rows.map(edited, with_indices=True, keep_in_memory=True)  # no cache beside them
        keep = [i for i, texts in enumerate(changed[said]) if texts]
        made[split] = changed.select(keep)
    whole = made["all"] if list(made) == ["all"] else library.DatasetDict(made)
    whole.save_to_disk(str(out))
    return {}


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _raw_lines(path: Path) -> tuple[str, list[str]]:
    """The byte order mark of a text file, if it has one, and its lines with their endings."""
    text = path.read_bytes().decode()
    mark = text[: text.startswith("\ufeff")]
    return mark, list(io.StringIO(text.removeprefix(mark), newline="\n"))


def _edited_lines(path: Path, edited: Callable[[str], str | None]) -> bytes:
    """A text file with its lines edited, ``None`` to leave one out; endings and mark stay."""
    mark, lines = _raw_lines(path)
    out = [mark]
    for raw in lines:
        line = raw.rstrip("\r\n")
        after = edited(line) if line.strip() else line
        out += [] if after is None else [after + raw[len(line) :]]
    return "".join(out).encode()


WRITERS: dict[str, Callable[[Path, Path, Cleaning], Files]] = {
    "folder": _folder,
    "coco": _coco,
    "flickr8k": _flickr,
    "flickr30k": _flickr,
    "datasets": _datasets,
}
"""Source → how its files are written again."""
