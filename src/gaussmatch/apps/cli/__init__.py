"""The command line: one module for each verb, or for a few that belong together."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from gaussmatch.checks import did_you_mean

VERBS = {
    "demo": "make scenes, train a point model and its probabilistic twin, compare them",
    "train": "train a recipe into a run folder",
    "adapt": "embeddings, or encoders by name → a probabilistic model",
    "evaluate": "measure a run on a split",
    "probe": "judge a run's uncertainty against people, truth and edits of known effect",
    "calibrate": "learn what a run's numbers mean: percentiles, P(fits), counts, guarantees",
    "compare": "train recipes over several seeds and print mean ± std",
    "tune": "search the fields of recipes on validation, with the same number of trials for each",
    "reproduce": "reproduce the paper's tables and figures on any data set, with a report",
    "index": "photos → an index on disk; add, delete, update, merge",
    "search": "search an index in words or with a picture",
    "serve": "search an index in the browser, and from programs",
    "embed": "many items → shards of Gaussians, in many processes",
    "export": "a model → ONNX; Gaussians → Parquet",
    "data": "check a data set before training on it, or see where to get its files",
    "audit": "find faults in a data set; make a cleaned copy of it",
    "review": "decide on the findings of an audit in the browser",
    "finetune": "train the photo model's image network on photos with captions",
    "extract": "photos → features, with any network of timm",
    "import": "checkpoints of the official codes → run folders",
    "scenes": "make the embedded data set, or pretrain its backbone again",
    "doctor": "what works on this machine, and how to get what is missing",
    "completion": "a script that makes the Tab key complete verbs and options",
}

HOMES = {
    "adapt": "train",
    "calibrate": "probe",
    "compare": "studies",
    "completion": "doctor",
    "demo": "studies",
    "evaluate": "train",
    "extract": "embed",
    "finetune": "train",
    "import": "export",
    "reproduce": "studies",
    "review": "serve",
    "scenes": "data",
    "tune": "studies",
}
"""Verb → its module, if that has another name; there it is ``run_VERB``."""


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
        near = did_you_mean(words[0], [*VERBS, "--help", "--version"])
        hint = near or f"choose from {', '.join(VERBS)}"
        print(f"gaussmatch: unknown verb {words[0]!r}; {hint}", file=sys.stderr)
        return 2
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # see docs/training.md, Threads
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            run, below = found(words[0])
            if len(words) > 1 and words[1] in below:
                below[words[1]](words[2:])
            else:
                run(words[1:])
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted; everything finished so far is kept", file=sys.stderr)
        return 130
    except (ValueError, OSError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and _reader_is_gone():
            return 128 + signal.SIGPIPE  # as a shell reports it
        if os.environ.get("GAUSSMATCH_DEBUG"):
            raise
        print(f"gaussmatch {words[0]}: {error}{_what_to_do(error)}", file=sys.stderr)
        return 2
    return 0


def found(verb: str) -> tuple[Callable[[Sequence[str]], None], Mapping[str, Any]]:
    """What runs a verb, and the verbs below it."""
    module = import_module(f"gaussmatch.apps.cli.{HOMES.get(verb, verb)}")
    run = getattr(module, "run", None) or getattr(module, f"run_{verb}")
    return run, getattr(module, f"{verb.upper()}_VERBS", getattr(module, "VERBS", {}))


def _reader_is_gone() -> bool:
    """Whether nobody reads our output any more, as in ``gaussmatch index info X | head -1``."""
    output, watch = sys.stdout.fileno(), select.poll()
    watch.register(output, 0)  # errors are always reported
    gone = bool(watch.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)  # for the flush at exit
    return gone


def _what_to_do(error: Exception) -> str:
    """Advice for an error of the operating system, which has none of its own."""
    if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    return "; existing files are kept: free some space, then run the command again"


def _show_warning(message: Warning | str, *place: object, **options: object) -> None:
    """A warning as one line that does not break a progress bar."""
    from tqdm import tqdm

    tqdm.write(f"warning: {message}", file=sys.stderr)


def _help() -> str:
    lines = ["usage: gaussmatch VERB …", ""]
    lines += [f"  {verb:10} {text}" for verb, text in VERBS.items()]
    lines += ["", "gaussmatch VERB --help shows its options and examples."]
    lines += ["GAUSSMATCH_DEBUG=1 shows full tracebacks."]
    return "\n".join(lines)
