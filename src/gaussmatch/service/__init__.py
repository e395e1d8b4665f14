"""The service: an index behind HTTP, with a web page. Needs the extra ``service``.

``create_app(index, settings)`` gives a FastAPI app; ``gaussmatch serve INDEX`` runs it.
"""

from __future__ import annotations

try:
    import fastapi  # noqa: F401
    import httptools  # noqa: F401
    import orjson  # noqa: F401
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"the service needs {error.name}; install it with pip install 'gaussmatch[service]'"
    ) from error

from gaussmatch.service.app import create_app
from gaussmatch.service.settings import Settings

__all__ = ["Settings", "create_app"]
