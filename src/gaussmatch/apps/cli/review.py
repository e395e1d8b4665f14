"""``gaussmatch review AUDIT [--port 8000]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.parser import Parser


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "review",
        "Decide about the findings of an audit in the browser: accept, fix, swap or drop, one by "
        "one or many at a time. Decisions are written to AUDIT/decisions.csv as they are made; "
        "'gaussmatch audit apply' makes a cleaned copy by them.",
        examples=["gaussmatch review audit", "gaussmatch review audit --port 8001 --no-browser"],
    )
    parser.add_argument("audit", type=Path, help="the folder that 'gaussmatch audit' wrote")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any free one")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")
    options = parser.parse(argv)
    from gaussmatch.apps.service import logs
    from gaussmatch.apps.service.review import DECISIONS, create_review
    from gaussmatch.apps.service.server import Server, announce, hosts, listening
    from gaussmatch.apps.service.settings import Settings

    host = "127.0.0.1"
    settings = Settings(hosts=hosts(host, ()))
    if not options.audit.is_dir():
        raise NotADirectoryError(f"{options.audit}: not the folder of an audit")
    app = create_review(options.audit, settings)
    logs.configure("warning")
    sock = listening(host, options.port)
    announce(sock, sys.stdout.isatty() and not options.no_browser)
    Server(app, settings, grace=5).run(sockets=[sock])
    file = options.audit / DECISIONS
    if file.is_file():
        print(f"next: gaussmatch audit apply DATA {file} --out CLEAN", file=sys.stderr)
