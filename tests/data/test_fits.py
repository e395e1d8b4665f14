"""What counts as fitting: people's words, boxes, and what captions name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gaussmatch.data import fits

DOG = ["a dog runs", "the brown dog", "a puppy on grass", "dogs outside", "a dog plays"]
CAT = ["a cat sits", "a cat on a sofa", "the cat", "a sleeping cat", "a kitten"]


def split(photos: list[list[str]]) -> tuple[list[str], torch.Tensor, int]:
    of = [i for i, captions in enumerate(photos) for _ in captions]
    return [c for captions in photos for c in captions], torch.tensor(of), len(photos)


def fitting(found: fits.Fits, text: str) -> list[int]:
    return found.photos[found.relevance.of(found.texts.index(text))].tolist()


def test_words_in_any_form_and_kinds_of_them_fit():
    found = fits.by_words(*split([DOG] * 3 + [CAT] * 4))
    assert found is not None
    assert found.truth == "words"
    named = {text: fitting(found, text) for text in found.texts if "dog" in text}
    assert named
    for photos in named.values():  # "a puppy on grass" holds a dog
        assert photos == [0, 1, 2]
    assert not any("grass" in text for text in found.texts)  # one of five names it


def test_photos_with_few_captions_say_nothing_of_what_they_do_not_name():
    found = fits.by_words(*split([DOG] * 3 + [CAT] * 4 + [["a park"]] * 5))
    assert found is not None
    assert found.photos.tolist() == list(range(7))
    assert fits.by_words(*split([["a dog"], ["a cat"]] * 9)) is None


def test_class_names_fit_where_there_are_boxes():
    classes = torch.tensor([[True, False], [True, False], [False, False]])
    found = fits.by_boxes(classes, ["dog", "wine glass"])
    assert list(found.texts) == ["dog", "a dog", "dogs"]  # nothing shows a glass
    assert fitting(found, "dogs") == [0, 1]


def test_people_may_find_nothing_that_fits(tmp_path: Path):
    path = tmp_path / "judged.jsonl"
    rows = [
        {"caption": "a dog", "image": 7, "photos": [7, 9, 11]},
        {"caption": "a cat", "image": 8, "photos": [8]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = fits.by_people(path, {"7": 0, "9": 1})
    assert found.relevance.counts.tolist() == [2, 0]
    assert found.own.tolist() == [0, -1]
    path.write_text('{"caption": "a dog"}')
    with pytest.raises(ValueError, match="line 1: not JSON with 'caption', 'image'"):
        fits.by_people(path, {})


def test_lengths_as_people_type():
    assert sum(fits.SHARES.values()) == pytest.approx(1)
    assert list(fits.SHARES) == list(fits.LENGTHS)


def test_a_query_has_the_length_that_it_is_read_with():
    """“a dog” is searched as “dog”; it was learned as a query of two words."""
    found = fits.by_words(*split([DOG] * 3 + [CAT] * 4))
    assert found is not None
    assert "dog" in found.texts
    assert "a dog" not in found.texts
    boxes = fits.by_boxes(torch.ones(2, 1).bool(), ["dog"])
    assert boxes.texts == ["dog", "a dog", "dogs"]
    assert boxes.lengths == ["1", "1", "1"]
