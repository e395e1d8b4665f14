"""Ranks from one float32 product against brute force in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance, first_ranks, recall_at_k
from gaussmatch.core.metrics.ranking import NEVER
from gaussmatch.core.similarities import SIMILARITIES, Similarity, similarity
from gaussmatch.core.similarities.base import SIDES
from gaussmatch.learn.evaluation.retrieval import ranks, top
from gaussmatch.learn.evaluation.scores import Blocks, blocks_of

NAMES = tuple(SIMILARITIES)
LIFTED = tuple(name for name, s in SIMILARITIES.items() if s.no_lift is None)
IMAGES, CAPTIONS, DIM = 30, 75, 24


def gaussians(n: int, shape: str, far: float = 0.0) -> Gaussian:
    """Some Gaussians; ``far`` moves them all away from zero, where float32 would cancel."""
    mean = torch.nn.functional.normalize(torch.randn(n, DIM), dim=-1) + far
    if shape == "point":
        return Gaussian(mean)
    return Gaussian(mean, 0.7 * torch.randn(n, 1 if shape == "sphere" else DIM) - far / 4)


def relation(density: float = 0.05) -> Relevance:
    mask = torch.rand(CAPTIONS, IMAGES) < density
    return Relevance.from_sets([row.nonzero()[:, 0].tolist() for row in mask], gallery=IMAGES)


def exact(s: Similarity, images: Gaussian, captions: Gaussian) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of image queries and of caption queries, images × captions."""
    return s.both_ways(images.to(torch.float64), captions.to(torch.float64))


def bounds(scores: torch.Tensor, relevant: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the greatest rank if scores within float32 resolution may be swapped."""
    slack = 64 * torch.finfo(torch.float32).eps * (1 + scores.abs().max())
    lifted = torch.where(relevant, scores + slack, scores)
    lowered = torch.where(relevant, scores - slack, scores)
    return first_ranks(lifted, relevant), first_ranks(lowered, relevant)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", ["ellipsoid", "sphere"])
@pytest.mark.parametrize("far", [0.0, 8.0])
def test_float32_ranks_agree_with_float64_up_to_ties(name, shape, far):
    s, pairs = similarity(name), relation()
    images, captions = gaussians(IMAGES, shape, far), gaussians(CAPTIONS, shape, far)
    by_image, by_caption = exact(s, images, captions)
    i2t, t2i = ranks(s, images, captions, pairs, dtype=torch.float32)
    for got, (least, most) in (
        (i2t, bounds(by_image, pairs.transpose().dense())),
        (t2i, bounds(by_caption.T.contiguous(), pairs.dense())),
    ):
        assert (least <= got).all()
        assert (got <= most).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("density", [0.0, 0.05, 0.6])
def test_small_problems_are_exact(name, density):
    s, pairs = similarity(name), relation(density)
    images, captions = gaussians(IMAGES, "ellipsoid"), gaussians(CAPTIONS, "ellipsoid")
    by_image, by_caption = exact(s, images, captions)
    i2t, t2i = ranks(s, images, captions, pairs)
    assert i2t.tolist() == first_ranks(by_image, pairs.transpose().dense()).tolist()
    assert t2i.tolist() == first_ranks(by_caption.T.contiguous(), pairs.dense()).tolist()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", LIFTED)
def test_closeness_is_the_score(name, side):
    """Up to ``offset`` and the monotone ``from_raw``; rows, columns and pairs are one matrix."""
    s = similarity(name).for_query(side)
    images, captions = gaussians(IMAGES, "ellipsoid"), gaussians(CAPTIONS, "ellipsoid")
    blocks = Blocks(s, images, captions)
    raw = blocks.rows(0, IMAGES) + blocks.offset
    scores = s.from_raw(raw if s.metric == "inner_product" else -raw)
    torch.testing.assert_close(scores, exact(s, images, captions)[0])
    torch.testing.assert_close(blocks.columns(3, 9).T, blocks.rows(0, IMAGES)[:, 3:9])
    close, rounding = blocks.pairs(torch.tensor([2, 5]), torch.tensor([7, 0]))
    torch.testing.assert_close(close, blocks.rows(0, 6)[[2, 5], [7, 0]])
    assert (rounding > 0).all()


@pytest.mark.parametrize("name", ["kl", "min_kl", "wasserstein"])
@pytest.mark.parametrize("tile", [(1, 1), (7, 20), (30, 8), (99, 99)])
def test_tiles_cover_everything_once(name, tile, monkeypatch):
    monkeypatch.setattr("gaussmatch.learn.evaluation.scores.TILE", tile)
    s, pairs = similarity(name), relation(0.2)
    images, captions = gaussians(IMAGES, "ellipsoid"), gaussians(CAPTIONS, "ellipsoid")
    blocks = Blocks(s, images, captions)
    whole = torch.full((IMAGES, CAPTIONS), torch.nan, dtype=torch.float64)
    for rows, columns, part in blocks.tiles():
        assert whole[rows, columns].isnan().all()
        whole[rows, columns] = part
    torch.testing.assert_close(whole, blocks.rows(0, IMAGES))
    i2t, t2i = ranks(s, images, captions, pairs)
    assert i2t.tolist() == first_ranks(whole, pairs.transpose().dense()).tolist()
    assert t2i.tolist() == first_ranks(whole.T.contiguous(), pairs.dense()).tolist()


@pytest.mark.parametrize("name", ["kl", "query_kl", "match_prob"])
def test_a_direction_costs_a_matrix_product_only_where_it_counts(name):
    g = gaussians(4, "ellipsoid")
    blocks = blocks_of(similarity(name), g, g)
    assert (blocks.image_queries is blocks.caption_queries) == (name != "query_kl")


@pytest.mark.parametrize("name", NAMES)
def test_top_agrees_with_brute_force(name):
    s = similarity(name)
    images, captions = gaussians(IMAGES, "ellipsoid"), gaussians(CAPTIONS, "ellipsoid")
    by_image, by_caption = exact(s, images, captions)
    for dtype in (torch.float32, None):
        i2t, t2i = top(s, images, captions, 7, dtype)
        torch.testing.assert_close(
            by_image.gather(1, i2t), by_image.topk(7).values, rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(
            by_caption.T.gather(1, t2i), by_caption.T.topk(7).values, rtol=1e-5, atol=1e-5
        )
    everything = top(s, images, captions, 10**6)[1]
    assert everything.sort(1).values.tolist() == [list(range(IMAGES))] * CAPTIONS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_scores_equal_is_last_not_first(name, dtype):
    s = similarity(name)
    one = Gaussian(torch.rand(1, DIM), torch.rand(1, DIM))
    images, captions = one[[0] * IMAGES], one[[0] * CAPTIONS]
    pairs = Relevance.from_pairs(
        torch.arange(CAPTIONS), torch.arange(CAPTIONS) % IMAGES, queries=CAPTIONS, gallery=IMAGES
    )
    i2t, t2i = ranks(s, images, captions, pairs, dtype)
    assert i2t.tolist() == (CAPTIONS - pairs.transpose().counts).tolist()
    assert t2i.tolist() == [IMAGES - 1] * CAPTIONS


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_of_the_right_image_stands_before_it(name):
    """Exact ties survive the rounding of a float32 product."""
    s, images = similarity(name), gaussians(40, "ellipsoid")
    captions, twins = gaussians(40, "ellipsoid"), Gaussian.cat([images, images])
    alone = Relevance.from_pairs(torch.arange(40), torch.arange(40), queries=40, gallery=40)
    paired = Relevance.from_pairs(torch.arange(40), torch.arange(40), queries=40, gallery=80)
    before = ranks(s, images, captions, alone, torch.float32)[1]
    after = ranks(s, twins, captions, paired, torch.float32)[1]
    assert after.tolist() == (2 * before + 1).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_one_image_and_one_caption(name):
    s = similarity(name)
    one, pair = gaussians(1, "ellipsoid"), Relevance.from_pairs([0], [0], queries=1, gallery=1)
    i2t, t2i = ranks(s, one, one, pair)
    assert (i2t.tolist(), t2i.tolist()) == ([0], [0])
    ids = top(s, one, one, 5)
    assert recall_at_k(ids[0], [[0]]) == [100.0] * 3


def test_a_query_without_positives_is_never_found():
    g, pair = gaussians(2, "ellipsoid"), Relevance.from_pairs([0], [1], queries=2, gallery=2)
    i2t, t2i = ranks(similarity("kl"), g, g, pair)
    assert (i2t[0], t2i[1]) == (NEVER, NEVER)


@pytest.mark.parametrize("part", ["mean", "log_var"])
def test_a_nan_is_refused_by_name(part):
    images, captions = gaussians(5, "ellipsoid"), gaussians(6, "ellipsoid")
    broken = Gaussian(captions.mean.clone(), captions.log_var.clone())
    getattr(broken, part)[4, 1] = torch.nan
    with pytest.raises(ValueError, match="of caption 4 holds a NaN"):
        Blocks(similarity("kl"), images, broken)
    with pytest.raises(ValueError, match="of image 4 holds a NaN"):
        Blocks(similarity("kl"), broken, captions)


def test_what_float32_cannot_hold_is_refused_by_name():
    g = gaussians(4, "ellipsoid").to(torch.float64)
    wild = Gaussian(g.mean, g.log_var.index_fill(0, torch.tensor([2]), -200.0))
    with pytest.raises(ValueError, match="caption 2: its embedding is too large"):
        Blocks(similarity("kl"), g, wild, torch.float32)


def test_nothing_to_rank():
    g = gaussians(3, "ellipsoid")
    with pytest.raises(ValueError, match="0 images and 3 captions"):
        Blocks(similarity("kl"), g[:0], g)
    with pytest.raises(ValueError, match="k must be at least 1"):
        top(similarity("kl"), g, g, 0)


def test_ids_from_top_feed_the_measures_of_ranked_ids():
    s, pairs = similarity("kl"), relation(0.3)
    images, captions = gaussians(IMAGES, "ellipsoid"), gaussians(CAPTIONS, "ellipsoid")
    t2i = ranks(s, images, captions, pairs)[1]
    ids = top(s, images, captions, IMAGES)[1]
    expected = [100 * float(np.mean(t2i.numpy() < k)) for k in (1, 5, 10)]
    assert recall_at_k(ids, pairs) == pytest.approx(expected)
