"""What is in an index: the records of its items, its settings, its model, and the parts of each
gallery."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from gaussmatch.files import parse_json, plain_name, sha256
from gaussmatch.models.run import model_files
from gaussmatch.search.trust.calibration import GALLERIES as GALLERIES
from gaussmatch.search.trust.calibration import Gallery as Gallery


@dataclass(frozen=True)
class Record:
    """What is kept of an item beside its Gaussian.

    Args:
        id: unique in its gallery.
        meta: what the user wants to know of it and to filter by; JSON.
        thumbnail: a small JPEG to show, if there is a picture.
        source: changes when the item's file changes, so that ``update`` encodes it again.
    """

    id: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    thumbnail: bytes | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise ValueError(f"an id must be a text that is not empty, got {self.id!r}")
        if not encodable(self.id):
            raise ValueError(f"the id {self.id!r} is not valid UTF-8")

    def meta_json(self) -> str:
        try:
            return json.dumps(dict(self.meta), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"the metadata of {self.id!r} is not JSON: {error}") from error


def encodable(text: str) -> bool:
    """Whether it is text; the name of a file need not be.

    >>> encodable("é.jpg"), encodable(b"\\xe9.jpg".decode(errors="surrogateescape"))
    (True, False)
    """
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


StructureName = Literal["flat", "hnsw", "compressed"]
STRUCTURES: tuple[StructureName, ...] = get_args(StructureName)
FIELD_TYPES = ("text", "number", "truth")
FORMAT = 5
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class IndexSettings:
    """How an index is searched.

    Args:
        structure: ``flat`` looks at every item (exact); ``hnsw`` walks a graph; ``compressed``
            walks a graph whose vectors have one byte a coordinate, not two.
        links: neighbors of an item in the graph (HNSW's M).
        construction: candidates while the graph is built (efConstruction).
        search: candidates while it is walked (efSearch), at least; higher is slower, finds more.
        recall: recall@10 that a graph must reach on a sample of its items when it is built; the
            walk is widened until it does, and a graph that cannot is not used.
        rescore: the least number of candidates that are scored again exactly.
        flat_below: segments with fewer items are searched exactly, whatever the structure.
        fields: metadata that is often filtered by → "text", "number" or "truth": a database keeps
            such a field in an indexed column of that type, and refuses other values of it.
    """

    structure: StructureName = "flat"
    links: int = 32
    construction: int = 100
    search: int = 64
    recall: float = 0.95
    rescore: int = 12
    flat_below: int = 5000
    fields: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.structure not in STRUCTURES:
            raise ValueError(f"no structure {self.structure!r}; choose {', '.join(STRUCTURES)}")
        for name in ("links", "construction", "search", "rescore"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.recall <= 1:
            raise ValueError(f"recall must be between 0 and 1, got {self.recall}")
        for name, wanted in self.fields.items():
            if wanted not in FIELD_TYPES:
                raise ValueError(f"field {name!r}: choose text, number or truth, not {wanted!r}")


@dataclass(frozen=True)
class FileMark:
    """Size and SHA-256 of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class SegmentInfo:
    """Some items of a gallery: a segment in a folder, a collection in Milvus.

    Args:
        structure: how it is searched.
        files: name → mark of each of its files.
        deleted: name and mark of the file of deleted rows, if any, and ``dead``, how many they are.
    """

    name: str
    items: int
    structure: str
    files: Mapping[str, FileMark] = field(default_factory=dict, hash=False)
    deleted: str | None = None
    deleted_mark: FileMark | None = None
    dead: int = 0

    @property
    def live(self) -> int:
        return self.items - self.dead


@dataclass(frozen=True)
class IndexManifest:
    """The one file that changes when an index changes.

    Args:
        similarity: its name.
        settings: fields of ``IndexSettings``.
        run: file → sha256 of the run that was copied in; empty for an index of bare Gaussians.
        form: ``{"dim": D, "variances": 0, 1 or D}`` of its Gaussians, once there are some.
        source: where the items came from, for ``update``.
        files: name → mark of other files, such as the calibration.
        generation: how often it was written.
    """

    similarity: str
    settings: Mapping[str, Any]
    run: Mapping[str, str]
    galleries: Mapping[str, tuple[SegmentInfo, ...]] = field(
        default_factory=lambda: dict.fromkeys(GALLERIES, ())
    )
    form: Mapping[str, int] | None = None
    source: Mapping[str, Any] | None = None
    files: Mapping[str, FileMark] = field(default_factory=dict)
    generation: int = 0

    @cached_property
    def parsed(self) -> IndexSettings:
        """The settings, checked."""
        return IndexSettings(**self.settings)

    def with_parts(
        self,
        gallery: Gallery,
        parts: Iterable[SegmentInfo],
        form: Mapping[str, int] | None = None,
    ) -> IndexManifest:
        """The same with other parts of a gallery; ``form`` if they are the first of all."""
        galleries = {**self.galleries, gallery: tuple(parts)}
        return replace(self, galleries=galleries, form=form or self.form)

    def next(self) -> IndexManifest:
        return replace(self, generation=self.generation + 1)

    def parts(self) -> list[SegmentInfo]:
        return [part for parts in self.galleries.values() for part in parts]

    def names(self) -> Iterator[str]:
        """Every name that a path is made of."""
        yield from (*self.run, *self.files)
        for part in self.parts():
            yield from (part.name, *part.files, *filter(None, [part.deleted]))

    def dumps(self) -> bytes:
        """As JSON, with a checksum of its own."""
        content = {"format": FORMAT, **asdict(self)}
        content["sha256"] = _digest(content)
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()

    @staticmethod
    def loads(text: bytes, where: object) -> IndexManifest:
        """Read it again."""
        try:
            content = parse_json(text, where)
        except ValueError as error:
            raise ValueError(f"{error}; restore the index") from error
        found = content.pop("format", None) if isinstance(content, dict) else None
        if found != FORMAT:
            raise ValueError(
                f"{where}: format {found!r}, but this version reads {FORMAT}; "
                "use the version that made it"
            )
        digest = content.pop("sha256", None)
        if digest != _digest({"format": found, **content}):
            raise ValueError(f"{where}: damaged: its checksum does not match; restore the index")
        try:
            galleries = {
                name: tuple(_part(part) for part in parts)
                for name, parts in content.pop("galleries").items()
            }
            files = {name: FileMark(**mark) for name, mark in content.pop("files", {}).items()}
            manifest = IndexManifest(galleries=galleries, files=files, **content)
            for name in manifest.names():
                plain_name(name, where)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{where}: not a manifest of an index ({error})") from error
        return manifest


def _part(content: Mapping[str, Any]) -> SegmentInfo:
    files = {name: FileMark(**mark) for name, mark in content["files"].items()}
    deleted = content.get("deleted_mark")
    mark = None if deleted is None else FileMark(**deleted)
    return SegmentInfo(**{**content, "files": files, "deleted_mark": mark})


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class UnknownItemError(ValueError):
    """No item has this id."""

    def __init__(self, id: str, gallery: str, place: str, found_in: str | None = None) -> None:
        self.id, self.gallery = id, gallery
        hint = (
            "" if found_in is None else f"; it is one of its {found_in}: give one of the {gallery}"
        )
        super().__init__(f"no item {id!r} among the {gallery} of {place}{hint}")


def known(gallery: str) -> Gallery:
    """A clear error unless it is the name of a gallery."""
    if gallery not in GALLERIES:
        raise ValueError(f"no gallery {gallery!r}; choose {' or '.join(GALLERIES)}")
    return gallery


def hashes(run: Path) -> dict[str, str]:
    """File of the model → its SHA-256: how an index knows the run that it was made with."""
    return {name: sha256(run / name) for name in model_files(run)}


def check_unchanged(run: Path, known: Mapping[str, str]) -> None:
    """A clear error if the copy is not what was copied."""
    for name, found in hashes(run).items():
        if found != known.get(name):
            raise ValueError(
                f"{run / name} is not the file that the index was made with; "
                "restore it or make the index again"
            )


def check_same_run(index: object, known: Mapping[str, str], run: Path) -> None:
    """A clear error unless an index was made with this run."""
    if dict(known) != hashes(run):
        raise ValueError(f"{index} was made with another model than {run}: choose another place")
