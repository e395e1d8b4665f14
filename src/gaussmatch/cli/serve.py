"""``gaussmatch serve INDEX [--host 127.0.0.1] [--port 8000] [--api-key-env NAME] …``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.cli.parser import Parser
from gaussmatch.index import Index
from gaussmatch.index.backends import place

LIMITS = {
    "max_body": "bytes of a request",
    "max_pixels": "pixels of a picture",
    "max_memory": "bytes that uploads and their decoding hold together",
    "max_text": "characters of a query",
    "max_results": "results of a search",
    "timeout": "seconds before a request is answered with 504",
    "head_timeout": "seconds for the head of a request to arrive",
    "body_timeout": "seconds for the body of a request to arrive",
    "idle_timeout": "seconds that a connection may be idle",
    "max_connections": "connections of a worker",
    "max_connections_per_address": "of them from one address; raise it behind a proxy",
    "rate": "requests a second for each key, or address if there are none; 0: any",
    "max_batch": "queries that are encoded together",
    "batch_wait": "seconds that queries wait for others that are expected",
    "max_waiting": "queries in the queue before new ones are refused",
    "map_items": "pictures on the map",
}


def run(argv: Sequence[str]) -> None:
    from gaussmatch.service import Settings
    from gaussmatch.service.server import hosts, serve

    parser = Parser(
        "serve",
        "Search an index in the browser, and from programs (docs/service.md).",
        examples=[
            "gaussmatch serve photos.index --review audit",
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
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="variable that holds the API key, or several separated by commas",
    )
    parser.add_argument(
        "--cors", nargs="+", default=[], metavar="ORIGIN", help="origins whose pages may call"
    )
    parser.add_argument(
        "--allow-host", nargs="+", default=[], metavar="NAME", help="names it is reached by"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")
    parser.add_argument(
        "--review",
        type=Path,
        metavar="AUDIT",
        help="findings of 'gaussmatch audit' to decide on",
    )
    parser.add_argument(
        "--no-originals", action="store_true", help="show small pictures only, no file in full size"
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
    keys: list[str] = []
    if options.api_key_env is not None:
        keys = os.environ.get(options.api_key_env, "").replace(",", " ").split()
        if not keys:
            raise ValueError(
                f"the variable {options.api_key_env} is empty; put the API key in it, "
                "or leave --api-key-env out"
            )
    settings = Settings(
        api_keys=tuple(keys),
        cors=tuple(options.cors),
        hosts=hosts(options.host, tuple(options.allow_host)),
        originals=not options.no_originals,
        review=options.review,
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
        browser=sys.stdout.isatty() and not options.no_browser,
    )
