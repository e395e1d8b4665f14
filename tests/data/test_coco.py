"""COCO, Crisscrossed Captions and Visual Genome from their own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data.files import features, photo, write_json

from gaussmatch.data import coco
from gaussmatch.data.pairs import Region
from gaussmatch.learn.evaluation.triplets import crop_pairs
from gaussmatch.models.features import load_data
from gaussmatch.models.recipe import DataRecipe

YEARS = {"train2014": range(1, 5), "val2014": range(5, 13)}
HEADER = "caption,image,agg_score,sampling_method\n"


def name(year: str, i: int) -> str:
    return f"COCO_{year}_{i:012}.jpg"


def write_coco(root: Path) -> Path:
    """Twelve images with two captions each (ids 10·image and 10·image + 1)."""
    for year, numbers in YEARS.items():
        images = [{"id": i, "file_name": name(year, i), "width": 64, "height": 48} for i in numbers]
        said = [
            {"id": 10 * i + k, "image_id": i, "caption": f"A cat {i} \n{k}."}
            for k in range(2)
            for i in numbers
        ]
        things = [
            {"id": i, "image_id": i, "category_id": 1 + i % 2, "bbox": [1.0, 2.0, 3.0, 4.0]}
            for i in numbers
            if i != 12
        ]
        kinds = [{"id": 2, "name": "dog"}, {"id": 1, "name": "cat"}]
        write_json(
            root / "annotations" / f"captions_{year}.json", {"images": images, "annotations": said}
        )
        write_json(
            root / "annotations" / f"instances_{year}.json",
            {"images": images, "annotations": things, "categories": kinds},
        )
    return root


def write_ids(root: Path, **splits: list[int]) -> None:
    for split, images in splits.items():
        numbers = np.array([10 * i + k for i in images for k in range(2)])
        np.save(root / "annotations" / f"coco_{split}_ids.npy", numbers)


def numbers(root: Path) -> dict[str, list[int]]:
    return {s: [int(p.id) for p in photos] for s, photos in coco.read(root).splits.items()}


def test_split_from_caption_ids(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    write_ids(root, train=[1, 2, 3, 4], restval=[5, 6], dev=[7, 8], test=[9, 10])
    assert numbers(root) == {"train": [1, 2, 3, 4, 5, 6], "dev": [7, 8], "test": [9, 10]}
    first = coco.read(root).splits["test"][0]
    assert [c.text for c in first.captions] == ["A cat 9 0.", "A cat 9 1."]
    assert first.path == root / "val2014" / name("val2014", 9)
    assert coco.training_images(root) == {1, 2, 3, 4, 5, 6}


def test_split_from_karpathys_file(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    images: list[dict[str, Any]] = [
        {
            "filename": name("val2014", i),
            "filepath": "val2014",
            "cocoid": i,
            "split": split,
            "sentences": [{"raw": "x", "sentid": 10 * i + k} for k in range(2)],
        }
        for i, split in ((5, "restval"), (7, "val"), (9, "test"))
    ]
    write_json(root / "dataset_coco.json", {"images": images, "dataset": "coco"})
    assert numbers(root) == {"train": [5], "dev": [7], "test": [9]}
    images[1]["cocoid"] = 99
    write_json(root / "dataset_coco.json", {"images": images})
    with pytest.raises(ValueError, match=r"dataset_coco\.json, image 1: .*in no captions_"):
        coco.read(root)


def test_without_karpathys_split(tmp_path: Path) -> None:
    listing = coco.read(write_coco(tmp_path))
    assert {s: len(p) for s, p in listing.splits.items()} == {"train": 4, "dev": 4, "test": 4}
    assert "no Karpathy split" in listing.notes[0]


def test_classes_and_judgments_reach_the_metrics(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    write_ids(root, train=[1, 2], dev=[7, 8], test=[9, 10, 12])
    (root / "sits_test.csv").write_text(
        HEADER
        + "COCO_val2014:sentid:90,COCO_val2014_000000000009.jpg,5,c2i_original\n"
        + "COCO_val2014:sentid:90,COCO_val2014_000000000010.jpg,3.0,c2i_intrasim\n"
        + "COCO_val2014:sentid:91,COCO_val2014_000000000010.jpg,2.9,c2i_intrasim\n"
        + "COCO_val2014:sentid:110,COCO_val2014_000000000010.jpg,4,c2i_intrasim\n"
        + "COCO_val2014:sentid:100,COCO_val2014_000000000007.jpg,4,c2i_intrasim\n"
    )
    path = features(root, "net", [name("train2014" if i < 5 else "val2014", i) for i in range(13)])
    data = load_data(DataRecipe(name="coco", root=str(root), extracted=str(path), cxc=str(root)))
    assert data.test.classes is not None
    assert data.test.classes.tolist() == [[False, True], [True, False], [False, False]]
    assert data.test.relevance is not None
    assert [data.test.relevance.of(c).tolist() for c in range(3)] == [[0, 1], [0], [1]]
    assert data.dev.relevance is None
    assert data.notes[-1].startswith("sits_test.csv: 1 of the 3 further pairs")
    assert data.notes[-1].endswith("2 are left out")


def test_boxes_become_regions_with_the_name_of_their_class(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    write_ids(root, train=[1, 2], dev=[7, 8], test=[9, 10, 12])
    assert all(not photo.regions for photo in coco.read(root).photos)
    first, second, bare = coco.read(root, boxes=True).splits["test"]
    assert first.regions == (Region((1, 2, 4, 6), "a dog"),)
    assert (second.regions[0].caption, bare.regions, bare.size) == ("a cat", (), (64, 48))


def test_boxes_of_coco_stand_in_for_visual_genome(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    write_ids(root, train=[1, 2], dev=[7, 8], test=[9, 10, 12])
    data = DataRecipe(name="coco", root=str(root))
    with pytest.raises(FileNotFoundError, match="none of the 3 of coco/test is there"):
        crop_pairs(data)
    photo(root / "val2014" / name("val2014", 9), size=(128, 96))  # twice the size of its boxes
    pairs = crop_pairs(data)
    assert len(pairs.images) == 1
    assert pairs.regions == [(Region((2, 4, 8, 12), "a dog"),)]
    with pytest.raises(ValueError, match="--visual-genome FOLDER"):
        crop_pairs(DataRecipe(name="flickr8k", root=str(root)))


def test_an_id_that_no_caption_has(tmp_path: Path) -> None:
    root = write_coco(tmp_path)
    write_ids(root, train=[1, 77], dev=[7], test=[9])
    with pytest.raises(ValueError, match=r"coco_train_ids\.npy: 2 caption ids, such as 770"):
        coco.read(root)
    write_ids(root, train=[1, 7])
    with pytest.raises(ValueError, match=r"image 7, which coco_dev_ids\.npy puts in dev"):
        coco.read(root)
    np.save(root / "annotations" / "coco_train_ids.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"coco_train_ids\.npy: float64"):
        coco.read(root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"images": [],\n "annotations": [}', r"line 2.*not valid JSON"),
        ("[]", "no list 'images'"),
        ('{"images": [{"id": 1}], "annotations": []}', "image 0: no field 'file_name'"),
        (
            '{"images": [], "annotations": [{"id": 1, "image_id": 3, "caption": "x"}]}',
            "annotation 0: image_id 3 is not among",
        ),
    ],
)
def test_bad_annotations(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "captions_val2017.json").write_text(text)
    with pytest.raises(ValueError, match=rf"captions_val2017\.json.*{message}"):
        coco.read(tmp_path)


def test_coco_mini_with_classes(shared_data: Path) -> None:
    listing = coco.read(shared_data / "coco_mini")
    assert {s: len(p) for s, p in listing.splits.items()} == {"train": 80, "dev": 39, "test": 40}
    assert len(listing.classes) == 80
    assert sum(len(p.captions) for p in listing.photos) == 795
    assert all(p.path.is_file() for p in listing.photos)
    assert sum(bool(p.classes) for p in listing.photos) > 140


def test_the_part_of_coco_that_could_be_had(shared_data: Path) -> None:
    root = shared_data / "coco_real"
    if not root.is_dir():
        pytest.skip(f"no {root}")
    recipe = DataRecipe(
        name="coco", root=str(root), extracted="lite2.npz", cxc=str(shared_data / "cxc")
    )
    data = load_data(recipe)
    sizes = [(len(s.images), len(s.captions)) for s in (data.train, data.dev, data.test)]
    assert sizes == [(27_570, 42_488), (1000, 5000), (4407, 22_035)]
    assert data.test.classes is not None
    assert data.test.classes.shape == (4407, 80)
    assert data.test.relevance is not None
    assert len(data.test.relevance.items) > 22_035 + 8000
    assert any("sits_test.csv" in note and "left out" in note for note in data.notes)
    assert data.test.images[0].shape == (1280,)


def test_ids_without_their_captions(shared_data: Path) -> None:
    with pytest.raises(ValueError, match=r"caption ids, such as .* are in no captions_"):
        coco.read(shared_data / "coco")


def test_cxc_as_published(shared_data: Path) -> None:
    test = coco.read_positives(shared_data / "cxc" / "sits_test.csv")
    assert (len(test.original), len(test.extra), test.total) == (25_000, 10_614, 35_614)
    val = coco.read_positives(shared_data / "cxc" / "sits_val.csv")
    assert len(val.extra) == 12_292


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("caption,image\n", "line 1: the columns must be"),
        (HEADER + "COCO_val2014:sentid:1,COCO_val2014_1.jpg,high,c2i_original\n", "line 2: not"),
        (HEADER + "COCO_val2014:sentid:1,COCO_val2014_1.jpg,3,c2c\n", "line 2: unknown sampling"),
    ],
)
def test_bad_scores(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sits_test.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"sits_test\.csv, {message}"):
        coco.read_positives(tmp_path / "sits_test.csv")


def write_genome(root: Path) -> None:
    region = {"x": -2, "y": 5, "width": 12, "height": 100, "phrase": " a red \n car"}
    empty = {**region, "phrase": " "}
    images = [{"id": i, "regions": [region, empty]} for i in range(1, 9)]
    images.append({"id": 9, "regions": [empty]})
    write_json(root / "region_descriptions.json", images)
    data = [{"image_id": i, "width": 40, "height": 30, "coco_id": 100 + i} for i in range(1, 10)]
    write_json(root / "image_data.json", data)


def test_visual_genome(tmp_path: Path) -> None:
    write_genome(tmp_path)
    listing = coco.read_visual_genome(tmp_path, exclude={103, 104})
    assert {p.id for p in listing.photos} == {"1", "2", "5", "6", "7", "8"}
    assert listing.photos[0].regions[0].box == (0, 5, 10, 30)
    assert [c.text for c in listing.photos[0].captions] == ["a red car"]
    assert listing.notes[0].startswith("2 images left out")
    assert listing.notes[1].startswith("1 images have no region")
    assert "not left out" in coco.read_visual_genome(tmp_path).notes[0]


def test_bad_visual_genome(tmp_path: Path) -> None:
    write_genome(tmp_path)
    path = write_json(tmp_path / "region_descriptions.json", [{"id": 1, "regions": [{"x": 3}]}])
    with pytest.raises(ValueError, match=r"region_descriptions\.json, image 0: no field 'y'"):
        coco.read_visual_genome(tmp_path)
    write_json(path, [{"id": 77, "regions": []}])
    with pytest.raises(ValueError, match=r"image 0: 77 is not in image_data\.json"):
        coco.read_visual_genome(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"region_descriptions\.json: missing"):
        coco.read_visual_genome(tmp_path)
