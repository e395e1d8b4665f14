"""What may become an index, and what may be put into it; a clear error otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from gaussmatch.gaussian import Gaussian
from gaussmatch.index.items import Record
from gaussmatch.index.settings import Settings
from gaussmatch.similarities import Similarity


def check_kind(similarity: Similarity, settings: Settings) -> None:
    if similarity.several:
        raise ValueError(
            f"an index holds one Gaussian for each item, and with {similarity.name} an item has "
            f"several embeddings: {similarity.no_lift}"
        )
    if settings.kind != "flat" and similarity.no_lift is not None:
        raise ValueError(
            f"{similarity.name} is no product or distance of vectors, so an index of kind "
            f"{settings.kind!r} cannot hold it; use kind 'flat', which looks at every item"
        )


def check_one_origin(run: object, similarity: object) -> None:
    if (run is None) == (similarity is None):
        raise ValueError("an index needs a run, or the name of a similarity, and not both")


def check_items(g: Gaussian, records: Sequence[Record]) -> None:
    """One finite Gaussian for each record."""
    if len(g) != len(records):
        raise ValueError(f"{len(g)} Gaussians, but {len(records)} records")
    for values in (g.mean, g.log_var):
        if values is not None and not values.isfinite().all():
            at = int((~values.isfinite()).any(-1).nonzero()[0])
            raise ValueError(f"the embedding of {records[at].id!r} holds a NaN or infinity")
