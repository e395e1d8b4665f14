"""An index in Milvus: the same calls, from an embedded file to a cluster.

``milvus:demo.db`` is a file of milvus-lite, ``milvus:http://host:19530`` a server;
``#NAME`` chooses one of several indexes there, ``?consistency=Strong`` how fresh answers must be.
"""

from __future__ import annotations

from gaussmatch.search.backends.milvus.client import Address
from gaussmatch.search.backends.milvus.milvus import Milvus

__all__ = ["Address", "Milvus"]
