"""The index as a user sees it: ask in words, with a picture, or with an item, and be told how
sure the answer is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.best import Best, best
from gaussmatch.index.hits import Hit, Hits
from gaussmatch.index.layout import GALLERIES, Gallery
from gaussmatch.index.segment import Segment
from gaussmatch.index.store import Store
from gaussmatch.index.where import Where
from gaussmatch.model import Pictures

Filter = Mapping[str, Any] | Where | None


class Index(Store):
    """Galleries of Gaussians on disk, searched by the model's own similarity.

    .. code-block:: python

        index = Index.open("photos.index")
        for hit in index.search_text(["two dogs in the snow"], k=5)[0].hits:
            print(hit.id, hit.score, hit.probability, hit.percentile)
    """

    def search(
        self,
        queries: Gaussian,
        k: int = 10,
        *,
        gallery: Gallery = "images",
        kind: Gallery | None = None,
        where: Filter = None,
        exclude: Collection[str] = (),
    ) -> list[Hits]:
        """The k best items of a gallery for each query; fewer only where there are fewer.

        The query plays the part that the gallery does not: among images it is scored as a caption,
        also where it is an image itself.

        Args:
            kind: what the queries are, for their percentiles and for the match probability, which
                is only known across kinds; the other kind than the gallery if not given.
            where: conditions on metadata, see ``Where``; exact, whatever the kind of index.
            exclude: ids that must not be found.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        queries = self._fit(queries.detach().to("cpu"))
        segments = self.segments(gallery)
        kind = kind or ("captions" if gallery == "images" else "images")
        condition, out = Where.of(where), list(exclude)
        try:
            allowed = [_allowed(segment, condition, out) for segment in segments]
            found = best(segments, queries, k, allowed, self.settings.rescore)
        except FileNotFoundError:  # another process has joined segments since
            if not self.reload():
                raise
            return self.search(queries, k, gallery=gallery, kind=kind, where=where, exclude=exclude)
        return self._hits(segments, found, queries, kind, gallery)

    def search_text(self, texts: Sequence[str], k: int = 10, **options: Any) -> list[Hits]:
        """Captions as queries, see ``search``. A caption without any known word is refused."""
        read = self.model.read([texts] if isinstance(texts, str) else texts)
        found = self.search(self.model.encode_texts(read), k, kind="captions", **options)
        return [replace(hits, unknown=r.unknown) for hits, r in zip(found, read, strict=True)]

    def search_image(self, pictures: Pictures, k: int = 10, **options: Any) -> list[Hits]:
        """Pictures (paths, PIL images, or ready features) as queries, see ``search``."""
        return self.search(self.model.encode_images(pictures), k, kind="images", **options)

    def search_id(self, id: str, k: int = 10, *, of: Gallery = "images", **options: Any) -> Hits:
        """An item of the index as the query: more like this (it is not found itself), or with
        ``gallery="captions"`` the captions nearest to an image.

        Args:
            of: the gallery that the item is in.
        """
        gallery = options.setdefault("gallery", of)
        if gallery == of:
            options["exclude"] = [*options.get("exclude", ()), id]
        return self.search(self.gaussian(id, of), k, kind=of, **options)[0]

    def info(self) -> dict[str, Any]:
        """What is in it, for people and for a health check."""
        return {
            "path": str(self.path),
            **{gallery: self.size(gallery) for gallery in GALLERIES},
            "kind": self.settings.kind,
            "similarity": self.manifest.similarity,
            "form": dict(self.manifest.form or {}),
            "segments": {
                g: [{"items": p.items, "deleted": p.dead, "structure": p.structure} for p in parts]
                for g, parts in self.manifest.galleries.items()
            },
            "generation": self.manifest.generation,
            "source": self.manifest.source,
            "model": dict(self.manifest.run),
            "calibration": dict(self.calibration.about),
        }

    # ---- inside ----

    def _fit(self, queries: Gaussian) -> Gaussian:
        """Queries in the form of the items."""
        form = self.manifest.form
        if queries.mean.ndim != 2:
            raise ValueError(f"queries must be a batch (n, D), got {tuple(queries.mean.shape)}")
        for values in (queries.mean, queries.log_var):
            if values is not None and not np.isfinite(values.numpy()).all():
                raise ValueError("a query holds a NaN or infinity")
        if form is None:
            return queries
        if queries.dim != form["dim"]:
            raise ValueError(f"queries have D = {queries.dim}, the index has D = {form['dim']}")
        if not self.similarity.needs_variance:
            return queries
        if queries.log_var is None:
            raise ValueError(f"{self.similarity.name} compares distributions; a query is a point")
        if queries.log_var.shape[-1] != form["variances"]:
            if form["variances"] == 1:
                raise ValueError("the index holds spheres; a query is an ellipsoid")
            return queries.expand()
        return queries

    def _hits(
        self,
        segments: Sequence[Segment],
        found: Best,
        queries: Gaussian,
        kind: Gallery,
        gallery: Gallery,
    ) -> list[Hits]:
        found = _there(found)
        unsure = None if queries.is_point else queries.uncertainty().double().numpy()
        told, items = _told(segments, found)
        of_items = None if items is None else items.reshape(found.score.shape)
        share = None if unsure is None else self.calibration.percentile(kind, unsure)
        shares = None if of_items is None else self.calibration.percentile(gallery, of_items)
        chance = None
        if kind != gallery:
            chance = self.calibration.match_probability(gallery, found.score, unsure, of_items)
        columns = (_listed(x, len(told)) for x in (found.score, chance, of_items, shares))
        ids, metas = [id_ for id_, _, _ in told], [meta for _, meta, _ in told]
        hits = list(map(Hit, ids, *columns, metas))
        (n, k), notes = found.score.shape, self._notes(kind, gallery, queries)
        own, percentiles = _listed(unsure, n), _listed(share, n)
        return [
            Hits(hits[q * k : (q + 1) * k], gallery, kind, own[q], percentiles[q], notes=notes)
            for q in range(n)
        ]

    def _notes(self, kind: Gallery, gallery: Gallery, queries: Gaussian) -> list[str]:
        notes = []
        if queries.is_point:
            notes.append("this is a point model: it has no uncertainty")
        elif self.similarity.uncertainty_note:
            notes.append(f"uncertainty: {self.similarity.uncertainty_note}")
        if kind == gallery:
            notes.append(
                f"the {kind[:-1]} is scored in the part of the other kind; no match probability"
            )
        return notes


def _allowed(segment: Segment, where: Where, exclude: list[str]) -> np.ndarray | None:
    """The rows that may be found; ``None`` if all."""
    allowed = None if segment.dead is None else ~segment.dead
    if where.conditions:
        matching = np.zeros(segment.part.items, dtype=bool)
        matching[segment.items.where(where)] = True
        allowed = matching if allowed is None else matching & allowed
    if exclude and (out := list(segment.rows_of(exclude).values())):
        allowed = np.ones(segment.part.items, dtype=bool) if allowed is None else allowed.copy()
        allowed[out] = False
    return allowed


def _there(found: Best) -> Best:
    """Without columns where a query was told nothing: items that another process has deleted
    since they were counted."""
    short = (found.row < 0).any(0)
    if not short.any():
        return found
    return Best(found.segment[:, ~short], found.row[:, ~short], found.score[:, ~short])


def _told(
    segments: Sequence[Segment], found: Best
) -> tuple[list[tuple[str, dict[str, Any], str | None]], np.ndarray | None]:
    """Of each result, one after the other: id, metadata and source; and their uncertainties, unless
    there are none."""
    place, row = found.segment.ravel(), found.row.ravel()
    if len(segments) == 1:
        ((segment,), unsure) = segments, segments[0].uncertainty
        return segment.items.told(row), None if unsure is None else unsure[row].astype(np.float64)
    told: list[Any] = [None] * len(row)
    items = np.full(len(row), np.nan)
    for p, segment in enumerate(segments):
        here = np.flatnonzero(place == p)
        for at, line in zip(here.tolist(), segment.items.told(row[here]), strict=True):
            told[at] = line
        if segment.uncertainty is not None:
            items[here] = segment.uncertainty[row[here]]
    return told, None if np.isnan(items).any() else items


def _listed(values: np.ndarray | None, count: int) -> list[Any]:
    """Numbers as Python has them; ``None`` for each where there are none."""
    return [None] * count if values is None else values.ravel().tolist()
