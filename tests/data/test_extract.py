"""Photos → features: resumable, shared, and made again the same way for new photos."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from data.files import flickr8k, own_photos, photo
from safetensors.torch import save_file

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.data.flickr import read_flickr8k
from gaussmatch.data.listing import Photo
from gaussmatch.data.pairs import RandomViews
from gaussmatch.data.pictures import open_picture
from gaussmatch.models.encoders.backbone import Backbone
from gaussmatch.models.encoders.pretrained.base import make_importable
from gaussmatch.models.features import featurizer, load_data
from gaussmatch.models.features.photos import (
    Boxes,
    ExtractionPlan,
    Layout,
    Manifest,
    describe,
    encode,
    extract,
)
from gaussmatch.models.recipe import DataRecipe

make_importable()
timm = pytest.importorskip("timm", reason="features of photos need the extra 'vision'")
BACKBONE = "test_resnet"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network with random weights: no test downloads anything."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "net.safetensors"
    save_file(timm.create_model(BACKBONE).state_dict(), path)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return flickr8k(tmp_path / "f8k")


def words(root: Path, weights: Path, *more: str) -> list[str]:
    out = str(root.parent / "features")
    return [
        "extract", str(root), "--out", out, "--backbone", BACKBONE, "--weights", str(weights),
        "--shard", "2", "--batch", "2", "--workers", "1", *more,
    ]  # fmt: skip


def test_extract_then_load_and_make_again(
    root: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(root, weights)) == 0
    assert "10 photos" in capsys.readouterr().out
    out = root.parent / "features"
    stored = np.load(out / "train_ims.npy", mmap_mode="r")
    assert (stored.dtype, stored.shape[0]) == (np.float16, 6)
    assert not (out / "shards").exists()
    data = load_data(DataRecipe(name="flickr8k", root=str(root), extracted=str(out)))
    assert data.test.relevance is not None
    alone = load_data(DataRecipe(name="precomputed", root=str(out)))
    assert alone.train.captions == data.train.captions
    assert torch.equal(alone.train.image_of, data.train.image_of)
    for recipe in (
        DataRecipe(name="flickr8k", root=str(root), extracted=str(out)),
        DataRecipe(name="precomputed", root=str(out)),
        DataRecipe(name="flickr8k", root=str(root), backbone=BACKBONE, weights=str(weights)),
    ):
        made = featurizer(recipe)([open_picture(root / "images" / f"{i}.jpg") for i in range(6)])
        np.testing.assert_allclose(made, stored, atol=2e-2, rtol=2e-3)


def test_regions_are_a_grid(root: Path, weights: Path) -> None:
    assert main(words(root, weights, "--features", "regions")) == 0
    out = root.parent / "features"
    assert np.load(out / "test_ims.npy").shape[:2] == (2, 36)
    recipe = DataRecipe(name="flickr8k", root=str(root), extracted=str(out))
    with pytest.raises(
        ValueError, match=r"data\.features is pooled, but .*set data\.features to regions"
    ):
        load_data(recipe)


def test_features_by_onnxruntime_are_those_of_torch(
    root: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    fast, slow = (Backbone.pretrained(BACKBONE, weights) for _ in range(2))
    listing, manifest = read_flickr8k(root), describe(fast, weights, "pooled")
    extract(listing, root.parent / "fast", fast, manifest, progress=False)
    monkeypatch.setenv("GAUSSMATCH_ONNX", "0")
    extract(listing, root.parent / "slow", slow, manifest, progress=False)
    assert fast.fast is not None
    assert slow.fast is None
    found, wanted = (np.load(root.parent / name / "train_ims.npy") for name in ("fast", "slow"))
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_a_kill_loses_one_shard_at_most(
    root: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    pooled = Backbone.run

    def dies(self: Backbone, pictures: torch.Tensor) -> torch.Tensor:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(len(pictures))
        return pooled(self, pictures)

    monkeypatch.setattr(Backbone, "run", dies)
    assert main(words(root, weights)) == 130
    shards = root.parent / "features" / "shards"
    assert len(list(shards.iterdir())) == 2
    counted: list[int] = []

    def counts(self: Backbone, pictures: torch.Tensor) -> torch.Tensor:
        counted.append(len(pictures))
        return pooled(self, pictures)

    monkeypatch.setattr(Backbone, "run", counts)
    assert main(words(root, weights)) == 0
    assert sum(counted) == 10 - 4
    assert main(words(root, weights)) == 0
    assert sum(counted) == 10 - 4


def test_other_photos_are_not_taken_for_the_same(
    root: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a kill, and after the end: rows never belong to other photos than they say."""
    net, listing = Backbone.pretrained(BACKBONE, weights), read_flickr8k(root)
    manifest, out = describe(net, weights, "pooled"), root.parent / "features"
    extract(listing, out, net, manifest, plan=ExtractionPlan(2, 2, (0, 2), 1), progress=False)
    lines = (root / "Flickr_8k.trainImages.txt").read_text().splitlines(keepends=True)
    (root / "Flickr_8k.trainImages.txt").write_text("".join(lines[1:]))
    assert main(words(root, weights)) == 0
    fresh = root.parent / "fresh"
    extract(read_flickr8k(root), fresh, net, manifest, progress=False)
    a, b = (np.load(folder / "train_ims.npy") for folder in (out, fresh))
    np.testing.assert_allclose(a, b, atol=1e-2)
    (root / "Flickr_8k.trainImages.txt").write_text("".join(lines))
    capsys.readouterr()
    assert main(words(root, weights)) == 2
    assert "train_ims_files.txt: the photos of train have changed" in capsys.readouterr().err


def test_two_parts_make_what_one_makes(root: Path, weights: Path) -> None:
    assert main(words(root, weights)) == 0
    whole = np.load(root.parent / "features" / "train_ims.npy")
    net, listing = Backbone.pretrained(BACKBONE, weights), read_flickr8k(root)
    manifest, out = describe(net, weights, "pooled"), root.parent / "parts"
    done = [
        extract(listing, out, net, manifest, plan=ExtractionPlan(2, 2, (k, 2), 1), progress=False)
        for k in (1, 0)
    ]
    assert done == [False, True]
    assert np.array_equal(np.load(out / "train_ims.npy"), whole)


def test_broken_photos_stop_it_unless_skipped(
    root: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "images" / "4.jpg").write_bytes((root / "images" / "4.jpg").read_bytes()[:300])
    assert main(words(root, weights)) == 2
    err = capsys.readouterr().err
    assert "4.jpg: cannot be decoded" in err
    assert "--skip-unreadable" in err
    (root / "images" / "9.jpg").unlink()
    assert main(words(root, weights)) == 2
    assert "9.jpg: no such image (1 of 10 are missing)" in capsys.readouterr().err
    assert main(words(root, weights, "--skip-unreadable")) == 0
    out = root.parent / "features"
    assert (out / "unreadable.txt").read_text() == "4.jpg\n9.jpg\n"
    data = load_data(DataRecipe(name="flickr8k", root=str(root), extracted=str(out)))
    assert (len(data.train.images), len(data.test.images)) == (5, 1)


def test_a_folder_of_other_features_is_left_alone(
    root: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = root.parent / "features"
    out.mkdir()
    (out / "thesis.txt").touch()
    assert main(words(root, weights)) == 2
    assert "is not empty" in capsys.readouterr().err
    (out / "thesis.txt").unlink()
    assert main(words(root, weights)) == 0
    assert main(words(root, weights, "--features", "regions")) == 2
    assert "holds pooled features of test_resnet" in capsys.readouterr().err


def test_boxes_of_a_detector(root: Path, weights: Path, tmp_path: Path) -> None:
    lines = [{"image": f"{i}.jpg", "boxes": [[0, 0, 40, 30], [0, 0, 10, 10]]} for i in range(10)]
    path = tmp_path / "boxes.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(words(root, weights, "--features", "regions", "--boxes", str(path))) == 0
    out = root.parent / "features"
    stored = np.load(out / "test_ims.npy").astype(np.float32)
    assert stored.shape[:2] == (2, 36)
    assert np.allclose(stored[:, 0], stored[:, 35])  # the whole picture fills what is missing
    assert not np.allclose(stored[:, 0], stored[:, 1])
    recipe = DataRecipe(name="flickr8k", root=str(root), features="regions", extracted=str(out))
    assert load_data(recipe).test.images[0].shape == stored.shape[1:]
    with pytest.raises(ValueError, match="made from a detector's boxes"):
        featurizer(recipe)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not"),
        ('{"image": "a.jpg"}', "line 1: not"),
        ('{"image": "a.jpg", "boxes": [[5, 0, 1, 9]]}', "line 1: .* is not left < right"),
        ('{"image": "b.jpg", "boxes": []}', "no boxes for a.jpg"),
        ('{"image": "a.jpg", "boxes": [[0, 0, 99, 9]]}', "beyond the 40 × 30 photo"),
    ],
)
def test_bad_boxes(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "boxes.jsonl").write_text(line + "\n")
    shown = Photo("a.jpg", photo(tmp_path / "a.jpg"), ())
    with pytest.raises(ValueError, match=rf"boxes\.jsonl.*{message}"):
        Boxes(tmp_path / "boxes.jsonl").of(shown)


def test_other_weights_are_noticed(root: Path, weights: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(weights.read_bytes())
    assert main(words(root, mine)) == 0
    torch.manual_seed(1)
    save_file(timm.create_model(BACKBONE).state_dict(), mine)
    recipe = DataRecipe(name="precomputed", root=str(root.parent / "features"))
    with pytest.raises(ValueError, match="made with other weights"):
        featurizer(recipe)
    mine.write_bytes(mine.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"mine\.safetensors: not the weights of test_resnet"):
        featurizer(recipe)
    mine.unlink()
    with pytest.raises(FileNotFoundError, match=r"mine\.safetensors: no such file of weights"):
        featurizer(recipe)


def test_an_unknown_backbone() -> None:
    with pytest.raises(ValueError, match="timm has no backbone 'resnet5O'; near are"):
        Backbone.pretrained("resnet5O")


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet", "test_convnext"])
@pytest.mark.parametrize("layout", ["pooled", "regions"])
def test_any_network(name: str, layout: Layout, tmp_path: Path) -> None:
    save_file(timm.create_model(name).state_dict(), tmp_path / "net.safetensors")
    net = Backbone.pretrained(name, tmp_path / "net.safetensors")
    picture = net.transform(open_picture(photo(tmp_path / "a.jpg")))[None]
    shape = (1, net.width) if layout == "pooled" else (1, 36, net.width)
    assert encode(net, layout, picture).shape == shape


def test_your_own_photos_train_in_one_command(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    root, run = own_photos(tmp_path / "mine"), tmp_path / "run"
    done = main(
        ["train", "folder/vsepp-kl", "--data.root", str(root), "--data.backbone", BACKBONE,
         "--data.weights", str(weights), "--training.epochs", "1", "--training.batch_size", "8",
         "--model.dim", "8", "--out", str(run)]
    )  # fmt: skip
    assert done == 0
    model = gm.load(run)
    images = model.encode_images([root / "0.jpg", root / "1.jpg"])
    assert model.similarity(images, model.encode_texts(["a dog"])).shape == (2, 1)


def test_the_cache_is_known_by_content_and_changed_files_are_not_believed(
    root: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    recipe = DataRecipe(
        name="flickr8k", root=str(root), backbone=BACKBONE, weights=str(weights), features="pooled"
    )
    before = np.stack(list(load_data(recipe).train.images))
    (kept,) = (tmp_path / "cache" / "extracted").glob("*/train_ims.npy")
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    poisoned = np.load(kept)
    np.save(kept, poisoned + 1)
    again = np.stack(list(load_data(recipe).train.images))
    assert "train_ims.npy is damaged; making it again" in caplog.text
    np.testing.assert_array_equal(again, before)
    with monkeypatch.context() as patch:  # what is there is not made twice
        patch.setattr("gaussmatch.models.features.extract", None)
        load_data(recipe)
    photo(root / "images" / "0.jpg", seed=99)  # the same name, another photo
    other = np.stack(list(load_data(recipe).train.images))
    assert not np.array_equal(other, before)


def test_a_damaged_shard_is_made_again(root: Path, weights: Path) -> None:
    assert main(words(root, weights, "--part", "0/2")) == 0
    shard = next((root.parent / "features" / "shards").glob("*.npz"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 255
    shard.write_bytes(content)
    assert main(words(root, weights)) == 0
    assert np.isfinite(np.load(root.parent / "features" / "train_ims.npy")).all()


def test_cached_crops_are_seen_in_training_and_the_center_elsewhere(
    root: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(root, weights, "--crops", "3")) == 0
    out = root.parent / "features"
    crops = np.load(out / "train_crops_ims.npy")
    assert crops.shape == (6, 3, np.load(out / "train_ims.npy").shape[1])
    assert not (crops[0, 0] == crops[0, 1]).all()
    recipe = DataRecipe(name="flickr8k", root=str(root), extracted=str(out), crops=3)
    data = load_data(recipe)
    assert isinstance(data.train.images, RandomViews)
    assert np.array_equal(data.train.images.random_view(4, seed=7), crops[4, 1])
    assert np.array_equal(data.train.images[4], np.load(out / "train_ims.npy")[4])
    assert not isinstance(data.dev.images, RandomViews)
    (out / "train_crops_ims.npy").unlink()
    with pytest.raises(FileNotFoundError, match="holds no crops; extract with --crops 3"):
        load_data(recipe)


def test_a_view_in_the_name_is_the_view_of_the_options(
    root: Path, weights: Path, tmp_path: Path
) -> None:
    place = f"{BACKBONE}+whole@{weights}"
    assert main(words(root, weights, "--view", "whole")) == 0
    assert main(["extract", str(root), "--out", str(tmp_path / "named"), "--backbone", place]) == 0
    one, other = (Manifest.load(f) for f in (root.parent / "features", tmp_path / "named"))
    assert one == other
    assert one.view == "whole"
    arrays = (np.load(f / "test_ims.npy") for f in (root.parent / "features", tmp_path / "named"))
    np.testing.assert_array_equal(*arrays)


def test_a_single_file_makes_new_features_if_the_network_is_the_one(
    root: Path, weights: Path, tmp_path: Path
) -> None:
    assert main(words(root, weights, "--view", "whole")) == 0
    out = root.parent / "features"
    for name in ("train_ims.npy", "train_ims_files.txt"):
        (out / name).rename(tmp_path / name.replace("train_ims", "net"))
    fields = {"name": "flickr8k", "root": str(root), "extracted": str(tmp_path / "net.npy")}
    seen = DataRecipe(**fields, backbone=BACKBONE, weights=str(weights), view="whole")
    first = open_picture(root / "images" / "0.jpg")
    made, held = featurizer(seen)([first])[0], np.load(tmp_path / "net.npy")[0]
    assert np.allclose(made, held, atol=1e-2)
    np.save(tmp_path / "net.npy", np.load(tmp_path / "net.npy")[:, ::-1])
    with pytest.raises(ValueError, match="makes other features of 0"):
        featurizer(seen)
    with pytest.raises(ValueError, match=r"has no manifest\.json"):
        featurizer(DataRecipe(**fields, backbone=BACKBONE, view="whole"))
