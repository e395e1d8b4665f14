"""The data set as it is loaded: contents, features, cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gaussmatch.data import scenes
from gaussmatch.data.pairs import DataSet
from gaussmatch.data.scenes.backbone import (
    WEIGHTS,
    SceneNet,
    _look,
    _Window,
    load_backbone,
    pretrain,
)
from gaussmatch.data.scenes.truth import true_of
from gaussmatch.data.scenes.world import COLOURS, SHAPES, Scene, Thing, draw


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def tiny(folder: Path) -> DataSet:
    return scenes.load("tiny", cache=folder, progress=False)


def test_splits_have_their_sizes(tiny: DataSet) -> None:
    for name, n in scenes.SIZES["tiny"].items():
        split = tiny.split(name)
        assert len(split.images) == n
        assert len(split.captions) == 5 * n
        assert split.image_of.bincount().tolist() == [5] * n


def test_truth_includes_the_pairs(tiny: DataSet) -> None:
    assert tiny.train.relevance is None
    for split in (tiny.dev, tiny.test):
        assert split.relevance is not None
        assert (split.relevance.dense() >= split.pairs().dense()).all()
    made = scenes.make_split("test", 100)
    truth = true_of([c.form for captions in made.captions for c in captions], made.scenes)
    assert tiny.test.relevance is not None
    assert torch.equal(truth.dense(), tiny.test.relevance.dense())
    assert list(tiny.test.captions) == [c.text for captions in made.captions for c in captions]


def test_classes_and_regions_follow_the_scene(tiny: DataSet) -> None:
    made = scenes.make_split("test", 100)
    assert tiny.test.classes is not None
    assert tiny.test.regions is not None
    for scene, classes, regions in zip(
        made.scenes, tiny.test.classes, tiny.test.regions, strict=True
    ):
        shown = {SHAPES[i] for i in classes.nonzero().flatten().tolist()}
        assert shown == {t.shape for t in scene.things}
        assert [r.box for r in regions] == [t.box for t in scene.things]
        for region in regions:
            assert 0 <= region.box[0] < region.box[2] <= 64
            assert 0 <= region.box[1] < region.box[3] <= 64
            assert region.caption.strip()


@pytest.mark.parametrize(
    ("features", "shape"),
    [("pooled", (256,)), ("regions", (36, 256)), ("pixels", (3, 64, 64))],
)
def test_features_are_those_of_the_picture(
    folder: Path, features: scenes.Features, shape: tuple[int, ...]
) -> None:
    images = scenes.load("tiny", features=features, cache=folder, progress=False).test.images
    chosen = [0, 7, 99]
    stored = np.stack([images[i] for i in chosen])
    pictures = [picture for i in chosen if (picture := images.picture(i)) is not None]
    assert stored.shape == (3, *shape)
    assert stored.dtype == np.float32
    np.testing.assert_allclose(
        scenes.featurize(pictures, features), stored, rtol=2e-3, atol=2e-3 * stored.max()
    )


def test_featurize_takes_any_picture() -> None:
    pictures = [Image.new("L", (40, 30)), Image.new("RGBA", (64, 64)), Image.new("P", (200, 5))]
    assert scenes.featurize(pictures, "pooled", batch=2).shape == (3, 256)
    pixels = scenes.featurize([Image.new("RGB", (9, 9), (255, 0, 0))], "pixels")
    assert (pixels[0, 0] == 1).all()
    assert (pixels[0, 1:] == 0).all()
    with pytest.raises(ValueError, match="no images"):
        scenes.featurize([])


def test_second_load_is_the_first(
    tiny: DataSet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(scenes, "_write_world", never)
    monkeypatch.setattr(scenes, "_write_features", never)
    _assert_same(tiny, scenes.load("tiny", cache=folder, progress=False))


def test_another_folder_gives_the_same(tiny: DataSet, tmp_path: Path) -> None:
    _assert_same(tiny, scenes.load("tiny", cache=tmp_path, progress=False))


def test_another_seed_gives_another_data_set(tiny: DataSet, tmp_path: Path) -> None:
    other = scenes.load("tiny", seed=1, features="pixels", cache=tmp_path, progress=False)
    assert list(other.test.captions) != list(tiny.test.captions)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path))
    scenes.load("tiny", features="pixels", progress=False)
    assert (tmp_path / "scenes" / f"v{scenes.VERSION}-tiny-0" / "files.json").is_file()


def test_a_damaged_data_set_is_made_again(
    tiny: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scenes.load("tiny", cache=tmp_path, progress=False)
    (held,) = tmp_path.glob("v*-pooled-*")
    victim = held / "test.npy"
    victim.write_bytes(victim.read_bytes()[:1000])
    again = scenes.load("tiny", cache=tmp_path, progress=False)
    assert "test.npy is damaged; making it again" in caplog.text
    _assert_same(tiny, again)


def test_unknown_names_say_what_there_is() -> None:
    with pytest.raises(ValueError, match="tiny, small, full"):
        scenes.load("huge")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pooled, regions or pixels"):
        scenes.load("tiny", features="resnet")  # type: ignore[arg-type]


# ---- the backbone ----


def test_the_shipped_weights_are_small() -> None:
    assert WEIGHTS.stat().st_size < 1_000_000
    assert sum(p.numel() for p in SceneNet().parameters()) < 400_000
    assert not load_backbone().training
    assert not any(p.requires_grad for p in load_backbone().parameters())


def test_features_show_what_is_there(tiny: DataSet) -> None:
    """A linear probe on frozen features finds colours and shapes far above chance."""
    pooled = [
        np.stack([s.images[i] for i in range(len(s.images))]) for s in (tiny.train, tiny.test)
    ]
    present = [
        np.array(
            [
                [
                    any(value in (t.colour, t.shape) for t in scene.things)
                    for value in COLOURS + SHAPES
                ]
                for scene in scenes.make_split(name, n).scenes
            ],
            dtype=np.float64,
        )
        for name, n in (("train", 300), ("test", 100))
    ]
    center = pooled[0].mean(0)
    known, new = ((x - center).astype(np.float64) for x in pooled)
    gram = known.T @ known + 30 * np.eye(256)
    predicted = new @ np.linalg.solve(gram, known.T @ (present[0] - present[0].mean(0)))
    right = present[1] > 0
    auc = [
        (predicted[right[:, k], k][:, None] > predicted[~right[:, k], k][None]).mean()
        for k in range(right.shape[1])
    ]
    assert np.mean(auc) > 0.85


def test_pretraining_makes_a_loadable_file(tmp_path: Path) -> None:
    out = pretrain(out=tmp_path / "net.safetensors", scenes=64, epochs=1, progress=False)
    again = pretrain(out=tmp_path / "two.safetensors", scenes=64, epochs=1, progress=False)
    assert out.stat().st_size == WEIGHTS.stat().st_size
    assert out.read_bytes() == again.read_bytes()


def test_windows_show_what_remains() -> None:
    """The picture through a window and the scene through it are one and the same view."""
    scene = Scene(
        (
            Thing("star", "red", "small", "plain", 16, 16, 6),
            Thing("heart", "blue", "large", "plain", 48, 48, 12),
        ),
        "white",
    )
    whole = torch.from_numpy(np.array(draw(scene))).permute(2, 0, 1)[None].float()
    assert _Window(0, 0, 64, mirrored=False).view(scene) == scene
    mirrored = _Window(0, 0, 64, mirrored=True)
    assert [t.x for t in mirrored.view(scene).things] == [48, 16]
    torch.testing.assert_close(_look(whole, [mirrored]), whole.flip(3), rtol=0, atol=0.01)
    (star,) = _Window(0, 0, 32, mirrored=False).view(scene).things
    assert (star.shape, star.x, star.y, star.size) == ("star", 32, 32, "large")
    (seen,) = _look(whole, [_Window(0, 0, 32, mirrored=False)])
    torch.testing.assert_close(seen[:, 32, 32], whole[0, :, 16, 16], rtol=0, atol=3.0)


def _assert_same(one: DataSet, two: DataSet) -> None:
    for name in scenes.SIZES["tiny"]:
        a, b = one.split(name), two.split(name)
        assert list(a.captions) == list(b.captions)
        assert a.regions == b.regions
        for i in (0, len(a.images) - 1):
            np.testing.assert_allclose(a.images[i], b.images[i], rtol=1e-4, atol=1e-4)
