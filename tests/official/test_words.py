"""Vocabularies of others: all layouts are read, nothing in them is run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from official.gadgets import NAMES, gadgets
from official.layouts import WORDS, vocabulary_bytes

from gaussmatch.models.official.checkpoint import read_words, words_of


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("module", ["vocab", "__main__"])
def test_pickled_objects(tmp_path: Path, module: str, protocol: int) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(vocabulary_bytes(module=module, protocol=protocol))
    assert read_words(path) == WORDS


def test_pickles_of_python_2(tmp_path: Path) -> None:
    """Names of attributes are byte strings there; so may be words, in either encoding."""
    path, data = tmp_path / "vocab.pkl", vocabulary_bytes(old=True)
    path.write_bytes(data)
    assert b"U\x08word2idx" in data
    assert read_words(path) == WORDS
    text = b"X\x05\0\0\0" + "café".encode()
    for encoding in ("utf-8", "latin-1"):
        word = "café".encode(encoding)
        path.write_bytes(data.replace(text, b"U" + bytes([len(word)]) + word))
        assert read_words(path) == WORDS


def test_dicts_and_json(tmp_path: Path) -> None:
    content = {
        "idx": len(WORDS),
        "word2idx": {word: i for i, word in enumerate(WORDS)},
        "idx2word": dict(enumerate(WORDS)),
    }
    (tmp_path / "pcme.pkl").write_bytes(pickle.dumps(content, 3))
    (tmp_path / "scan.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_words(tmp_path / "pcme.pkl") == read_words(tmp_path / "scan.json") == WORDS


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_run(tmp_path: Path, name: str) -> None:
    target, path = tmp_path / "touched", tmp_path / "vocab.pkl"
    path.write_bytes(gadgets(target)[name])
    with pytest.raises(ValueError, match=r"vocab\.pkl: .*nothing was run"):
        read_words(path)
    assert not target.exists()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x02cvocab\nVocabulary\n)R.", "instruction REDUCE"),
        (b"\x80\x02cos\nsystem\n.", r"refers to os\.system"),
        (b"\x80\x04\x8c\x05vocab\x8c\x13Vocabulary.__init__\x93.", r"Vocabulary\.__init__"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "asks for room for 2,147,483,647 objects"),
        (b"\x80\x02}X\xff\xff\xff\x7fabc.", "not an official vocabulary"),
        (b"\x80\x02" + b"(" * 99 + b"t" * 99 + b".", "instruction TUPLE"),
        (b"{" + b'"a": {' * 99_999, "not an official vocabulary"),
        (b"\x80\x02}", "not an official vocabulary"),
        (b"", "not an official vocabulary"),
        (b"\x80\x02}.", "first words are"),
        (b"\x80\x02K\x07.", "not an official vocabulary"),
    ],
)
def test_refused(tmp_path: Path, program: bytes, message: str) -> None:
    path = tmp_path / "vocab.pkl"
    path.write_bytes(program)
    with pytest.raises(ValueError, match=message):
        read_words(path)


def test_the_class_of_one_file_is_not_that_of_the_next(tmp_path: Path) -> None:
    """BUILD on the class itself would otherwise leave words behind."""
    bad, good = tmp_path / "bad.pkl", tmp_path / "good.pkl"
    bad.write_bytes(b"\x80\x02cvocab\nVocabulary\n}X\x08\0\0\0word2idx}sb.")
    with pytest.raises(ValueError, match="nothing was run"):
        read_words(bad)
    good.write_bytes(vocabulary_bytes())
    assert read_words(good) == WORDS


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".pkl") as file:
        file.write(b"\x80\x02" + noise)
        file.flush()
        with pytest.raises(ValueError):  # noqa: PT011 - any, but no other kind
            read_words(Path(file.name))


def test_numbers_must_be_those_of_the_official_codes() -> None:
    with pytest.raises(ValueError, match="without a gap"):
        words_of({"word2idx": {"<pad>": 0, "<start>": 2}}, "x")
    with pytest.raises(ValueError, match=r"first words are \['a'"):
        words_of({"a": 0, "<pad>": 1, "<start>": 2, "<end>": 3, "<unk>": 4}, "x")
    with pytest.raises(ValueError, match="no 'word2idx'"):
        words_of({"word2idx": {"a": "0"}}, "x")
    with pytest.raises(ValueError, match="no 'word2idx'"):
        words_of([], "x")


def test_files_that_are_not_there_or_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.pkl: no such vocabulary"):
        read_words(tmp_path / "none.pkl")
    monkeypatch.setattr("gaussmatch.models.official.checkpoint.LARGEST", 10)
    (tmp_path / "large.pkl").write_bytes(vocabulary_bytes())
    with pytest.raises(ValueError, match="bytes are too many for a vocabulary"):
        read_words(tmp_path / "large.pkl")
