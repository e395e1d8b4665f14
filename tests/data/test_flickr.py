"""Flickr8k and Flickr30K from their own files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data.files import features, flickr8k, write_json

from gaussmatch.data.flickr import read_flickr8k, read_flickr30k
from gaussmatch.models.features import featurizer, load_data
from gaussmatch.models.recipe import DataRecipe


def test_flickr8k_small(tmp_path: Path) -> None:
    root = flickr8k(tmp_path / "f8k", photos=False)
    listing = read_flickr8k(root)
    assert {s: len(p) for s, p in listing.splits.items()} == {"train": 6, "dev": 2, "test": 2}
    assert any("orphan.jpg.1" in note for note in listing.notes)
    features(root, "net", [f"{i}.jpg" for i in reversed(range(10))])
    data = load_data(DataRecipe(name="flickr8k", root=str(root), extracted="net.npy"))
    stored = np.load(root / "net.npy")
    assert np.array_equal(data.test.images[0], stored[1])  # 8.jpg is the last but one row
    assert data.test.relevance is not None
    assert [data.test.relevance.of(c).tolist() for c in range(4)] == [[0], [0], [1], [0, 1]]
    assert data.dev.relevance is None
    assert data.test.images.picture(0) is None
    few = DataRecipe(name="flickr8k", root=str(root), extracted="net.npy", dev_images=1)
    assert (len(load_data(few).dev.images), len(load_data(few).dev.captions)) == (1, 2)


def test_bad_split_files(tmp_path: Path) -> None:
    root = flickr8k(tmp_path / "f8k", photos=False)
    listed = root / "Flickr_8k.testImages.txt"
    listed.write_text("8.jpg\nnobody.jpg\n")
    with pytest.raises(ValueError, match=r"testImages\.txt, line 2: nobody\.jpg has no caption"):
        read_flickr8k(root)
    listed.write_text("8.jpg\n0.jpg\n")
    with pytest.raises(ValueError, match=r"testImages\.txt, line 2: 0\.jpg is also in train"):
        read_flickr8k(root)
    listed.unlink()
    with pytest.raises(FileNotFoundError, match=r"testImages\.txt: missing"):
        read_flickr8k(root)


def test_bad_captions(tmp_path: Path) -> None:
    root = flickr8k(tmp_path / "f8k", photos=False)
    (root / "Flickr8k.token.txt").write_text("0.jpg#0\tfine\n8.jpg A dog\n")
    with pytest.raises(ValueError, match=r"token\.txt, line 2: not 'photo.jpg#0<tab>caption'"):
        read_flickr8k(root)


def test_bad_judgments(tmp_path: Path) -> None:
    root = flickr8k(tmp_path / "f8k", photos=False)
    (root / "CrowdFlowerAnnotations.txt").write_text("8.jpg\t8.jpg#0\tyes\n")
    with pytest.raises(ValueError, match=r"CrowdFlowerAnnotations\.txt, line 1: not"):
        read_flickr8k(root)


def test_features_that_do_not_fit(tmp_path: Path) -> None:
    root = flickr8k(tmp_path / "f8k", photos=False)
    recipe = DataRecipe(name="flickr8k", root=str(root), extracted="net.npy")
    with pytest.raises(FileNotFoundError, match=r"net\.npy: no such features.*extract"):
        load_data(recipe)
    features(root, "net", ["0.jpg"])
    with pytest.raises(ValueError, match=r"net_files\.txt: does not name 1\.jpg"):
        load_data(recipe)
    (root / "net_files.txt").write_text("0.jpg\n1.jpg\n")
    with pytest.raises(ValueError, match=r"net_files\.txt: 2 names, but net\.npy has 1 rows"):
        load_data(recipe)
    (root / "net_files.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"net_files\.txt: missing"):
        load_data(recipe)
    with pytest.raises(ValueError, match=r"net\.npy has no manifest\.json"):
        featurizer(recipe)


def test_flickr30k_from_karpathys_file(tmp_path: Path) -> None:
    images = [
        {
            "filename": f"{i}.jpg",
            "split": split,
            "sentids": [2 * i, 2 * i + 1],
            "sentences": [{"raw": f"Dog {i}.\n", "sentid": 2 * i + k} for k in range(2)],
        }
        for i, split in enumerate(["train", "val", "test", "train"])
    ]
    path = write_json(tmp_path / "dataset_flickr30k.json", {"images": images, "dataset": "f"})
    listing = read_flickr30k(tmp_path)
    assert [p.id for p in listing.splits["train"]] == ["0.jpg", "3.jpg"]
    assert [c.text for c in listing.splits["dev"][0].captions] == ["Dog 1."] * 2
    del images[1]["split"]
    write_json(path, {"images": images})
    with pytest.raises(ValueError, match=r"dataset_flickr30k\.json, image 1: no field 'split'"):
        read_flickr30k(tmp_path)
    path.write_text('{"images": [\n{"filename" "a"}]}')
    with pytest.raises(ValueError, match=r"dataset_flickr30k\.json, line 2.*not valid JSON"):
        read_flickr30k(tmp_path)
    write_json(path, [])
    with pytest.raises(ValueError, match="not one of Karpathy's files"):
        read_flickr30k(tmp_path)


def test_flickr30k_from_its_token_file(tmp_path: Path) -> None:
    lines = [f"{i}.jpg#{k}\tA man {i} .\n" for i in (7, 8, 9) for k in range(5)]
    (tmp_path / "results_20130124.token").write_text("".join(lines))
    with pytest.raises(FileNotFoundError, match=r"train\.txt: missing"):
        read_flickr30k(tmp_path)
    for split, name in (("train", "7"), ("val", "8"), ("test", "9.jpg")):
        (tmp_path / f"{split}.txt").write_text(f"{name}\n")
    splits = read_flickr30k(tmp_path).splits
    assert {s: [p.id for p in photos] for s, photos in splits.items()} == {
        "train": ["7.jpg"], "dev": ["8.jpg"], "test": ["9.jpg"]
    }  # fmt: skip


def test_flickr8k_as_published(shared_data: Path) -> None:
    root = shared_data / "flickr8k"
    recipe = DataRecipe(name="flickr8k", root=str(root), extracted="resnet50.npy")
    data = load_data(recipe)
    sizes = [(len(p.images), len(p.captions)) for p in (data.train, data.dev, data.test)]
    assert sizes == [(6000, 30000), (1000, 5000), (1000, 5000)]
    assert data.test.images[0].shape == (2048,)
    assert data.test.images.picture(0) is not None
    assert data.test.relevance is not None
    assert len(data.test.relevance.items) == 5000 + 2031
    notes = read_flickr8k(root).notes
    assert notes[0].startswith("2258277193_586949ec62.jpg.1 has captions and no photo")
    assert notes[1].startswith("91 photos")


def test_packed_features_are_decoded_row_by_row(tmp_path: Path) -> None:
    root = flickr8k(tmp_path, photos=False)
    names = [f"{i}.jpg" for i in reversed(range(10))]
    codes = np.arange(40, dtype=np.uint8).reshape(10, 4)
    low, step = np.array([0, 1, 2, 3], np.float32), np.full(4, 0.5, np.float32)
    np.savez(root / "net.npz", codes=codes, low=low, step=step, files=np.array(names))
    data = load_data(DataRecipe(name="flickr8k", root=str(root), extracted="net.npz"))
    assert data.test.images[1].tolist() == [0.0, 1.5, 3.0, 4.5]  # 9.jpg is the first row
    np.savez(root / "net.npz", codes=codes.astype(float), low=low, step=step, files=np.array(names))
    with pytest.raises(ValueError, match=r"net\.npz: codes are float64"):
        load_data(DataRecipe(name="flickr8k", root=str(root), extracted="net.npz"))
    np.savez(root / "net.npz", codes=codes, low=low, files=np.array(names))
    with pytest.raises(ValueError, match=r"net\.npz: not packed features"):
        load_data(DataRecipe(name="flickr8k", root=str(root), extracted="net.npz"))
    np.savez(root / "net.npz", codes=codes[:3], low=low, step=step, files=np.array(names[:3]))
    with pytest.raises(ValueError, match=r"does not name 0\.jpg"):
        load_data(DataRecipe(name="flickr8k", root=str(root), extracted="net.npz"))
