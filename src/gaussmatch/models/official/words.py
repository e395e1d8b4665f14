"""Vocabularies of others, read as data: nothing in them is executed.

Three layouts are published, all of them two dicts and a number:
a pickled object of a class ``Vocabulary`` (VSE++, VSRN, PVSE; Python 2 and 3), a pickled dict
(PCME), and JSON (SCAN and its followers).

A pickle is a program for a small machine. Two walls keep it from running anything: only the
instructions that dicts, strings and numbers need are allowed (none that calls a function), and the
one name that may be requested is the class, which becomes an empty one made for this file.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
from pathlib import Path
from typing import Any

from gaussmatch.models.encoders.vocabulary import SPECIALS

LARGEST = 64 * 2**20
"""Larger files are no vocabulary."""

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
