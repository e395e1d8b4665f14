"""``gaussmatch serve INDEX [--host 127.0.0.1] [--port 8000] [--api-key-env NAME] …``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gaussmatch.cli.parser import Parser
from gaussmatch.index import Index
from gaussmatch.index.backends import place

LIMITS = {
    "max_body": "bytes of a request",
    "max_pixels": "pixels of a picture",
    "max_text": "characters of a question",
    "max_results": "results of a search",
    "timeout": "seconds before a request is answered with 504",
    "max_batch": "questions that are encoded together",
    "batch_wait": "seconds that questions wait for others that are expected",
    "max_waiting": "questions in the queue before new ones are refused",
    "map_items": "pictures on the map",
}


def run(argv: Sequence[str]) -> None:
    from gaussmatch.service import Settings
    from gaussmatch.service.server import hosts, serve

    parser = Parser(
        "serve",
        "Search an index in the browser, and from programs (docs/service.md).",
        examples=[
            "gaussmatch serve photos.index",
            "gaussmatch serve photos.index --port 8080 --workers 2",
            "gaussmatch serve photos.index --host 0.0.0.0 --api-key-env SEARCH_KEY",
        ],
        computes=True,
    )
    parser.add_argument(
        "index", type=place, help="made by 'gaussmatch index': a folder, or milvus:…"
    )
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 is open to the network")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument("--api-key-env", metavar="NAME", help="variable that holds the API key")
    parser.add_argument(
        "--cors", nargs="+", default=[], metavar="ORIGIN", help="origins whose pages may call"
    )
    parser.add_argument(
        "--allow-host", nargs="+", default=[], metavar="NAME", help="names it is reached by"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that answer")
    parser.add_argument("--grace", type=int, default=20, help="seconds to finish when stopped")
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    for name, text in LIMITS.items():
        default = getattr(Settings, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=text
        )
    options = parser.parse(argv)
    key = None
    if options.api_key_env is not None:
        key = os.environ.get(options.api_key_env)
        if not key:
            raise ValueError(
                f"the variable {options.api_key_env} is empty; put the API key in it, "
                "or leave --api-key-env out"
            )
    settings = Settings(
        api_key=key,
        cors=tuple(options.cors),
        hosts=hosts(options.host, tuple(options.allow_host)),
        **{name: getattr(options, name) for name in LIMITS},
    )
    serve(
        Index.open(options.index),
        settings,
        host=options.host,
        port=options.port,
        grace=options.grace,
        log_level=options.log_level,
        workers=options.workers,
    )
