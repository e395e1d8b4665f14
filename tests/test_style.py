"""Banned turns and British spellings, in the documentation and in every string and comment.

CONTRIBUTING.md has the style in twenty pairs; this catches what a pattern can. A word that is data
(a caption, a published name) is allowed in its file below.
"""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import ROOT

TURNS = {
    r"\bso many\b": "say the number, or “as many as”",
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b|less\b|better\b|worse\b|larger\b|smaller\b)"
    r"(?!wider\b|slower\b|faster\b|higher\b|lower\b|fewer\b|different\b)[a-z]": "“is not a …”",
    r"\bby the (?:wall )?clock\b": "“elapsed time”",
    r"\b(?:after|survives?|of|by) (?:a|its|the) kill\b|\ba kill (?:at|while|in|leaves)\b": (
        "“an interruption”"
    ),
    r"\bchecksum is another\b|\bits (?:hash|size) is another\b": "“does not match”",
    r"\bone of several; or of one\b|\bas is cheap\b|\bmore find more\b": "say what it does",
    r"\bin the midst\b": "“during”",
    r"\bthe maker of this\b": "“you”, or the thing itself",
    r"\bbeside the project\b": "“outside the project”",
    r"\b(?:is|are) others than\b": "“are not those”",
    r"\b(?:is|are) (?:not )?believed\b": "“trusted”",
    r"\bat the door\b": "say what is refused, and when",
    r"\b(?:also|only|even|default|empty|except|needed|refused) where\b": "“if”",
    r"\bto go on\b|\bgo on with\b": "“resume”, “continue”",
    r"\b[a-z]{3,}\(s\)": "write one form or the other: ``checks.counted``",
    r"\bwhich is no\b(?! longer)": "“which is not a …”",
    r"\b(?:was|were) there already\b": "“already exists”",
    r"\bno number is said\b": "“no number is given”",
}
SPELLINGS = (
    r"(?:dis)?colou?r(?<=colour)\w*|(?:multi)?centre[ds]?\b|centring|judgement\w*|favour\w*|behaviour\w*"
    r"|neighbour\w*|artefact\w*|licence\w*|(?:mis)?spelt|learnt|burnt|whilst|catalogue\w*|fulfil\b"
    r"|(?:label|model|travel|cancel)l(?:ed|ing|er)\b(?<!cancelled)(?<!cancelling)|grey\w*|honour\w*|rumour"
    r"|(?:normal|optim|standard|recogn|penal|token|serial|initial|general|organ|summar|minim|maxim"
    r"|special|visual|random|synchron|quant|character|categor|emphas|priorit|util|parallel|canonical"
    r"|final|material|memor|equal|local|stabil|symbol)is(?:e[ds]?|er|ers|ing|ation|ations)\b"
)
PATTERN = re.compile(
    "|".join([*(f"(?:{turn})" for turn in TURNS), rf"\b(?:{SPELLINGS})"]), re.IGNORECASE
)
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted(ROOT.glob("docs/*.md"))
SOURCES = sorted(ROOT.glob("src/**/*.py"))
SOURCES += sorted(p for p in ROOT.glob("src/**/page/*") if p.suffix in (".html", ".js"))
ALLOWED = {
    "data/scenes/captions.py": {"colour", "grey", "coloured", "colours", "centre"},
    "data/fits.py": {"grey"},
    "data/language.py": {"grey"},
}
"""By file: words of data, such as captions that a model was trained on."""
CODE = re.compile(r"""``.+?``|\{.+?\}|^\s*(?:>>>|\.\.\.).*|^[bf]?["'][\w.]*(?:\{.*\})?["']$""")
"""Names inside strings: quoted code, fields of f-strings, doctests, keys of a mapping."""


def said(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page outside code blocks, the strings and comments of a module, or all of a
    file of the browser."""
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced and not line.startswith("- ✗"):  # the wrong half of a pair
                yield number, re.sub(r"`[^`]*`", "", line)
        return
    if path.suffix != ".py":
        yield from enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        return
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                for offset, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + offset, CODE.sub("", line)


def hits(path: Path) -> list[str]:
    allowed = next((words for name, words in ALLOWED.items() if path.match(name)), set())
    return [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for number, line in said(path)
        for match in PATTERN.finditer(line)
        if match[0].lower() not in allowed
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_has_none(path: Path) -> None:
    assert hits(path) == []


def test_no_string_or_comment_of_the_package_has_one() -> None:
    assert [hit for path in SOURCES for hit in hits(path)] == []


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("resumes after a kill", "resumes after an interruption"),
        ("its checksum is another", "its checksum does not match"),
        ("takes so many items", "takes 64 items"),
        ("this is no text", "there is no text"),
        ("the colour of its centre", "the color of its center"),
        ("a normalised judgement", "a normalized judgment"),
        ("3 run(s) are there; to go on, ask", "3 runs are there; to resume, ask"),
        ("refused only where it is needed", "refused only if it is needed"),
        ("68 % by the clock", "68 % by elapsed time; it is no longer slow"),
    ],
)
def test_the_list_catches_what_it_should_and_nothing_else(wrong: str, right: str) -> None:
    assert PATTERN.search(wrong)
    assert not PATTERN.search(right)


def test_the_style_page_has_twenty_pairs() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert text.count("- ✗ ") == text.count("  ✓ ") >= 20
