"""The command line: one small module for each verb."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword

from tqdm import tqdm

VERBS = {
    "demo": "make scenes, train a point model and its probabilistic twin, compare them",
    "train": "train a recipe into a run folder",
    "evaluate": "measure a run on a split",
    "compare": "train recipes over several seeds and print mean ± std",
    "reproduce": "make the paper's tables and figures again, on any data set, with a report",
    "index": "photos → an index on disk; add, delete, update, merge",
    "search": "search an index in words or with a picture",
    "serve": "search an index in the browser, and by programs",
    "embed": "many items → shards of Gaussians, by many processes",
    "data": "check a data set before training on it, or tell where its files come from",
    "extract": "photos → features, with any network of timm",
    "import": "checkpoints of the official codes → run folders",
    "scenes": "make the embedded data set, or pretrain its backbone again",
}


def main(argv: Sequence[str] | None = None) -> int:
    """``gaussmatch VERB …``. Bad input ends with one clear line and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(_help())
        return 0
    if words[0] in ("-V", "--version"):
        from gaussmatch import __version__

        print(__version__)
        return 0
    if words[0] not in VERBS:
        print(f"gaussmatch: no verb {words[0]!r}\n\n{_help()}", file=sys.stderr)
        return 2
    module = f"{words[0]}_" if iskeyword(words[0]) else words[0]
    verb = import_module(f"gaussmatch.cli.{module}")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _tell
            verb.run(words[1:])
    except KeyboardInterrupt:
        print("\ninterrupted; what was finished is kept", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        if os.environ.get("GAUSSMATCH_DEBUG"):
            raise
        print(f"gaussmatch {words[0]}: {error}", file=sys.stderr)
        return 2
    return 0


def _tell(message: Warning | str, *place: object, **options: object) -> None:
    """A warning as one line that does not tear a progress bar."""
    tqdm.write(f"warning: {message}", file=sys.stderr)


def _help() -> str:
    lines = ["usage: gaussmatch VERB …", ""]
    lines += [f"  {verb:10} {text}" for verb, text in VERBS.items()]
    lines += ["", "gaussmatch VERB --help tells more; GAUSSMATCH_DEBUG=1 shows full tracebacks."]
    return "\n".join(lines)
