"""How many photos a text fits: the order of the counts, own photos left out, meaning as well."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gaussmatch.data.queries import FLOOR, FittingCounts, as_query, content_words, generalised
from gaussmatch.losses import disorder

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


def test_a_generalised_caption_is_true_of_the_same_photo_and_fits_no_fewer(counts):
    dice = np.random.default_rng(0)
    for caption in CAPTIONS:
        general = generalised(caption, dice, share=1.0)
        assert counts.by_words([general]) >= counts.by_words([caption]) - 1e-3
    assert generalised("a bridge", dice, share=1.0) == "a bridge"
    assert generalised("an apple", dice, share=1.0) == "a fruit"
    assert content_words("the of a") == frozenset()


def test_a_query_is_shorter_or_more_general_than_its_caption():
    caption = "a man in a red hat rides a bike on a beach"
    queries = {as_query(caption, np.random.default_rng(seed), 0.5) for seed in range(60)}
    general = [q for q in queries if not set(q.split()) <= set(caption.split())]
    assert general
    assert all(
        {"person", "colored", "clothing", "vehicle", "place"} & set(q.split()) for q in general
    )
    assert all(len(q.split()) <= 5 for q in queries - set(general))


def test_disorder_is_one_minus_the_correlation_and_has_a_gradient():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    assert disorder(x, y) == pytest.approx(1 - float(torch.corrcoef(torch.stack([x, y]))[0, 1]))
    assert disorder(3 * x + 5, y) == pytest.approx(float(disorder(x, y)))
    assert torch.autograd.gradcheck(disorder, (x.requires_grad_(), y))


def test_disorder_of_equal_counts_or_of_equal_uncertainties_is_no_nan():
    same = torch.ones(5, requires_grad=True)
    assert disorder(torch.arange(5.0), torch.ones(5)) == 0
    disorder(same, torch.arange(5.0)).backward()
    assert same.grad is not None
    assert same.grad.isfinite().all()
