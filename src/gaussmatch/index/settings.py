"""How an index is searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["flat", "hnsw", "compressed"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Settings:
    """Choices of an index, kept in its manifest.

    Args:
        kind: ``flat`` looks at every item (exact); ``hnsw`` walks a graph; ``compressed`` walks a
            graph whose vectors have one byte a coordinate, not two.
        links: neighbours of an item in the graph (HNSW's M).
        construction: candidates while the graph is built (efConstruction).
        search: candidates while it is walked (efSearch): more find more and take longer.
        rescore: at least so many candidates are scored again exactly.
        flat_below: segments with fewer items are searched exactly, whatever the kind.
    """

    kind: Kind = "flat"
    links: int = 32
    construction: int = 100
    search: int = 64
    rescore: int = 16
    flat_below: int = 5000

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no index of kind {self.kind!r}; choose {', '.join(KINDS)}")
        for name in ("links", "construction", "search", "rescore"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
