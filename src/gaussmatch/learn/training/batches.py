"""Batches of pairs in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gaussmatch.data.pairs import Pairs, RandomViews, read_image
from gaussmatch.data.queries import FittingCounts, as_query
from gaussmatch.models.encoders.base import TextEncoder
from gaussmatch.models.features import prepared, prepared_texts
from gaussmatch.models.recipe import TrainingRecipe

BUCKET_BATCHES = 20
"""With bucketing, captions are sorted by length among this many batches."""
FORMS = 3
"""Queries made of each caption; an epoch takes one of them."""


class Batch(NamedTuple):
    """n pairs: image k belongs to caption k; equal ``image_ids`` are the same image.

    ``texts`` is what the text encoder collates: ``Tokens`` for one with a tokenizer.
    """

    images: Float[Tensor, "n ..."]
    texts: Any
    image_ids: Int[Tensor, "n"]
    short: Any = None
    """Captions of some pairs as queries, collated as ``texts``, where they come beside the whole
    ones; and the rows of those pairs."""
    short_of: Int[Tensor, "m"] | None = None
    fits: Float[Tensor, "n"] | None = None
    """ln of how many photos the texts fit, and the short ones."""
    short_fits: Float[Tensor, "m"] | None = None
    share: Float[Tensor, "n"] | None = None
    """How much of image k is its own, where images are mixed (``mixed``), and the pair that the
    rest is of."""
    partner: Int[Tensor, "n"] | None = None

    @property
    def mixture(self) -> tuple[Tensor, Tensor] | None:
        return None if self.share is None or self.partner is None else (self.share, self.partner)

    def to(self, device: torch.device) -> Batch:
        moved = (part if part is None else part.to(device) for part in self)
        return Batch(*moved)  # type: ignore[arg-type]  # the first three are always there

    def split(self, size: int) -> list[Batch]:
        """Parts of at most ``size`` pairs, in order, each with the queries of its pairs."""
        if size >= len(self.image_ids):
            return [self]
        return [self._part(i, i + size) for i in range(0, len(self.image_ids), size)]

    def _part(self, start: int, stop: int) -> Batch:
        part = slice(start, stop)
        known = {name: getattr(self, name) for name in ("fits", "share", "partner")}
        own = {name: value[part] for name, value in known.items() if value is not None}
        some = Batch(self.images[part], _rows(self.texts, part), self.image_ids[part], **own)
        if self.short_of is None:
            return some
        first, end = (int((self.short_of < row).sum()) for row in (start, stop))
        rows = slice(first, end)
        return some._replace(
            short=_rows(self.short, rows) if end > first else None,
            short_of=self.short_of[rows] - start,
            short_fits=None if self.short_fits is None else self.short_fits[rows],
        )


def _rows(texts: Any, rows: slice) -> Any:
    """Some of the texts that an encoder has collated: embeddings, or ``Tokens``."""
    whole = isinstance(texts, Tensor)
    return texts[rows] if whole else type(texts)(*(t[rows] for t in texts))


BETA = 2.0
"""Of the distribution Beta(2, 2) that the shares of mixed images are drawn from (PCME++)."""


def mixed(batch: Batch, some: float) -> Batch:
    """A batch in which a share ``some`` of the images is mixed with that of the last pair but k:
    by their weighted mean (mixup), or with a rectangle of it, or some regions, in place of their
    own (cutmix). The random numbers are torch's."""
    n, images = len(batch.image_ids), batch.images.clone()
    partner = torch.arange(n - 1, -1, -1, device=images.device)
    drawn = torch.distributions.Beta(BETA, BETA).sample((n,))
    share = torch.where(torch.rand(n) < some, drawn, 1.0)
    cut = torch.rand(n) < 0.5
    for k in (share < 1).nonzero()[:, 0].tolist():
        other = batch.images[n - 1 - k]
        if cut[k] and other.ndim > 1:
            where = _part_of(other, float(share[k]))
            images[k][where] = other[where]
            share[k] = 1 - images[k][where].numel() / other.numel()
        else:
            images[k] = share[k] * images[k] + (1 - share[k]) * other
    return batch._replace(images=images, share=share.to(images.device), partner=partner)


def _part_of(image: Tensor, kept: float) -> tuple[Any, ...]:
    """The rows of regions (r, f), or a rectangle of pixels (3, h, w), that another image fills."""
    if image.ndim == 2:
        count = round((1 - kept) * len(image))
        return (torch.randperm(len(image))[:count],)
    sides = [int(size * (1 - kept) ** 0.5) for size in image.shape[1:]]
    middles = [int(torch.randint(size, ())) for size in image.shape[1:]]
    spans = (
        slice(max(0, middle - side // 2), min(size, middle + side // 2))
        for middle, side, size in zip(middles, sides, image.shape[1:], strict=True)
    )
    return (slice(None), *spans)


class Batches:
    """The training pairs of one split, shuffled anew each epoch, as a recipe's ``training`` says.

    The captions are prepared by the text encoder once, and collated by it batch by batch.
    The order of epoch e is drawn from (seed, e), so a resumed run gets the same batches as an
    uninterrupted one; the random view of an image (``RandomViews``) is drawn from (seed, e, pair).
    A last batch of a single pair has no negative and is left out. With ``steps`` an epoch ends
    after that many batches.

    Every epoch a share ``shorten`` of the captions, drawn from (seed, e, pair), comes as a query
    (``as_query``), instead of the whole caption or beside it. A caption has ``FORMS`` of them, the
    same for every seed, so that a frozen encoder embeds each once. With ``fits`` a batch knows how
    many photos its texts fit.

    With ``share`` (r, W) they are the r-th of W parts of each batch, equal but for one pair; a last
    batch of fewer than W pairs is left out.

    With ``bucket`` the captions of a batch are of like length, so that less is padded; its
    negatives are then of like length too, which changes what is learned.
    """

    def __init__(
        self,
        pairs: Pairs,
        encoder: TextEncoder,
        settings: TrainingRecipe,
        share: tuple[int, int] = (0, 1),
        fits: bool = False,
    ) -> None:
        self.pairs, self.settings, self._share = pairs, settings, share
        self._rows, self._encoder = prepared_texts(pairs, encoder), encoder
        if len(self.pairs.captions) < self._fewest:
            raise ValueError(f"{pairs.name}: training needs at least {self._fewest} pairs")
        if settings.batch_size < self._fewest:
            raise ValueError(
                f"training.batch_size is {settings.batch_size}, but each of {share[1]} processes "
                "needs a pair; raise it, or start fewer processes"
            )
        forms = self._draw_forms() if settings.shorten else []
        self._forms = prepared(forms, encoder) if forms else []
        self._fits: np.ndarray | None = None
        self._form_fits: np.ndarray | None = None
        if fits:
            self._fits, self._form_fits = self._count(forms)

    def __len__(self) -> int:
        full, rest = divmod(len(self.pairs.captions), self.settings.batch_size)
        whole = full + (rest >= self._fewest)
        return min(whole, self.settings.steps or whole)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, without the first ``skip``, which are not even read."""
        seed, size = self.settings.seed, self.settings.batch_size
        seeded = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.pairs.captions), generator=seeded).tolist()
        if self.settings.bucket:
            order = self._by_length(order)
        chunks = [order[i : i + size] for i in range(0, len(order), size)]
        if self.settings.bucket:
            chunks = [chunks[i] for i in torch.randperm(len(chunks), generator=seeded).tolist()]
        whole = [chunk for chunk in chunks if len(chunk) >= self._fewest]
        loader = DataLoader(
            _PairDataset(self.pairs, self._epoch_forms(epoch), seed, epoch),
            batch_sampler=[self._part(chunk) for chunk in whole[skip : len(self)]],
            collate_fn=self._collate,
            num_workers=self.settings.workers,
            pin_memory=torch.cuda.is_available(),
        )
        # an iterator draws a random number, which an epoch that is continued has drawn already
        with torch.random.fork_rng(devices=[], enabled=skip > 0):
            return iter(loader)

    def _draw_forms(self) -> list[str]:
        """``FORMS`` queries of each caption."""
        generalize, frame = self.settings.generalize, self.settings.frame
        return [
            as_query(caption, np.random.default_rng([0, pair, form]), generalize, frame)
            for pair, caption in enumerate(self.pairs.captions)
            for form in range(FORMS)
        ]

    def _count(self, forms: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """How many photos each caption fits, and each of its forms: never fewer than it does."""
        captions, own = self.pairs.captions, self.pairs.image_of.numpy()
        counts = FittingCounts(captions, own)
        if isinstance(self._rows, np.ndarray):  # sentence embeddings
            unit = self._rows / np.linalg.norm(self._rows, axis=1, keepdims=True)
            whole = counts.by_meaning(unit, unit, own)
        else:
            whole = counts.by_words(captions, own)
        of_forms = counts.by_words(forms) if forms else np.zeros(0, np.float32)
        return whole, np.maximum(of_forms, whole.repeat(FORMS)[: len(forms)])

    def _epoch_forms(self, epoch: int) -> dict[int, int]:
        """The pairs whose caption comes as a query in an epoch, and the number of its form."""
        chosen = {}
        for pair in range(len(self.pairs.captions)) if self.settings.shorten else ():
            dice = np.random.default_rng([abs(self.settings.seed), epoch, pair, FORMS])
            if dice.random() < self.settings.shorten:
                chosen[pair] = pair * FORMS + int(dice.integers(FORMS))
        return chosen

    @property
    def _fewest(self) -> int:
        """Pairs that a batch must have."""
        return max(2, self._share[1])

    def _part(self, chunk: list[int]) -> list[int]:
        rank, ranks = self._share
        return chunk[len(chunk) * rank // ranks : len(chunk) * (rank + 1) // ranks]

    def _by_length(self, order: list[int]) -> list[int]:
        """Sorted within windows of many batches, so that batches differ from epoch to epoch."""
        window = BUCKET_BATCHES * self.settings.batch_size
        parts = (order[i : i + window] for i in range(0, len(order), window))
        return [i for part in parts for i in sorted(part, key=lambda i: len(self._rows[i]))]

    def _collate(self, items: Sequence[tuple[np.ndarray, int, int, int | None]]) -> Batch:
        images, pairs, ids, forms = zip(*items, strict=True)
        queries = [(k, form) for k, form in enumerate(forms) if form is not None]
        rows = [self._rows[pair] for pair in pairs]
        fits = None if self._fits is None else torch.from_numpy(self._fits[list(pairs)])
        collate, own = self._encoder.collate, [form for _, form in queries]
        short_fits = None if self._form_fits is None else torch.from_numpy(self._form_fits[own])
        if not self.settings.adds_captions:
            for k, form in queries:
                rows[k] = self._forms[form]
            if fits is not None and short_fits is not None:
                fits[[k for k, _ in queries]] = short_fits
        shown = torch.from_numpy(np.stack(images)), collate(rows), torch.tensor(ids)
        if not self.settings.adds_captions:
            return Batch(*shown, fits=fits)
        short = collate([self._forms[form] for form in own]) if own else None
        short_of = torch.tensor([k for k, _ in queries], dtype=torch.long)
        return Batch(*shown, short, short_of, fits, short_fits)


class Waiting(Iterator[Batch]):
    """Batches as they come, with the seconds spent waiting for them."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches, self.seconds = iter(batches), 0.0

    def __next__(self) -> Batch:
        started = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.perf_counter() - started


class _PairDataset(Dataset[tuple[np.ndarray, int, int, int | None]]):
    """Pair → its image (or a random view), and the numbers of the pair, its image and its query."""

    def __init__(self, pairs: Pairs, forms: dict[int, int], seed: int, epoch: int) -> None:
        self._pairs, self._forms, self._seed, self._epoch = pairs, forms, seed, epoch
        self._image_of: list[int] = pairs.image_of.tolist()
        self._views = pairs.images if isinstance(pairs.images, RandomViews) else None

    def __len__(self) -> int:
        return len(self._image_of)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int, int, int | None]:
        image = self._image_of[index]
        if self._views is not None:
            chance = np.random.SeedSequence([abs(self._seed), self._epoch, index])
            shown = self._views.random_view(image, int(chance.generate_state(1)[0]))
        else:
            shown = read_image(self._pairs, image)
        return shown, index, image, self._forms.get(index)
