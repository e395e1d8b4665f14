"""PVSE: K points for each image and each caption, from where its attention heads look."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.models.encoders.base import TextEncoder, Tokenizer, Tokens
from gaussmatch.models.encoders.gru import BiGRU, State, padding_of
from gaussmatch.models.encoders.image import Linear
from gaussmatch.models.encoders.pie import PIE


class PVSEImage(nn.Module):
    """Local features → linear of their mean, PIE over themselves → L2-norm: (n, K, D).

    Args:
        feature_dim: F, the width of the features.
        dim: D.
        embeddings: K; 1 gives plain points (n, D).
        dropout: of the global feature and of the residual.
        backbone: a network with ``forward_grid``, pictures (n, 3, H, W) → (n, R, F); ``None`` when
            the input is local features (n, R, F) already: regions, or the cells of a grid.
        normalise: L2-norm of the output.
    """

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        embeddings: int = 1,
        dropout: float = 0.0,
        backbone: nn.Module | None = None,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        self.dim, self.normalise = dim, normalise
        self.backbone = backbone
        self.embed = Linear(feature_dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.pie = PIE(feature_dim, dim, embeddings, dropout)

    def forward(self, images: Float[Tensor, "n ..."]) -> Float[Tensor, "n ... d"]:
        local = self.local(images)
        return self.points(local, local.mean(1))

    def local(self, images: Float[Tensor, "n ..."]) -> Float[Tensor, "n r f"]:
        """The local features of the images, by the backbone if there is one."""
        if self.backbone is not None:
            grid: Tensor = self.backbone.forward_grid(images)  # type: ignore[operator]
            return grid
        if images.ndim != 3:
            raise ValueError(
                f"images must be local features (n, R, F), got {tuple(images.shape)}; "
                "set data.features to regions"
            )
        return images

    def points(
        self, local: Float[Tensor, "n r f"], pooled: Float[Tensor, "n f"]
    ) -> Float[Tensor, "n ... d"]:
        points = self.pie(self.dropout(self.embed(pooled)), local)
        return normalize(points, dim=-1) if self.normalise else points


class PVSEText(TextEncoder):
    """Word vectors → their bi-directional GRU, PIE over themselves → L2-norm: (n, K, D).

    Args:
        tokenizer: the words.
        dim: D, even: half for each direction.
        word_dim: width of the word vectors.
        embeddings: K; 1 gives plain points (n, D).
        dropout: of the words, of the GRU's state and of the residual.
        state: what of the GRU is taken; see ``BiGRU``.
        normalise: L2-norm of the output.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        dim: int,
        word_dim: int = 300,
        embeddings: int = 1,
        dropout: float = 0.0,
        state: State = "final",
        normalise: bool = True,
    ) -> None:
        super().__init__()
        self.tokenizer, self.dim, self.normalise = tokenizer, dim, normalise
        self.words = nn.Embedding(len(tokenizer), word_dim)
        nn.init.uniform_(self.words.weight, -0.1, 0.1)
        self.embed = BiGRU(word_dim, dim, state)
        self.dropout = nn.Dropout(dropout)
        self.pie = PIE(word_dim, dim, embeddings, dropout)

    def forward(self, tokens: Tokens) -> Float[Tensor, "n ... d"]:
        return self.points(self.dropout(self.words(tokens.ids)), tokens)

    def points(self, words: Float[Tensor, "n t w"], tokens: Tokens) -> Float[Tensor, "n ... d"]:
        whole = self.dropout(self.embed(words, tokens.lengths))
        points = self.pie(whole, words, padding_of(tokens.lengths, words.shape[1]))
        return normalize(points, dim=-1) if self.normalise else points
