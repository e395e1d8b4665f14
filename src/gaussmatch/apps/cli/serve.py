"""In the browser: ``gaussmatch serve INDEX [--host 127.0.0.1] [--port 8000] …`` and ``gaussmatch
review AUDIT [--port 8001]``."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from gaussmatch.apps.cli.parser import Parser
from gaussmatch.search import Index
from gaussmatch.search.backends import place


def run_serve(argv: Sequence[str]) -> None:
    from gaussmatch.apps.service import Settings
    from gaussmatch.apps.service.server import Watcher, hosts, serve, watched

    limits = {f.name: f for f in fields(Settings) if f.metadata}
    options = _serve_parser(limits.values()).parse(argv)
    settings = Settings(
        api_keys=_keys(options.api_key_env),
        cors=tuple(options.cors),
        hosts=hosts(options.host, tuple(options.allow_host)),
        originals=not options.no_originals,
        photos=options.photos,
        review=options.review,
        **{name: getattr(options, name) for name in limits},
    )
    index = Index.open(options.index)
    said = (index.manifest.source or {}).get("folder")
    if settings.originals and said and settings.photos is None and index.own_folder is None:
        print(
            f"note: {options.index} names the folder {said}, but another user or machine made it: "
            "only thumbnails are shown; --photos FOLDER shows originals",
            file=sys.stderr,
        )
    watcher = Watcher(index.place, watched(index)) if options.watch else None
    if watcher is not None:
        watcher.start()
    try:
        serve(
            index,
            settings,
            host=options.host,
            port=options.port,
            grace=options.grace,
            log_level=options.log_level,
            workers=options.workers,
            browser=sys.stdout.isatty() and not options.no_browser,
        )
    finally:
        if watcher is not None:
            watcher.stop()


def folder_of_photos(text: str) -> Path:
    if not Path(text).is_dir():
        raise ArgumentTypeError(f"{text!r} is not a folder")
    return Path(text).resolve()


def _keys(variable: str | None) -> tuple[str, ...]:
    """API keys from the environment: every user of the machine sees a command line."""
    if variable is None:
        return ()
    keys = os.environ.get(variable, "").replace(",", " ").split()
    if not keys:
        raise ValueError(
            f"the variable {variable} is empty; put the API key in it, or leave --api-key-env out"
        )
    return tuple(keys)


def _serve_parser(limits: Iterable[Field[Any]]) -> Parser:
    parser = Parser(
        "serve",
        "Search an index in the browser, and from programs (docs/service.md).",
        examples=[
            "photos.index --watch",
            "photos.index --port 8080 --workers 2",
            "photos.index --host 0.0.0.0 --api-key-env SEARCH_KEY",
        ],
        computes=True,
    )
    parser.take("index", "made by 'gaussmatch index': a folder, or milvus:…", type=place)
    parser.take("--host", "0.0.0.0 opens it to the network", "127.0.0.1")
    parser.take("--port", "0 takes any free port", 8000)
    parser.take(
        "--api-key-env",
        "environment variable with the API key, or several separated by commas",
        metavar="NAME",
    )
    parser.take("--cors", "origins that may call the API", [], nargs="+", metavar="ORIGIN")
    parser.take("--allow-host", "host names to answer to", [], nargs="+", metavar="NAME")
    parser.flag("--watch", "index photos as they are added to the folder or change")
    parser.flag("--no-browser", "do not open the page")
    parser.path("--review", "findings of 'gaussmatch audit' to review", metavar="AUDIT")
    parser.take(
        "--photos",
        "send originals from here (default: the folder that the index was made from, if this "
        "user made it on this machine)",
        type=folder_of_photos,
        metavar="FOLDER",
    )
    parser.flag("--no-originals", "show thumbnails only, never a file in full size")
    parser.take("--workers", "worker processes", 1)
    parser.take("--grace", "seconds to finish requests when stopped", 20)
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    for limit in limits:
        parser.take(
            f"--{limit.name.replace('_', '-')}",
            limit.metadata["help"],
            limit.default,
            type=type(limit.default),
        )
    return parser


def run_review(argv: Sequence[str]) -> None:
    parser = Parser(
        "review",
        "Decide on the findings of an audit in the browser: accept, fix, swap or drop, one by one "
        "or many at a time. Each decision is written to AUDIT/decisions.csv at once; "
        "'gaussmatch audit apply' makes a cleaned copy from them.",
        examples=["audit", "audit --port 8080 --no-browser"],
    )
    parser.path("audit", "the folder that 'gaussmatch audit' wrote")
    parser.take("--port", "0 takes any free port", 8001)
    parser.flag("--no-browser", "do not open the page")
    options = parser.parse(argv)
    from gaussmatch.apps.service import logs
    from gaussmatch.apps.service.app import DECISIONS, create_review
    from gaussmatch.apps.service.server import Server, announce, hosts, listening
    from gaussmatch.apps.service.settings import Settings
    from gaussmatch.search.trust.audit_report import apply_command

    host = "127.0.0.1"
    settings = Settings(hosts=hosts(host, ()))
    if not options.audit.is_dir():
        raise NotADirectoryError(f"{options.audit}: not the folder of an audit")
    sock = listening(host, options.port)
    app = create_review(options.audit, settings)
    logs.configure("warning")
    announce(sock, sys.stdout.isatty() and not options.no_browser)
    Server(app, settings, grace=5).run(sockets=[sock])
    command = apply_command(options.audit, options.audit / DECISIONS)
    if command and (options.audit / DECISIONS).is_file():
        print(f"next: {command}", file=sys.stderr)
