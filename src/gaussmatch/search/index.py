"""The index as a user sees it: search in words, with a picture or with an item, and learn how far
each answer can be trusted. Where the items are kept is the backend's business."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.core.similarities import similarity as similarity_called
from gaussmatch.core.similarities.base import other_side
from gaussmatch.data.asked import read_query
from gaussmatch.data.language import canonical
from gaussmatch.files import remember_folder, remembered_folder
from gaussmatch.lazy import torch
from gaussmatch.models.run import CALIBRATION, load, load_model, locate
from gaussmatch.models.texts import Reading, TextSide
from gaussmatch.search.backend import Backend, Block
from gaussmatch.search.backends import Place, backend_of
from gaussmatch.search.catalog import Catalog, NameHits
from gaussmatch.search.checks import check_form, check_items, check_structure
from gaussmatch.search.hits import Hits
from gaussmatch.search.manifest import (
    GALLERIES,
    Gallery,
    IndexManifest,
    IndexSettings,
    Record,
    UnknownItemError,
    check_unchanged,
    hashes,
    known,
)
from gaussmatch.search.query import Queries, Query, Scope, Searched, run, search
from gaussmatch.search.suggest import Suggestion, examples, suggest
from gaussmatch.search.trust import Calibration
from gaussmatch.search.trust.calibration import Promise
from gaussmatch.search.trust.familiarity import Features
from gaussmatch.search.where import Condition, UnknownFieldError, Where, unknown_field

if TYPE_CHECKING:
    from gaussmatch.models.model import Model, Pictures

RUN = "run"
Filter = Mapping[str, Any] | Where | None
T = TypeVar("T")
SAMPLES = 4
"""Filters whose samples of the gallery are kept, lifted."""
AT_A_TIME = 256
"""Pictures that are encoded together, at most."""


class Index:
    """Galleries of Gaussians, searched by the model's own similarity.

    .. code-block:: python

        index = Index.open("photos.index")
        for hit in index.search_text(["two dogs in the snow"], k=5)[0].hits:
            print(hit.id, hit.score, hit.probability, hit.fit)

    Any number of processes may read an index while one writes.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        backend.similarity = self.among
        self._calibration: tuple[object, Calibration] | None = None
        self._samples: dict[Hashable, Callable[[ArrayGaussian], np.ndarray]] = {}

    @classmethod
    def open(cls, place: Place, *, wait: float = 30, verify: bool = False) -> Self:
        """An index in a folder, or in Milvus (``milvus:demo.db``, ``milvus:http://host:19530``).
        Nothing is loaded until it is needed.

        Args:
            wait: seconds that a change waits for another writer.
            verify: read every file first and hold it against its checksum.
        """
        index = cls(backend_of(place).open(os.fspath(place)))
        index.backend.wait = wait
        if verify:
            index.verify()
        return index

    @classmethod
    def create(
        cls,
        place: Place,
        run: Place | None = None,
        *,
        similarity: str | None = None,
        settings: IndexSettings | None = None,
        calibration: Calibration | None = None,
        source: Mapping[str, object] | None = None,
    ) -> Self:
        """A new, empty index.

        Args:
            run: the run folder of the model; it is copied in. Or else
            similarity: its name, for an index of bare Gaussians that no model can query.
            calibration: see ``calibrate``; without one there are no percentiles and probabilities.
            source: where its items will come from (``note_source``), known from its first moment.
        """
        if (run is None) == (similarity is None):
            raise ValueError("an index needs a run, or the name of a similarity, and not both")
        if run is None:
            used = similarity_called(str(similarity))
            return cls.with_model(place, None, used, settings, calibration, source)
        model = load(run)
        used = model.matcher.similarity
        index = cls.with_model(place, locate(run), used, settings, calibration, source)
        index.model = model  # the files that were copied
        return index

    @classmethod
    def with_model(
        cls,
        place: Place,
        folder: Path | None,
        used: Similarity,
        settings: IndexSettings | None = None,
        calibration: Calibration | None = None,
        source: Mapping[str, object] | None = None,
    ) -> Self:
        """As ``create``, with a copy of model files that are verified: those of another index."""
        backend, settings = backend_of(place), settings or IndexSettings()
        check_structure(used, settings, backend.scans, os.fspath(place))
        known_run = {} if folder is None else hashes(folder)
        files = {} if folder is None else {f"{RUN}/{n}": folder / n for n in known_run}
        manifest = IndexManifest(used.name, asdict(settings), known_run, source=source)
        index = cls(backend.create(os.fspath(place), manifest, files))
        if calibration is not None and calibration != Calibration():
            index.set_calibration(calibration)
        return index

    def close(self) -> None:
        """Leave the place; an embedded server stops with its last client."""
        self.backend.close()

    def drop(self) -> None:
        """Remove the index, with all its items."""
        self.backend.drop()

    def reload(self) -> bool:
        """See what other processes have written since; whether there was anything."""
        before, changed = self._made_with, self.backend.reload()
        if self._made_with != before:  # another index has taken its place
            for name in ("model", "similarity", "_text_side"):
                self.__dict__.pop(name, None)
            self._calibration = None
            self._samples.clear()
        return changed

    def verify(self) -> None:
        """Read everything, and hold it against its checksums; damage is named."""
        faults = list(self.backend.faults())
        if faults:
            raise ValueError(
                f"{self.place} is damaged; restore it from a backup:\n  " + "\n  ".join(faults)
            )

    # ---- what is in it ----

    @property
    def place(self) -> str:
        """Where it is, as a user would type it."""
        return self.backend.place

    @property
    def manifest(self) -> IndexManifest:
        return self.backend.manifest

    @property
    def settings(self) -> IndexSettings:
        return self.backend.settings

    @property
    def _made_with(self) -> tuple[Mapping[str, str], str]:
        """The files of the model, and the similarity."""
        return self.manifest.run, self.manifest.similarity

    @property
    def run_folder(self) -> Path | None:
        """The files of its model; ``None`` for an index of bare Gaussians."""
        found = [self.backend.file(f"{RUN}/{name}") for name in self.manifest.run]
        if None in found:
            raise ValueError(f"{self.place}: a file of its model is missing; restore the index")
        return found[0].parent if found and found[0] else None

    @cached_property
    def model(self) -> Model:
        """The model that the index was made with."""
        folder = self.run_folder
        if folder is None:
            raise ValueError(f"{self.place} holds bare Gaussians: it has no model to encode with")
        check_unchanged(folder, self.manifest.run)
        return load_model(folder)

    @property
    def texts(self) -> Model | TextSide:
        """What reads words: the model, if it is loaded, or else its text side, which needs no
        torch. One that is not kept yet is kept for the next process."""
        if "model" in self.__dict__:
            return self.model
        if self._text_side is None:
            from gaussmatch.models.published import keep_texts

            keep_texts(self.model, self.manifest.run)
        return self._text_side or self.model

    @cached_property
    def _text_side(self) -> TextSide | None:
        return TextSide.of(self.manifest.run) if self.manifest.run else None

    @cached_property
    def similarity(self) -> Similarity:
        if not self.manifest.run:
            return similarity_called(self.manifest.similarity)
        if "model" in self.__dict__ or self._text_side is None:
            return self.model.matcher.similarity
        return self._text_side.similarity

    @property
    def calibration(self) -> Calibration:
        """Read when it is first needed, and again when another has taken its place."""
        mark = self.manifest.files.get(CALIBRATION)
        held, now = self._calibration, mark or self.manifest.generation
        if held is None or held[0] != now:
            file = self.backend.file(CALIBRATION)
            if file is None and mark is not None:
                raise ValueError(
                    f"{self.place}: its {CALIBRATION} is missing; restore the index, or calibrate "
                    "it again"
                )
            held = now, Calibration() if file is None else Calibration.load(file)
            self._calibration = held
        return held[1]

    def size(self, gallery: Gallery = "images") -> int:
        """Items in a gallery."""
        return self.fresh(lambda: self.backend.size(known(gallery)))

    def __len__(self) -> int:
        return sum(self.size(gallery) for gallery in GALLERIES)

    def __contains__(self, id: str) -> bool:
        return any(self.backend.held([id], gallery) for gallery in GALLERIES)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{self.size(g):,} {g}" for g in GALLERIES)
        return (
            f"Index({self.place!r}: {sizes}, {self.settings.structure}, {self.manifest.similarity})"
        )

    def records(self, gallery: Gallery = "images") -> Iterator[Record]:
        """All items of a gallery, without thumbnails."""
        return self.backend.records(known(gallery))

    def blocks(self, gallery: Gallery = "images") -> Iterator[Block]:
        """All items of a gallery with Gaussian and thumbnail, some at a time."""
        return self.backend.blocks(known(gallery))

    def some(self, most: int, gallery: Gallery = "images") -> tuple[list[Record], Gaussian | None]:
        """At most ``most`` items of a gallery, with their Gaussians."""
        found = self.backend.some(most, known(gallery))
        return ([], None) if found is None else (found[1], found[0])

    def get(self, id: str, gallery: Gallery = "images") -> Record:
        """One item, with its thumbnail."""
        return self._item(id, gallery)[1]

    def gaussian(self, id: str, gallery: Gallery = "images") -> Gaussian:
        """The Gaussian of one item, as a batch of one."""
        return self._item(id, gallery)[0]

    def fields(self, gallery: Gallery = "images") -> list[str]:
        """The metadata that items have, by name: what ``where`` can filter by."""
        return sorted(self.backend.fields(known(gallery)))

    def info(self) -> dict[str, Any]:
        """What is in it, for people and for a health check."""
        return {
            "path": self.place,
            **{gallery: self.size(gallery) for gallery in GALLERIES},
            "structure": self.settings.structure,
            "similarity": self.manifest.similarity,
            "form": dict(self.manifest.form or {}),
            **self.backend.describe(),
            "generation": self.manifest.generation,
            "source": self.manifest.source,
            "model": dict(self.manifest.run),
            "calibration": dict(self.calibration.about),
        }

    # ---- search ----

    def search(
        self,
        queries: Gaussian | Query | Sequence[Query],
        k: int = 10,
        *,
        gallery: Gallery = "images",
        side: Gallery | None = None,
        where: Filter = None,
        exclude: Collection[str] = (),
        guarantee: float | None = None,
        promise: Promise = "recall",
    ) -> list[Hits]:
        """The k best items of a gallery for each query; fewer only if there are fewer.

        The query plays the part that the gallery does not: among images it is scored as a caption,
        also if it is an image itself. Words are read in their canonical form; those without any
        known word are refused, and for misspelled ones the result says what may have been meant.

        Args:
            queries: Gaussians; or queries of any kind, see ``Query``, which are encoded together.
            side: what Gaussians are, for their percentiles and for P(fits), which is only known
                across sides; the other side than the gallery if not given.
            where: conditions on metadata, see ``Where``; exact, whatever the structure. If no item
                has the field, ``UnknownFieldError``, unless those without it are wanted.
            exclude: ids that must not be found.
            guarantee: instead of k results, as many as it takes to keep a promise (at least one),
                of queries like those that were judged, see ``metrics.RiskControl``. Not for a
                combined query, nor for one that excludes something.
            promise: ``"recall"``: they hold at least this share of all that fits, in the mean;
                ``"one"``: they hold the item that is meant with at least this probability.
        """
        scope = Scope(k, gallery, Where.of(where), tuple(exclude), guarantee, promise)
        every = [queries] if isinstance(queries, Query) else queries
        if not isinstance(every, list | tuple) or not all(isinstance(one, Query) for one in every):
            given = Queries(queries, side or other_side(gallery))  # type: ignore[arg-type]
            return search(self, given, scope, k)  # which names what it cannot take
        searches = [Searched(one, scope) for one in every]
        run(self, searches)
        return [one.hits for one in searches]

    def search_text(self, texts: Sequence[str], k: int = 10, **options: Any) -> list[Hits]:
        """Captions as queries, see ``search``."""
        every = [texts] if isinstance(texts, str) else texts
        return self.search([Query(text) for text in every], k, **options)

    def search_image(self, pictures: Pictures, k: int = 10, **options: Any) -> list[Hits]:
        """Pictures (paths, PIL images, or ready features) as queries, see ``search``."""
        from PIL import Image

        every: Iterable[Any] = pictures
        if isinstance(pictures, str | os.PathLike | Image.Image):
            every = [pictures]
        return self.search([Query(picture=picture) for picture in every], k, **options)

    def search_id(self, id: str, k: int = 10, *, of: Gallery = "images", **options: Any) -> Hits:
        """An item of the index as the query: more like this (it is not found itself), or with
        ``gallery="captions"`` the captions nearest to an image.

        Args:
            of: the gallery that the item is in.
        """
        return self.search(Query(item=id, of=of), k, **{"gallery": of, **options})[0]

    def encode_texts(
        self, read: Sequence[Reading]
    ) -> tuple[Gaussian | ArrayGaussian, np.ndarray | None]:
        """Captions that the model has read, in canonical form, as queries; and how familiar they
        are, (n) p-values or ``None``."""
        rows: Any = self.texts.featurize_texts(read)
        g = self.texts.encode_rows(rows)
        texts = [reading.text for reading in read]
        return g, self.calibration.familiar("captions", Features.of(rows, g), texts)

    def encode_images(self, pictures: Pictures) -> tuple[Gaussian, np.ndarray | None]:
        """Pictures as queries, and how familiar they are, (n) p-values or ``None``."""
        gaussians, strange = [], []
        for start in range(0, len(pictures), AT_A_TIME):
            some = pictures[start : start + AT_A_TIME]
            inputs = (
                some if isinstance(some, torch.Tensor | np.ndarray) else self.model.featurize(some)
            )
            g = self.model.encode_images(inputs)
            gaussians.append(g)
            strange.append(self.calibration.familiar("images", Features.of(inputs, g)))
        known = [p for p in strange if p is not None]
        return Gaussian.cat(gaussians), np.concatenate(known) if known else None

    def words_of(self, reading: Reading) -> tuple[list[str], dict[str, str]]:
        """The words of a text that the model does not know; and for some of them the one that was
        probably meant."""
        unknown = self.calibration.unknown_words(reading)
        meant = {word: self.calibration.words.meant(word) for word in unknown}
        return unknown, {word: other for word, other in meant.items() if other is not None}

    def search_names(self, text: str, k: int = 10) -> NameHits:
        """Pictures whose folder, file name or captions hold all words of a query, and folders that
        are called so. To look up many, keep a ``Catalog(index.records())``."""
        return Catalog(self.records()).named(text, k)

    def suggest(self, text: str, k: int = 5) -> list[Suggestion]:
        """Captions of the index that say the same as a query more exactly, see ``suggest``."""
        if not self.size("captions"):
            return []
        plain = canonical(read_query(text).words or text)
        return suggest(self, plain, self.model.encode_texts([plain]), k)

    def examples(self, most: int = 5) -> list[str]:
        """Searches to try, from vague to precise; see ``suggest.examples``."""
        return examples(self, most)

    def ambiguity(self, id: str) -> dict[str, float]:
        """How ambiguous an image is, gauge → percentile among training images: ``fits_many``
        captions, can be described in ``many_ways``. Only gauges that a probe has confirmed."""
        return self.calibration.ambiguity(self.gaussian(id))[0]

    def together(
        self, parts: Sequence[Gaussian | ArrayGaussian], gallery: Gallery = "images"
    ) -> Gaussian:
        """One query of several, such as a picture and words: their product, "like this, but at
        night". Each Gaussian has the power that makes its scores of training items spread
        equally, as pictures are far more like each other than like any words."""
        every = [g if isinstance(g, Gaussian) else g.gaussian() for g in parts]
        known_items = self.calibration.reference.get(known(gallery))
        if known_items is None:
            return Gaussian.product(every)
        scores = self.among(gallery).arrays_against(known_items, gallery)
        powers = [1 / max(float(scores(g.numpy()).std(ddof=1)), 1e-9) for g in every]
        return Gaussian.product(every, [len(parts) * power / sum(powers) for power in powers])

    # ---- change ----

    def add(
        self,
        gaussians: Gaussian,
        records: Sequence[Record],
        gallery: Gallery = "images",
        *,
        replace: bool = False,
    ) -> None:
        """Add items; in a folder either all of them count or, if interrupted, none.

        Args:
            replace: an item whose id is there takes its place; otherwise it is refused.
        """
        gaussians = check_items(gaussians, records)
        if not records:
            return
        with self.backend.writing():
            form = check_form(gaussians, self.manifest.form, self.similarity)
            ids = [record.id for record in records]
            if not replace and (there := self.backend.held(ids, known(gallery))):
                first = next(id_ for id_ in ids if id_ in there)
                raise ValueError(
                    f"{first!r} is in the index already; replace it, or give another id"
                )
            self.backend.add(gaussians, records, known(gallery), form)

    def delete(
        self, ids: Iterable[str], gallery: Gallery = "images", *, missing_ok: bool = False
    ) -> int:
        """Delete items by id; gives how many. An id that is not there is refused."""
        wanted = list(dict.fromkeys(ids))
        with self.backend.writing():
            there = self.backend.held(wanted, known(gallery))
            lost = [id_ for id_ in wanted if id_ not in there]
            if lost and not missing_ok:
                raise UnknownItemError(lost[0], gallery, self.place)
            if there:
                self.backend.delete([id_ for id_ in wanted if id_ in there], gallery)
        return len(there)

    def compact(self, gallery: Gallery | None = None) -> None:
        """Join what was added bit by bit in a gallery (in all), forget what was deleted, and build
        the structure that the settings ask for."""
        with self.backend.writing():
            for name in GALLERIES if gallery is None else (known(gallery),):
                self.backend.compact(name)

    def set_settings(self, settings: IndexSettings) -> None:
        """Search it another way from now on; if that fails, as before."""
        check_structure(self.similarity, settings, self.backend.scans, self.place)
        before = self.manifest.settings
        with self.backend.writing():
            self.backend.save(replace(self.manifest, settings=asdict(settings)))
        try:
            self.compact()
        except BaseException:
            with self.backend.writing():
                self.backend.save(replace(self.manifest, settings=before))
            raise

    def set_calibration(self, calibration: Calibration) -> None:
        """From now on scores and uncertainties are read so."""
        with tempfile.TemporaryDirectory() as folder, self.backend.writing():
            file = Path(folder) / CALIBRATION
            calibration.save(file)
            self.backend.save(self.manifest, {CALIBRATION: file.read_bytes()})

    def note_source(self, source: Mapping[str, object], here: bool = False) -> None:
        """Note where the items came from.

        Args:
            here: the user named this folder just now; see ``own_folder``.
        """
        if dict(source) != self.manifest.source:
            with self.backend.writing():
                self.backend.save(replace(self.manifest, source=dict(source)))
        if here:
            remember_folder(self.place, str(source["folder"]))

    @property
    def own_folder(self) -> Path | None:
        """The folder of photos that the index was made from, if this user did so on this machine.
        An index that was copied, restored elsewhere or merged may name any folder, and is not
        believed: photos of that folder are neither served nor looked for."""
        folder = (self.manifest.source or {}).get("folder")
        known_here = folder is not None and folder == remembered_folder(self.place)
        return Path(str(folder)) if known_here else None

    # ---- inside ----

    def among(self, gallery: Gallery) -> Similarity:
        """How queries are scored among the items of a gallery."""
        return self.similarity.for_query(other_side(gallery))

    def fresh(self, read: Callable[[], T]) -> T:
        """Read; and again if another process has replaced what was to be read."""
        made_with = self._made_with
        try:
            return read()
        except Exception as error:
            if not self.backend.stale(error) or not self.reload():
                raise
            if self._made_with != made_with:
                raise ValueError(
                    f"{self.place} has become an index of another model: encode the query again"
                ) from error
        return self.fresh(read)

    def _item(self, id: str, gallery: Gallery) -> tuple[Gaussian, Record]:
        found = self.fresh(lambda: self.backend.get(id, known(gallery)))
        if found is None:
            other = other_side(gallery)
            elsewhere = self.fresh(lambda: self.backend.get(id, other)) is not None
            raise UnknownItemError(id, gallery, self.place, other if elsewhere else None)
        return found

    def check_fields(self, where: Where, gallery: Gallery) -> None:
        """Refuse conditions on a field that no item has: they are misspelled. Those that find items
        without the field are not."""
        for name in where.needed if self.size(gallery) else ():
            has = Where((Condition(name, "not", ()),))
            if not sum(part.reach for part in self.backend.searchable(gallery, has, ())):
                fields = [known for known in self.fields(gallery) if known != name]
                raise UnknownFieldError(unknown_field([name], fields)[0])

    def samples(
        self, key: Hashable, make: Callable[[], Callable[[ArrayGaussian], np.ndarray]]
    ) -> Callable[[ArrayGaussian], np.ndarray]:
        """Queries → their scores with a sample of the gallery; a few are kept."""
        found = self._samples.pop(key, None) or make()
        while len(self._samples) >= SAMPLES:
            self._samples.pop(next(iter(self._samples)))
        self._samples[key] = found
        return found


open_index = Index.open


def existing_index(place: Place, **options: Any) -> Index | None:
    """The index, if there is one."""
    try:
        return Index.open(place, **options)
    except FileNotFoundError:
        return None
