"""The loss of generating the caption of an image with teacher forcing, as VSRN adds it to the
ranking."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence


def teacher_forcing(
    ids: Int[Tensor, "n w"], lengths: Int[Tensor, "n"], longest: int = 60, padding: int = 0
) -> tuple[PackedSequence, PackedSequence]:
    """Inputs of a caption generator, the true words, and the next word of each as its target; from
    padded captions with start and end. Both are packed (step by step, longest caption first), so
    that nothing is computed for padding.

    As in the official code, one ``padding`` after the end is a target too, and a caption longer
    than ``longest`` is cut there, with its end as the last word. Further padding does not count.

    >>> ids, lengths = torch.tensor([[1, 7, 2, 0], [1, 8, 9, 2]]), torch.tensor([3, 4])
    >>> inputs, targets = teacher_forcing(ids, lengths)
    >>> torch.nn.utils.rnn.pad_packed_sequence(targets, batch_first=True)
    (tensor([[7, 2, 0, 0],
            [8, 9, 2, 0]]), tensor([3, 4]))
    """
    if longest < 2:
        raise ValueError(f"captions of at most {longest} words leave none to generate; at least 2")
    steps = lengths.clamp_max(longest - 1)
    width = int(steps.max()) + 1
    places = torch.arange(width, device=ids.device)
    words = pad(ids, (0, max(0, width - ids.shape[1])), value=padding)[:, :width]
    words = words.masked_fill(places >= lengths[:, None], padding)
    cut = (lengths > longest)[:, None] & (places == longest - 1)
    words = torch.where(cut, ids.gather(1, lengths[:, None] - 1), words)
    return _packed(words[:, :-1], steps), _packed(words[:, 1:], steps)


def generation_loss(
    logits: Float[Tensor, "k v"], targets: Int[Tensor, "k"], captions: int
) -> Float[Tensor, ""]:
    """−Σ ln p(target) / captions: summed over the k words that count, mean over captions.

    >>> generation_loss(torch.zeros(6, 4), torch.tensor([1, 2, 0, 3, 2, 0]), captions=2)
    tensor(4.1589)
    """
    return cross_entropy(logits, targets, reduction="sum") / captions


def _packed(words: Tensor, steps: Tensor) -> PackedSequence:
    return pack_padded_sequence(words, steps.cpu(), batch_first=True, enforce_sorted=False)
