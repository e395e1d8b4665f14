"""A user's own photos with a table of captions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.files import photo

from gaussmatch.data.folder import read
from gaussmatch.data.listing import assemble


def table(root: Path, name: str, text: str | bytes) -> Path:
    root.mkdir(exist_ok=True)
    (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return root


def said(root: Path) -> dict[str, list[str]]:
    return {p.id: [c.text for c in p.captions] for p in read(root).photos}


def test_csv_with_bom_crlf_quotes_and_any_language(tmp_path: Path) -> None:
    text = (
        "\ufeffImage,Caption,Split\r\n"
        'a.jpg,"A dog, ""Rex"", runs",train\r\n'
        "a.jpg,Ein größerer Hund 🐕,train\r\n"
        "b.jpg,一只狗在跑,val\r\n"
        'c.jpg,"two\r\nlines",test\r\n'
    )
    root = table(tmp_path, "captions.csv", text)
    assert said(root) == {
        "a.jpg": ['A dog, "Rex", runs', "Ein größerer Hund 🐕"],
        "b.jpg": ["一只狗在跑"],
        "c.jpg": ["two lines"],
    }
    assert {s: len(p) for s, p in read(root).splits.items()} == {"train": 1, "dev": 1, "test": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("captions.tsv", "file\ttext\na.jpg\tone, two\na.jpg\tthree\nb.jpg\tx\nc.jpg\ty\n"),
        ("list.csv", "filename;text\na.jpg;one, two\na.jpg;three\nb.jpg;x\nc.jpg;y\n"),
        (
            "mine.jsonl",
            '{"image": "a.jpg", "captions": ["one, two", "three"]}\n\n'
            '{"image": "b.jpg", "caption": "x"}\n{"image": "c.jpg", "caption": "y"}\n',
        ),
    ],
)
def test_other_tables(tmp_path: Path, name: str, text: str) -> None:
    assert said(table(tmp_path, name, text))["a.jpg"] == ["one, two", "three"]


def test_a_photo_has_one_name(tmp_path: Path) -> None:
    text = "image,caption\n./a.jpg,one\na.jpg,two\nb.jpg,x\nc.jpg,y\n"
    assert said(table(tmp_path, "captions.csv", text))["a.jpg"] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("captions.csv", "\n", "image"),
        ("a.jsonl", '{"image": 17, "caption": "a dog"}', "must be text, got 17"),
        ("a.jsonl", '{"image": "a.jpg", "captions": []}', "a.jpg has no caption"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(table(tmp_path, name, text))


def test_without_a_split_one_is_drawn_from_the_names(tmp_path: Path) -> None:
    rows = "".join(f"{i}.jpg,a caption\n" for i in range(50))
    first = read(table(tmp_path / "a", "captions.csv", "image,caption\n" + rows))
    lines = sorted(rows.splitlines(), reverse=True)
    again = read(table(tmp_path / "b", "c.csv", "image,caption\n" + "\n".join(lines)))
    for split, size in (("train", 40), ("dev", 5), ("test", 5)):
        assert {p.id for p in first.splits[split]} == {p.id for p in again.splits[split]}
        assert len(first.splits[split]) == size
    assert "names no split" in first.notes[0]


def test_images_are_found_beside_or_in_images(tmp_path: Path) -> None:
    root = table(tmp_path, "captions.csv", "image,caption\na.jpg,x\nsub/b.jpg,y\nc.jpg,z\n")
    photo(root / "a.jpg")
    photo(root / "images" / "sub" / "b.jpg")
    found = {p.id: p.path.is_file() for p in read(root).photos}
    assert found == {"a.jpg": True, "sub/b.jpg": True, "c.jpg": False}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("captions.csv", "", "empty"),
        ("captions.csv", "image,caption\n", "no captions below the header"),
        ("captions.csv", "photo_of,caption\na.jpg,x\n", "line 1: no column for the image"),
        (
            "captions.csv",
            "image,caption\na.jpg,one, two\n",
            "line 2: 3 fields, .* has 2; put .*quotes",
        ),
        ("captions.csv", 'image,caption\na.jpg,"open\n', "line 2: not valid CSV"),
        ("captions.csv", "image,caption,split\na.jpg,x,trian\n", "line 2: no split 'trian'"),
        (
            "captions.csv",
            "image,caption,split\na.jpg,x,train\na.jpg,y,test\n",
            "line 3: .*one split",
        ),
        ("captions.csv", "image,caption,split\na.jpg,x,train\nb.jpg,y,\n", "b.jpg has no split"),
        ("captions.csv", b"image,caption\na.jpg,gr\xfcn\n", "line 2: not UTF-8"),
        (
            "captions.jsonl",
            '{"image": "a.jpg", "caption": "x"}\n{"image": \n',
            "line 2: not valid JSON",
        ),
        ("captions.jsonl", '{"image": "a.jpg"}\n', "line 1: no field 'caption'"),
        ("captions.jsonl", '{"image": "a.jpg", "caption": 3}\n', "line 1: .* must be text"),
        ("captions.jsonl", "[]\n", "line 1: must be an object"),
    ],
)
def test_bad_tables_name_the_line(
    tmp_path: Path, name: str, text: str | bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        read(table(tmp_path, name, text))


def test_an_empty_caption_is_refused_where_it_stands(tmp_path: Path) -> None:
    rows = "".join(f"{i}.jpg,{' ' if i == 4 else 'x'}\n" for i in range(9))
    listing = read(table(tmp_path, "captions.csv", "image,caption\n" + rows))
    with pytest.raises(ValueError, match=r"captions\.csv, line 6: the caption of 4\.jpg is empty"):
        assemble(listing, lambda split, photos: np.zeros((len(photos), 2)))


def test_which_table(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such folder"):
        read(tmp_path / "none")
    with pytest.raises(ValueError, match=r"needs one captions\.csv.*found: none"):
        read(tmp_path)
    for name in ("a.csv", "b.csv"):
        table(tmp_path, name, "image,caption\n")
    with pytest.raises(ValueError, match=r"found: a\.csv, b\.csv"):
        read(tmp_path)


def test_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = table(tmp_path / "mine", "captions.csv", "image,caption\na,x\nb,y\nc,z\n")
    monkeypatch.chdir(root)
    assert read(Path()).name == "mine"


def test_too_few_photos_for_a_split(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 photos are too few"):
        read(table(tmp_path, "captions.csv", "image,caption\na.jpg,x\nb.jpg,y\n"))
