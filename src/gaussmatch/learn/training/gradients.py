"""The gradients of a step: of one batch, of a batch over several processes, or part by part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gaussmatch.learn.training import gather
from gaussmatch.learn.training.batches import Batch
from gaussmatch.learn.training.objective import BatchOutput, Objective, total
from gaussmatch.learn.training.setup import Precision
from gaussmatch.models.matcher import Matcher


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
                    f"{name} normalises by the statistics of a whole batch, which neither "
                    "training.micro_batch nor several processes keep: train vsrn, or a backbone "
                    "with model.backbone_norm train, in one process without it"
                )

    def __call__(self, objective: Objective, batch: Batch) -> tuple[dict[str, Tensor], int]:
        """Gradients of this rank's share of a batch; gives the terms and how many pairs it has."""
        parts = batch.split(self.micro_batch or len(batch.image_ids))
        # the same on all ranks: they meet in the backward pass of the gather
        cached = bool(self.micro_batch) and gather.largest(len(parts), batch.image_ids.device) > 1
        states, shares = [], []
        with torch.set_grad_enabled(not cached):
            for part in parts:
                states.append(_random_state(self.precision.device))
                with self.precision.forward():
                    shares.append(objective.encode(self.matcher, part))
        share = shares[0]
        embedded, of_queries = share.tensors, share.short_tensors
        if cached:
            embedded = _joined([s.tensors for s in shares])
            of_queries = _joined([s.short_tensors for s in shares])
        whole = _gathered(share, embedded, of_queries, batch)
        with self.precision.forward():
            terms = objective.terms(whole)
        loss = total(terms)
        if loss.isfinite():  # else the caller says what is wrong
            self.precision.scaler.scale(loss / gather.ranks()).backward()
            if cached:
                self._pass_on(objective, parts, states, embedded, of_queries)
            gather.sum_gradients(p for p in self.matcher.parameters() if p.requires_grad)
        return terms, len(whole.image_ids)

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
        start = first = 0
        for part, state in zip(parts, states, strict=True):
            stop = start + len(part.image_ids)
            end = first + (0 if part.short_of is None else len(part.short_of))
            _set_random_state(state, self.precision.device)
            with self.precision.forward():
                again = objective.encode(self.matcher, part)
            rows = [slice(start, stop)] * len(embedded) + [slice(first, end)] * len(of_queries)
            pairs = [
                (tensor, whole.grad[some])
                for tensor, whole, some in zip(
                    [*again.tensors, *again.short_tensors],
                    [*embedded, *of_queries],
                    rows,
                    strict=True,
                )
                if whole.grad is not None and tensor.requires_grad
            ]
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
            start, first = stop, end
        _set_random_state(after, self.precision.device)


def _joined(parts: list[list[Tensor]]) -> list[Tensor]:
    """The tensors of all parts as leaves that gradients are kept of."""
    return [torch.cat(column).requires_grad_() for column in zip(*parts, strict=True)]


def _gathered(
    share: BatchOutput, embedded: list[Tensor], of_queries: list[Tensor], batch: Batch
) -> BatchOutput:
    """The outcome of the whole batch, of which each process has encoded a share."""
    known = [batch.image_ids] if batch.fits is None else [batch.image_ids, batch.fits]
    pairs = gather.gather([*embedded, *known])
    n = len(embedded)
    whole = batch._replace(image_ids=pairs[n], fits=None if batch.fits is None else pairs[n + 1])
    if batch.short_of is None:
        return share.with_batch(pairs[:n], [], whole)
    ids = batch.image_ids
    known = [batch.short_of + gather.before(len(ids), ids.device)]
    known += [] if batch.short_fits is None else [batch.short_fits]
    queries, m = gather.gather([*of_queries, *known]), len(of_queries)
    whole = whole._replace(short_of=queries[m], short_fits=queries[-1] if len(known) > 1 else None)
    return share.with_batch(pairs[:n], queries[:m], whole)


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
