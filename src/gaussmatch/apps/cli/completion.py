"""``gaussmatch completion {bash,zsh,fish}``: what the shell offers after ``gaussmatch``, from the
parsers of the verbs themselves."""

from __future__ import annotations

from argparse import Action
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from importlib import import_module
from io import StringIO
from shlex import quote

from gaussmatch.apps import cli
from gaussmatch.apps.cli.parser import DESCRIBE, Parser, ParserBuiltError

SHELLS = ("bash", "zsh", "fish")
BASH = """\
_gaussmatch() {
  local words="" at="${COMP_WORDS[1]} ${COMP_WORDS[2]}" before="${COMP_WORDS[COMP_CWORD-1]}"
  if [ "$COMP_CWORD" -eq 1 ]; then words=@VERBS@; else
    [ "$COMP_CWORD" -gt 2 ] || at="${COMP_WORDS[1]} "
    case "$at" in
@CASES@
    esac
    case "$at $before" in
@VALUES@
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _gaussmatch gaussmatch
"""
ZSH = "#compdef gaussmatch\nautoload -U +X bashcompinit && bashcompinit\n"


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "completion",
        "Print a script that makes the Tab key complete verbs, options and their values.",
        notes='bash: put eval "$(gaussmatch completion bash)" into ~/.bashrc.\n'
        'zsh: put eval "$(gaussmatch completion zsh)" into ~/.zshrc, after compinit.\n'
        "fish: write it to ~/.config/fish/completions/gaussmatch.fish.",
        examples=["gaussmatch completion bash", "gaussmatch completion fish"],
    )
    parser.add_argument("shell", choices=SHELLS)
    print({"bash": bash, "zsh": zsh, "fish": fish}[parser.parse(argv).shell](), end="")


def parsers() -> Iterator[tuple[str, Parser | None, Sequence[str]]]:
    """Every verb and sub-verb, as typed; its parser, unless it only has sub-verbs; and these."""
    for verb in cli.VERBS:
        module = import_module(cli.module_of(verb))
        below = getattr(module, "VERBS", {})
        yield verb, _built(module.run), list(below)
        for name, run_below in below.items():
            yield f"{verb} {name}", _built(run_below), ()


def _built(run_verb: Callable[[Sequence[str]], None]) -> Parser | None:
    try:
        with redirect_stderr(StringIO()):  # a verb that only has sub-verbs lists them
            run_verb(DESCRIBE)
    except ParserBuiltError as found:
        return found.parser
    except ValueError:
        pass
    return None


def bash() -> str:
    cases, values = [], []
    for words, parser, below in parsers():
        verb, _, sub = words.partition(" ")
        options = _options(parser)
        offered = [*below, *(name for action in options for name in action.option_strings)]
        at = f'"{verb} {sub}"' + ("" if sub else "*")
        cases.append((bool(sub), f"      {at}) words={quote(' '.join(offered))} ;;"))
        for action in options:
            if action.choices and action.option_strings:
                at = f'"{verb} {sub} ' if sub else f'"{verb} "*" '
                names = "|".join(f'{at}{name}"' for name in action.option_strings)
                choices = quote(" ".join(map(str, action.choices)))
                values.append((bool(sub), f"      {names}) words={choices} ;;"))
            elif action.choices and not action.option_strings:
                words_ = " ".join([*map(str, action.choices), *offered])
                cases[-1] = (bool(sub), f"      {at}) words={quote(words_)} ;;")
    lines = [
        "\n".join(line for _, line in sorted(found, key=lambda each: not each[0]))
        for found in (cases, values)
    ]
    text = BASH.replace("@VERBS@", quote(" ".join(cli.VERBS)))
    return text.replace("@CASES@", lines[0]).replace("@VALUES@", lines[1])


def zsh() -> str:
    """By the script of bash, which zsh runs."""
    return ZSH + bash()


def fish() -> str:
    lines = [
        f"complete -c gaussmatch -n __fish_use_subcommand -f -a {verb} -d {_fish(text)}"
        for verb, text in cli.VERBS.items()
    ]
    for words, parser, below in parsers():
        verb, _, sub = words.partition(" ")
        when = f"__fish_seen_subcommand_from {verb}"
        if sub:
            when += f"; and __fish_seen_subcommand_from {sub}"
        elif below:
            names = " ".join(below)
            when += f"; and not __fish_seen_subcommand_from {names}"
            lines.append(f"complete -c gaussmatch -n {_fish(when)} -a {_fish(names)}")
        for action in _options(parser):
            flags = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}"
                     for n in action.option_strings]  # fmt: skip
            takes = ["-r"] if flags and action.nargs != 0 else []
            values = " ".join(map(str, action.choices or ()))
            said = [f"-a {_fish(values)}"] if values else []
            if flags or values:
                help_ = (action.help or "").partition(" (")[0].replace("%%", "%")
                about = [f"-d {_fish(help_)}"] if flags and help_ else []
                rest = " ".join([*flags, *takes, *said, *about])
                lines.append(f"complete -c gaussmatch -n {_fish(when)} {rest}")
    return "\n".join(lines) + "\n"


def _options(parser: Parser | None) -> list[Action]:
    return [] if parser is None else list(parser._actions)


def _fish(text: str) -> str:
    """Between single quotes, as fish reads them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
