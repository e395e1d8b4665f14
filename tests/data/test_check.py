"""``gaussmatch data``: what is there and what is wrong with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from data.files import flickr8k, photo
from PIL import Image

from gaussmatch.apps.cli import main
from gaussmatch.data import SOURCES, recognize, source
from gaussmatch.data.check import garbled, says_nothing
from gaussmatch.data.language import language_of
from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import DataRecipe


def check(root: Path, *words: str) -> int:
    return main(["data", "check", str(root), "--sheet", str(root.parent / "sheet.png"), *words])


def test_a_whole_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(flickr8k(tmp_path / "f8k")) == 0
    printed = capsys.readouterr().out
    assert "train: 6 images, 12 captions" in printed
    assert "captions per image: 6 images with 2" in printed
    assert "words per caption: 9 to 9, median 9" in printed
    assert "orphan.jpg.1 has captions and no photo" in printed
    assert "no problems found" in printed
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (1200, 1024)


def test_broken_missing_and_leaking_photos_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = flickr8k(tmp_path / "f8k")
    images = root / "images"
    (images / "0.jpg").unlink()
    (images / "1.jpg").write_bytes((images / "1.jpg").read_bytes()[:300])
    shutil.copy(images / "2.jpg", images / "9.jpg")
    Image.new("RGB", (41, 30)).save(images / "3.jpg", "PPM")
    assert check(root) == 2
    printed = capsys.readouterr().err
    assert "3 problems" in printed
    assert "1 photos are missing: 0.jpg" in printed
    assert "2 photos cannot be decoded: 1.jpg, 3.jpg" in printed
    assert "(leakage): 2.jpg (train) = 9.jpg (test)" in printed


def test_precomputed_features_are_looked_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "dev", "test"):
        np.save(tmp_path / f"{split}_ims.npy", np.ones((2, 36, 4), dtype=np.float16))
        (tmp_path / f"{split}_caps.txt").write_text("a dog\n" * 10)
    assert check(tmp_path) == 0
    assert "features 36 × 4" in capsys.readouterr().out
    bad = np.ones((2, 36, 4))
    bad[1, 3, 2] = np.inf
    np.save(tmp_path / "dev_ims.npy", bad)
    assert check(tmp_path, "--format", "precomputed") == 2
    assert "1 rows of" in capsys.readouterr().err


def test_cxc_prints_the_papers_numbers(
    shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "check", "--format", "cxc", str(shared_data / "cxc")]) == 0
    printed = capsys.readouterr().out
    assert "10,614" in printed
    assert "35,614" in printed


def test_real_coco_is_checked(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "check", str(shared_data / "coco_mini"), "--sheet", str(tmp_path / "s.png")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "80 object classes; 159 images show at least one" in printed


def test_the_format_is_guessed_or_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--format"):
        recognize(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        recognize(tmp_path / "none")
    for file, form in (("captions.csv", "folder"), ("captions_val2017.json", "coco")):
        (tmp_path / file).touch()
        assert recognize(tmp_path).name == form


def test_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "where"]) == 0
    printed = capsys.readouterr().out
    assert all(one.where in printed for one in SOURCES.values())
    assert main(["data", "where", "coco"]) == 0
    assert capsys.readouterr().out.strip() == SOURCES["coco"].where


def test_every_source_of_files_says_where_to_get_them_and_how_to_recognize_them() -> None:
    for name, one in SOURCES.items():
        assert one.name == name
        assert bool(one.where) == (name != "scenes")
        assert bool(one.signs) == (name not in ("scenes", "arrays"))  # arrays: files, no folder
        assert set(one.fields) <= set(DataRecipe.__dataclass_fields__)
        assert one.read is None or one.load is None


def test_an_unknown_source_and_a_field_of_another_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'flickr30k'"):
        load_data(DataRecipe(name="flickr-30k"))
    with pytest.raises(
        ValueError, match=r"data\.cxc applies to coco and precomputed, not to flickr8k"
    ):
        load_data(DataRecipe(name="flickr8k", root=".", cxc="cxc"))
    with pytest.raises(ValueError, match="cxc has no photos"):
        source("cxc").listing(DataRecipe(name="cxc"), Path("."))


def test_a_photo_without_a_caption_is_no_reason_to_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo(tmp_path / "flickr30k-images" / "a.jpg")
    photo(tmp_path / "flickr30k-images" / "b.jpg", seed=1)
    images = [
        {"filename": "a.jpg", "split": "train", "sentids": [], "sentences": []},
        {
            "filename": "b.jpg",
            "split": "test",
            "sentids": [0],
            "sentences": [{"raw": "a dog", "sentid": 0}],
        },
    ]
    (tmp_path / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))
    assert check(tmp_path) == 0
    assert "captions per image: 1 images with 0" in capsys.readouterr().out


def test_captions_that_say_nothing_and_photos_of_one_color_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "mine"
    said = ["n/a", "photo 23", "IMG_2041", " ", "un cafÃ© noir", "der Hund und die Katze"]
    rows = [f"{i}.jpg,the dog is on the beach {i}" for i in range(30)]
    rows += [f"{i}.jpg,a nice picture" for i in range(6, 30) for _ in range(5)]
    rows += [f"{i}.jpg,{text}" for i, text in enumerate(said)]
    for i in range(30):
        photo(root / f"{i}.jpg", i)
    Image.new("RGB", (40, 30), "navy").save(root / "7.jpg")
    (root / "captions.csv").write_text("image,caption\n" + "\n".join(rows), encoding="utf-8")
    assert check(root) == 2
    printed = capsys.readouterr().err
    assert "6 problems" in printed
    assert "3 captions say nothing: captions.csv, line 152 'n/a'," in printed
    assert "1 captions are empty: captions.csv, line 155" in printed
    assert "1 captions are repeated 100 times or more: 'a nice picture'" in printed
    assert "broken encoding: captions.csv, line 156 'un cafÃ© noir'" in printed
    assert "in another language (German): captions.csv, line 157" in printed
    assert "1 photos have one color only: 7.jpg" in printed


@pytest.mark.parametrize(
    "text",
    [
        "3 dogs",
        "image of a dog",
        "none of the dogs run",
        "Café",
        "test tube",
        "a photo of it",
        "12 monkeys",
    ],
)
def test_short_captions_that_say_something_stay(text: str) -> None:
    assert says_nothing(text) is None
    assert garbled(text) is None


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("der Hund und die Katze", "German"),
        ("ein Mann in einem Boot", "German"),
        ("un chien et un chat dans la rue", "French"),
        ("el perro y el gato", "Spanish"),
        ("due cani corrono sulla spiaggia", "Italian"),
        ("um homem e uma mulher na praia", "Portuguese"),
        ("een hond op het strand", "Dutch"),
        ("A man standing in front of a mirror in a room.", "English"),
        ("A van parked in front of the Los Angeles de la Cruz hotel", None),
        ("two dogs", None),
    ],
)
def test_a_language_is_told_by_words_of_its_own(text: str, language: str | None) -> None:
    assert language_of(text) == language


def test_no_english_caption_is_called_another_language(shared_data: Path) -> None:
    coco = json.loads((shared_data / "coco_real/annotations/captions_train2017.json").read_bytes())
    said = [one["caption"] for one in coco["annotations"]]
    lines = (shared_data / "flickr8k/Flickr8k.token.txt").read_text(encoding="utf-8").splitlines()
    said += [line.split("\t")[1] for line in lines]
    assert len(said) > 100_000
    assert [text for text in said if language_of(text) not in ("English", None)] == []
