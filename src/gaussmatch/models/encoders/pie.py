"""PIE-Net: one global and many local features of an item → K points (PVSE; PCME with K = 1)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from gaussmatch.models.encoders.image import Linear


class Attention(nn.Module):
    """K-head attention over local features x: softmax over the places of w₂·tanh(w₁·x).

    Args:
        local_dim: F, the width of x.
        heads: K.

    >>> Attention(6, heads=2)(torch.randn(3, 5, 6)).shape
    torch.Size([3, 2, 6])
    """

    def __init__(self, local_dim: int, heads: int = 1) -> None:
        super().__init__()
        hidden = max(1, local_dim // 2)
        self.hidden = nn.Linear(local_dim, hidden, bias=False)
        self.heads = nn.Linear(hidden, heads, bias=False)
        for layer in (self.hidden, self.heads):
            nn.init.xavier_uniform_(layer.weight)

    def forward(
        self, local: Float[Tensor, "n r f"], padding: Bool[Tensor, "n r"] | None = None
    ) -> Float[Tensor, "n k f"]:
        """The mean of the local features under each head's weights; padding has none."""
        return self.weights(local, padding).transpose(1, 2) @ local

    def weights(
        self, local: Float[Tensor, "n r f"], padding: Bool[Tensor, "n r"] | None = None
    ) -> Float[Tensor, "n r k"]:
        """Where each head looks: sums to one over the r places."""
        raw: Tensor = self.heads(torch.tanh(self.hidden(local)))
        if padding is not None:
            raw = raw.masked_fill(padding[..., None], -torch.inf)
        return raw.softmax(1)


class Residual(nn.Module):
    """What the attended features add to the global one: dropout(sigmoid(linear(·)))."""

    def __init__(self, local_dim: int, dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = Linear(local_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, attended: Float[Tensor, "n k f"]) -> Float[Tensor, "n k d"]:
        out: Tensor = self.dropout(torch.sigmoid(self.embed(attended)))
        return out


class PIE(nn.Module):
    """LayerNorm(global + residual of each attention head): K embeddings of one item.

    Args:
        local_dim: F, the width of the local features.
        dim: D.
        embeddings: K. One embedding is a plain point (n, D), several are (n, K, D).
        dropout: of the residual.

    ``residual`` always gives (n, K, D): what the diversity loss looks at.

    >>> PIE(6, 4, embeddings=2)(torch.randn(3, 4), torch.randn(3, 5, 6)).shape
    torch.Size([3, 2, 4])
    """

    def __init__(self, local_dim: int, dim: int, embeddings: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(local_dim, embeddings)
        self.residual = Residual(local_dim, dim, dropout)
        self.norm = nn.LayerNorm(dim)

    def forward(
        self,
        whole: Float[Tensor, "n d"],
        local: Float[Tensor, "n r f"],
        padding: Bool[Tensor, "n r"] | None = None,
    ) -> Float[Tensor, "n ... d"]:
        residual = self.residual(self.attention(local, padding))
        points: Tensor = self.norm(whole[:, None] + residual)
        return points.squeeze(1)
