"""One canonical form for all ways to type one query; word forms, spelling, content words."""

from __future__ import annotations

import pytest

from gaussmatch.data.language import base, canonical, content_words, meant_by, spelling


@pytest.mark.parametrize(
    "same",
    [
        [
            "dog",
            "a dog",
            "the dog",
            "A dog.",
            "dog!!",
            '"dog"',
            "“a dog”",
            "I see a dog",
            "dog photo",
        ],
        ["red car", "car red", "a red car", "picture of a red car", "pictures of red car"],
        ["cat and dog", "a dog and a cat", "dog and cat", "photo of the dog and the cat"],
        ["two small bird", "small two bird", "bird two small", "two small bird photos"],
        ["running dog", "a running dog", "'running dog'"],
        ["man riding horse", "I can see a man riding a horse, please!"],
        ["a man riding a horse on the beach", "I see a man riding a horse on the beach photo!!"],
        ["man's hat", "a man's hat"],
    ],
)
def test_cosmetic_edits_have_one_canonical_form(same):
    assert {canonical(text) for text in same} == {same[0]}


@pytest.mark.parametrize(
    "text",
    [
        "teddy bear", "water sports", "flying object",
        "man bites dog", "red car blue bus", "dog in snow",
        "old photo", "boys playing football", "photo", "two photos", "it", "!!", "of the",
    ],
)  # fmt: skip
def test_what_has_a_meaning_of_its_own_is_left_alone(text):
    assert canonical(text) == text


def test_an_order_that_means_something_is_kept():
    assert canonical("man on horse") != canonical("horse on man")
    assert canonical("woman eating pizza slice") == "woman eating pizza slice"


def test_forms_of_a_word_count_as_one():
    assert {base(w) for w in ("bus", "buses")} == {"bus"}
    assert {base(w) for w in ("child", "children")} == {"child"}
    assert content_words("The dresses and a dress, glasses") == ["dress", "glass"]
    assert {"person", "vehicle"} <= meant_by("a man on a bike")


def test_spelling_prefers_what_is_frequent_and_leaves_names_alone():
    known = {"car": 900, "cat": 500, "cab": 3, "umbrella": 40, "restaurant": 30}
    assert spelling("carr", known) == "car"
    assert spelling("hund", {"hand": 900}) is None  # German for a dog
    assert spelling("umbrela", known) == "umbrella"
    assert spelling("resturante", known) == "restaurant"
    assert spelling("zürich", known) is None
    assert spelling("cats", known) is None  # known
