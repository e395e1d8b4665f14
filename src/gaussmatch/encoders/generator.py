"""A network that generates a caption from regions: the head of VSRN's generation loss."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence


class CaptionGenerator(nn.Module):
    """Regions → GRU; then a GRU that attends to its states generates the words.

    Args:
        vocabulary: number of words V.
        input_dim: width of the regions.
        hidden: H, width of both GRUs.
        word_dim: width of the word vectors; they are the generator's own.
        dropout: on the projected regions, and on the input of the decoder GRU. (The official
            code's second rate, 0.5 between layers of a GRU, acts on nothing: there is one layer.)
        longest: captions are cut at so many words, start and end included.

    Step t: weights a = softmax(v·tanh(A [e; h])) over the region states e, from the state h so far;
    h ← GRU([word t; Σ a e], h); logits = O h. The state depends on the attention and the attention
    on the state, so the steps come one after another; what does not (A e, the logits) is
    computed for all at once.
    """

    def __init__(
        self,
        vocabulary: int,
        input_dim: int,
        hidden: int = 512,
        word_dim: int = 300,
        dropout: float = 0.2,
        longest: int = 60,
    ) -> None:
        super().__init__()
        self.hidden, self.longest = hidden, longest
        self.project = nn.Linear(input_dim, hidden)
        nn.init.xavier_normal_(self.project.weight)
        self.read = nn.GRU(hidden, hidden, batch_first=True)
        self.words = nn.Embedding(vocabulary, word_dim)
        self.attention, self.score = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1, bias=False)
        self.tell = nn.GRUCell(word_dim + hidden, hidden)
        self.output = nn.Linear(hidden, vocabulary)
        nn.init.xavier_normal_(self.output.weight)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, regions: Float[Tensor, "n r d"], given: PackedSequence
    ) -> Float[Tensor, "k v"]:
        """Logits of the next word after each of the k given words, in the order of their pack.

        Captions that have ended drop out, so that a step costs what its captions need.
        """
        if given.sorted_indices is not None:
            regions = regions[given.sorted_indices]
        states, last = self.read(self.dropout(self.project(regions)))
        of_region, of_state = self.attention.weight.split(self.hidden, 1)
        keys, state = linear(states, of_region, self.attention.bias), last[-1]
        outputs = []
        for word in self.words(given.data).split(given.batch_sizes.tolist()):
            if len(word) < len(state):
                keys, states, state = (x[: len(word)] for x in (keys, states, state))
            query = linear(state, of_state)[:, None]
            weights = self.score(torch.tanh(keys + query)).mT.softmax(-1)  # (n, 1, r)
            context = (weights @ states)[:, 0]
            state = self.tell(self.dropout(torch.cat([word, context], -1)), state)
            outputs.append(state)
        return self.output(torch.cat(outputs))
