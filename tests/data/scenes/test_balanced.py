from __future__ import annotations

import torch

from gaussmatch.core.metrics import spearman
from gaussmatch.data.scenes import SIZES, balanced, load, make_split
from gaussmatch.models.encoders.base import Vocabulary

SPLIT = make_split("dev", images=120)
MADE = balanced(SPLIT.scenes, captions=400)


def test_length_explains_nothing():
    words = torch.tensor([float(len(c.split())) for c in MADE.captions])
    counts = MADE.relevance.counts.float()
    assert set(words.tolist()) == {9, 10}
    assert abs(spearman(words, counts)) < 0.1
    assert counts.min() >= 1
    assert counts.max() > 60  # from one scene to most of them
    assert (counts == 1).sum() > 20


def test_vague_and_specific_stand_side_by_side():
    by_count = sorted(zip(MADE.relevance.counts.tolist(), MADE.captions, strict=True))
    assert len(by_count[0][1].split()) >= 9
    assert len(by_count[-1][1].split()) >= 9


def test_they_repeat_and_depend_on_the_seed():
    again = balanced(SPLIT.scenes, captions=400)
    assert again.captions == MADE.captions
    assert balanced(SPLIT.scenes, captions=400, seed=1).captions != MADE.captions


def test_their_words_are_those_of_the_annotators(tmp_path):
    train = load("tiny", cache=tmp_path, progress=False).train
    known = Vocabulary.build(train.captions, 1)
    assert known.known_share(MADE.captions) > 0.99


def test_scenes_of_a_split_are_those_of_the_data(tmp_path):
    data = load("mini", cache=tmp_path, progress=False)
    split = make_split("dev", SIZES["mini"]["dev"])
    assert list(data.dev.captions) == [c.text for five in split.captions for c in five]
    assert balanced(split.scenes, 10).relevance.gallery == len(data.dev.images)
