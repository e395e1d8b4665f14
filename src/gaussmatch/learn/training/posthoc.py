"""Fits a published uncertainty to a frozen pair of encoders (``models.encoders.posthoc``): embeds
the training pairs once, then solves in closed form or takes gradient steps on the embeddings."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gaussmatch.core.losses import negatives
from gaussmatch.data.language import canonical
from gaussmatch.data.pairs import Pairs, read_images
from gaussmatch.data.queries import CENTERED_SHARPNESS, FittingCounts, as_query
from gaussmatch.learn.evaluation.retrieval import evenly
from gaussmatch.learn.training.step import in_order
from gaussmatch.models import run
from gaussmatch.models.encoders.posthoc import FromCaptions, Learned, Method, Posthoc
from gaussmatch.models.features import prepared, prepared_texts
from gaussmatch.models.model import Model, build
from gaussmatch.models.recipe import Recipe

PAIRS = 100_000
"""Training captions with their images that a method is fitted to, at most."""
BLOCK = 1024
CAPTIONS = 20_000
"""Captions that it is learned from how many photos texts fit, at most."""
GENERALIZE = 0.5
"""The share of queries made of them that are put in more general words."""


def fit(model: Model, pairs: Pairs) -> dict[str, float]:
    """Fit both sides of a post-hoc model. Returns the CPU seconds of it, the steps, and the last
    loss.

    Steps are those of the recipe: epochs, batch size, learning rate and weight decay, by AdamW with
    one cycle of the rate, whatever its other fields say.
    """
    image, text = model.matcher.image, model.matcher.text
    assert isinstance(image, Posthoc)
    assert isinstance(text, Posthoc)
    if isinstance(text.method, FromCaptions):
        if pairs.texts is not None:
            raise ValueError(f"{pairs.name}: ready embeddings, and method captions needs the texts")
        some = evenly(len(pairs.captions), CAPTIONS)
        chosen = [pairs.captions[int(row)] for row in some]
        return _fit_captions(model, chosen, pairs.image_of[some].numpy())
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
        shown, said = normalize(images, dim=-1)[own_rows], normalize(texts, dim=-1)

        def loss(batch: Tensor) -> Tensor:
            i, t, negative = shown[batch], said[batch], negatives(own_rows[batch])
            sides = ((methods[0], i, t, negative), (methods[1], t, i, negative.T))
            some = [m.loss(*x) for m, *x in sides if isinstance(m, Learned) and m.learns]
            return torch.stack(some).sum()

        found = _descend(methods, learned, len(texts), loss, model)
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
    methods: Sequence[Method],
    learned: list[torch.nn.Parameter],
    n: int,
    loss: Callable[[Tensor], Tensor],
    model: Model,
) -> dict[str, float]:
    """Steps on the loss of batches, which are rows of n."""
    settings = model.recipe.training
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
            optimizer.zero_grad(set_to_none=True)
            found = loss(order[start : start + size])
            found.backward()
            torch.nn.utils.clip_grad_norm_(learned, settings.clip)
            optimizer.step()
            rates.step()
            value = float(found.detach())
    if math.isnan(value):
        raise ValueError(
            f"the loss of {model.recipe.model.posthoc.method} is not a number; lower "
            "training.learning_rate, or look for outliers in the embeddings"
        )
    return {"steps": float(total), "loss": value}


# ---- from captions alone ----


def adapt_to_captions(
    base: Recipe, captions: Sequence[str], image_of: np.ndarray, recipe: Recipe, out: Path
) -> None:
    """A run of the encoder that ``base`` names. Its means, and so its ranking, are as published;
    its texts know how many photos they fit, learned from captions (``CAPTIONS`` at most) without
    any photo. ``image_of`` says which photo each was written for."""
    named, dim = base.model.published, base.model.dim
    adapter = replace(
        recipe.model.adapter,
        text_encoder=named.text_encoder,
        text_width=dim,
        text_sha256=named.text_sha256,
        image_encoder=named.image_encoder,
        image_sha256=named.image_sha256,
    )
    network = replace(recipe.model, dim=dim, feature_dim=dim, adapter=adapter)
    recipe = replace(recipe, title=base.title, data=base.data, model=network)
    torch.manual_seed(recipe.training.seed)
    model = Model(recipe, build(network, None))
    rows = evenly(len(captions), CAPTIONS).tolist()
    found = _fit_captions(model, [captions[row] for row in rows], image_of[rows])
    run.save_weights(model.matcher.state_dict(), out)
    run.write_metrics(out, finished=True, dev={}, captions=found)
    run.save_parts(out, recipe, None)


def _fit_captions(model: Model, captions: Sequence[str], image_of: np.ndarray) -> dict[str, float]:
    text = model.matcher.text
    assert isinstance(text, Posthoc)
    method = text.method
    assert isinstance(method, FromCaptions)
    queries = [
        as_query(caption, np.random.default_rng([0, at]), GENERALIZE)
        for at, caption in enumerate(captions)
    ]
    whole, short = (
        torch.from_numpy(
            np.asarray(prepared([canonical(t) for t in texts], model.matcher.text_encoder))
        )
        for texts in (captions, queries)
    )
    inputs = method.refer(whole, torch.from_numpy(image_of), short)
    unit = normalize(whole - method.standardize.mean, dim=-1).numpy()
    counts = FittingCounts(captions, image_of)
    fits = counts.by_meaning(unit, unit, image_of, CENTERED_SHARPNESS)
    short_fits = torch.from_numpy(np.maximum(counts.by_words(queries), fits))
    known = torch.from_numpy(fits)

    def loss(batch: Tensor) -> Tensor:
        u, v = (method.network(rows[batch])[:, 0] for rows in inputs)
        return in_order(u, known[batch], v, short_fits[batch], torch.arange(len(batch)))

    learned = [*method.network.parameters()]
    found = _descend([method], learned, len(captions), loss, model)
    return {**found, "captions": float(len(captions))}
