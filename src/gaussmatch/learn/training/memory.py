"""How much memory training needs for activations: what the backward pass keeps of an image."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from tqdm import tqdm

from gaussmatch.data.pairs import Pairs, read_images
from gaussmatch.learn.training.log import RunLog
from gaussmatch.learn.training.setup import Precision
from gaussmatch.models.matcher import Matcher

SAMPLE = 4
"""Images that are measured."""


def activation_bytes(encoder: nn.Module, images: Tensor) -> int:
    """Bytes that one image adds to what a forward pass in training keeps for the backward pass.

    Found with the difference of all given images and half of them, so that what does not grow
    with the batch is not counted; weights are not either. The encoder is left as it was: running
    statistics and random numbers too. What checkpointing computes again is not kept; the inputs
    of its blocks, which are, do not show here.

    >>> net = nn.Sequential(nn.Linear(10, 20), nn.Sigmoid())    # keeps its input and its output
    >>> activation_bytes(net, torch.rand(4, 10)) == 4 * (10 + 20)
    True
    """
    half = len(images) // 2
    if half < 1:
        raise ValueError("at least two images are needed to measure what one adds")
    with _left_as_it_was(encoder):
        more, less = (_kept(encoder, images[:n].clone()) for n in (len(images), half))
    return round((more - less) / (len(images) - half))


def report_memory(
    matcher: Matcher, pairs: Pairs, batch: int, precision: Precision, log: RunLog
) -> None:
    """Measure it on a few images of the data, print it and log it."""
    if len(pairs.images) < 2:
        return
    images = read_images(pairs, range(min(SAMPLE, len(pairs.images))))
    with precision.forward():
        per_image = activation_bytes(matcher.image, images.to(precision.device))
    tqdm.write(memory_line(per_image, batch), file=sys.stderr)
    log.write("memory", 0, 0, activation_bytes_an_image=per_image)


def memory_line(per_image: int, batch: int) -> str:
    """The line for the user.

    >>> memory_line(1_900_000, 128)
    'activation memory: 1.9 MB an image, 0.24 GB a batch of 128'
    """
    whole = per_image * batch / 1e9
    return (
        f"activation memory: {per_image / 1e6:.1f} MB an image, {whole:.2f} GB a batch of {batch}"
    )


def _kept(encoder: nn.Module, images: Tensor) -> int:
    """Bytes of all storages that the backward pass refers to, each once."""
    own = {t.untyped_storage().data_ptr() for t in [*encoder.parameters(), *encoder.buffers()]}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor  # held by the graph, so that its place is not given away

    with saved_tensors_hooks(note, lambda tensor: tensor), torch.enable_grad():
        graph = encoder(images)  # kept until all is counted
    del graph
    return sum(kept.values())


@contextmanager
def _left_as_it_was(encoder: nn.Module) -> Iterator[None]:
    mode = encoder.training
    before = [(b, b.detach().clone()) for b in encoder.buffers()]
    with torch.random.fork_rng():
        encoder.train()
        try:
            yield
        finally:
            encoder.train(mode)
            for buffer, value in before:
                buffer.copy_(value)
