"""What the generator is taught: exactly the words that the official code counts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_packed_sequence

from gaussmatch.core.losses import generation_loss, teacher_forcing

START, END, PAD = 1, 2, 0


def padded(rows: list[list[int]], width: int = 0, filler: int = PAD) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), max(width, int(lengths.max()))), filler)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    return ids, lengths


def reference(row: list[int], longest: int) -> tuple[list[int], list[int]]:
    """One caption as the official loader labels and masks it: (given, wanted) where it counts."""
    if len(row) > longest - 1:
        row = [*row[: longest - 1], END] if len(row) >= longest else row
    labels = row + [PAD] * (longest + 1 - len(row))
    counted = labels.index(PAD) + 1  # the mask covers one padding after the end
    wanted = labels[1:longest][: counted - 1]  # the decoder takes longest − 1 steps
    return labels[: len(wanted)], wanted


captions = st.lists(
    st.lists(st.integers(3, 9), max_size=9).map(lambda words: [START, *words, END]),
    min_size=1,
    max_size=4,
)


@given(rows=captions, longest=st.integers(2, 13), extra=st.integers(0, 3))
def test_as_the_official_loader(rows: list[list[int]], longest: int, extra: int) -> None:
    ids, lengths = padded(rows, max(map(len, rows)) + extra, filler=5)
    taught = teacher_forcing(ids, lengths, longest)
    (given_, steps), (wanted, _) = (pad_packed_sequence(p, batch_first=True) for p in taught)
    for i, row in enumerate(rows):
        n = int(steps[i])
        assert (given_[i, :n].tolist(), wanted[i, :n].tolist()) == reference(row, longest)


def test_one_padding_after_the_end_is_wanted() -> None:
    _, wanted = teacher_forcing(*padded([[START, 7, END]]))
    assert wanted.data.tolist() == [7, END, PAD]


def test_a_long_caption_keeps_its_end() -> None:
    given_, wanted = teacher_forcing(*padded([[START, *range(3, 20), END]]), longest=5)
    assert given_.data.tolist() == [START, 3, 4, 5]
    assert wanted.data.tolist() == [3, 4, 5, END]


def test_its_input_is_left_alone() -> None:
    ids, lengths = padded([[START, *range(3, 20), END], [START, END]])
    before = ids.clone()
    teacher_forcing(ids, lengths, longest=5)
    assert torch.equal(ids, before)


def test_too_short_to_generate_anything() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        teacher_forcing(*padded([[START, END]]), longest=1)


def test_sum_over_words_mean_over_captions() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    wanted = torch.tensor([0, 3, 1, 1, 2])
    expected = -sum(
        math.log(row.exp()[w] / row.exp().sum())
        for row, w in zip(logits.detach(), wanted, strict=True)
    )
    assert generation_loss(logits, wanted, captions=2).item() == pytest.approx(expected / 2)
    assert torch.autograd.gradcheck(lambda x: generation_loss(x, wanted, 2), (logits,))
