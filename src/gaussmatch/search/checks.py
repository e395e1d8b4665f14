"""What may become an index, what may be put into it and how it may be searched; a clear error
otherwise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian, check_gaussian
from gaussmatch.core.similarities import Similarity
from gaussmatch.lazy import torch
from gaussmatch.search.manifest import IndexSettings, Record

MOST_LOG_VARIANCE = 200.0
"""e^200 and its square are finite in float64, which scores are computed in."""


def check_structure(
    similarity: Similarity, settings: IndexSettings, scans: bool, place: str
) -> None:
    """Whether items can be kept so: one Gaussian each, and a lift if vectors are needed."""
    if similarity.several:
        raise ValueError(
            f"an index holds one Gaussian for each item, and with {similarity.name} an item has "
            f"several embeddings: {similarity.no_lift}"
        )
    if similarity.no_lift is None:
        return
    if not scans:
        raise ValueError(
            f"{similarity.name} cannot be kept at {place}: {similarity.no_lift}; an index in a "
            "folder looks at every item"
        )
    if settings.structure != "flat":
        raise ValueError(
            f"{similarity.name} is not a product or distance of vectors, so an index of structure "
            f"{settings.structure!r} cannot hold it; use structure 'flat', which scans every item"
        )


def check_items(g: Gaussian, records: Sequence[Record]) -> Gaussian:
    """One finite Gaussian in float32, as it is kept, for each record; no id twice."""
    check_gaussian(g, "gaussians")
    for number, record in enumerate(records):
        if not isinstance(record, Record):
            raise TypeError(
                f"records[{number}] must be a Record, got {type(record).__name__}; wrap it: "
                "gm.Record(id, {field: value})"
            )
    if len(g) != len(records):
        raise ValueError(f"{len(g)} Gaussians, but {len(records)} records")
    g = g.detach().to("cpu", torch.float32)
    for values in (g.mean, g.log_var):
        if values is not None and not math.isfinite(_largest(values.numpy())):
            at = int((~values.isfinite()).any(-1).nonzero()[0])
            raise ValueError(
                f"the embedding of {records[at].id!r} holds a NaN or infinity in float32"
            )
    if g.log_var is not None and _largest(g.log_var.numpy()) > MOST_LOG_VARIANCE:
        at = int((g.log_var.abs() > MOST_LOG_VARIANCE).any(-1).nonzero()[0])
        raise ValueError(
            f"the log-variances of {records[at].id!r} are beyond ±{MOST_LOG_VARIANCE:g}, where "
            "scores would lose all meaning; bound them before adding the item"
        )
    twice = [id_ for id_, count in Counter(r.id for r in records).items() if count > 1]
    if twice:
        raise ValueError(f"the id {twice[0]!r} is given twice")
    return g


def check_form(
    g: Gaussian, form: Mapping[str, int] | None, similarity: Similarity
) -> dict[str, int]:
    """The form of Gaussians, which must be that of the index."""
    own = {"dim": g.dim, "variances": 0 if g.log_var is None else g.log_var.shape[-1]}
    if form is not None and own != form:
        raise ValueError(
            f"the index holds Gaussians with {_form(form)}, these have {_form(own)}: encode them "
            "with the model that the index was made with"
        )
    if similarity.needs_variance and g.is_point:
        raise ValueError(f"{similarity.name} compares distributions; these are points")
    return own


def check_query(
    queries: Gaussian | ArrayGaussian, form: Mapping[str, int] | None, similarity: Similarity
) -> ArrayGaussian:
    """Queries that can be compared with the items; a sphere among ellipsoids becomes one."""
    if not isinstance(queries, ArrayGaussian):
        check_gaussian(
            queries,
            "queries",
            "; search_text takes words, search_image pictures, search_id an id",
            encode="index.model.encode_texts(x) or encode_images(x)",
        )
    if queries.mean.ndim != 2:
        raise ValueError(
            f"queries must be a batch (n, D), got {tuple(queries.mean.shape)}; "
            "one query is a batch too: queries[None]"
        )
    found = queries.numpy() if isinstance(queries, Gaussian) else queries
    if _square(found.mean) + _square(found.log_var) > MOST_LOG_VARIANCE**2:  # or else all are less
        mean, log_var = _largest(found.mean), _largest(found.log_var)
        if not math.isfinite(mean + log_var):
            raise ValueError("a query holds a NaN or infinity")
        if log_var > MOST_LOG_VARIANCE:
            raise ValueError(f"a query has log-variances beyond ±{MOST_LOG_VARIANCE:g}")
    if form is None:
        return found
    if found.dim != form["dim"]:
        raise ValueError(
            f"queries have D = {found.dim}, the index has D = {form['dim']}: encode them with the "
            "model that the index was made with"
        )
    if not similarity.needs_variance:
        return found
    if found.log_var is None:
        raise ValueError(f"{similarity.name} compares distributions; a query is a point")
    if found.log_var.shape[-1] != form["variances"]:
        if form["variances"] == 1:
            raise ValueError("the index holds spheres; a query is an ellipsoid")
        return ArrayGaussian(found.mean, np.broadcast_to(found.log_var, found.mean.shape))
    return found


def _form(form: Mapping[str, int]) -> str:
    shapes = {0: "no variances", 1: "one variance (spheres)"}
    return f"D = {form['dim']} and {shapes.get(form['variances'], 'D variances (ellipsoids)')}"


def _square(values: np.ndarray | None) -> float:
    """The sum of all squares; infinity where there is a NaN."""
    square = 0.0 if values is None else float(np.vdot(values, values))
    return square if square == square else math.inf


def _largest(values: np.ndarray | None) -> float:
    """The largest absolute value; NaN or infinity if any is."""
    if values is None or not values.size:
        return 0.0
    return float(np.maximum.reduce(np.abs(values), axis=None))
