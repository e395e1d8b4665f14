"""An index in Milvus: the same calls, from an embedded file to a cluster.

``milvus:demo.db`` is a file of milvus-lite, ``milvus:http://host:19530`` a server;
``#NAME`` chooses one of several indexes there, ``?consistency=Bounded`` how fresh answers must be.
``open_index`` and ``create_index`` take such an address where they take a folder.
"""

from __future__ import annotations

from gaussmatch.index.milvus.address import PREFIX, Address
from gaussmatch.index.milvus.index import MilvusIndex

__all__ = ["PREFIX", "Address", "MilvusIndex"]
