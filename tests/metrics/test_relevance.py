from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gaussmatch.core.metrics import Relevance

MASKS = hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6))


def relation(mask: np.ndarray) -> Relevance:
    return Relevance.from_sets(
        [np.flatnonzero(row).tolist() for row in mask], gallery=mask.shape[1]
    )


def assert_is(relevance: Relevance, mask: np.ndarray) -> None:
    assert (relevance.queries, relevance.gallery) == mask.shape
    np.testing.assert_array_equal(relevance.dense().numpy(), mask)


@given(MASKS)
def test_from_sets_and_back(mask):
    r = relation(mask)
    assert_is(r, mask)
    assert r.counts.tolist() == mask.sum(1).tolist()
    assert list(zip(r.query_of.tolist(), r.items.tolist(), strict=True)) == [
        (q, i) for q, i in np.argwhere(mask).tolist()
    ]
    for q, row in enumerate(mask):
        assert r.of(q).tolist() == np.flatnonzero(row).tolist()


@given(MASKS, st.randoms(use_true_random=False))
def test_from_pairs_in_any_order_and_twice(mask, dice):
    pairs = np.argwhere(mask).tolist() * 2
    dice.shuffle(pairs)
    r = Relevance.from_pairs(
        [q for q, _ in pairs], [i for _, i in pairs], queries=mask.shape[0], gallery=mask.shape[1]
    )
    assert_is(r, mask)
    assert r.items.tolist() == np.argwhere(mask)[:, 1].tolist()  # once each, ascending


@given(MASKS)
def test_transpose(mask):
    assert_is(relation(mask).transpose(), mask.T)
    assert_is(relation(mask).transpose().transpose(), mask)


@given(MASKS, st.integers(0, 6), st.integers(0, 6))
def test_dense_rows(mask, start, length):
    start = min(start, len(mask))
    rows = relation(mask).dense(start, start + length)
    np.testing.assert_array_equal(rows.numpy(), mask[start : start + length])
    part = relation(mask).rows(start, min(start + length, len(mask)))
    assert_is(part, mask[start : start + length])


@given(MASKS, st.data())
def test_subset_renumbers_in_the_order_given(mask, data):
    queries, gallery = (
        data.draw(st.lists(st.sampled_from(range(size)), unique=True)) for size in mask.shape
    )
    chosen = relation(mask).subset(torch.tensor(queries).long(), torch.tensor(gallery).long())
    assert_is(chosen, mask[queries, :][:, gallery].reshape(len(queries), len(gallery)))


@pytest.mark.parametrize(
    ("query", "item", "message"),
    [
        ([2], [0], r"query ids must lie in \[0, 2\), got 2 to 2"),
        ([0], [3], r"item ids must lie in \[0, 3\), got 3 to 3"),
        ([-1, 1], [0, 0], r"query ids must lie in \[0, 2\), got -1 to 1"),
        ([0, 1], [0], "of one length"),
        ([[0]], [[0]], "one-dimensional"),
    ],
)
def test_pairs_that_do_not_fit(query, item, message):
    with pytest.raises(ValueError, match=message):
        Relevance.from_pairs(torch.tensor(query), torch.tensor(item), queries=2, gallery=3)


def test_nothing_is_relevant():
    r = Relevance.from_pairs([], [], queries=2, gallery=3)
    assert_is(r, np.zeros((2, 3), dtype=bool))
    assert r.of(1).tolist() == []


@pytest.mark.parametrize(
    ("queries", "gallery", "name"), [([1, 1], [0], "query"), ([0], [2, 0, 2], "gallery")]
)
def test_an_id_chosen_twice_is_refused(queries, gallery, name):
    r = Relevance.from_pairs([0, 1], [0, 2], queries=2, gallery=3)
    with pytest.raises(ValueError, match=f"{name} id . is chosen twice"):
        r.subset(torch.tensor(queries), torch.tensor(gallery))
