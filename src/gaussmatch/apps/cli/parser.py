"""The parser that every verb shares: examples, options anywhere, recipe fields, suggestions."""

from __future__ import annotations

import sys
import textwrap
from argparse import Action, ArgumentError, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gaussmatch.checks import did_you_mean

SECTIONS = ("data", "model", "loss", "training")
WIDTH = 92
DESCRIBE = ("--describe",)
"""Given to a verb, its parser is raised as ``ParserBuiltError`` and nothing is run."""


@dataclass(frozen=True)
class SharedOption:
    """An option of every verb that computes."""

    name: str
    use: Callable[[Any], object]  #: called with its value before the verb runs
    settings: Mapping[str, Any]  #: for ``add_argument``


def _use_threads(number: int | None) -> None:
    from gaussmatch.device import use_threads

    use_threads(number)


def _use_device(name: str) -> None:
    from gaussmatch.device import use_device

    use_device(name)


THREADS = "CPU threads (default: all, or one on a busy machine; one for search)"
DEVICES = "cpu, cuda, cuda:1, mps, or auto (the best)"
SHARED = [
    SharedOption("--threads", _use_threads, {"type": int, "metavar": "N", "help": THREADS}),
    SharedOption("--device", _use_device, {"default": "auto", "help": DEVICES}),
]


class ParserBuiltError(Exception):
    """Carries the complete parser of a verb to whoever describes it."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser


class Parser(ArgumentParser):
    """An ``ArgumentParser`` for one verb.

    Options may stand before or after the positional arguments. Help ends with examples.

    Args:
        verb: as typed after ``gaussmatch``.
        examples: what is typed after the verb, two or three; a test parses each of them.
        fields: sections of the recipe whose fields may be given, as ``--data.root photos``. The
            parsed options hold them as ``overrides``: dotted name → value of the field's type.
        notes: a paragraph after the options.
        computes: adds the options in ``SHARED``.
    """

    def __init__(
        self,
        verb: str,
        description: str,
        *,
        examples: Sequence[str],
        fields: Sequence[str] = (),
        notes: str = "",
        computes: bool = False,
    ) -> None:
        super().__init__(
            f"gaussmatch {verb}",
            description=textwrap.fill(description, WIDTH),
            epilog=epilog(verb, examples, notes),
            formatter_class=_Format,
            allow_abbrev=False,
        )
        self._sections, self._computes = tuple(fields), computes
        for option in SHARED if computes else ():
            self.add_argument(option.name, **option.settings)

    def take(self, name: str, help: str, default: Any = None, **settings: Any) -> None:
        """An argument or option with a value, of the type of its default."""
        if isinstance(default, int | float):
            settings.setdefault("type", type(default))
        elif isinstance(default, Path):
            settings["type"] = Path
        self.add_argument(name, default=default, help=help, **settings)

    def path(self, name: str, help: str, **settings: Any) -> None:
        """An argument or option that names a file or folder."""
        self.take(name, help, type=Path, **settings)

    def many(self, name: str, help: str, **settings: Any) -> None:
        """An option that may be repeated."""
        self.add_argument(name, action="append", default=[], help=help, **settings)

    def flag(self, name: str, help: str) -> None:
        """An option without a value."""
        self.add_argument(name, action="store_true", help=help)

    def parse(self, argv: Sequence[str]) -> Namespace:
        """The options; ``overrides`` holds the fields of the recipe."""
        if argv is DESCRIBE:
            raise ParserBuiltError(self)
        words, overrides = self._split(argv)
        options, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            self.error(self._unknown(unknown[0]))
        options.overrides = {}
        if overrides:
            from gaussmatch.models.recipe import parse_overrides

            options.overrides = parse_overrides(overrides)
        for option in SHARED if self._computes else ():
            option.use(getattr(options, option.name[2:].replace("-", "_")))
        return options

    def error(self, message: str) -> NoReturn:
        """One clear line, and where to read more."""
        self.exit(2, f"{self.prog}: {message}\nOptions and examples: {self.prog} --help\n")

    def _check_value(self, action: Action, value: Any) -> None:
        """A choice that is not among those of an option is refused with the nearest one."""
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), names) or f"choose from {', '.join(names)}"
            raise ArgumentError(action, f"invalid choice {value!r}; {hint}")

    def _split(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Words for argparse, and fields of the recipe, each with its value."""
        words: list[str] = []
        overrides: list[str] = []
        rest = iter(argv)
        for word in rest:
            name, equals, _ = word.partition("=")
            if word == "--":
                words += [word, *rest]
            elif not self._is_field(name):
                words.append(word)
            elif name != "--title" and name[2:].split(".")[0] not in self._sections:
                hint = did_you_mean(name[2:].split(".")[0], self._sections)
                self.error(
                    f"{name}: fields of {', '.join(self._sections)} can be given"
                    + (f"; {hint}" if hint else "")
                )
            else:
                value = [] if equals else [next(rest, "--")]
                if value and value[0].startswith("--"):
                    self.error(f"{name} needs a value")
                overrides += [word, *value]
        return words, overrides

    def _is_field(self, name: str) -> bool:
        if not self._sections or not name.startswith("--"):
            return False
        return "." in name or (name == "--title" and self._sections == SECTIONS)

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"unexpected argument {word!r}; quote a text of several words"
        hint = did_you_mean(word.partition("=")[0], self._option_string_actions)
        return f"unknown option {word}" + (f"; {hint}" if hint else "")


def list_verbs(
    verb: str,
    description: str,
    verbs: Mapping[str, Callable[[Sequence[str]], None]],
    argv: Sequence[str],
    *,
    examples: Sequence[str],
) -> None:
    """Say which verbs follow ``gaussmatch VERB``; the docstring of each is its line of help."""
    text = f"usage: gaussmatch {verb} {{{','.join(verbs)}}} …\n\n{description}\n\n"
    text += "\n".join(f"  gaussmatch {verb} {name:8} {verbs[name].__doc__}" for name in verbs)
    text += f"\n\nOptions: gaussmatch {verb} {next(iter(verbs))} --help\n\n{epilog(verb, examples)}"
    if argv and argv[0] in ("-h", "--help"):
        print(text)
        return
    wrong = f"unknown verb {argv[0]!r}" if argv else "a verb is missing"
    hint = did_you_mean(argv[0], verbs) if argv else ""
    print(text, file=sys.stderr)
    raise ValueError("; ".join(filter(None, [wrong, hint])))


def epilog(verb: str, examples: Sequence[str], notes: str = "") -> str:
    """What help ends with."""
    shown = "\n".join(f"  gaussmatch {verb} {example}".rstrip() for example in examples)
    return "\n\n".join(filter(None, [notes, f"examples:\n{shown}"]))


class _Format(RawDescriptionHelpFormatter):
    """Shows defaults that say something."""

    def _get_help_string(self, action: Action) -> str | None:
        text, default = action.help, action.default
        shown = action.option_strings and not isinstance(default, bool | None)
        if not text or not shown or default in ("==SUPPRESS==", "", [], ()) or "default" in text:
            return text
        return f"{text} (default: %(default)s)"
