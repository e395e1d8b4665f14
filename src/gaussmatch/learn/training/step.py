"""One gradient step: what it minimizes, its gradients (of a batch, over several processes, or part
by part), its precision, and the memory of its activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import softplus

from gaussmatch.core import losses
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.learn.training import gather
from gaussmatch.learn.training.batches import Batch
from gaussmatch.models.encoders.vsrn import CaptionGenerator
from gaussmatch.models.model import Matcher, loss_of
from gaussmatch.models.recipe import LossRecipe
from gaussmatch.models.recipe.fields import PrecisionName


class BatchOutput(NamedTuple):
    """What a batch gave: the Gaussians of its images, captions and queries (``Batch.short``), and
    what the watched parts put out."""

    matcher: Matcher
    batch: Batch
    images: Gaussian
    captions: Gaussian
    seen: dict[str, Any]
    short: Gaussian | None = None

    @property
    def shortened(self) -> tuple[Gaussian, Tensor] | None:
        """Captions as queries beside the whole ones, and the rows of their pairs, if any."""
        rows = self.batch.short_of
        return None if self.short is None or rows is None or not len(rows) else (self.short, rows)

    @property
    def tensors(self) -> list[Tensor]:
        """All that gradients of pairs flow through, (n, …) each."""
        return [*_tensors(self.images), *_tensors(self.captions), *self.seen.values()]

    @property
    def short_tensors(self) -> list[Tensor]:
        """All that gradients of queries flow through, (m, …) each."""
        return [] if self.short is None else _tensors(self.short)

    def of(self, batch: Batch, tensors: Sequence[Tensor], short: Sequence[Tensor]) -> BatchOutput:
        """The outcome of another batch, given its ``tensors`` and ``short_tensors``."""
        rest, queries = iter(tensors), iter(short)
        return BatchOutput(
            self.matcher,
            batch,
            _like(self.images, rest),
            _like(self.captions, rest),
            {name: next(rest) for name in self.seen},
            None if self.short is None else _like(self.short, queries),
        )


def _tensors(g: Gaussian) -> list[Tensor]:
    return [g.mean] if g.log_var is None else [g.mean, g.log_var]


def _like(g: Gaussian, tensors: Iterator[Tensor]) -> Gaussian:
    return replace(g, mean=next(tensors), log_var=None if g.is_point else next(tensors))


@dataclass(frozen=True)
class Term:
    """A named addition to the loss, weighted by the field of its name in the recipe's ``loss``."""

    value: Callable[[BatchOutput], Tensor]  #: outcome → scalar, already reduced over the batch
    watches: tuple[str, ...] = ()  #: parts whose output it needs, as ``Matcher.part`` names them


def _generation(outcome: BatchOutput) -> Tensor:
    """The caption's words, generated from the regions of its image after the graph (VSRN)."""
    generator = outcome.matcher.get_submodule("heads.generator")
    assert isinstance(generator, CaptionGenerator)
    ids, lengths = outcome.batch.texts
    inputs, targets = losses.teacher_forcing(ids, lengths, generator.longest)
    logits = generator(outcome.seen[REGIONS], inputs)
    return losses.generation_loss(logits, targets.data, captions=len(lengths))


def _inclusion(outcome: BatchOutput, how: Callable[..., Tensor] = losses.inclusion) -> Tensor:
    """Of whole captions in their shortened forms; zero in a batch without any."""
    if outcome.shortened is None:
        return outcome.captions.mean.new_zeros(())
    short, rows = outcome.shortened
    return how(outcome.captions[rows], short)


def _fitting(outcome: BatchOutput) -> Tensor:
    """Uncertainty in the order of how many photos a text fits: among whole captions, among queries,
    among all of them, and of every query above its own caption."""
    fits, short_fits = outcome.batch.fits, outcome.batch.short_fits
    assert fits is not None
    whole = outcome.captions.mean_log_var()
    if outcome.shortened is None:
        return losses.disorder(whole, fits)
    assert short_fits is not None
    queries, rows = outcome.shortened
    return in_order(whole, fits, queries.mean_log_var(), short_fits, rows)


def in_order(
    whole: Tensor, fits: Tensor, short: Tensor, short_fits: Tensor, rows: Tensor
) -> Tensor:
    """Punishes uncertainties ln σ² that are not in the order of how many photos texts fit.

    Args:
        whole, fits: (n), of whole captions, and the ln of their counts.
        short, short_fits: (m), the same of queries made of some of them.
        rows: (m), which.
    """
    return (
        2 * losses.disorder(whole, fits)
        + 0.5 * losses.disorder(short, short_fits)
        + losses.disorder(torch.cat([whole, short]), torch.cat([fits, short_fits]))
        + softplus(STEEPNESS * (whole[rows] - short)).mean()
    )


def _rivals(outcome: BatchOutput) -> Tensor:
    """Uncertainty in the order of how many images of the batch score beside a text's own."""
    texts, ids = outcome.captions, outcome.batch.image_ids
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
    "diversity": Term(
        lambda o: losses.sum_of(losses.diversity(o.seen[r]) for r in RESIDUALS), RESIDUALS
    ),
    "mmd": Term(lambda o: losses.mean_discrepancy(o.images.mean, o.captions.mean)),
    "inclusion": Term(_inclusion),
    "inclusion_as_published": Term(lambda o: _inclusion(o, losses.inclusion_as_published)),
    "inclusion_of_images": Term(lambda o: losses.inclusion_as_published(o.images, o.captions)),
    "fitting": Term(_fitting),
    "rivals": Term(_rivals),
    "vib": Term(lambda o: losses.sum_of(losses.bottleneck(g) for g in (o.images, o.captions))),
    "vib_as_published": Term(
        lambda o: losses.sum_of(
            losses.bottleneck(g, as_published=True) for g in (o.images, o.captions)
        )
    ),
}
"""Terms by name. A recipe gives each its weight; 0 leaves it out."""
SUMMED = ("vib", "vib_as_published")
"""Terms that are sums over items and dimensions, and means with a loss that is one."""


@dataclass(frozen=True)
class Objective:
    """The loss of one epoch: the named, weighted terms of a batch, to be summed."""

    recipe: LossRecipe
    ranking: losses.ScoreLoss
    shortened_as: str = "add"
    """What shortened captions are: further pairs, queries only, or only compared, see
    ``training.shorten_as``."""

    @staticmethod
    def of_epoch(recipe: LossRecipe, epoch: int, heads: nn.ModuleDict | None = None) -> Objective:
        """The hinge takes all negatives during the warm-up, then the recipe's; epochs count from 1.
        A loss that learns is one of the matcher's heads."""
        if heads is not None and "loss" in heads:
            return Objective(recipe, cast(losses.ScoreLoss, heads["loss"]))
        mining: losses.Mining = "sum" if epoch <= recipe.warmup_epochs else recipe.mining
        return Objective(recipe, loss_of(replace(recipe, mining=mining)))

    @property
    def _used(self) -> dict[str, Term]:
        return {name: term for name, term in TERMS.items() if getattr(self.recipe, name)}

    def encode(self, matcher: Matcher, batch: Batch) -> BatchOutput:
        """A batch, or a part of one, through the networks."""
        watched = sorted({part for term in self._used.values() for part in term.watches})
        with observe({part: matcher.part(part) for part in watched}) as seen:
            images, captions = matcher(batch.images, batch.texts)
        short = None
        if batch.short_of is not None:
            short = matcher.encode_texts(batch.short) if len(batch.short_of) else captions[:0]
        return BatchOutput(matcher, batch, images, captions, seen, short)

    def terms(self, outcome: BatchOutput) -> dict[str, Tensor]:
        """The named terms of a whole batch."""
        images, captions, ids = outcome.images, outcome.captions, outcome.batch.image_ids
        similarity, shortened = outcome.matcher.similarity, outcome.shortened
        mixture = outcome.batch.mixture
        if shortened is not None and self.shortened_as == "add":  # pairs with their caption's image
            short, rows = shortened
            images = Gaussian.cat([images, images[rows]])
            captions, ids = Gaussian.cat([captions, short]), torch.cat([ids, ids[rows]])
        negative = losses.negatives(ids, same_image_negatives=self.recipe.same_image_negatives)
        scores = similarity.both_ways(images, captions)
        if mixture is None:
            terms = self.ranking(*scores, negative)
        else:
            assert isinstance(self.ranking, losses.PairwiseSigmoid)
            terms = self.ranking(*scores, negative, losses.mixture_targets(*mixture))
        if shortened is not None and self.shortened_as == "query":
            assert isinstance(self.ranking, losses.InfoNCE)
            short, rows = shortened
            found = similarity.for_query("captions").matrix(images, short)
            terms["queries"] = self.ranking.queries(found, negative[:, rows], rows)
        for name, term in self._used.items():
            count = outcome.images.mean.numel() if name in SUMMED and self.recipe.averages else 1
            terms[name] = getattr(self.recipe, name) * term.value(outcome) / count
        return terms

    def __call__(self, matcher: Matcher, batch: Batch) -> dict[str, Tensor]:
        return self.terms(self.encode(matcher, batch))


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


@dataclass
class Gradients:
    """Puts the gradients of a batch's loss into the parameters.

    With ``micro_batch`` in two passes (Gao et al., GradCache): all parts are encoded without a
    graph, the loss of the whole batch gives the gradients of their embeddings, and each part is
    encoded again, with the same random numbers, to pass them on. Loss and gradients are those of
    the whole batch; activations are kept of one part at a time.
    """

    matcher: Matcher
    precision: Precision
    micro_batch: int | None = None

    def __post_init__(self) -> None:
        self.matcher.train()
        if not self.micro_batch and gather.ranks() == 1:
            return
        for name, module in self.matcher.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                raise ValueError(
                    f"{name} normalizes by the statistics of a whole batch, which neither "
                    "training.micro_batch nor several processes keep: train vsrn, or a backbone "
                    "with model.backbone_norm train, in one process without it"
                )

    def __call__(self, objective: Objective, batch: Batch) -> tuple[dict[str, Tensor], int]:
        """Gradients of this rank's share of a batch; gives the terms and how many pairs it has."""
        parts = batch.split(self.micro_batch or len(batch.image_ids))
        # the same on all ranks: they meet in the backward pass of the gather
        cached = (
            bool(self.micro_batch) and max(gather.numbers(len(parts), batch.image_ids.device)) > 1
        )
        states, shares = [], []
        with torch.set_grad_enabled(not cached):
            for part in parts:
                states.append(_random_state(self.precision.device))
                with self.precision.forward():
                    shares.append(objective.encode(self.matcher, part))
        share = shares[0]
        embedded, of_queries = share.tensors, share.short_tensors
        if cached:
            embedded, of_queries = (
                [torch.cat(column).requires_grad_() for column in zip(*parts_of, strict=True)]
                for parts_of in ([s.tensors for s in shares], [s.short_tensors for s in shares])
            )
        whole = _gathered(share, embedded, of_queries, batch)
        with self.precision.forward():
            terms = objective.terms(whole)
        loss = losses.sum_of(terms.values())
        if loss.isfinite():  # else the caller says what is wrong
            self.precision.scaler.scale(loss / gather.ranks()).backward()
            if cached:
                self._pass_on(objective, parts, states, embedded, of_queries)
            gather.sum_gradients(p for p in self.matcher.parameters() if p.requires_grad)
        return terms, len(whole.batch.image_ids)

    def _pass_on(
        self,
        objective: Objective,
        parts: list[Batch],
        states: list[list[Tensor]],
        embedded: list[Tensor],
        of_queries: list[Tensor],
    ) -> None:
        """Encode each part again, with a graph, and pass the gradients of its embeddings on."""
        after = _random_state(self.precision.device)
        pairs = [len(part.image_ids) for part in parts]
        queries = [0 if part.short_of is None else len(part.short_of) for part in parts]
        gradients = [
            None if whole.grad is None else whole.grad.split(sizes)
            for tensors, sizes in ((embedded, pairs), (of_queries, queries))
            for whole in tensors
        ]
        for at, (part, state) in enumerate(zip(parts, states, strict=True)):
            _set_random_state(state, self.precision.device)
            with self.precision.forward():
                again = objective.encode(self.matcher, part)
            outputs = zip([*again.tensors, *again.short_tensors], gradients, strict=True)
            known = [(x, g[at]) for x, g in outputs if g is not None and x.requires_grad]
            torch.autograd.backward([x for x, _ in known], [g for _, g in known])
        _set_random_state(after, self.precision.device)


def _gathered(
    share: BatchOutput, embedded: list[Tensor], of_queries: list[Tensor], batch: Batch
) -> BatchOutput:
    """The outcome of the whole batch, of which each process has encoded a share."""
    ids, n = batch.image_ids, len(embedded)
    before = sum(gather.numbers(len(ids), ids.device)[: gather.rank()])  # pairs of other processes
    known = {"image_ids": ids, "fits": batch.fits, "share": batch.share, "partner": batch.partner}
    if batch.partner is not None:
        known["partner"] = batch.partner + before
    there = {name: value for name, value in known.items() if value is not None}
    pairs = gather.gather([*embedded, *there.values()])
    whole = batch._replace(**dict(zip(there, pairs[n:], strict=True)))
    if batch.short_of is None:
        return share.of(whole, pairs[:n], [])
    extra = [batch.short_of + before]
    extra += [] if batch.short_fits is None else [batch.short_fits]
    queries, m = gather.gather([*of_queries, *extra]), len(of_queries)
    whole = whole._replace(short_of=queries[m], short_fits=queries[-1] if len(extra) > 1 else None)
    return share.of(whole, pairs[:n], queries[:m])


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


SCALE = 2.0**8
"""Of a float16 loss at the start; it grows by itself. The loss is a sum over the batch already."""


class Precision:
    """How a step computes on a device.

    bfloat16 has the range of float32 and needs nothing more; float16 has not, so its loss is
    scaled up for the backward pass and a step whose gradients overflow is left out. Scores are in
    float64 or float32 always (``Similarity.matrix``).

    >>> Precision("auto", torch.device("cpu")).dtype
    torch.float32
    """

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self.device, self.dtype = device, _dtype(name, device)
        half = self.dtype == torch.float16
        self.scaler = torch.amp.GradScaler(device.type, init_scale=SCALE, enabled=half)

    def forward(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def step(self, optimizer: torch.optim.Optimizer, clip: float) -> None:
        """Clipping and step, after the backward pass of the scaled loss."""
        self.scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        self.scaler.step(optimizer)
        self.scaler.update()


def _dtype(name: PrecisionName, device: torch.device) -> torch.dtype:
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    if device.type != "cuda":  # a CPU has no units for it as a rule; MPS has no float64 beside it
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


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


def memory_line(per_image: int, batch: int) -> str:
    """The line for the user.

    >>> memory_line(1_900_000, 128)
    'activation memory: 1.9 MB an image, 0.24 GB a batch of 128'
    """
    each, whole = per_image / 1e6, per_image * batch / 1e9
    return f"activation memory: {each:.1f} MB an image, {whole:.2f} GB a batch of {batch}"


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
