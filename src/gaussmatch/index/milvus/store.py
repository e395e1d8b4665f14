"""What an index in Milvus is made of: its collections, and the files that go with them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Self, TypeVar

from gaussmatch.files import write_json
from gaussmatch.index.checks import check_one_origin
from gaussmatch.index.index import Index
from gaussmatch.index.layout import (
    CALIBRATION,
    FORMAT,
    GALLERIES,
    MANIFEST,
    RUN,
    Gallery,
    Manifest,
    Part,
    known,
)
from gaussmatch.index.lift import FILE as LIFT
from gaussmatch.index.lift import Lift
from gaussmatch.index.milvus import rows as coding
from gaussmatch.index.milvus.about import About
from gaussmatch.index.milvus.address import Address
from gaussmatch.index.milvus.client import NO_COLLECTION, Client, MilvusError, connect
from gaussmatch.index.milvus.gallery import Collection
from gaussmatch.index.model_copy import hashes
from gaussmatch.index.settings import Settings
from gaussmatch.model import Model
from gaussmatch.run import load
from gaussmatch.similarities import Similarity
from gaussmatch.similarities import similarity as similarity_called
from gaussmatch.trust import Calibration

T = TypeVar("T")


class MilvusStore(Index):
    """Three collections: NAME_images_N and NAME_captions_N, made when their first items come, and
    NAME_about, which keeps model, calibration, manifest and lifts: the index is self-contained.
    """

    def __init__(self, path: str | os.PathLike[str], client: Client | None = None) -> None:
        self.address = Address.of(os.fspath(path))
        self.path = Path(str(self.address))
        self._client = connect(self.address) if client is None else client
        self._about = About(self._client, self.address.name)
        self._scratch = Path(tempfile.mkdtemp(prefix="gaussmatch-"))
        self._finish = weakref.finalize(self, _finish, self._client, self._scratch)
        self._collections: dict[str, Collection] = {}
        try:
            self.manifest = self._read_manifest()
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        run: str | os.PathLike[str] | None = None,
        *,
        similarity: str | None = None,
        settings: Settings | None = None,
        calibration: Calibration | None = None,
    ) -> Self:
        """A new, empty index; see ``Index.create``."""
        address, settings = Address.of(os.fspath(path)), settings or Settings()
        check_one_origin(run, similarity)
        used = similarity_called(str(similarity)) if run is None else load(run).matcher.similarity
        _check_lift(used)
        client = connect(address, make=True)
        about = About(client, address.name)
        try:
            if about.open() and about.read(MANIFEST) is not None:
                raise FileExistsError(f"{address} is an index already; add to it, or name another")
            about.create()
            known_run = {} if run is None else hashes(Path(run))
            for name in known_run:
                about.write(f"{RUN}/{name}", (Path(run or "") / name).read_bytes())
            write_calibration(about, calibration or Calibration())
            _write_manifest(about, Manifest(used.name, asdict(settings), known_run))
        except BaseException:
            client.close()
            raise
        return cls(path, client)

    @property
    def place(self) -> str:
        return str(self.address)

    def reload(self) -> bool:
        """See another model or form of the index; items are always seen as they are."""
        manifest = self._read_manifest()
        if manifest == self.manifest:
            return False
        self.manifest, self._collections = manifest, {}
        self.__dict__.pop("calibration", None)
        (self._scratch / CALIBRATION).unlink(missing_ok=True)
        return True

    def drop(self) -> None:
        """Remove the index from the server, with what killed processes left of it; it is closed.
        Its files go last: after a kill it can be dropped again."""
        ours = re.compile(rf"{self.address.name}_({'|'.join(GALLERIES)})_\d+")
        there = [name for name in self._client("list_collections") if ours.fullmatch(name)]
        for name in there:
            self._client.drop(name, coding.FIELDS)
        self._about.drop()
        self.close()

    def close(self) -> None:
        """Leave the server; an embedded one stops with the process."""
        self._finish()

    # ---- the model ----

    @cached_property
    def model(self) -> Model:
        if not self.manifest.run:
            raise ValueError(f"{self.address} holds bare Gaussians: it has no model to encode with")
        return load(self.run_folder or "")

    @property
    def run_folder(self) -> Path | None:
        """Brought here once."""
        for name in self.manifest.run:
            self._fetch(f"{RUN}/{name}")
        return self._scratch / RUN if self.manifest.run else None

    @cached_property
    def calibration(self) -> Calibration:
        return Calibration.load(self._fetch(CALIBRATION))

    # ---- inside ----

    def _fresh(self, ask: Callable[[], T]) -> T:
        """Ask; and again if another process has put a new collection in the place of the old."""
        try:
            return ask()
        except MilvusError as error:
            if error.code != NO_COLLECTION or not self.reload():
                raise
        return ask()

    @property
    def _form(self) -> dict[str, int]:
        return dict(self.manifest.form or {})

    def _held(self, gallery: Gallery) -> Collection | None:
        """The collection of a gallery; ``None`` before its first item."""
        if not self.manifest.galleries[known(gallery)]:
            self.reload()  # another process may have been the first
        if gallery not in self._collections:
            parts = self.manifest.galleries[gallery]
            if not parts:
                return None
            name = parts[0].name
            self._fetch(f"{name}/{LIFT}")
            lift = Lift.load(self._scratch / name, self.similarity, gallery)
            self._client("load_collection", name)
            self._collections[gallery] = self._collection(name, gallery, self._form, lift)
        return self._collections[gallery]

    def _collection(
        self, name: str, gallery: Gallery, form: dict[str, int], lift: Lift
    ) -> Collection:
        return Collection(
            self._client, name, gallery, form, lift, self.settings, self.address.consistency
        )

    def _new_collection(
        self,
        gallery: Gallery,
        form: dict[str, int],
        lift: Lift,
        typical: int,
        old: Collection | None = None,
    ) -> Collection:
        """An empty collection, or one with the items of another, that is from now on the one."""
        name = f"{self.address.name}_{gallery}_{self.manifest.generation + 1}"
        self._client.drop(name, coding.FIELDS)  # of a process that was killed
        self._client(
            "create_collection",
            name,
            schema=coding.schema(form, lift, self.address.mmap),
            index_params=coding.index_params(lift, self.settings),
            consistency_level=self.address.consistency,
        )
        folder = self._scratch / name
        folder.mkdir(exist_ok=True)
        lift.save(folder)
        self._about.write(f"{name}/{LIFT}", (folder / LIFT).read_bytes())
        made = self._collection(name, gallery, form, lift)
        for some in () if old is None else old.all([*old.wanted(), "thumbnail"]):
            again = coding.rows(coding.gaussian(some, form), [*map(coding.record, some)], lift)
            for batch in coding.batches(again):
                self._client("upsert", name, batch)
        part = Part(name, typical, self.settings.kind, {})
        self._keep(replace(self.manifest.with_parts(gallery, (part,)), form=form))
        self._collections[gallery] = made
        return made

    def _fetch(self, file: str) -> Path:
        """A file of the index, brought here once."""
        path = self._scratch / file
        if not path.is_file():
            content = self._about.read(file)
            if content is None:
                raise ValueError(f"{self.address}: {file} is missing; make the index again")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return path

    def _read_manifest(self) -> Manifest:
        content = self._about.read(MANIFEST) if self._about.open() else None
        if content is None:
            raise FileNotFoundError(
                f"{self.address}: no index of this name; make one with 'gaussmatch index'"
            )
        (self._scratch / MANIFEST).write_bytes(content)
        return Manifest.load(self._scratch)

    def _keep(self, manifest: Manifest) -> None:
        self.manifest = _write_manifest(self._about, manifest)


def _finish(client: Client, scratch: Path) -> None:
    """Also when nobody closed the index."""
    client.close()
    shutil.rmtree(scratch, ignore_errors=True)


def _write_manifest(about: About, manifest: Manifest) -> Manifest:
    """Takes the place of the old one in one step, as it is one row."""
    new = replace(manifest, generation=manifest.generation + 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / MANIFEST
        write_json(file, {"format": FORMAT, **asdict(new)})
        about.write(MANIFEST, file.read_bytes())
    return new


def _check_lift(similarity: Similarity) -> None:
    if similarity.no_lift is not None:
        raise ValueError(
            f"{similarity.name} cannot be kept in Milvus: "
            f"{similarity.no_lift}; an index in a folder looks at every item"
        )


def write_calibration(about: About, calibration: Calibration) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / CALIBRATION
        calibration.save(file)
        about.write(CALIBRATION, file.read_bytes())
