"""Fits a published uncertainty to a frozen pair of encoders (``models.encoders.posthoc``): embeds
the training pairs once, then solves in closed form or takes gradient steps on the embeddings."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor
from torch.nn.functional import normalize

from gaussmatch.core.losses import negatives
from gaussmatch.data.pairs import Pairs, read_images
from gaussmatch.learn.evaluation.reliability import evenly
from gaussmatch.models.encoders.posthoc import Learned, Method, Posthoc
from gaussmatch.models.features.texts import prepared_texts
from gaussmatch.models.model import Model

PAIRS = 100_000
"""Training captions with their images that a method is fitted to, at most."""
BLOCK = 1024


def fit(model: Model, pairs: Pairs) -> dict[str, float]:
    """Fit both sides of a post-hoc model. Returns the CPU seconds of it, the steps, and the last
    loss.

    Steps are those of the recipe: epochs, batch size, learning rate and weight decay, by AdamW with
    one cycle of the rate, whatever its other fields say.
    """
    image, text = model.matcher.image, model.matcher.text
    assert isinstance(image, Posthoc)
    assert isinstance(text, Posthoc)
    rows = evenly(len(pairs.captions), PAIRS)
    image_of = pairs.image_of[rows]
    shown, own_rows = image_of.unique(return_inverse=True)
    sides = _points(image, text, model, pairs, shown, rows)
    if sides[0][0].shape[1] != sides[1][0].shape[1]:
        widths = [points.shape[1] for points, _ in sides]
        raise ValueError(
            f"{pairs.name}: images have {widths[0]} dimensions, texts {widths[1]}; the uncertainty "
            "of a frozen pair needs one space: give embeddings of one encoder"
        )
    (images, inner_images), (texts, inner_texts) = sides
    started = time.process_time()
    methods = image.method, text.method
    image.method.fit(images[own_rows], inner_images[own_rows], texts)
    text.method.fit(texts, inner_texts, images[own_rows])
    learned = [p for m in methods if m.learns for p in m.parameters()]
    found = {"steps": 0.0}
    if learned:
        units = normalize(images, dim=-1)[own_rows], normalize(texts, dim=-1)
        found = _descend(methods, learned, *units, own_rows, model)
    return {**found, "cpu_seconds": round(time.process_time() - started, 2)}


@torch.no_grad()
def _points(
    image: Posthoc, text: Posthoc, model: Model, pairs: Pairs, shown: Tensor, rows: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Of each side the chosen training items before their L2-norm, and what enters the last
    layer."""
    image.eval()
    text.eval()
    device, prepared = model.device, prepared_texts(pairs, model.matcher.text_encoder)
    collate = model.matcher.text_encoder.collate
    parts_i = [
        image.points(read_images(pairs, part.tolist()).to(device))[1:]
        for part in shown.split(BLOCK)
    ]
    parts_t = [
        text.points(collate([prepared[i] for i in part.tolist()]).to(device))[1:]
        for part in rows.split(BLOCK)
    ]
    return [
        tuple(torch.cat(column) for column in zip(*parts, strict=True))  # type: ignore[misc]
        for parts in (parts_i, parts_t)
    ]


def _descend(
    methods: tuple[Method, Method],
    learned: list[torch.nn.Parameter],
    images: Tensor,
    texts: Tensor,
    image_of: Tensor,
    model: Model,
) -> dict[str, float]:
    settings, n = model.recipe.training, len(texts)
    size = min(settings.batch_size, n)
    batches = min(settings.steps or n, n // size)
    total, dice = settings.epochs * batches, torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.AdamW(
        learned, settings.learning_rate, weight_decay=settings.weight_decay
    )
    rates = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, max(2, total), pct_start=settings.warmup
    )
    for method in methods:
        method.train()
    value = 0.0
    for _ in range(settings.epochs):
        order = torch.randperm(n, generator=dice)
        for start in range(0, batches * size, size):
            batch = order[start : start + size]
            i, t, negative = images[batch], texts[batch], negatives(image_of[batch])
            optimizer.zero_grad(set_to_none=True)
            sides = ((methods[0], i, t, negative), (methods[1], t, i, negative.T))
            loss = torch.stack(
                [
                    m.loss(x, y, mask)
                    for m, x, y, mask in sides
                    if isinstance(m, Learned) and m.learns
                ]
            ).sum()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, settings.clip)
            optimizer.step()
            rates.step()
            value = float(loss.detach())
    if math.isnan(value):
        raise ValueError(
            f"the loss of {model.recipe.model.posthoc.method} is not a number; lower "
            "training.learning_rate, or look for outliers in the embeddings"
        )
    return {"steps": float(total), "loss": value}
