"""Help, examples, suggestions and the order of options, for every verb."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest

from gaussmatch.apps.cli import VERBS, main
from gaussmatch.apps.cli.parser import SECTIONS, Parser
from gaussmatch.learn.studies.paper import NUMBERED
from gaussmatch.search import Index

SUBVERBS = {
    "index": ("", "add", "delete", "update", "merge", "compact", "drop", "info"),
    "audit": ("", "apply", "export"),
    "data": ("check", "where"),
    "scenes": ("make", "pretrain"),
}
COMMANDS = [f"{verb} {sub}".strip() for verb in VERBS for sub in SUBVERBS.get(verb, ("",))]


class ParsedError(Exception):
    """Stops a verb after its arguments were parsed."""

    def __init__(self, options: Namespace) -> None:
        self.options = options


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch):
    """Parse a command line without running it."""
    parse = Parser.parse

    def stop(self: Parser, argv: Sequence[str]) -> Namespace:
        raise ParsedError(parse(self, argv))

    monkeypatch.setattr(Parser, "parse", stop)

    def options(words: Sequence[str]) -> Namespace:
        with pytest.raises(ParsedError) as stopped:
            main(words)
        return stopped.value.options

    return options


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_parse(command: str, capsys, parsed) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    _, _, shown = capsys.readouterr().out.partition("examples:\n")
    examples = [line.strip() for line in shown.splitlines() if line.strip()]
    assert 2 <= len(examples) <= 3, f"{command} shows {len(examples)} examples"
    for example in examples:
        program, *words = shlex.split(example)
        assert program == "gaussmatch"
        assert words[0] == command.split()[0]
        parsed(words)


@pytest.mark.parametrize(
    "words",
    [
        ["search", "photos", "red star", "-k", "3"],
        ["search", "photos", "-k", "3", "red star"],
        ["search", "-k", "3", "photos", "red star"],
        ["search", "-k=3", "photos", "--threads", "1", "red star"],
    ],
)
def test_options_stand_anywhere(words: list[str], parsed) -> None:
    options = parsed(words)
    assert (str(options.index), options.text, options.k) == ("photos", "red star", 3)


@pytest.mark.parametrize(
    "words",
    [
        ["--data.size", "tiny", "scenes/vsepp", "--out", "x", "--title=a b"],
        ["scenes/vsepp", "--out", "x", "--data.size", "tiny", "--title=a b"],
        ["--out", "x", "--data.size", "tiny", "--title=a b", "scenes/vsepp"],
    ],
)
def test_fields_stand_anywhere(words: list[str], parsed) -> None:
    options = parsed(["train", *words])
    assert (options.recipe, str(options.out)) == ("scenes/vsepp", "x")
    assert options.overrides == {"data.size": "tiny", "title": "a b"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown verb 'trian'; did you mean 'train'?"),
        (["fly"], "unknown verb 'fly'; choose from demo, train"),
        (["--verison"], "did you mean '--version'?"),
        (["scenes", "mke"], "unknown verb 'mke'; did you mean 'make'?"),
        (
            ["index", "inf", "photos.index"],
            "neither a folder nor a verb: 'inf'; did you mean 'info'?",
        ),
        (["train", "scenes/vsep-kl"], "did you mean 'scenes/vsepp-kl'?"),
        (["train", "scenes/vsepp", "--training.epoch", "2"], "did you mean 'training.epochs'?"),
    ],
)
def test_mistyped_names_are_suggested(words: list[str], message: str, capsys) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "scenes/vsepp", "--trainng.epochs", "2"], "did you mean 'training'?"),
        (["train", "scenes/vsepp", "--data.size"], "--data.size needs a value"),
        (["train", "scenes/vsepp", "--resme"], "unknown option --resme; did you mean '--resume'?"),
        (["evaluate", "run", "--model.dim", "3"], "--model.dim: fields of data can be given"),
        (["search", "photos", "red", "star"], "unexpected argument 'star'; quote"),
        (["search"], "required: index"),
        (["evaluate", "run", "--split", "tset"], "invalid choice 'tset'; did you mean 'test'?"),
        (["reproduce", "stabilty"], "invalid choice 'stabilty'; did you mean 'stability'?"),
    ],
)
def test_wrong_arguments_are_one_clear_line(words: list[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith(f"gaussmatch {words[0]}: ")
    assert err.count("\n") == 2


def test_threads_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", used.append)
    parser = Parser("x", "", examples=[], fields=SECTIONS, computes=True)
    assert parser.parse(["--threads", "3"]).threads == 3
    assert used == [3]
    with pytest.raises(ValueError, match="at least 1"):
        parser.parse(["--threads", "0"])


@pytest.mark.parametrize("words", [["--version"], ["--help"], [], ["trian"]])
def test_what_needs_no_torch_does_not_import_it(words: list[str]) -> None:
    code = f"""
import sys
from gaussmatch.apps.cli import main
main({words!r})
heavy = sorted({{"torch", "numpy", "jsonargparse", "yaml"}} & set(sys.modules))
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    """As in ``gaussmatch … | head -1``: nothing on standard error, and the exit code of SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from gaussmatch.apps.cli import main; sys.exit(main(['data', 'where']))"
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproduce.md"


def test_the_commands_of_the_walk_through_parse(parsed) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    lines = [line for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("gaussmatch ")]
    assert len(commands) >= 12
    for command in commands:
        verb, *words = shlex.split(command, comments=True)[1:]
        options = parsed([verb, *words])
        if verb == "reproduce":
            assert options.names


def test_the_walk_through_names_every_alias() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| ([^|]*) \|", PAGE.read_text(encoding="utf-8"), re.M)
    named = {}
    for name, aliases in rows:
        found = re.findall(r"(table|figure)(\d)", aliases)
        if "…" in aliases:
            (kind, first), (_, last) = found
            found = [(kind, n) for n in range(int(first), int(last) + 1)]
        named |= {f"{kind}{number}": name for kind, number in found}
    assert named == NUMBERED


def test_fields_of_a_database_are_declared_with_a_type(parsed, capsys) -> None:
    given = parsed(["index", "x", "--out", "y", "--field", "taken:text", "--field=a:b:number"])
    assert given.field == [("taken", "text"), ("a:b", "number")]
    for wrong in ("taken", "taken:date", ":text"):
        with pytest.raises(SystemExit):
            main(["index", "compact", "y", "--field", wrong])
        assert f"{wrong!r}: write NAME:TYPE with text, number, truth" in capsys.readouterr().err


def test_a_field_is_for_databases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Index.create(tmp_path / "index", similarity="kl")
    assert main(["index", "compact", str(tmp_path / "index"), "--field", "taken:text"]) != 0
    assert "--field is for databases" in capsys.readouterr().err
