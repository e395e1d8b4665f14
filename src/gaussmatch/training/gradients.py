"""The gradients of a step: of one batch, of a batch over several processes, or part by part."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gaussmatch.data.batches import Batch
from gaussmatch.matcher import Matcher
from gaussmatch.training import gather
from gaussmatch.training.objective import Objective, total
from gaussmatch.training.setup import Precision


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
        cached = len(parts) > 1
        states, shares = [], []
        with torch.set_grad_enabled(not cached):
            for part in parts:
                states.append(_random_state(self.precision.device))
                with self.precision.forward():
                    shares.append(objective.encode(self.matcher, part))
        share = shares[0]
        embedded = share.tensors
        if cached:
            columns = zip(*(s.tensors for s in shares), strict=True)
            embedded = [torch.cat(column).requires_grad_() for column in columns]
        whole = share.with_batch(gather.gather([*embedded, batch.image_ids]))
        with self.precision.forward():
            terms = objective.terms(whole)
        loss = total(terms)
        if loss.isfinite():  # else the caller says what is wrong
            self.precision.scaler.scale(loss / gather.ranks()).backward()
            if cached:
                self._pass_on(objective, parts, states, [tensor.grad for tensor in embedded])
            gather.sum_gradients(p for p in self.matcher.parameters() if p.requires_grad)
        return terms, len(whole.image_ids)

    def _pass_on(
        self,
        objective: Objective,
        parts: list[Batch],
        states: list[list[Tensor]],
        gradients: list[Tensor | None],
    ) -> None:
        """Encode each part again, with a graph, and pass the gradients of its embeddings on."""
        after = _random_state(self.precision.device)
        start = 0
        for part, state in zip(parts, states, strict=True):
            stop = start + len(part.image_ids)
            _set_random_state(state, self.precision.device)
            with self.precision.forward():
                again = objective.encode(self.matcher, part).tensors
            pairs = [
                (tensor, gradient[start:stop])
                for tensor, gradient in zip(again, gradients, strict=True)
                if gradient is not None and tensor.requires_grad
            ]
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
            start = stop
        _set_random_state(after, self.precision.device)


def _random_state(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_random_state(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
