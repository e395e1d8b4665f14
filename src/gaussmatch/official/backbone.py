"""Networks of torchvision, as the official codes have them, under timm's names."""

from __future__ import annotations

import re

from torch import Tensor

from gaussmatch.official.weights import Rule

OURS = "image.backbone.net."


def rules(network: str, theirs: str, where: str) -> list[Rule]:
    """The weights of a ResNet or VGG without its classifier.

    Args:
        network: torchvision's name, which is timm's too.
        theirs: a pattern of what their names begin with.
    """
    if re.fullmatch(r"resnet(18|34|50|101|152)", network):
        return [Rule(rf"{theirs}((?:conv1|bn1|layer\d)\..*)", rf"{OURS}\1")]
    if re.fullmatch(r"vgg(11|13|16|19)(_bn)?", network):
        return [
            Rule(rf"{theirs}features\.(.*)", rf"{OURS}features.\1"),
            # in torchvision before 2017 a dropout stood first and moved the numbers up
            Rule(rf"{theirs}classifier\.[01]\.weight", f"{OURS}pre_logits.fc1.weight", change=_map),
            Rule(rf"{theirs}classifier\.[34]\.weight", f"{OURS}pre_logits.fc2.weight", change=_dot),
            Rule(rf"{theirs}classifier\.[01]\.bias", f"{OURS}pre_logits.fc1.bias"),
            Rule(rf"{theirs}classifier\.[34]\.bias", f"{OURS}pre_logits.fc2.bias"),
        ]
    raise ValueError(f"{where}: its network {network!r} is no ResNet or VGG of torchvision")


def _map(weight: Tensor) -> Tensor:
    """A layer over a flattened 7 × 7 map, as the convolution that timm has in its place."""
    return weight.reshape(len(weight), -1, 7, 7)


def _dot(weight: Tensor) -> Tensor:
    return weight[:, :, None, None]
