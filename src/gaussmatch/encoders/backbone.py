"""Networks that are trained end to end ("ft"): pictures in, one feature vector each out."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gaussmatch.encoders.scenenet import SceneNet
from gaussmatch.encoders.timm_backbone import create, statistics

NormMode = Literal["frozen", "train"]


class Backbone(nn.Module):
    """A network by name, with random weights: pictures with values in [0, 1] → features.

    Args:
        name: ``scenenet``, or any name that timm knows, such as ``resnet152``.
        norm: what batch normalisation does in training. ``frozen`` keeps the running means and
            variances as they came (its scale and shift are still learned): training and
            evaluation then compute the same function, whatever the batch. ``train`` takes those of
            each batch and updates the running ones.
        checkpointing: keep only the inputs of a network's blocks for the backward pass and compute
            the rest again: less memory, about a third more time.

    A network of timm gets its pictures with the mean and standard deviation it was trained with,
    so that data need not know which network looks at them.
    """

    _mean: Tensor
    _std: Tensor

    def __init__(self, name: str, norm: NormMode = "frozen", checkpointing: bool = False) -> None:
        super().__init__()
        self.name, self.norm = name, norm
        mean: tuple[float, ...] = (0.0, 0.0, 0.0)
        std: tuple[float, ...] = (1.0, 1.0, 1.0)
        if name == "scenenet":
            net: Any = SceneNet()
            self.width = SceneNet.features
        else:
            net = create(name, classes=0)
            self.width = int(getattr(net, "head_hidden_size", None) or net.num_features)
            mean, std = statistics(name)
        if checkpointing:
            _checkpoint(net, name)
        self.net = net.to(memory_format=torch.channels_last)  # twice as fast on a CPU
        for buffer, values in (("_mean", mean), ("_std", std)):
            shaped = torch.tensor(values).view(3, 1, 1)
            self.register_buffer(buffer, shaped, persistent=False)

    def forward(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n f"]:
        given = self._normalised(pictures)
        if isinstance(self.net, SceneNet):
            return self.net(given)
        out: Tensor = self.net.forward_head(self.net.forward_features(given), pre_logits=True)
        return out

    def forward_grid(self, pictures: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n r f"]:
        """The cells of the last feature map, row by row from the top left."""
        given = self._normalised(pictures)
        if isinstance(self.net, SceneNet):
            return self.net.forward_grid(given)
        grid: Tensor = self.net.forward_features(given)
        if grid.ndim != 4 or grid.shape[1] != self.width:
            raise ValueError(f"{self.name} gives no map of local features; take a ResNet")
        return grid.flatten(2).transpose(1, 2)

    def _normalised(self, pictures: Tensor) -> Tensor:
        given = (pictures - self._mean) / self._std
        return given.contiguous(memory_format=torch.channels_last)

    def train(self, mode: bool = True) -> Backbone:
        """Training mode, but for frozen batch normalisation."""
        super().train(mode)
        if self.norm == "frozen":
            for layer in self.net.modules():
                if isinstance(layer, _BatchNorm):
                    layer.eval()
        return self


def _checkpoint(net: Any, name: str) -> None:
    switch = getattr(net, "set_grad_checkpointing", None)
    if switch is None:
        raise ValueError(f"model.checkpointing: {name} has no blocks to compute again")
    switch(True)
