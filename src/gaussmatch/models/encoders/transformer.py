"""Transformers of CLIP's kind, under the names that its weights have in published files."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention


class QuickGELU(nn.Module):
    """x·sigmoid(1.702·x), with which OpenAI trained."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


@dataclass(frozen=True)
class Shape:
    """The sizes of a stack of blocks.

    Args:
        hidden: width inside a block's two-layer network.
        quick: its activation is ``QuickGELU`` instead of GELU.
        epsilon: of the layer norms.
        scaled: each residual is scaled by learned weights.
    """

    width: int
    layers: int
    heads: int
    hidden: int
    quick: bool = False
    epsilon: float = 1e-5
    scaled: bool = False

    def norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(self.width, eps=self.epsilon)


class AttentionBlock(nn.Module):
    """x + attention(norm(x)), then x + network(norm(x))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.ln_1, self.ln_2 = shape.norm(), shape.norm()
        self.attn = nn.MultiheadAttention(width, shape.heads, batch_first=True)
        self.mlp = nn.Sequential(
            OrderedDict(
                c_fc=nn.Linear(width, shape.hidden),
                gelu=QuickGELU() if shape.quick else nn.GELU(),
                c_proj=nn.Linear(shape.hidden, width),
            )
        )
        self.ls_1, self.ls_2 = (LayerScale(width) if shape.scaled else nn.Identity() for _ in "12")

    def forward(
        self, x: Float[Tensor, "n t w"], mask: Float[Tensor, "t t"] | None = None
    ) -> Float[Tensor, "n t w"]:
        x = x + self.ls_1(self._attended(self.ln_1(x), mask))
        out: Tensor = x + self.ls_2(self.mlp(self.ln_2(x)))
        return out

    def _attended(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What ``nn.MultiheadAttention`` computes; its own export fixes the number of tokens."""
        (n, t, _), attn = x.shape, self.attn
        three = linear(x, attn.in_proj_weight, attn.in_proj_bias)
        q, k, v = three.reshape(n, t, 3, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        out: Tensor = attn.out_proj(seen.reshape(n, t, attn.embed_dim))
        return out


class AttentionBlocks(nn.Module):
    """Blocks one after the other.

    >>> AttentionBlocks(Shape(width=8, layers=2, heads=2, hidden=16))(torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5, 8])
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(AttentionBlock(shape) for _ in range(shape.layers))

    def forward(
        self, x: Tensor, mask: Tensor | None = None, start: int = 0, stop: int | None = None
    ) -> Float[Tensor, "n t w"]:
        """Through the blocks from ``start`` to before ``stop``."""
        for block in self.resblocks[start:stop]:
            x = block(x, mask)
        return x


class PatchTokens(nn.Module):
    """A picture as tokens: learned ones in front, then its patches; each with its place.

    Args:
        size: side of the picture.
        patch: side of a patch.
        uncertain: a second learned token, ``unc_embedding`` (ProLIP).
        norm: a layer norm at the end.
    """

    def __init__(
        self, shape: Shape, size: int, patch: int, uncertain: bool = False, norm: bool = True
    ) -> None:
        super().__init__()
        width, first = shape.width, 2 if uncertain else 1
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.class_embedding = nn.Parameter(width**-0.5 * torch.randn(width))
        if uncertain:
            self.unc_embedding = nn.Parameter(width**-0.5 * torch.randn(width))
        places = (size // patch) ** 2 + first
        self.positional_embedding = nn.Parameter(width**-0.5 * torch.randn(places, width))
        self.ln_pre = shape.norm() if norm else nn.Identity()

    def tokens(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n t w"]:
        cells = self.conv1(pictures).flatten(2).transpose(1, 2)
        first: list[Tensor] = [
            self.class_embedding,
            *([self.unc_embedding] if self._uncertain else []),
        ]
        learned = torch.stack(first).expand(cells.shape[0], -1, -1)
        out: Tensor = self.ln_pre(torch.cat([learned, cells], 1) + self.positional_embedding)
        return out

    @property
    def _uncertain(self) -> bool:
        return hasattr(self, "unc_embedding")


def causal(length: int, like: Tensor) -> Float[Tensor, "length length"]:
    """The mask with which a token sees none that comes after it."""
    return torch.full((length, length), -torch.inf, dtype=like.dtype, device=like.device).triu(1)
