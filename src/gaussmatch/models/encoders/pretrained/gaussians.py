"""Published towers whose embedding is a Gaussian: the unit mean and ln σ², side by side; and
transformers of CLIP's kind, under the names that its weights have in published files.

``prolip`` and ``pcmepp`` are such. What is made of pictures and texts by name (extraction, caches,
the index, the service) sees one vector of 2·D values; ``encoders.adapter`` takes it apart.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer as Cutter
from tokenizers import normalizers
from torch import Tensor, nn
from torch.nn.functional import linear, normalize, scaled_dot_product_attention

from gaussmatch.data import hub
from gaussmatch.files import read_json
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.pretrained.base import (
    ImageTower,
    Subwords,
    TextTower,
    Tower,
    Transform,
    files_sha256,
    weights_file,
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
        return x + self.ls_2(self.mlp(self.ln_2(x)))

    def _attended(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What ``nn.MultiheadAttention`` computes; its own export fixes the number of tokens."""
        (n, t, _), attn = x.shape, self.attn
        three = linear(x, attn.in_proj_weight, attn.in_proj_bias)
        q, k, v = three.reshape(n, t, 3, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
        return attn.out_proj(seen.reshape(n, t, attn.embed_dim))


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
        first = [getattr(self, n) for n in ("class_embedding", "unc_embedding") if hasattr(self, n)]
        learned = torch.stack(first).expand(cells.shape[0], -1, -1)
        return self.ln_pre(torch.cat([learned, cells], 1) + self.positional_embedding)


def causal(length: int, like: Tensor) -> Float[Tensor, "length length"]:
    """The mask with which a token sees none that comes after it."""
    return torch.full((length, length), -torch.inf, dtype=like.dtype, device=like.device).triu(1)


OPENAI = Transform(
    224, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), 224
)
"""How CLIP of OpenAI sees a picture."""


IMAGE_SIZES = {"width": 768, "layers": 12, "head_width": 64, "patch_size": 16, "image_size": 224}
"""Sizes that ``vision_cfg`` may leave out."""


class GaussianFolder(ABC):
    """A folder in the layout of the hub, checked: ``config.json`` with the sizes of both sides, and
    their weights.

    Args:
        name: its repository; not used if there is a place.
        place: the folder.
    """

    library: ClassVar[str]
    kind: ClassVar[str]
    """What its models are called."""
    text_sizes: ClassVar[dict[str, int]]
    """Sizes that ``text_cfg`` may leave out; those of images are ``IMAGE_SIZES``."""
    foreign: ClassVar[tuple[str, ...]]
    """Settings that its models have none of."""

    def __init__(self, name: str, place: Path | None) -> None:
        self.name, self.folder = f"{self.library}:{name}", place or hub.snapshot(name)
        self.path = self.folder / "config.json"
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path}: missing; a folder of {self.kind} must hold it")
        self.config: dict[str, Any] = read_json(self.path, dict)
        self.image, self.text = (self._section(side) for side in ("vision_cfg", "text_cfg"))
        self.dim = self._whole(self.config, "embed_dim")
        self.weights = weights_file(self.folder, "model.safetensors")

    def _section(self, side: str) -> dict[str, Any]:
        found = self.config.get(side)
        self.check(side, found if isinstance(found, dict) else None)
        assert isinstance(found, dict)
        if strange := [name for name in self.foreign if found.get(name)]:
            raise ValueError(f"{self.path}: {side}.{strange[0]} is set; {self.kind} has none")
        sizes = IMAGE_SIZES if side == "vision_cfg" else self.text_sizes
        held = {**sizes, **found}
        return held | {name: self._whole(held, name) for name in sizes}

    @abstractmethod
    def check(self, side: str, found: Mapping[str, Any] | None) -> None:
        """Refuse the section of a side, or none, that is of another kind of model."""

    def _whole(self, held: Mapping[str, Any], name: str) -> int:
        value = held.get(name)
        value = value[0] if isinstance(value, list) and len({*value}) == 1 else value
        if type(value) is not int or value < 1:
            raise ValueError(f"{self.path}: {name} is {value!r}, not a whole number above 0")
        return value

    def shape(self, held: Mapping[str, Any]) -> Shape:
        """The blocks of a side."""
        width = held["width"]
        return Shape(
            width=width,
            layers=held["layers"],
            heads=held["heads"] if held is self.text else width // held["head_width"],
            hidden=int(width * float(held.get("mlp_ratio", 4.0))),
            quick=bool(self.config.get("quick_gelu", False)),
            epsilon=float((held.get("norm_kwargs") or {}).get("eps", 1e-5)),
            scaled=held.get("ls_init_value") is not None,
        )

    def network(
        self, make: Callable[[Any], nn.Module], prefix: str, without: tuple[str, ...] = ()
    ) -> nn.Module:
        """The network of a side, with its weights (see ``read_side``); what is missing, spare or of
        another shape is an error."""
        with torch.device("meta"):  # so that a false size costs no memory
            net = make(self)
        found = read_side(self.weights, prefix, without)
        self.check_weights(prefix, found)
        wanted: dict[str, Tensor] = net.state_dict()
        for name in sorted({*wanted} | {*found}):
            have, like = found.get(name), wanted.get(name)
            if have is None or like is None or have.shape != like.shape:
                is_ = "missing" if have is None else f"{tuple(have.shape)}"
                says = "knows none" if like is None else f"wants {tuple(like.shape)}"
                raise ValueError(
                    f"{self.weights}: {prefix}{name} is {is_}, but {self.path.name} {says}: the "
                    "weights of another model"
                )
        net = net.to_empty(device="cpu")
        net.load_state_dict({name: value.float() for name, value in found.items()})
        return net

    def check_weights(self, prefix: str, found: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Refuse weights that are of another kind of model."""


class GaussianTower(Tower):
    """What the towers of both sides share; ``net`` gives a mean and ln σ² of what it is given."""

    def __init__(self, of: GaussianFolder, net: nn.Module) -> None:
        super().__init__()
        self.name, self._hash = of.name, files_sha256([of.weights])
        self.width, self.net = 2 * of.dim, net
        self.freeze()

    def embedded(self, *given: Tensor) -> Float[Tensor, "n 2d"]:
        mean, log_var = self.net(*given)
        return torch.cat([normalize(mean, dim=-1), log_var], -1)


class GaussianImages(GaussianTower, ImageTower):
    """Pictures → unit means and ln σ², (n, 2·D); ``view`` is how they become the network's input,
    but for its size."""

    def __init__(self, of: GaussianFolder, net: nn.Module, view: Transform = OPENAI) -> None:
        super().__init__(of, net)
        size = of.image["image_size"]
        self.published = replace(view, size=size, resize=None if view.resize is None else size)

    def forward(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 2d"]:
        return self.embedded(pictures)


class GaussianTexts(GaussianTower, TextTower):
    """Texts → unit means and ln σ², (n, 2·D); ``given`` makes of a batch what the network takes."""

    def __init__(
        self,
        of: GaussianFolder,
        net: nn.Module,
        tokenizer: Subwords,
        given: Callable[[Tokens], tuple[Tensor, ...]] = tuple,
    ) -> None:
        super().__init__(of, net)
        self.tokenizer, self._given = tokenizer, given

    def forward(self, tokens: Tokens) -> Float[Tensor, "n 2d"]:
        return self.embedded(*self._given(tokens))


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


def tokenizer_of(folder: Path, longest: int, cleaning: str) -> tuple[Subwords, int, bool]:
    """The tokenizer in a folder of the hub, with the cleaning of open_clip before it; the id that
    texts are padded with, and whether on the left.

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
    return Subwords.of(made.to_str()), padding, held.get("padding_side") == "left"
