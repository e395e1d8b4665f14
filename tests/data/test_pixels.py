"""Photos as pixels: random views that repeat for a seed, the center of new photos."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data.files import flickr8k, photo
from PIL import Image
from toy import toy_encoder

from gaussmatch.data.pairs import RandomViews, image_batches
from gaussmatch.data.pictures import open_picture
from gaussmatch.learn.training.batches import Batches
from gaussmatch.models.encoders.pretrained.base import Transform, make_importable
from gaussmatch.models.features import load_data
from gaussmatch.models.features.photos import PhotoPixels, pixel_transform
from gaussmatch.models.recipe import DataRecipe, Recipe, TrainingRecipe

make_importable()
pytest.importorskip("timm", reason="pixels of photos need the extra 'vision'")
CROP = 16


@pytest.fixture
def recipe(tmp_path: Path) -> DataRecipe:
    root = flickr8k(tmp_path / "f8k")
    return DataRecipe(name="flickr8k", root=str(root), features="pixels", crop=CROP, min_count=1)


def epoch(recipe: DataRecipe, number: int, seed: int = 3, workers: int = 0) -> torch.Tensor:
    pairs = load_data(recipe).train
    texts = toy_encoder(pairs.captions)
    settings = TrainingRecipe(batch_size=4, seed=seed, workers=workers)
    return torch.cat([b.images for b in Batches(pairs, texts, settings).epoch(number)])


def test_views_depend_on_seed_epoch_and_pair_alone(recipe: DataRecipe) -> None:
    first = epoch(recipe, 1)
    assert first.shape == (12, 3, CROP, CROP)
    assert 0 <= float(first.min()) < float(first.max()) <= 1
    torch.manual_seed(99)  # whatever else is drawn, and wherever it is read
    assert torch.equal(first, epoch(recipe, 1))
    assert torch.equal(first, epoch(recipe, 1, workers=2))
    for other in (epoch(recipe, 2), epoch(recipe, 1, seed=4)):
        assert not np.array_equal(np.sort(first.flatten()), np.sort(other.flatten()))


def test_two_captions_of_an_image_see_two_views(recipe: DataRecipe) -> None:
    pairs = load_data(recipe).train
    texts = toy_encoder(pairs.captions)
    (batch,) = Batches(pairs, texts, TrainingRecipe(batch_size=12)).epoch(1)
    one, two = (batch.image_ids == 0).nonzero().flatten()
    assert not torch.equal(batch.images[one], batch.images[two])


def test_drawing_a_view_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    source = PhotoPixels([photo(tmp_path / "a.jpg")], Transform(CROP))
    before = torch.get_rng_state()
    views = [source.random_view(0, seed) for seed in range(8)]
    assert torch.equal(before, torch.get_rng_state())
    assert len({v.tobytes() for v in views}) == 8
    assert isinstance(source, RandomViews)


def test_mirrored_half_of_the_time(tmp_path: Path) -> None:
    """A photo that is dark on the left: its views are dark on the left or on the right."""
    shade = np.tile(np.arange(0, 240, 6, dtype=np.uint8), (30, 1))
    Image.fromarray(np.stack([shade] * 3, -1)).save(tmp_path / "a.png")
    source = PhotoPixels([tmp_path / "a.png"], Transform(CROP))
    rising = [(v := source.random_view(0, s))[0, 5, -1] > v[0, 5, 0] for s in range(40)]
    assert 8 < sum(rising) < 32


def test_evaluation_sees_the_center(tmp_path: Path) -> None:
    """Short side to 256/224 of the crop, then the center: a 256 × 512 photo is only cut."""
    noise = np.random.default_rng(0).integers(0, 255, (256, 512, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    view = pixel_transform(DataRecipe("folder", features="pixels"))
    shown = PhotoPixels([tmp_path / "a.png"], view)[0]
    center = noise[16:240, 144:368].transpose(2, 0, 1).astype(np.float32) / 255
    np.testing.assert_array_equal(shown, center)
    assert shown.dtype == np.float32


def test_new_photos_become_what_evaluation_sees(recipe: DataRecipe) -> None:
    data = load_data(recipe)
    paths = sorted(Path(str(recipe.root), "images").glob("*.jpg"))
    made = pixel_transform(recipe).batch([open_picture(p) for p in paths])
    np.testing.assert_array_equal(made[0], data.train.images[0])
    grey = pixel_transform(recipe).batch([Image.new("L", (50, 20))])
    assert grey.shape == (1, 3, CROP, CROP)
    assert data.train.images.picture(0).size == (40, 30)


@pytest.mark.parametrize("view", ["center", "whole"])
@pytest.mark.parametrize("size", [(300, 401), (640, 333), (224, 224), (50, 47)])
def test_views_are_those_of_torchvision(view: str, size: tuple[int, int]) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    resize = transforms.Resize((224, 224) if view == "whole" else 256)
    wanted = transforms.Compose([resize, transforms.CenterCrop(224), transforms.PILToTensor()])
    noise = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    made = pixel_transform(DataRecipe("folder", features="pixels", view=view))(picture)
    assert torch.equal(made, wanted(picture).float() / 255)


def test_reading_with_threads_changes_nothing(recipe: DataRecipe) -> None:
    pairs = load_data(recipe).train
    plain, threaded = (torch.cat(list(image_batches(pairs, 4, w))) for w in (0, 2))
    assert torch.equal(plain, threaded)
    assert len(plain) == 6


def test_steps_shorten_an_epoch(recipe: DataRecipe) -> None:
    pairs = load_data(recipe).train
    texts = toy_encoder(pairs.captions)
    settings = TrainingRecipe(batch_size=4)
    whole, short = (Batches(pairs, texts, replace(settings, steps=n)) for n in (None, 2))
    assert (len(whole), len(short)) == (3, 2)
    got = list(short.epoch(1))
    assert len(got) == 2
    for a, b in zip(got, whole.epoch(1), strict=False):
        assert torch.equal(a.images, b.images)


def test_what_is_wrong_is_reported(recipe: DataRecipe) -> None:
    (Path(str(recipe.root)) / "images" / "3.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"3\.jpg: no such image \(1 of 10 are missing\)"):
        load_data(recipe)
    with pytest.raises(ValueError, match="precomputed holds features only"):
        DataRecipe(name="precomputed", features="pixels")
    with pytest.raises(ValueError, match=r"data\.crop must be positive"):
        DataRecipe(crop=0)
    with pytest.raises(ValueError, match="pixels need a backbone"):
        Recipe(data=recipe)
