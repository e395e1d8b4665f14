"""Captions → points: word embedding and a GRU, as VSE++ and VSRN have it."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pack_padded_sequence

from gaussmatch.encoders.base import TextEncoder, Tokenizer, Tokens


class LastState(nn.Module):
    """A unidirectional GRU over a padded sequence; its state at the last real step.

    Sequences are packed, so padding costs no time and cannot change the result.
    """

    def __init__(self, input_dim: int, dim: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(input_dim, dim, batch_first=True)

    def forward(
        self, sequence: Float[Tensor, "n t w"], lengths: Int[Tensor, "n"]
    ) -> Float[Tensor, "n d"]:
        packed = pack_padded_sequence(
            sequence, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return self.rnn(packed)[1][-1]


class WordGRU(TextEncoder):
    """Word embedding (U(−0.1, 0.1)) → GRU → state at the last real token → L2-norm.

    ``embed`` is the learnable embedding function g_emb of the paper: the part that
    ``Probabilistic`` duplicates, while the word vectors stay shared.
    """

    part = "embed"

    def __init__(
        self, tokenizer: Tokenizer, dim: int, word_dim: int = 300, normalise: bool = True
    ) -> None:
        super().__init__()
        self.tokenizer, self.dim, self.normalise = tokenizer, dim, normalise
        self.words = nn.Embedding(len(tokenizer), word_dim)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.embed = LastState(word_dim, dim)

    def forward(self, tokens: Tokens) -> Float[Tensor, "n d"]:
        state = self.embed(self.words(tokens.ids), tokens.lengths)
        return normalize(state, dim=-1) if self.normalise else state
