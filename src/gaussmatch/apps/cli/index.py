"""``gaussmatch index FOLDER [--model NAME] --out INDEX``, and what is done with it afterwards."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.apps.cli.search import plain
from gaussmatch.checks import did_you_mean
from gaussmatch.data.embeddings import ENDINGS, columns_of
from gaussmatch.data.pairs import SPLITS
from gaussmatch.files import remember_folder
from gaussmatch.models import run as runs
from gaussmatch.models.features import load_data
from gaussmatch.models.official import import_checkpoint, is_named
from gaussmatch.models.published import keep_texts
from gaussmatch.models.recipe import DataRecipe
from gaussmatch.search import (
    GALLERIES,
    Index,
    IndexSettings,
    add_photos,
    backup,
    embedding,
    index_pairs,
    update,
)
from gaussmatch.search import merge as merge_indexes
from gaussmatch.search.backends import Place, place
from gaussmatch.search.index import existing_index
from gaussmatch.search.manifest import FIELD_TYPES, STRUCTURES, check_same_run
from gaussmatch.search.sources import Changes, describe_ignored
from gaussmatch.search.tables import index_arrays, index_parquet
from gaussmatch.search.trust import kept_calibration

STRICT = "stop at an unreadable photo instead of skipping and listing it"
PARQUET = ".parquet"
NOT_CALIBRATED = (
    "not calibrated: it ranks, and can't say what fits. To learn that from photos with captions, "
    "without encoding yours again: gaussmatch import {0} --out runs/mine && gaussmatch calibrate "
    "runs/mine --data.name folder --data.root CAPTIONED && gaussmatch index runs/mine {1} --out {2}"
)
WIDTH = "candidates per graph search (64): a higher number finds more and is slower"


def run(argv: Sequence[str]) -> None:
    if argv and not Path(argv[0]).exists() and (hint := did_you_mean(argv[0], VERBS)):
        raise ValueError(f"neither a folder nor a verb: {argv[0]!r}; {hint}")
    options = _make_options(argv)
    with TemporaryDirectory() as made:  # the index has its own copy of a run
        encoder = options.run if is_named(options.run) else None
        if encoder is not None:
            _check_folder(options.folder)
            options.run = Path(made) / "run"
            import_checkpoint(encoder, options.run)
        _index(options, encoder)


def _index(options: Namespace, encoder: Path | None) -> None:
    recipe = runs.read_recipe(options.run)
    for name in (runs.CALIBRATION, runs.PROBE):  # needed last: report damage before writing
        runs.read_listed(options.run, name)
    table = options.folder is not None and options.folder.suffix in ENDINGS
    if options.folder is not None and not table:  # before anything is made
        if recipe.data.name == "scenes":
            print(
                f"note: {options.run} was trained on drawn scenes and knows nothing about photos; "
                "leave it out to use the photo model",
                file=sys.stderr,
            )
        _check_folder(options.folder)
        if embedding.is_embedding(options.folder):
            embedding.whole_embedding(options.folder)
    index = existing_index(options.out, wait=options.wait)
    new = index is None
    index = _created(options) if index is None else _continued(index, options)
    try:
        if index.model.reads_text:  # without its text encoder it could not be searched: say so now
            index.model.read(["a"])
            keep_texts(index.model, index.manifest.run)  # so that even the first search is fast
        _fill(index, recipe.data, options)
    except Exception:
        if new and not any(index.size(gallery) for gallery in GALLERIES):
            index.drop()  # nothing came of it
        raise
    if not index.calibration.about and encoder is None:  # last: if interrupted, it is done again
        index.set_calibration(kept_calibration(options.run))
    print(_summary(index))
    if encoder is not None and not index.calibration.about:
        names = [quote(str(name)) for name in (encoder, options.folder, options.out)]
        print(NOT_CALIBRATED.format(*names), file=sys.stderr)
    query = "'some words'" if index.model.reads_text else "--like ID"
    print(f"next: gaussmatch search {quote(str(options.out))} {query}", file=sys.stderr)


def _check_folder(folder: Path) -> None:
    if folder.suffix not in ENDINGS and not folder.is_dir():
        raise FileNotFoundError(
            f"{folder}: no such folder of photos, nor a file of embeddings ({', '.join(ENDINGS)})"
        )


def _fill(index: Index, data: DataRecipe, options: Namespace) -> None:
    folder = options.folder
    if folder is None:
        split = options.split or "test"
        index_pairs(index, load_data(data).split(split), split)
    elif folder.suffix in ENDINGS and _holds_gaussians(folder):
        index_parquet(index, folder, options.gallery)
    elif folder.suffix in ENDINGS:
        added = index_arrays(index, folder, options.gallery or "images")
        print(f"{added:,} added; rows whose id is already in the index are unchanged")
    elif embedding.is_embedding(folder):
        embedding.index_embeddings(index, folder)
    else:
        _report(update(index, folder, strict=options.strict))


def _holds_gaussians(file: Path) -> bool:
    """Whether a table holds Gaussians, as 'export' writes them, rather than embeddings."""
    return {"id", "mean"} <= set(columns_of(file)) and file.suffix == PARQUET


def _created(options: Namespace) -> Index:
    source: dict[str, str] | None = None
    folder = options.folder
    if folder is not None and folder.is_dir() and not embedding.is_embedding(folder):
        source = {"folder": str(folder.resolve())}  # noted first: a kill may come at any time
        remember_folder(str(options.out), source["folder"])
    settings = _chosen(IndexSettings(), options, options.out)
    return Index.create(options.out, options.run, settings=settings, source=source)


def _continued(index: Index, options: Namespace) -> Index:
    check_same_run(index.place, index.manifest.run, options.run)
    if options.structure not in (None, index.settings.structure):
        raise ValueError(
            f"{options.out} has structure {index.settings.structure}; change that with "
            f"'gaussmatch index compact {options.out} --structure {options.structure}'"
        )
    before = (index.manifest.source or {}).get("folder")
    photos = options.folder is not None and options.folder.is_dir()
    if photos and embedding.is_embedding(options.folder):  # of these photos, perhaps
        photos = embedding.EmbeddingManifest.load(options.folder).source.get("folder") != before
    if photos and before is not None and Path(str(before)) != options.folder.resolve():
        raise ValueError(
            f"{options.out} holds the photos of {before}. To have both, index {options.folder} "
            "into another --out and join them with 'gaussmatch index merge'; if the folder was "
            f"moved, 'gaussmatch index update {options.out} {options.folder}'"
        )
    _apply_settings(index, options)
    return index


def _make_options(argv: Sequence[str]) -> Namespace:
    verbs = "\n".join(f"  gaussmatch index {name:8} {VERBS[name].__doc__}" for name in VERBS)
    parser = Parser(
        "index",
        "Index photos with a model, to search them afterwards. If the index exists, it is brought "
        "up to date: only new and changed photos are encoded.",
        notes=f"with an index:\n{verbs}",
        examples=[
            "my-photos --out photos.index",
            "my-photos --model open_clip:ViT-B-32/openai --out clip.index",
            "runs/clip embeddings.parquet --out clip.index",
        ],
        computes=True,
    )
    parser.path("run", "the run folder of the model (default: the photo model)")
    parser.path(
        "folder",
        "photos, a file of embeddings that the run was adapted to, or output of 'embed' or "
        "'export' (default: the run's data)",
        nargs="?",
    )
    parser.path(
        "--model",
        "instead of a run: an encoder of both sides by name, such as open_clip:ARCH/TAG, "
        "hf:REPO, prolip:REPO; NAME@FOLDER needs no network",
        metavar="NAME",
    )
    parser.take("--out", "a new folder, or milvus:…", type=place, required=True)
    parser.take("--split", "of the run's own data", choices=SPLITS)
    parser.take("--gallery", "what a file of embeddings is of (default: images)", choices=GALLERIES)
    parser.take("--structure", "flat is exact (default); hnsw is fast", choices=STRUCTURES)
    _add_search(parser)
    parser.flag("--strict", STRICT)
    _add_wait(parser)
    options = parser.parse(argv)
    if options.model is not None:
        if options.folder is not None:
            parser.error(f"give --model or the run {options.run}, not both")
        options.run, options.folder = options.model, options.run
    if options.folder is not None and is_named(options.run):
        return options
    if options.folder is None and options.run.suffix in ENDINGS:
        parser.error(f"name the run that was adapted to such embeddings: RUN {options.run}")
    is_run = runs.is_run(options.run) or runs.is_begun(options.run)
    if options.folder is None and options.run.is_dir() and not is_run:
        options.run, options.folder = Path(runs.PHOTOS), options.run
    if options.folder is not None and options.split is not None:
        parser.error("give a folder of photos or a --split of the run's own data, not both")
    if options.run.is_file():
        parser.error(f"{options.run} is a file; name its folder, or use 'gaussmatch index add'")
    given, options.run = options.run, runs.locate(options.run)
    if not options.run.exists():
        parser.error(f"{given}: no such folder of photos, nor a run")
    if options.folder is None and runs.is_shipped(options.run):
        parser.error(f"{given} is the model in the package; name the folder of your photos")
    return options


def _add(argv: Sequence[str]) -> None:
    """INDEX PHOTO …           add photos, with the ids that update would give them"""
    parser = _parser(
        "add",
        "Add single photos to an index. Those in its folder get the ids that 'update' would give "
        "them, others have their path as id.",
        "photos.index dog.jpg cat.jpg",
        "photos.index --replace dog.jpg",
        computes=True,
        writes=True,
    )
    parser.add_argument("photos", type=Path, nargs="+")
    parser.flag("--replace", "replace items with the same id")
    options = parser.parse(argv)
    index = Index.open(options.index, wait=options.wait)
    done = add_photos(index, options.photos, replace=options.replace)
    if not done.added + done.changed:
        raise ValueError("; ".join(f"{id_}: {reason}" for id_, reason in done.skipped.items()))
    _report(done)
    print(_summary(index))


def _delete(argv: Sequence[str]) -> None:
    """INDEX ID …              delete items"""
    parser = _parser(
        "delete",
        "Delete items of an index by their ids.",
        "photos.index dog.jpg",
        "photos.index --gallery captions test/12",
        writes=True,
    )
    parser.add_argument("ids", nargs="+")
    parser.add_argument("--gallery", choices=GALLERIES, default="images")
    options = parser.parse(argv)
    index = Index.open(options.index, wait=options.wait)
    gone = index.delete(options.ids, options.gallery)
    print(f"{gone} deleted\n{_summary(index)}")


def _update(argv: Sequence[str]) -> None:
    """INDEX [FOLDER]          encode what is new or changed, delete what is gone"""
    parser = _parser(
        "update",
        "Bring an index up to date with the photos of a folder.",
        "photos.index",
        "photos.index my-photos --strict",
        computes=True,
        writes=True,
    )
    parser.path("folder", "default: the folder used last time", nargs="?")
    parser.flag("--strict", STRICT)
    parser.flag("--yes", "also if more than half of the photos are gone")
    options = parser.parse(argv)
    index = Index.open(options.index, wait=options.wait)
    folder = options.folder or index.own_folder
    if folder is None:
        said = (index.manifest.source or {}).get("folder")
        why = (
            "was not made from a folder"
            if said is None
            else (f"names the folder {said}, but another user or machine made it")
        )
        parser.error(f"{options.index} {why}; name the folder")
    _report(update(index, folder, strict=options.strict, delete_most=options.yes))
    print(_summary(index))


def _merge(argv: Sequence[str]) -> None:
    """NEW INDEX …             merge indexes into a new one, or copy one"""
    parser = Parser(
        "index merge",
        "Merge several indexes of one model into one. Each is a folder or milvus:…: so this also "
        "moves an index into Milvus, or back into a folder.",
        examples=["all.index 2023.index 2024.index", "milvus:photos.db photos.index"],
    )
    parser.take("out", "the merged index: a new folder, or milvus:…", type=place)
    parser.add_argument("indexes", type=place, nargs="+")
    parser.take("--structure", "default: that of the first", choices=STRUCTURES)
    parser.flag("--replace", "for equal ids, keep the last")
    options = parser.parse(argv)
    settings = None
    if options.structure is not None:
        first = Index.open(options.indexes[0])
        settings = replace(first.settings, structure=options.structure)
        first.close()
    merged = merge_indexes(options.out, options.indexes, settings=settings, replace=options.replace)
    print(_summary(merged))


def _compact(argv: Sequence[str]) -> None:
    """INDEX [--structure NAME]     join segments, drop deleted items, change the structure"""
    parser = _parser(
        "compact",
        "Join the segments of an index and drop deleted items.",
        "photos.index",
        "photos.index --structure hnsw --search 128",
        "postgresql://host/photos --field taken:text",
        writes=True,
    )
    parser.take("--structure", "change how it is searched", choices=STRUCTURES)
    _add_search(parser)
    options = parser.parse(argv)
    index = Index.open(options.index, wait=options.wait)
    _apply_settings(index, options)
    index.compact()
    print(_summary(index))


def _apply_settings(index: Index, options: Namespace) -> None:
    """Change how an index is searched, if an option says so."""
    settings = _chosen(index.settings, options, index.place)
    if settings != index.settings:
        index.set_settings(settings)


def _chosen(settings: IndexSettings, options: Namespace, where: Place) -> IndexSettings:
    if options.field and isinstance(place(os.fspath(where)), Path):
        raise ValueError(f"{where}: --field is for databases; a folder filters by any field as is")
    changes = {"structure": options.structure, "search": options.search}
    changes["fields"] = {**settings.fields, **dict(options.field)} if options.field else None
    return replace(
        settings, **{name: value for name, value in changes.items() if value is not None}
    )


def _drop(argv: Sequence[str]) -> None:
    """INDEX --yes             remove an index"""
    parser = _parser(
        "drop",
        "Remove an index with all its items; other files in its folder stay.",
        "photos.index --yes",
        "milvus:http://localhost:19530 --yes",
    )
    parser.flag("--yes", "confirm; this cannot be undone")
    options = parser.parse(argv)
    if not options.yes:
        parser.error(f"add --yes to remove {options.index} with all its items")
    index = Index.open(options.index)
    summary = _summary(index)
    index.drop()
    print(f"removed {summary}")


def _info(argv: Sequence[str]) -> None:
    """INDEX                   what is in it"""
    parser = _parser("info", "Describe an index, as JSON.", "photos.index", "milvus:photos.db")
    print(json.dumps(Index.open(parser.parse(argv).index).info(), indent=2))


def _verify(argv: Sequence[str]) -> None:
    """INDEX                   check every file against its checksum"""
    parser = _parser("verify", "Check every file of an index against its checksum.", "photos.index")
    index = Index.open(parser.parse(argv).index, verify=True)
    print(f"intact: {_summary(index)}")


def _backup(argv: Sequence[str]) -> None:
    """INDEX NEW               copy it, even while others write to it"""
    parser = _parser(
        "backup",
        "Copy an index to a new place: a consistent copy, even while others write to it.",
        "photos.index /backup/photos-monday",
        "milvus:http://localhost:19530 /backup/photos",
    )
    parser.take("new", "a new folder, or milvus:…", type=place)
    options = parser.parse(argv)
    print(_summary(backup(options.new, options.index)))


def _restore(argv: Sequence[str]) -> None:
    """BACKUP INDEX            make an index from a backup, verifying it first"""
    parser = Parser(
        "index restore",
        "Make an index from a backup, which is verified first. The place must be free: move a "
        "damaged index away, or remove it with 'gaussmatch index drop'.",
        examples=["/backup/photos-monday photos.index"],
    )
    parser.add_argument("backup", type=place)
    parser.take("index", "a new folder, or milvus:…", type=place)
    options = parser.parse(argv)
    print(_summary(backup(options.index, options.backup)))


VERBS: dict[str, Callable[[Sequence[str]], None]] = {
    "add": _add,
    "delete": _delete,
    "update": _update,
    "merge": _merge,
    "compact": _compact,
    "drop": _drop,
    "info": _info,
    "verify": _verify,
    "backup": _backup,
    "restore": _restore,
}


def _parser(
    verb: str, text: str, *examples: str, computes: bool = False, writes: bool = False
) -> Parser:
    parser = Parser(f"index {verb}", text, examples=examples, computes=computes)
    parser.add_argument("index", type=place)
    if writes:
        _add_wait(parser)
    return parser


def _add_search(parser: Parser) -> None:
    parser.take("--search", WIDTH, type=int)
    parser.many(
        "--field",
        "metadata that is often filtered by: a database keeps it in an indexed column of this "
        "type (text, number or truth; a date is a text); may be repeated",
        type=declared_field,
        metavar="NAME:TYPE",
    )


def declared_field(word: str) -> tuple[str, str]:
    """
    >>> declared_field("taken:text")
    ('taken', 'text')
    """
    name, _, type_ = word.rpartition(":")
    if not name or type_ not in FIELD_TYPES:
        raise ArgumentTypeError(f"{word!r}: write NAME:TYPE with {', '.join(FIELD_TYPES)}")
    return name, type_


def _add_wait(parser: Parser) -> None:
    parser.take("--wait", "seconds to wait while another process writes", 30, type=float)


def _report(changes: Changes) -> None:
    print(f"{changes.added} added, {changes.changed} changed, {changes.deleted} deleted")
    for id_, reason in changes.skipped.items():
        print(f"skipped: {plain(id_)}: {plain(reason)}")
    for line in describe_ignored(changes.ignored):
        print(f"not indexed: {line}")


def _summary(index: Index) -> str:
    images, captions = index.size("images"), index.size("captions")
    settings = index.settings
    return (
        f"{index.place}: {images:,} images, {captions:,} captions, {settings.structure}, "
        f"{index.manifest.similarity}"
    )
