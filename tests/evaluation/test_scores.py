"""Scores of similarities without a lift: any part of them, kept or made again, is the matrix."""

from __future__ import annotations

import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance
from gaussmatch.core.similarities import similarity
from gaussmatch.learn.evaluation import scores
from gaussmatch.learn.evaluation.retrieval import ranks, top
from gaussmatch.learn.evaluation.scores import PairwiseBlocks, best_scores, blocks_of

KEPT = pytest.mark.parametrize("kept", [True, False], ids=["kept", "made again"])
NAMES = pytest.mark.parametrize("name", ["mil", "match_prob"])


@pytest.fixture
def _limits(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "KEPT_BYTES", 2**29 if kept else 0)
    monkeypatch.setattr(scores, "TILE", (3, 2))


def sides(name: str) -> tuple[Gaussian, Gaussian]:
    if name == "mil":
        return Gaussian(torch.randn(7, 3, 4)), Gaussian(torch.randn(5, 2, 4))
    return (Gaussian(0.3 * torch.randn(n, 4), -4 + torch.randn(n, 4)) for n in (7, 5))


@KEPT
@NAMES
@pytest.mark.usefixtures("_limits")
def test_every_part_is_a_part_of_the_matrix(name: str) -> None:
    images, captions = sides(name)
    s = similarity(name)
    whole = s.matrix(images, captions).detach()
    both = blocks_of(s, images, captions)
    blocks = both.image_queries
    assert blocks is both.caption_queries
    assert isinstance(blocks, PairwiseBlocks)
    torch.testing.assert_close(blocks.rows(2, 6), whole[2:6])
    torch.testing.assert_close(blocks.columns(1, 4), whole[:, 1:4].T)
    seen = torch.full_like(whole, torch.nan)
    for rows, columns, part in blocks.tiles():
        assert not part.requires_grad
        seen[rows, columns] = part
    torch.testing.assert_close(seen, whole)
    image, caption = torch.tensor([0, 6, 3]), torch.tensor([4, 0, 3])
    close, rounding = blocks.pairs(image, caption)
    torch.testing.assert_close(close, whole[image, caption])
    assert ((rounding > 0) & (rounding < 1e-5 * (1 + close.abs()))).all()
    torch.testing.assert_close(best_scores(both)[0].float(), whole.amax(1))
    assert torch.equal(top(s, images, captions, 2)[0], whole.topk(2).indices)


@KEPT
@NAMES
@pytest.mark.usefixtures("_limits")
def test_a_model_that_scores_everything_alike_is_last(name: str) -> None:
    """Ties never count in the model's favor, whatever way the right pairs are scored."""
    shape = (6, 2, 16) if name == "mil" else (6, 16)
    mean = torch.randn(shape[1:]).expand(shape)
    same = Gaussian(mean, None if name == "mil" else torch.full(shape, -3.0))
    own = Relevance.from_pairs(range(6), range(6), queries=6, gallery=6)
    for found in ranks(similarity(name), same, same, own):
        assert found.tolist() == [5] * 6
