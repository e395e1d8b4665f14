"""VSE++: a linear projection of image features, word embedding and GRU of captions; and the
bi-directional GRU of PVSE and PCME."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import normalize
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from gaussmatch.models.encoders.base import TextEncoder, Tokenizer, Tokens


class Linear(nn.Linear):
    """A linear layer as VSE++ starts it: Xavier-uniform weight, zero bias."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)


class Projection(nn.Module):
    """VSE++ image side: features f(i) → linear → L2-norm.

    Args:
        backbone: pictures (n, 3, H, W) → features (n, feature_dim), trained end to end ("ft");
            ``None`` when the input is already a feature vector (n, feature_dim).
        normalize_features: L2-norm of the features, before the projection. The official code does
            so with those of its backbone and not with given ones; that is what ``None`` means.

    ``embed`` is f_emb of the paper: the part that ``Probabilistic`` duplicates.
    """

    part = "embed"

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        backbone: nn.Module | None = None,
        normalize: bool = True,
        normalize_features: bool | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.normalize = dim, normalize
        official = backbone is not None
        self.normalize_features = official if normalize_features is None else normalize_features
        self.backbone = backbone
        self.embed = Linear(feature_dim, dim)

    def forward(self, images: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        features = images if self.backbone is None else self.backbone(images)
        if self.normalize_features:
            features = normalize(features, dim=-1)
        point = self.embed(features)
        return normalize(point, dim=-1) if self.normalize else point


class LastState(nn.Module):
    """A unidirectional GRU over a padded sequence; its state at the last real step.

    Sequences are packed, so padding costs no time and cannot change the result. Training on a CPU
    goes through ``Recurrence``, which has the values and gradients of ``nn.GRU`` in less time.
    """

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(input_dim, dim, batch_first=True)

    def forward(
        self, sequence: Float[Tensor, "n t w"], lengths: Int[Tensor, "n"]
    ) -> Float[Tensor, "n d"]:
        if torch.onnx.is_in_onnx_export():  # which has no packed sequences
            return at_places(self.rnn(sequence)[0], lengths - 1)
        packed = pack_padded_sequence(
            sequence, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        if _recurrence_pays(packed):
            weights = self.rnn.all_weights[0]
            state = Recurrence.apply(packed.data, packed.batch_sizes.tolist(), *weights)
            return state[packed.unsorted_indices]
        return self.rnn(packed)[1][-1]


def _recurrence_pays(packed: PackedSequence) -> bool:
    """Where gradients are wanted, on a CPU: a GPU has its own kernels, and in half precision the
    products are so fast that the rest weighs the same either way."""
    low = torch.is_autocast_enabled("cpu")
    return torch.is_grad_enabled() and packed.data.device.type == "cpu" and not low


class Recurrence(torch.autograd.Function):
    """The last states of a GRU over packed sequences, with its gradients written out.

    r, z = σ(W x + b + U h + c), k = tanh(W x + b + r·(U h + c)), h ← (1 − z)·k + z·h.

    Autograd would multiply out the gradient of U once a step and add up as many matrices of its
    size. Here the steps' gradients are kept, side by side, and multiplied once. Nothing is
    multiplied with the h before the first step, which is 0.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        words: Float[Tensor, "tokens w"],
        running: Sequence[int],
        w: Float[Tensor, "3d w"],
        u: Float[Tensor, "3d d"],
        b: Float[Tensor, "3d"],
        c: Float[Tensor, "3d"],
    ) -> Float[Tensor, "n d"]:
        """``words`` step by step, the longest sequences first; ``running`` counts the sequences
        that have a word at each step."""
        d, first = u.shape[1], running[0]
        of_gates, of_k = u.split((2 * d, d))
        # r, z and k, once their step has run
        gates = torch.addmm(b + torch.cat([c[: 2 * d], torch.zeros_like(c[:d])]), words, w.T)
        # h of the step before, and U h + c of k; both of the first step are without U, as h is 0
        before, inner = words.new_zeros(2, len(words), d)
        inner[:first] = c[2 * d :]
        h = words.new_zeros(first, d)
        start = 0
        for n in running:
            rows = slice(start, start + n)
            now = h[:n]
            gate, k = gates[rows].split((2 * d, d), 1)
            if start:
                before[rows] = now
                gate.addmm_(now, of_gates.T)
                torch.addmm(c[2 * d :], now, of_k.T, out=inner[rows])
            r, z = gate.sigmoid_().chunk(2, 1)
            k.addcmul_(r, inner[rows]).tanh_()
            torch.lerp(k, now, z, out=now)
            start += n
        ctx.save_for_backward(words, w, u, gates, before, inner)
        ctx.running = running  # type: ignore[attr-defined]
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "n d"]) -> tuple[Tensor | None, ...]:
        words, w, u, gates, before, inner = ctx.saved_tensors
        d, first = u.shape[1], ctx.running[0]
        grads, to_k = torch.empty_like(gates), torch.empty_like(inner)
        h, kept, end = grad.clone(), torch.empty_like(grad), len(words)
        for n in reversed(ctx.running):
            rows = slice(end - n, end)
            now, past, in_k = h[:n], kept[:n], to_k[rows]
            r, z, k = gates[rows].chunk(3, 1)
            to_r, to_z, through_r = grads[rows].chunk(3, 1)
            torch.mul(now, z, out=past)  # what goes on to the step before
            torch.sub(before[rows], k, out=to_z).mul_(past)
            to_z.addcmul_(to_z, z, value=-1)  # σ' = σ − σ²
            torch.sub(now, past, out=in_k)
            in_k.addcmul_(torch.mul(in_k, k, out=through_r), k, value=-1)  # tanh' = 1 − tanh²
            torch.mul(in_k, r, out=through_r)
            torch.mul(through_r, inner[rows], out=to_r)
            to_r.addcmul_(to_r, r, value=-1)
            end -= n
            if end:
                torch.addmm(past, grads[rows], u, out=now)
        grad_u, grad_c = grads[first:].T @ before[first:], grads.sum(0)
        grads[:, 2 * d :] = to_k  # the inputs reach k without r
        grad_b = torch.cat([grad_c[: 2 * d], to_k.sum(0)])
        return grads @ w, None, grads.T @ words, grad_u, grad_b, grad_c


class WordReader(TextEncoder):
    """A text as vectors of its words, which start in U(−0.1, 0.1)."""

    def __init__(self, tokenizer: Tokenizer, dim: int, word_dim: int, normalize: bool) -> None:
        super().__init__()
        self.tokenizer, self.dim, self.normalize = tokenizer, dim, normalize
        self.words = nn.Embedding(len(tokenizer), word_dim)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)


class WordGRU(WordReader):
    """Word vectors → GRU → state at the last real token → L2-norm.

    ``embed`` is the learnable embedding function g_emb of the paper: the part that
    ``Probabilistic`` duplicates, while the word vectors stay shared.
    """

    part = "embed"

    def __init__(
        self, tokenizer: Tokenizer, dim: int, word_dim: int = 300, normalize: bool = True
    ) -> None:
        super().__init__(tokenizer, dim, word_dim, normalize)
        self.embed = LastState(word_dim, dim)

    def forward(self, tokens: Tokens) -> Float[Tensor, "n d"]:
        state = self.embed(self.words(tokens.ids), tokens.lengths)
        return normalize(state, dim=-1) if self.normalize else state


State = Literal["final", "last-token"]


class BiGRU(nn.Module):
    """Two GRUs of D/2 over a padded sequence, one each way; their states side by side (n, D).

    Args:
        state: ``final`` takes each GRU's state after the whole sequence. ``last-token`` takes both
            at the last real step, where the backward one has read a single word; the published
            checkpoints of PCME, and those of PVSE (its ``--legacy``), were trained so.

    Sequences are packed, so padding costs no time and cannot change the result.
    """

    def __init__(self, input_dim: int, dim: int, state: State = "final") -> None:
        super().__init__()
        if dim % 2:
            raise ValueError(f"a GRU each way needs an even dim, got {dim}")
        if state not in ("final", "last-token"):
            raise ValueError(f"unknown state {state!r}; choose final or last-token")
        self.state = state
        self.rnn = nn.GRU(input_dim, dim // 2, bidirectional=True, batch_first=True)

    def forward(
        self, sequence: Float[Tensor, "n t w"], lengths: Int[Tensor, "n"]
    ) -> Float[Tensor, "n d"]:
        states = states_each_way(self.rnn, sequence, lengths)
        half, last = self.rnn.hidden_size, lengths - 1
        first = last if self.state == "last-token" else torch.zeros_like(last)
        return torch.cat(
            [at_places(states, last)[:, :half], at_places(states, first)[:, half:]], -1
        )


def states_each_way(
    rnn: nn.GRU, sequence: Float[Tensor, "n t w"], lengths: Int[Tensor, "n"]
) -> Float[Tensor, "n t 2h"]:
    """The states of a GRU each way at every step of padded sequences: forward, then backward ones.
    Padding changes none of the others."""
    t = sequence.shape[1]
    if not torch.onnx.is_in_onnx_export():
        packed = pack_padded_sequence(
            sequence, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(rnn(packed)[0], batch_first=True, total_length=t)[0]
    # the export has no packed sequences: padding at the end cannot change the forward states, and
    # padding at the start cannot change the backward ones
    steps, half = torch.arange(t), rnn.hidden_size
    at_end = rnn(_moved(sequence, (steps + lengths[:, None]) % t))[0]
    back = _moved(at_end, (steps + (t - lengths[:, None])) % t)
    return torch.cat([rnn(sequence)[0][..., :half], back[..., half:]], -1)


def _moved(sequence: Tensor, places: Int[Tensor, "n t"]) -> Tensor:
    return sequence.gather(1, places[..., None].expand(-1, -1, sequence.shape[-1]))


def at_places(states: Float[Tensor, "n t d"], places: Int[Tensor, "n"]) -> Float[Tensor, "n d"]:
    """The state of each sequence at its own place."""
    return states.gather(1, places[:, None, None].expand(-1, 1, states.shape[-1])).squeeze(1)


def padding_of(lengths: Int[Tensor, "n"], width: int) -> Bool[Tensor, "n width"]:
    """True where a padded sequence holds no word.

    >>> padding_of(torch.tensor([1, 3]), 3)
    tensor([[False,  True,  True],
            [False, False, False]])
    """
    return torch.arange(width, device=lengths.device) >= lengths[:, None]
