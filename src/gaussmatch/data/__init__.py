"""Data sets, each as three splits of ``Pairs``. A new one is one file, named in ``SOURCES``."""

from typing import TYPE_CHECKING

from gaussmatch.lazy import exported

if TYPE_CHECKING:
    from gaussmatch.data.pairs import DataSet, ImageSource, Pairs, Region
    from gaussmatch.data.recipe import Source
    from gaussmatch.data.table import SOURCES, recognize, source

__getattr__ = exported(__name__, "pairs", "table")
