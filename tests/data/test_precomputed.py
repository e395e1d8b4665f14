"""Features in the layout of VSE++, SCAN and VSRN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data.test_coco import write_coco, write_ids

from gaussmatch.data.pairs import image_batches
from gaussmatch.data.stored import load_precomputed as load
from gaussmatch.data.stored import read_split
from gaussmatch.models.features import featurizer, load_data
from gaussmatch.models.recipe import DataRecipe


def write(
    root: Path, split: str, images: int, captions: int, shape: tuple[int, ...] = (4,)
) -> None:
    root.mkdir(exist_ok=True)
    array = np.arange(images * int(np.prod(shape)), dtype=np.float32).reshape(images, *shape)
    np.save(root / f"{split}_ims.npy", array)
    (root / f"{split}_caps.txt").write_text("".join(f"caption {i}\n" for i in range(captions)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for split, images in (("train", 4), ("dev", 3), ("test", 2)):
        write(tmp_path / "coco_precomp", split, images, 5 * images)
    return tmp_path / "coco_precomp"


def test_images_once(root: Path) -> None:
    data = load_data(DataRecipe(name="precomputed", root=str(root)))
    assert [len(p.images) for p in (data.train, data.dev, data.test)] == [4, 3, 2]
    assert data.test.image_of.tolist() == [0] * 5 + [1] * 5
    assert data.train.images[1].tolist() == [4, 5, 6, 7]
    assert data.train.images[1].dtype == np.float32
    assert data.train.images.picture(0) is None


def test_images_five_times_are_the_same_images(root: Path) -> None:
    array = np.load(root / "test_ims.npy")
    np.save(root / "test_ims.npy", array.repeat(5, axis=0))
    pairs = read_split(root, "test")
    assert len(pairs.images) == 2
    assert pairs.images[1].tolist() == array[1].tolist()
    assert pairs.image_of.tolist() == [0] * 5 + [1] * 5


def test_one_caption_an_image_is_not_five_times(tmp_path: Path) -> None:
    write(tmp_path, "test", 10, 10)
    pairs = read_split(tmp_path, "test")
    assert len(pairs.images) == 10
    assert pairs.image_of.tolist() == list(range(10))


def test_regions_stay_on_the_disk(tmp_path: Path) -> None:
    write(tmp_path, "train", 2, 10, (36, 8))
    pairs = read_split(tmp_path, "train")
    assert pairs.images[0].shape == (36, 8)
    assert isinstance(pairs.images._array, np.memmap)  # type: ignore[attr-defined]


def test_dev_may_be_capped_and_named_val(root: Path) -> None:
    for kind in ("ims.npy", "caps.txt"):
        (root / f"dev_{kind}").rename(root / f"val_{kind}")
    dev = load(root, dev_images=2).dev
    assert (len(dev.images), len(dev.captions)) == (2, 10)
    assert len(next(image_batches(dev, 8))) == 2


def test_a_row_for_each_caption_given(root: Path) -> None:
    (root / "test_caps.txt").write_text("a\nb\nc\n")
    (root / "test_rows.txt").write_text("0\n0\n1\n")
    assert torch.equal(read_split(root, "test").image_of, torch.tensor([0, 0, 1]))
    (root / "test_rows.txt").write_text("0\n0\n2\n")
    with pytest.raises(ValueError, match=r"test_rows\.txt, line 3: '2' is not a row from 0 to 1"):
        read_split(root, "test")
    (root / "test_rows.txt").write_text("0\n")
    with pytest.raises(ValueError, match=r"1 lines for 3 captions"):
        read_split(root, "test")


def test_rows_that_do_not_match(root: Path) -> None:
    (root / "test_caps.txt").write_text("a\nb\nc\n")
    with pytest.raises(ValueError, match=r"test_ims\.npy: 2 rows .* do not match 3 captions"):
        read_split(root, "test")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 4), dtype=np.int64), "features are int64"),
        (np.zeros(2), r"shape \(2,\)"),
        (np.array([{}, {}], dtype=object), "not a complete"),
    ],
)
def test_wrong_arrays(root: Path, array: np.ndarray, message: str) -> None:
    np.save(root / "test_ims.npy", array)
    with pytest.raises(ValueError, match=rf"test_ims\.npy: {message}"):
        read_split(root, "test")


def test_an_array_cut_short(root: Path) -> None:
    path = root / "train_ims.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"train_ims\.npy: not a complete"):
        read_split(root, "train")


def test_nan_is_named_where_it_is_read(root: Path) -> None:
    array = np.load(root / "dev_ims.npy")
    array[1, 2] = np.nan
    np.save(root / "dev_ims.npy", array)
    with pytest.raises(ValueError, match=r"coco_precomp/dev: the features of image 1 .*\(2,\)"):
        list(image_batches(read_split(root, "dev"), 8))


def test_missing_and_empty(root: Path) -> None:
    (root / "test_caps.txt").write_text("a\n\nc\n")
    with pytest.raises(ValueError, match=r"test_caps\.txt, line 2: an empty caption"):
        read_split(root, "test")
    (root / "test_caps.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"test_caps\.txt: missing"):
        read_split(root, "test")
    (root / "test_ims.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"no test_ims\.npy or testall_ims\.npy"):
        read_split(root, "test")
    write(root, "test", 2, 10, (5,))
    with pytest.raises(ValueError, match="different shapes"):
        load(root)


def test_foreign_features_cannot_be_made_again(root: Path) -> None:
    with pytest.raises(ValueError, match=r"no manifest\.json: how its features were made"):
        featurizer(DataRecipe(name="precomputed", root=str(root)))


def test_without_a_root() -> None:
    with pytest.raises(ValueError, match=r"data\.root is not set.*data where flickr8k"):
        load_data(DataRecipe(name="flickr8k"))


def test_published_rows_find_their_photos_by_the_captions(tmp_path: Path) -> None:
    coco = write_coco(tmp_path / "coco")
    write_ids(coco, train=[1, 2], dev=[7, 8], test=[9, 10, 12])
    published = tmp_path / "published"
    for split, images in (("train", [2, 1]), ("dev", [7, 8]), ("testall", [12, 9, 10])):
        write(published, split, len(images), 0, shape=(2,))
        said = [f"a cat {i} {k}" for i in images for k in range(2)]  # another tokenizer
        (published / f"{split}_caps.txt").write_text("\n".join(said) + "\n")
    named = DataRecipe(name="coco", root=str(coco), extracted=str(published))
    precomputed = DataRecipe(name="precomputed", root=str(published), coco=str(coco))
    for recipe in (named, precomputed):
        data = load_data(recipe)
        assert data.test.images[2].tolist() == [0, 1]  # image 12 has the first row
        assert data.test.classes is not None
    with pytest.raises(ValueError, match=r"also give COCO's folder as data\.coco"):
        load_data(DataRecipe(name="precomputed", root=str(published), cxc="cxc"))
    (published / "testall_caps.txt").write_text("another\n" * 6)
    with pytest.raises(ValueError, match=r"000009\.jpg \(test\) belong to no row"):
        load_data(named)
