"""EfficientNet-Lite2 in plain torch, the network of the photo model: it needs neither timm nor
torchvision, which take 60 MB and three seconds of an import. Weights have the names of timm's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad, relu6

from gaussmatch.files import load_tensors

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
        out: Tensor = self.bn2(self.conv_pw(relu6(self.bn1(self.conv_dw(x)))))
        return out


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


def _unused(name: str) -> bool:
    return name.startswith("classifier.") or name.endswith(".num_batches_tracked")


class EfficientNetLite2(nn.Module):
    """Pictures → a map of 1,280 features, and its mean.

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
            own = self.state_dict()
            state |= {k: torch.zeros_like(own[k]) for k in own.keys() - state.keys() if _unused(k)}
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
