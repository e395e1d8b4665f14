"""Runs what a page of the documentation shows: Python, commands, and transcripts of commands.

``python`` blocks share one namespace. Of a ``sh`` block each ``gaussmatch`` command runs, each
``make`` target must exist, and ``pip`` is left to the reader. A ``console`` block is a transcript:
each ``$`` command runs, and what it prints must be what is shown, numbers aside.
``GAUSSMATCH_WRITE_PAGES=1`` writes what was printed into the page instead.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gaussmatch.apps.cli import main

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page, in order: language and text."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> list[str]:
    """The commands of a shell block, continued lines joined, comments left out.

    >>> commands("make demo   # long\\ngaussmatch index a \\\\\\n  --out b\\n")
    ['make demo', 'gaussmatch index a --out b']
    """
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    stripped = (re.sub(r"\s+#.*", "", line).strip() for line in lines)
    return [line for line in stripped if line and not line.startswith("#")]


def run_page(
    page: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    smaller: Mapping[str, Sequence[str]] | None = None,
    replaced: Mapping[str, str] | None = None,
    skipped: Sequence[str] = (),
) -> dict[str, Any]:
    """Run everything that a page shows, in the current folder.

    Args:
        smaller: options that are added to a verb, so that a test is quick.
        replaced: text of Python blocks that is replaced, for the same reason.
        skipped: commands that take too long, word for word.

    Returns:
        the namespace of the Python blocks.
    """
    monkeypatch.setattr("gaussmatch.apps.service.server.serve", lambda *_, **__: None)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    namespace: dict[str, Any] = {}
    written = page.read_text(encoding="utf-8")

    def command(line: str) -> str:
        words = shlex.split(line)
        assert words[0] == "gaussmatch", line
        capsys.readouterr()
        assert main([*words[1:], *(smaller or {}).get(words[1], ())]) == 0, line
        return capsys.readouterr().out

    for language, text in blocks(page):
        if language == "python":
            for old, new in (replaced or {}).items():
                text = text.replace(old, new)
            exec(compile(text, str(page), "exec"), namespace)
        elif language == "sh":
            for line in commands(text):
                first, *rest = line.split()
                assert first in ("gaussmatch", "make", "pip"), f"{page.name}: {line}"
                if first == "make":
                    assert set(rest) <= set(targets), line
                elif first == "gaussmatch" and line not in skipped:
                    command(line)
        elif language == "console":
            for line, shown in _COMMAND.findall(text):
                printed = command(line)
                if os.environ.get("GAUSSMATCH_WRITE_PAGES"):
                    written = written.replace(f"$ {line}\n{shown}", f"$ {line}\n{printed}")
                else:
                    assert _masked(printed) == _masked(shown), f"{page.name}: {line}"
    if written != page.read_text(encoding="utf-8"):
        page.write_text(written, encoding="utf-8")
    return namespace


def _masked(text: str) -> list[list[str]]:
    """The words of each line, with numbers as #: their last digits depend on the machine."""
    return [re.sub(r"-?\d[\d.,]*", "#", line).split() for line in text.strip().splitlines()]
