"""Batches: the order depends on seed and epoch alone; bucketing changes the order only."""

from __future__ import annotations

import torch
from toy import toy_encoder, toy_pairs

from gaussmatch.data.batches import Batch, Batches, Waiting

PAIRS = toy_pairs("train", 200, 0)
ENCODER = toy_encoder(PAIRS.captions)


def epoch(number: int, bucket: bool, workers: int = 0) -> list[Batch]:
    made = Batches(PAIRS, ENCODER, batch_size=16, seed=3, workers=workers, bucket=bucket)
    return list(made.epoch(number))


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
