"""Batches: the order depends on seed and epoch alone; bucketing changes the order only."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy import toy_encoder, toy_pairs

from gaussmatch.data.pairs import Pairs, RandomViews, joined
from gaussmatch.data.queries import shortened
from gaussmatch.learn.training.batches import Batch, Batches, Waiting
from gaussmatch.models.recipe import TrainingRecipe

PAIRS = toy_pairs("train", 200, 0)
ENCODER = toy_encoder(PAIRS.captions)


def epoch(number: int, bucket: bool, workers: int = 0) -> list[Batch]:
    settings = TrainingRecipe(batch_size=16, seed=3, workers=workers, bucket=bucket)
    return list(Batches(PAIRS, ENCODER, settings).epoch(number))


def padded(batches: list[Batch]) -> int:
    return sum(b.texts.ids.numel() - int(b.texts.lengths.sum()) for b in batches)


def images(batches: list[Batch]) -> list[int]:
    return torch.cat([b.image_ids for b in batches]).tolist()


def test_bucketing_pads_less_and_loses_nothing() -> None:
    plain, bucketed = epoch(1, False), epoch(1, True)
    assert padded(bucketed) < padded(plain) / 3
    assert sorted(images(bucketed)) == sorted(images(plain))
    assert images(bucketed) == images(epoch(1, True))
    assert images(bucketed) != images(epoch(2, True))


def test_batches_are_not_in_the_order_of_length() -> None:
    lengths = [float(b.texts.lengths.float().mean()) for b in epoch(1, True)]
    assert lengths != sorted(lengths)


def test_workers_give_the_same_batches() -> None:
    assert images(epoch(1, False, workers=1)) == images(epoch(1, False))


def test_waiting_is_counted() -> None:
    waiting = Waiting(epoch(1, False))
    assert len(list(waiting)) == 25
    assert waiting.seconds > 0


def shortening(number: int, share: float, workers: int = 0, add: bool = False) -> list[Batch]:
    settings = TrainingRecipe(
        batch_size=16,
        seed=3,
        workers=workers,
        shorten=share,
        shorten_as="add" if add else "replace",
    )
    return list(Batches(PAIRS, ENCODER, settings).epoch(number))


def texts(batches: list[Batch]) -> list[list[int]]:
    return [
        ids[:length].tolist()
        for b in batches
        for ids, length in zip(b.texts.ids, b.texts.lengths, strict=True)
    ]


def test_shortened_captions_depend_on_seed_epoch_and_pair_alone() -> None:
    whole, some, every = texts(epoch(1, False)), texts(shortening(1, 0.4)), shortening(1, 1.0)
    changed = [a != b for a, b in zip(whole, some, strict=True)]
    assert 0.3 < sum(changed) / len(changed) < 0.5
    assert all(len(b) < len(a) for a, b in zip(whole, texts(every), strict=True))
    assert images(every) == images(epoch(1, False))  # the order stays
    assert some == texts(shortening(1, 0.4))
    assert some == texts(shortening(1, 0.4, workers=1))
    assert texts(shortening(2, 1.0)) != texts(every)


def test_shortened_captions_may_come_beside_the_whole_ones() -> None:
    batches = shortening(1, 0.4, add=True)
    assert texts(batches) == texts(epoch(1, False))
    for batch in batches:
        assert len(batch.short.lengths) == len(batch.short_of) > 0
        assert (batch.short.lengths < batch.texts.lengths[batch.short_of]).all()
        moved = batch.to(torch.device("cpu"))
        assert torch.equal(moved.short_of, batch.short_of)


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=12), st.integers(0, 99))
def test_a_shortened_caption_is_some_of_its_words_in_order(words: list[str], seed: int) -> None:
    short = shortened(" ".join(words), np.random.default_rng(seed)).split()
    assert 1 <= len(short) <= max(5, len(words) - 1) or len(words) == 1
    assert len(short) < len(words) or len(words) == 1
    rest = iter(words)
    assert all(word in rest for word in short)


def test_joined_sources_keep_their_random_views() -> None:
    class Moving:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> np.ndarray:
            return np.zeros(3)

        def picture(self, index: int) -> None:
            return None

        def random_view(self, index: int, seed: int) -> np.ndarray:
            return np.full(3, seed)

    still = Pairs("still", np.ones((2, 3)), ["a dog"], torch.tensor([1]))
    moving = Pairs("moving", Moving(), ["a cat"], torch.tensor([0]))
    images = joined([still, moving]).images
    assert isinstance(images, RandomViews)
    assert images.random_view(0, 7).tolist() == [1, 1, 1]
    assert images.random_view(3, 7).tolist() == [7, 7, 7]
    assert not isinstance(joined([still, still]).images, RandomViews)
