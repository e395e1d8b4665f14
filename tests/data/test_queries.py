"""How many photos a text fits: the order of the counts, own photos left out, meaning as well."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from gaussmatch.core.losses import disorder, log_rivals
from gaussmatch.data.language import GENERAL, content_words
from gaussmatch.data.queries import (
    FLOOR,
    LONGEST,
    FittingCounts,
    as_query,
    category,
    generalized,
)

CAPTIONS = [
    "a red bus on a street",
    "a blue bus on a street",
    "a car on a street",
    "a dog runs in the snow",
    "two dogs run in deep snow",
    "a cat sleeps on a sofa",
]


@pytest.fixture(scope="module")
def counts() -> FittingCounts:
    return FittingCounts(CAPTIONS, np.arange(6))


@pytest.mark.parametrize(
    "chain",
    [
        ("a vehicle", "a bus", "a red bus"),
        ("an animal", "a dog", "two dogs in deep snow"),
        ("the", "street", "a bus on a street", "a red bus on a street"),
    ],
)
def test_what_is_more_general_fits_more(counts, chain):
    found = counts.by_words(chain)
    assert (np.diff(found) < 0).all()


def test_function_words_and_plurals_change_nothing(counts):
    first, *others = counts.by_words(["dog snow", "a dog in the snow", "dogs and snow"])
    assert others == pytest.approx([first, first])


def test_a_text_does_not_count_its_own_photo(counts):
    own = counts.by_words(["a cat sleeps on a sofa"], own_image=np.array([5]))
    assert own == pytest.approx(np.log(FLOOR), abs=1e-3)
    assert counts.by_words(["a cat sleeps on a sofa"]) == pytest.approx(0, abs=1e-3)


def test_captions_of_one_meaning_count_without_a_common_word():
    vectors = np.eye(3)[[0, 0, 1]]
    counts = FittingCounts(["a puppy", "young hound", "a bridge"], np.arange(3))
    near, far = counts.by_meaning(np.eye(3)[[0, 2]], vectors, own_image=np.array([7, 7]))
    assert near == pytest.approx(np.log(2), abs=1e-3)
    assert far == pytest.approx(np.log(FLOOR), abs=1e-3)
    assert counts.by_meaning(vectors[:1], vectors, np.array([0])) == pytest.approx(0, abs=1e-3)


def test_a_generalized_caption_is_true_of_the_same_photo_and_fits_no_fewer(counts):
    dice = np.random.default_rng(0)
    for caption in CAPTIONS:
        general = generalized(caption, dice, share=1.0)
        assert counts.by_words([general]) >= counts.by_words([caption]) - 1e-3
    assert generalized("a bridge pier", dice, share=0.0) == "a bridge pier"
    assert generalized("a pier", dice, share=1.0) == "a pier"
    assert generalized("an apple", dice, share=1.0) in ("a food", "a fruit", "a produce")
    assert content_words("the of a") == []


def test_a_generalized_caption_differs_by_its_words_alone():
    """Were its punctuation left out, a model could tell it by that."""
    dice = np.random.default_rng(0)
    found = {generalized("A man, on a bike.", dice, share=1.0) for _ in range(20)}
    assert all(re.fullmatch(r"an? \w+, on a \w+\.", query) for query in found), found
    assert generalized("A man, on a bike.", dice, share=0.0) == "A man, on a bike."


def test_a_category_fits_every_photo_of_its_members(counts):
    found = {category("a red bus", np.random.default_rng(seed)) for seed in range(40)}
    assert found == {*GENERAL["red"], *GENERAL["bus"]}
    assert category("a pier", np.random.default_rng(0)) == "a pier"
    one = FittingCounts(["a red bus", "a taxi", "a pier"], np.arange(3))
    assert one.by_words(["means of transport"]) == pytest.approx(np.log(2), abs=1e-3)


def test_a_query_is_shorter_or_more_general_than_its_caption():
    caption = "a man in a red hat rides a bike on a beach"
    queries = {as_query(caption, np.random.default_rng(seed), 0.5) for seed in range(60)}
    terms = {word for w in caption.split() for term in GENERAL.get(w, ()) for word in term.split()}
    general = [q for q in queries if not set(q.split()) <= set(caption.split())]
    assert general
    assert all(terms & set(q.split()) for q in general)
    shortened = [len(q.split()) for q in queries - set(general)]
    assert max(shortened) < len(caption.split())
    assert np.mean(np.array(shortened) <= LONGEST) > 0.6


def test_disorder_is_one_minus_the_correlation_and_has_a_gradient():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    assert disorder(x, y) == pytest.approx(1 - float(torch.corrcoef(torch.stack([x, y]))[0, 1]))
    assert disorder(3 * x + 5, y) == pytest.approx(float(disorder(x, y)))
    assert torch.autograd.gradcheck(disorder, (x.requires_grad_(), y))


def test_a_vague_text_has_more_rivals_and_its_own_image_is_none():
    """Of ten images four are alike: what is true of the four, and of one, and one image twice."""
    images = torch.eye(7)[[0, 0, 0, 0, 1, 2, 3, 4, 5, 6]] + 0.01 * torch.arange(10.0)[:, None]
    ids = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 8])
    texts, own = torch.eye(7)[[0, 1, 6]], torch.tensor([1, 4, 9])
    vague, specific, twice = log_rivals(texts, images, own, ids).exp()
    assert vague == pytest.approx(2.0, abs=0.05)  # half of three others, and the ½
    assert specific == pytest.approx(0.5, abs=1e-3)
    assert twice == pytest.approx(0.5, abs=1e-3)
    assert log_rivals(3 * texts, images, own, ids).exp()[0] == pytest.approx(float(vague))


def test_frames_add_no_content_of_their_own():
    dice = np.random.default_rng(0)
    framed = {as_query("a red star", dice, frame=1.0) for _ in range(200)}
    assert any(query.startswith("I can see a picture of ") for query in framed)
    assert any(query.endswith(", clearly") for query in framed)
    assert {as_query("star", dice) for _ in range(20)} == {"star"}


def test_disorder_of_equal_counts_or_of_equal_uncertainties_is_no_nan():
    same = torch.ones(5, requires_grad=True)
    assert disorder(torch.arange(5.0), torch.ones(5)) == 0
    disorder(same, torch.arange(5.0)).backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()
