"""The service: an index behind HTTP, with a web page. Needs the extra ``service``.

``create_app(index, settings)`` gives a FastAPI app; ``gaussmatch serve INDEX`` runs it.
"""

from __future__ import annotations

from gaussmatch.checks import extra

with extra("service", "the service"):
    import fastapi  # noqa: F401
    import httptools  # noqa: F401
    import orjson  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401

from gaussmatch.apps.service.app import create_app
from gaussmatch.apps.service.settings import Settings

__all__ = ["Settings", "create_app"]
