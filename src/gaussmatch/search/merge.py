"""Several indexes of one model: searched as one, which is a backend too, or made into one, wherever
they are kept."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Self

from tqdm import tqdm

from gaussmatch.models.run import CALIBRATION
from gaussmatch.search.backend import BUILDING, Backend, Block
from gaussmatch.search.backends import Place, backend_of
from gaussmatch.search.index import Index
from gaussmatch.search.manifest import GALLERIES, Gallery, IndexManifest, IndexSettings, Record
from gaussmatch.search.topk import Searchable, Several
from gaussmatch.search.where import Where


def join(shards: Sequence[Index]) -> Index:
    """They are judged together, as the gallery that they are. An id that is in several shards
    counts once, where it scores best."""
    if not shards:
        raise ValueError("no indexes to search")
    check_one_model(shards)
    return Index(Joined(shards))


class Joined(Backend):
    """Reads from all; is changed nowhere."""

    def __init__(self, shards: Sequence[Index]) -> None:
        self.shards, self.place = list(shards), " + ".join(shard.place for shard in shards)
        self.remote = any(shard.backend.remote for shard in shards)
        forms = (shard.manifest.form for shard in shards)
        found = next((form for form in forms if form is not None), None)
        self.manifest = replace(shards[0].manifest, form=found)

    @classmethod
    def open(cls, place: str) -> Self:
        raise ValueError(f"{place}: open each index by itself, then join them with 'join'")

    @classmethod
    def create(cls, place: str, manifest: IndexManifest, files: Mapping[str, Path]) -> Self:
        return cls.open(place)

    def _unchanged(self, *_: object) -> None:
        raise ValueError(
            f"{self.place}: several indexes are searched as one; change each by itself"
        )

    drop = save = add = delete = _unchanged  # type: ignore[assignment]

    def reload(self) -> bool:
        return sum(shard.reload() for shard in self.shards) > 0  # each of them

    def stale(self, error: Exception) -> bool:
        return any(shard.backend.stale(error) for shard in self.shards)

    def alive(self) -> bool:
        return all(shard.backend.alive() for shard in self.shards)

    def file(self, name: str) -> Path | None:
        """A calibration is the first that was learned: an index whose making was interrupted has
        none."""
        learned = (shard for shard in self.shards if name != CALIBRATION or shard.calibration.about)
        return next(learned, self.shards[0]).backend.file(name)

    def size(self, gallery: Gallery) -> int:
        return sum(shard.size(gallery) for shard in self.shards)

    def fields(self, gallery: Gallery) -> set[str]:
        return {name for shard in self.shards for name in shard.fields(gallery)}

    def records(self, gallery: Gallery) -> Iterator[Record]:
        """An id that is in several shards once, as the first has it."""
        seen = set[str]()
        for record in chain.from_iterable(shard.records(gallery) for shard in self.shards):
            if record.id not in seen:
                seen.add(record.id)
                yield record

    def blocks(self, gallery: Gallery, ids: Sequence[str] | None = None) -> Iterator[Block]:
        return chain.from_iterable(shard.backend.blocks(gallery, ids) for shard in self.shards)

    def searchable(
        self, gallery: Gallery, where: Where, exclude: Collection[str]
    ) -> Sequence[Searchable]:
        parts: list[Searchable] = []
        for shard in self.shards:
            shard.backend.similarity = self.similarity  # of one model, which is loaded once
            found = shard.backend.searchable(gallery, where, exclude)
            parts += [part for part in found if part.reach]
        return [Several(parts, unique=True)]


def check_one_model(indexes: Sequence[Index]) -> None:
    """Refuse indexes whose Gaussians cannot be compared."""
    first, *others = indexes
    for other in others:
        a, b = ((i.manifest.run, i.manifest.similarity, i.manifest.form) for i in (first, other))
        if a[:2] != b[:2] or (a[2] and b[2] and a[2] != b[2]):
            raise ValueError(
                f"{other.place} was made with another model than {first.place}: their Gaussians "
                "cannot be compared; index its items again with one of the models"
            )


def merge(
    place: Place,
    sources: Sequence[Place],
    *,
    settings: IndexSettings | None = None,
    replace: bool = False,
    progress: bool = True,
) -> Index:
    """A new index with the items of all. The sources stay as they are; what is damaged in them is
    named, and nothing is made.

    Args:
        settings: those of the first if not given.
        replace: of two items with one id the later takes the place of the earlier; otherwise
            they are refused.
    """
    if not sources:
        raise ValueError("no indexes to merge")
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(Index.open(source))) for source in sources]
        check_one_model(opened)
        for source in opened:
            source.verify()
        first, calibrations = opened[0], [source.calibration for source in opened]
        learned = next((c for c in calibrations if c.about), calibrations[0])
        model = first.run_folder, first.similarity, settings or first.settings, learned
        with backend_of(place).building(os.fspath(place)) as work:
            merged = stack.enter_context(closing(Index.with_model(work, *model)))
            merged.note_source({BUILDING: [source.place for source in opened]})
            _fill(merged, opened, replace, progress)
            # the folder of photos is that of the parts, if it is one: then it can be updated
            folders = [source.manifest.source for source in opened]
            merged.note_source(folders[0] or {} if folders.count(folders[0]) == len(opened) else {})
    return Index.open(place)


def backup(place: Place, source: Place, *, progress: bool = True) -> Index:
    """A copy of an index at a new place, as it is at one moment, also while others write to it.
    Damage is named, and then nothing is made. To restore is to copy a backup back."""
    with closing(Index.open(source)) as index:
        if backend_of(place) is type(index.backend) and index.backend.copy(os.fspath(place)):
            return Index.open(place)
    return merge(place, [source], progress=progress)


def _fill(merged: Index, opened: Sequence[Index], replace: bool, progress: bool) -> None:
    total = sum(len(source) for source in opened)
    with tqdm(total=total, desc="merge", unit="item", disable=not progress) as bar:
        for source in opened:
            for gallery in GALLERIES:
                for gaussians, records in source.blocks(gallery):
                    merged.add(gaussians, records, gallery, replace=replace)
                    bar.update(len(records))
    merged.compact()
