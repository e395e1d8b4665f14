"""Checkpoints of others, read as data: nothing in them is executed.

The official codes call ``torch.save`` on a dict with weights, plain values and their command-line
options (an ``argparse.Namespace``). ``torch.load(weights_only=True)`` reads it, both the zip format
and the one before torch 1.6; the few names that it does not know are mapped onto the inert classes
below, so that no code of another package runs. Any other name is refused.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gaussmatch.models.encoders.base import SPECIALS


class Namespace:
    """Stands in for ``argparse.Namespace``: named plain values, and nothing to call."""

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise pickle.UnpicklingError("options that are not named values")
        self.__dict__.clear()
        self.__dict__.update(state)


class NumberType:
    """Stands in for ``numpy.dtype``: the letter and width of a number."""

    def __init__(self, code: str, align: bool = False, copy: bool = True) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


_NUMBERS = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b", "b1": "?"}


def number(dtype: NumberType, data: bytes | str) -> float | int | bool:
    """Stands in for ``numpy.core.multiarray.scalar``: a score that numpy computed."""
    raw = data.encode("latin-1") if isinstance(data, str) else data
    if not isinstance(dtype, NumberType) or dtype.code not in _NUMBERS or dtype.order not in "<>=|":
        raise pickle.UnpicklingError("a numpy value that is not a plain number")
    order = dtype.order if dtype.order in "<>" else "<"
    return struct.unpack(order + _NUMBERS[dtype.code], raw)[0]


_STAND_INS: list[tuple[Callable[..., Any], str]] = [
    (Namespace, "argparse.Namespace"),
    (OrderedDict, "munch.Munch"),  # the options of PCME++: a dict with attributes
    (NumberType, "numpy.dtype"),
    (number, "numpy.core.multiarray.scalar"),
    (number, "numpy._core.multiarray.scalar"),
]


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What ``torch.save`` wrote, with its options as a dict; a file with anything else is refused.

    Raises:
        ValueError: it names the file and what is wrong; nothing of the file has been run.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint")
    _refuse_swollen(path)
    try:
        with torch.serialization.safe_globals(_STAND_INS), warnings.catch_warnings():  # type: ignore[arg-type]
            warnings.simplefilter("ignore")  # of torch, about old formats
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a broken or hostile file raises many types
        raise ValueError(f"{path}: {_why(error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: holds a {type(found).__name__}, not the dict of a checkpoint")
    return {k: dict(vars(v)) if isinstance(v, Namespace) else v for k, v in found.items()}


def _why(error: Exception) -> str:
    text = str(error)
    name = re.search(r"GLOBAL (\S+)", text)
    if name is not None:
        return (
            f"refused: it refers to {name[1]}, which no official checkpoint needs; nothing was run"
        )
    if ".tar format" in text:
        return "saved by a torch before 0.1.10; load it there and save it again with a newer one"
    reason = text.split("WeightsUnpickler error:")[-1].strip().split("\n")[0]
    return f"not a complete checkpoint of torch ({reason or type(error).__name__}); nothing was run"


def _refuse_swollen(path: Path) -> None:
    """``torch.save`` stores without compression; what unpacks to more than the file is a bomb."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except Exception as error:  # a broken or hostile file raises many types
        raise ValueError(f"{path}: not a complete checkpoint of torch ({error})") from error
    if size > path.stat().st_size:
        raise ValueError(
            f"{path}: refused: {path.stat().st_size:,} bytes that unpack to {size:,}; "
            "checkpoints of torch are not compressed"
        )


# ---- words ----
# Vocabularies of others, read as data: nothing in them is executed.
#
# Three layouts are published, all of them two dicts and a number:
# a pickled object of a class ``Vocabulary`` (VSE++, VSRN, PVSE; Python 2 and 3), a pickled dict
# (PCME), and JSON (SCAN and its followers).
#
# A pickle is a program for a small machine. Two walls keep it from running anything: only the
# instructions that dicts, strings and numbers need are allowed (none that calls a function), and
# the one name that may be requested is the class, which becomes an empty one made for this file.


LARGEST = 64 * 2**20
"""A vocabulary is never larger than this."""

_CLASSES = {("vocab", "Vocabulary"), ("__main__", "Vocabulary"), ("datasets.vocab", "Vocabulary")}

# fmt: off
_INERT = {
    "PROTO", "FRAME", "STOP",
    "EMPTY_DICT", "MARK", "SETITEM", "SETITEMS",
    "GLOBAL", "STACK_GLOBAL", "EMPTY_TUPLE", "NEWOBJ", "BUILD",  # an object: class and attributes
    "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",  # text
    "SHORT_BINSTRING", "BINSTRING",  # text of Python 2
    "BININT", "BININT1", "BININT2", "LONG1",
    "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",  # what was read before, again
}
# fmt: on
"""The instructions of a pickle that may occur: those of dicts, text and whole numbers."""


def read_words(path: Path) -> list[str]:
    """The words of a vocabulary file in the order of their numbers.

    Raises:
        ValueError: it names the file and what is wrong; nothing of the file has been run.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such vocabulary")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path}: {path.stat().st_size:,} bytes are too many for a vocabulary")
    data = path.read_bytes()
    try:
        content = json.loads(data) if data.lstrip()[:1] == b"{" else _unpickle(data)
    except Exception as error:  # a broken or hostile file raises many types
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{path}: not an official vocabulary: {reason}; nothing was run"
        ) from error
    return words_of(content, str(path))


def words_of(content: object, where: str) -> list[str]:
    """The words of ``{"word2idx": …}``, or of such a dict itself, checked.

    >>> words_of({"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "dog": 4}, "here")
    ['<pad>', '<start>', '<end>', '<unk>', 'dog']
    """
    numbers = content.get("word2idx", content) if isinstance(content, dict) else None
    if not isinstance(numbers, dict) or not all(
        type(word) is str and type(number) is int for word, number in numbers.items()
    ):
        raise ValueError(f"{where}: holds no 'word2idx' from words to numbers")
    words = sorted(numbers, key=numbers.__getitem__)
    if [numbers[word] for word in words] != list(range(len(words))):
        raise ValueError(f"{where}: the numbers of the words are not 0, 1, 2, … without a gap")
    if tuple(words[: len(SPECIALS)]) != SPECIALS:
        raise ValueError(
            f"{where}: the first words are {words[: len(SPECIALS)]}, not {list(SPECIALS)}"
        )
    return words


def _unpickle(data: bytes) -> object:
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name not in _INERT:
            raise ValueError(f"refused: it holds the instruction {instruction.name}")
        if "PUT" in instruction.name and int(argument or 0) > len(data):
            raise ValueError(f"refused: it asks for room for {argument:,} objects")
    try:
        found = _Unpickler(data, "utf-8").load()
    except UnicodeDecodeError:
        found = _Unpickler(data, "latin-1").load()  # byte strings of Python 2
    return found if isinstance(found, dict) else vars(found)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, encoding: str) -> None:
        super().__init__(io.BytesIO(data), encoding=encoding)
        self._holder = type("Vocabulary", (), {})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CLASSES:
            raise ValueError(f"refused: it refers to {module}.{name}")
        return self._holder
