"""What a step minimises: a loss over the scores, and named terms that look inside the networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from gaussmatch.core import losses
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.learn.training.batches import Batch
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.vsrn import CaptionGenerator
from gaussmatch.models.matcher import Matcher
from gaussmatch.models.recipe import LossRecipe


class BatchOutput(NamedTuple):
    """What a batch gave: the Gaussians, its captions, what the watched parts put out, and which
    images are the same."""

    matcher: Matcher
    images: Gaussian
    captions: Gaussian
    tokens: Tokens
    seen: dict[str, Any]
    image_ids: Tensor
    fits: Tensor | None = None
    short: Gaussian | None = None
    short_of: Tensor | None = None
    short_fits: Tensor | None = None

    @property
    def shortened(self) -> tuple[Gaussian, Tensor] | None:
        """Captions as queries beside the whole ones, and the rows of their pairs, if any."""
        if self.short is None or self.short_of is None or not len(self.short_of):
            return None
        return self.short, self.short_of

    @property
    def tensors(self) -> list[Tensor]:
        """All that gradients of pairs flow through, (n, …) each."""
        return [*_tensors(self.images), *_tensors(self.captions), *self.seen.values()]

    @property
    def short_tensors(self) -> list[Tensor]:
        """All that gradients of queries flow through, (m, …) each."""
        return [] if self.short is None else _tensors(self.short)

    def with_batch(
        self, tensors: Sequence[Tensor], short_tensors: Sequence[Tensor], batch: Batch
    ) -> BatchOutput:
        """The outcome of another batch, given its tensors and what it says of its pairs."""
        rest, short_rest = iter(tensors), iter(short_tensors)
        return self._replace(
            images=_like(self.images, rest),
            captions=_like(self.captions, rest),
            seen={name: next(rest) for name in self.seen},
            image_ids=batch.image_ids,
            fits=batch.fits,
            short=None if self.short is None else _like(self.short, short_rest),
            short_of=batch.short_of,
            short_fits=batch.short_fits,
        )


def _tensors(g: Gaussian) -> list[Tensor]:
    return [g.mean] if g.log_var is None else [g.mean, g.log_var]


def _like(g: Gaussian, tensors: Iterator[Tensor]) -> Gaussian:
    return replace(g, mean=next(tensors), log_var=None if g.is_point else next(tensors))


@dataclass(frozen=True)
class Term:
    """A named addition to the loss, weighted by the field of its name in the recipe's ``loss``.

    Args:
        value: outcome → scalar, already reduced over the batch.
        watches: parts whose output it needs, as ``Matcher.part`` names them.
    """

    value: Callable[[BatchOutput], Tensor]
    watches: tuple[str, ...] = ()


def _generation(outcome: BatchOutput) -> Tensor:
    """The caption's words, generated from the regions of its image after the graph (VSRN)."""
    generator = outcome.matcher.get_submodule("heads.generator")
    assert isinstance(generator, CaptionGenerator)
    ids, lengths = outcome.tokens
    inputs, targets = losses.teacher_forcing(ids, lengths, generator.longest)
    logits = generator(outcome.seen[REGIONS], inputs)
    return losses.generation_loss(logits, targets.data, captions=len(lengths))


def _inclusion(outcome: BatchOutput) -> Tensor:
    """Of whole captions in their shortened forms; zero in a batch without any."""
    if outcome.shortened is None:
        return outcome.captions.mean.new_zeros(())
    short, rows = outcome.shortened
    return losses.inclusion(outcome.captions[rows], short)


def _fitting(outcome: BatchOutput) -> Tensor:
    """Uncertainty in the order of how many photos a text fits: among whole captions, among queries,
    among all of them, and of every query above its own caption."""
    assert outcome.fits is not None
    whole = outcome.captions.mean_log_var()
    if outcome.shortened is None:
        return losses.disorder(whole, outcome.fits)
    assert outcome.short_fits is not None
    queries, rows = outcome.shortened
    short = queries.mean_log_var()
    both = torch.cat([whole, short]), torch.cat([outcome.fits, outcome.short_fits])
    return (
        2 * losses.disorder(whole, outcome.fits)
        + 0.5 * losses.disorder(short, outcome.short_fits)
        + losses.disorder(*both)
        + softplus(STEEPNESS * (whole[rows] - short)).mean()
    )


def _rivals(outcome: BatchOutput) -> Tensor:
    """Uncertainty in the order of how many images of the batch score beside a text's own."""
    texts, ids = outcome.captions, outcome.image_ids
    own = torch.arange(len(ids), device=ids.device)
    if outcome.shortened is not None:
        short, rows = outcome.shortened
        texts, own = Gaussian.cat([texts, short]), torch.cat([own, rows])
    counts = losses.log_rivals(texts.mean, outcome.images.mean, own, ids)
    return losses.disorder(texts.mean_log_var(), counts)


STEEPNESS = 20.0
"""How sharply a query less uncertain than its caption is punished, in ln σ² a dimension."""
REGIONS = "image.reasoning.graph"
RESIDUALS = ("image.pie.residual", "text.pie.residual")

TERMS: dict[str, Term] = {
    "generation": Term(_generation, watches=(REGIONS,)),
    "diversity": Term(lambda o: sum_of(losses.diversity(o.seen[r]) for r in RESIDUALS), RESIDUALS),
    "mmd": Term(lambda o: losses.mean_discrepancy(o.images.mean, o.captions.mean)),
    "inclusion": Term(_inclusion),
    "fitting": Term(_fitting),
    "rivals": Term(_rivals),
    "vib": Term(lambda o: sum_of(losses.bottleneck(g) for g in (o.images, o.captions))),
    "vib_as_published": Term(
        lambda o: sum_of(losses.bottleneck(g, as_published=True) for g in (o.images, o.captions))
    ),
}
"""Terms by name. A recipe gives each its weight; 0 leaves it out."""


@dataclass(frozen=True)
class Objective:
    """The loss of one epoch: the named, weighted terms of a batch, to be summed."""

    recipe: LossRecipe
    ranking: losses.ScoreLoss
    queries_only: bool = False
    """Whether shortened captions are queries only, or further pairs."""

    @staticmethod
    def of_epoch(recipe: LossRecipe, epoch: int, heads: nn.ModuleDict | None = None) -> Objective:
        """The hinge takes all negatives during the warm-up, then the recipe's; epochs count from 1.
        A loss that learns is one of the matcher's heads."""
        if recipe.name in ("infonce", "sigmoid"):
            assert heads is not None
            return Objective(recipe, cast(losses.ScoreLoss, heads["loss"]))
        if recipe.name == "soft-contrastive":
            return Objective(recipe, losses.SoftContrastive(recipe.reduction))
        mining = "sum" if epoch <= recipe.warmup_epochs else recipe.mining
        return Objective(recipe, losses.TripletLoss(recipe.margin, mining, recipe.reduction))

    @property
    def _used(self) -> dict[str, Term]:
        return {name: term for name, term in TERMS.items() if getattr(self.recipe, name)}

    def encode(self, matcher: Matcher, batch: Batch) -> BatchOutput:
        """A batch, or a part of one, through the networks."""
        watched = sorted({part for term in self._used.values() for part in term.watches})
        with observe({part: matcher.part(part) for part in watched}) as seen:
            images, captions = matcher(batch.images, batch.texts)
        ids, fits = batch.image_ids, batch.fits
        outcome = BatchOutput(matcher, images, captions, batch.texts, seen, ids, fits)
        if batch.short_of is None:
            return outcome
        short = matcher.encode_texts(batch.short) if len(batch.short_of) else captions[:0]
        return outcome._replace(short=short, short_of=batch.short_of, short_fits=batch.short_fits)

    def terms(self, outcome: BatchOutput) -> dict[str, Tensor]:
        """The named terms of a whole batch."""
        images, captions, ids = outcome.images, outcome.captions, outcome.image_ids
        similarity, shortened = outcome.matcher.similarity, outcome.shortened
        if shortened is not None and not self.queries_only:  # pairs with the image of their caption
            short, rows = shortened
            images = Gaussian.cat([images, images[rows]])
            captions, ids = Gaussian.cat([captions, short]), torch.cat([ids, ids[rows]])
        negative = losses.negatives(ids, same_image_negatives=self.recipe.same_image_negatives)
        terms = self.ranking(*similarity.both_ways(images, captions), negative)
        if shortened is not None and self.queries_only:
            assert isinstance(self.ranking, losses.InfoNCE)
            short, rows = shortened
            scores = similarity.for_query("captions").matrix(images, short)
            terms["queries"] = self.ranking.queries(scores, negative[:, rows], rows)
        for name, term in self._used.items():
            terms[name] = getattr(self.recipe, name) * term.value(outcome)
        return terms

    def __call__(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        return self.terms(self.encode(matcher, batch))


def total(terms: dict[str, Tensor]) -> Tensor:
    """The sum of a loss's named terms."""
    return sum_of(terms.values())


def sum_of(values: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(values)).sum()


@contextmanager
def observe(parts: dict[str, nn.Module]) -> Iterator[dict[str, Any]]:
    """Inside the block, the latest output of each part under its name.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> with observe({"hidden": net[0]}) as seen:
    ...     _ = net(torch.zeros(4, 3))
    >>> seen["hidden"].shape
    torch.Size([4, 2])
    """
    seen: dict[str, Any] = {}

    def note(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            seen[name] = output

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in parts.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
