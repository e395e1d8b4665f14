"""Published towers whose embedding is a Gaussian: the unit mean and ln σ², side by side; and
transformers of CLIP's kind, under the names that its weights have in published files.

``prolip`` and ``pcmepp`` are such. What is made of pictures and texts by name (extraction, caches,
the index, the service) sees one vector of 2·D values; ``encoders.adapter`` takes it apart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer as Cutter
from tokenizers import normalizers
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, scaled_dot_product_attention

from gaussmatch.files import read_json
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.pretrained.base import (
    ImageTower,
    Subwords,
    TextTower,
    Transform,
    files_sha256,
)
from gaussmatch.models.encoders.pretrained.open_clip import CLEANING, QUOTES, SPACES


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


OPENAI = Transform(
    224, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), 224
)
"""How CLIP of OpenAI sees a picture."""


class _Gaussian:
    """What the towers of both sides share; ``net`` gives a mean and ln σ² of what it is given."""

    net: nn.Module

    def embedded(self, *given: Tensor) -> Float[Tensor, "n 2d"]:
        mean, log_var = self.net(*given)
        return torch.cat([normalize(mean, dim=-1), log_var], -1)


class GaussianImages(_Gaussian, ImageTower):
    """Pictures → unit means and ln σ², (n, 2·D).

    Args:
        name: of the tower, for messages.
        weights: the file that its hash is taken of.
        net: pictures → mean, ln σ².
        dim: D.
        size: side of the pictures that the network takes.
        transform: how they become so.
    """

    def __init__(
        self,
        name: str,
        weights: Path,
        net: nn.Module,
        dim: int,
        size: int,
        transform: Transform = OPENAI,
    ) -> None:
        super().__init__()
        self.name, self._hash, self.width, self.net = name, files_sha256([weights]), 2 * dim, net
        resize = None if transform.resize is None else size
        self._view = Transform(size, transform.mean, transform.std, resize, transform.interpolation)
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def described(self) -> Transform:
        return self._view

    def forward(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 2d"]:
        return self.embedded(pictures)


class GaussianTexts(_Gaussian, TextTower):
    """Texts → unit means and ln σ², (n, 2·D); see ``GaussianImages``."""

    def __init__(
        self, name: str, weights: Path, net: nn.Module, dim: int, tokenizer: Subwords
    ) -> None:
        super().__init__()
        self.name, self._hash, self.width, self.net = name, files_sha256([weights]), 2 * dim, net
        self.tokenizer = tokenizer
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def given(self, tokens: Tokens) -> tuple[Tensor, ...]:
        """A batch as the network takes it."""
        return tuple(tokens)

    def forward(self, tokens: Tokens) -> Float[Tensor, "n 2d"]:
        return self.embedded(*self.given(tokens))


def read_side(path: Path, prefix: str, without: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The weights of a file whose names begin so, without that beginning; not those that begin with
    one of ``without``."""
    try:
        with safe_open(path, "pt") as file:
            names = [n for n in file.keys() if n.startswith(prefix)]  # noqa: SIM118
            return {
                name.removeprefix(prefix): file.get_tensor(name)
                for name in names
                if not name.startswith(without)
            }
    except SafetensorError as error:
        raise ValueError(
            f"{path}: not a complete safetensors file ({error}); copy it again"
        ) from error


def fitted(net: nn.Module, found: Mapping[str, Tensor], where: str, config: Path) -> nn.Module:
    """A network with its weights; what is missing, spare or of another shape is an error.

    Args:
        net: on the meta device, so that a false size costs no memory.
        where: file and prefix of the weights, for errors.
        config: the file that says the sizes.
    """
    wanted: dict[str, Tensor] = net.state_dict()
    for name in sorted({*wanted} | {*found}):
        have, like = found.get(name), wanted.get(name)
        if have is None or like is None or have.shape != like.shape:
            is_ = "missing" if have is None else f"{tuple(have.shape)}"
            says = "knows none" if like is None else f"wants {tuple(like.shape)}"
            raise ValueError(
                f"{where}{name} is {is_}, but {config.name} {says}: the weights of another model"
            )
    net = net.to_empty(device="cpu")
    net.load_state_dict({name: value.float() for name, value in found.items()})
    return net


class Cut(NamedTuple):
    """A tokenizer, the id that texts are padded with, and whether on the left."""

    path: Path
    subwords: Subwords
    padding: int
    left: bool

    def check(self, words: int, config: Path) -> None:
        """Refuse a tokenizer with more tokens than a network has vectors for."""
        if len(self.subwords) > words:
            raise ValueError(
                f"{self.path}: {len(self.subwords):,} tokens, but {config} has {words:,}: the "
                "tokenizer of another model"
            )


def tokenizer_of(folder: Path, longest: int, cleaning: str) -> Cut:
    """The tokenizer in a folder of the hub, with the cleaning of open_clip before it.

    Args:
        longest: texts are cut to this many tokens.
        cleaning: ``canonicalize``, ``lower`` or ``whitespace``.
    """
    path, about = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing; the folder must hold the tokenizer")
    if cleaning not in CLEANING:
        raise ValueError(f"{folder}: unknown cleaning of texts {cleaning!r}")
    try:
        made = Cutter.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path}: not a file of tokenizers ({error})") from error
    held: dict[str, Any] = read_json(about, dict) if about.is_file() else {}
    token = held.get("pad_token")
    token = token.get("content") if isinstance(token, dict) else token
    padding = None if token is None else made.token_to_id(str(token))
    if padding is None:
        raise ValueError(f"{about}: names no pad_token of {path.name}")
    then = [] if made.normalizer is None else [made.normalizer]
    made.normalizer = normalizers.Sequence([*QUOTES, *CLEANING[cleaning], *SPACES, *then])
    made.enable_truncation(longest)
    made.no_padding()
    return Cut(path, Subwords.of(made.to_str()), padding, held.get("padding_side") == "left")
