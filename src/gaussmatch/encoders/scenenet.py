"""A small convolutional net for 64×64 pictures: the part that ResNet plays for photos."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn


class SceneNet(nn.Module):
    """Pictures → region features on a 6×6 grid, or their mean.

    About 370,000 parameters. The features are what the last rectifier leaves, so that they are
    never negative, as those of a ResNet.

    >>> import torch
    >>> net = SceneNet().eval()
    >>> net.forward_grid(torch.zeros(2, 3, 64, 64)).shape, net(torch.zeros(2, 3, 64, 64)).shape
    (torch.Size([2, 36, 256]), torch.Size([2, 256]))
    """

    features = 256  #: F
    regions = 36  #: 6×6, row by row from the top left

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _layer(3, 24, 4, stride=2, padding=1),  # 32×32
            _layer(24, 64, 4, stride=2, padding=1),  # 16×16
            _layer(64, 96, 3),  # 14×14
            _layer(96, 96, 4, stride=2),  # 6×6
            _layer(96, 128, 3, padding=1),
            _layer(128, self.features, 1),
        )

    @property
    def norm_of_features(self) -> nn.BatchNorm2d:
        """The last normalisation, which sets the scale of the features."""
        norm = self.body.get_submodule("5.1")
        assert isinstance(norm, nn.BatchNorm2d)
        return norm

    def forward_grid(self, pictures: Float[Tensor, "n 3 64 64"]) -> Float[Tensor, "n 36 256"]:
        """One feature vector for each cell; pictures hold values in [0, 1]."""
        grid: Tensor = self.body(pictures * 2 - 1)
        return grid.flatten(2).transpose(1, 2)

    def forward(self, pictures: Float[Tensor, "n 3 64 64"]) -> Float[Tensor, "n 256"]:
        """The mean over the cells."""
        return self.forward_grid(pictures).mean(1)


def _layer(inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, padding, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )
