"""Networks that are trained end to end: any name, and batch normalization as configured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoders.contract import EncoderContract
from torch import nn

from gaussmatch.data.scenes.backbone import SceneNet
from gaussmatch.models.encoders.backbone import Backbone, NormMode, statistics
from gaussmatch.models.encoders.pretrained.base import make_importable
from gaussmatch.models.encoders.probabilistic import Probabilistic
from gaussmatch.models.encoders.vsepp import Projection

make_importable()
pytest.importorskip("timm", reason="networks by name need the extra 'vision'")


def pictures(n: int, side: int = 32) -> torch.Tensor:
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(3))


def awake(backbone: Backbone) -> Backbone:
    """A fresh ResNet shuts its residual blocks (scale 0), which stops all gradients in them."""
    for layer in backbone.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
    return backbone


class TestTimm(EncoderContract):
    dim = 6

    def make(self) -> nn.Module:
        backbone = awake(Backbone("test_resnet"))
        return Projection(backbone.width, self.dim, backbone)

    def batch(self, n: int) -> Any:
        return pictures(n)


class TestProbabilistic(TestTimm):
    def make(self) -> nn.Module:
        return Probabilistic(super().make(), "embed")


class TestCheckpointed(TestTimm):
    def make(self) -> nn.Module:
        backbone = awake(Backbone("test_resnet", checkpointing=True))
        return Projection(backbone.width, self.dim, backbone)


class TestSceneNet(TestTimm):
    def make(self) -> nn.Module:
        backbone = Backbone("scenenet")
        return Projection(backbone.width, self.dim, backbone)

    def batch(self, n: int) -> Any:
        return pictures(n, 64)


def running(backbone: Backbone) -> list[torch.Tensor]:
    return [b.clone() for name, b in backbone.named_buffers() if "running" in name]


@pytest.mark.parametrize("name", ["scenenet", "test_resnet"])
@pytest.mark.parametrize("norm", ["frozen", "train"])
def test_statistics_move_only_where_set(name: str, norm: NormMode) -> None:
    backbone = Backbone(name, norm)
    before = running(backbone)
    assert before
    backbone.train()(pictures(4, 64))
    same = [torch.equal(a, b) for a, b in zip(before, running(backbone), strict=True)]
    assert all(same) if norm == "frozen" else not any(same)


def test_frozen_norm_computes_the_same_in_training_and_learns_its_scale() -> None:
    frozen, x = Backbone("test_resnet"), pictures(4)
    evaluated = frozen.eval()(x)
    torch.testing.assert_close(frozen.train()(x), evaluated)
    moving = Backbone("test_resnet", "train")
    moving.load_state_dict(frozen.state_dict())
    assert not torch.allclose(moving.train()(x), evaluated, atol=1e-3)
    frozen(x).sum().backward()
    norms = [m for m in frozen.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert all(m.weight.grad is not None for m in norms)


def test_frozen_norm_survives_the_mode_of_the_whole_model() -> None:
    encoder = Probabilistic(Projection(8, 4, Backbone("scenenet")), "embed").train()
    assert not any(m.training for m in encoder.modules() if isinstance(m, nn.BatchNorm2d))
    assert encoder.encoder.backbone.training


def test_pixels_are_normalized_as_the_network_was_trained() -> None:
    assert statistics("tf_efficientnet_lite2") == ((0.5,) * 3, (0.5,) * 3)
    backbone, x = Backbone("test_resnet").eval(), pictures(2)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in statistics("test_resnet"))
    inner = backbone.net.forward_head(
        backbone.net.forward_features((x - mean) / std), pre_logits=True
    )
    torch.testing.assert_close(backbone(x), inner)
    assert not any("mean" in k for k in backbone.state_dict() if "running" not in k)


@pytest.mark.parametrize(
    "name", ["test_vit", "test_efficientnet", "test_convnext", "test_mambaout"]
)
def test_width_is_that_of_the_features(name: str) -> None:
    backbone = Backbone(name).eval()
    assert backbone(pictures(2, 160)).shape == (2, backbone.width)


def test_features_are_normalized_as_officially_unless_set() -> None:
    torch.manual_seed(0)
    net, x = SceneNet().eval(), pictures(3, 64)
    official = Projection(256, 6, backbone=net)
    plain = Projection(256, 6, backbone=net, normalize_features=False)
    plain.load_state_dict(official.state_dict())
    given = Projection(256, 6)
    given.embed.load_state_dict(official.embed.state_dict())
    torch.testing.assert_close(plain(x), given(net(x)))
    features = nn.functional.normalize(net(x), dim=-1)
    torch.testing.assert_close(official(x), given(features))
    assert not torch.allclose(official.embed(features), official.embed(net(x)))


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="timm has no backbone 'resnet5O'; near are"):
        Backbone("resnet5O")
    with pytest.raises(ValueError, match="scenenet has no blocks"):
        Backbone("scenenet", checkpointing=True)


def test_the_grid_is_what_is_pooled() -> None:
    for name, side in (("test_resnet", 64), ("scenenet", 64)):
        backbone = awake(Backbone(name)).eval()
        with torch.no_grad():
            grid, pooled = backbone.forward_grid(pictures(2, side)), backbone(pictures(2, side))
        assert grid.shape[1] > 1
        torch.testing.assert_close(grid.mean(1), pooled)


def test_the_grid_of_a_transformer_is_its_patches() -> None:
    backbone = Backbone("test_vit").eval()
    side = 160 // backbone.net.patch_embed.patch_size[0]
    assert backbone.forward_grid(pictures(1, 160)).shape == (1, side**2, backbone.width)


def test_a_network_without_a_map_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = Backbone("test_resnet").eval()
    monkeypatch.setattr(backbone.net, "forward_features", lambda x: x.flatten(1))
    with pytest.raises(ValueError, match="test_resnet gives no map of regions"):
        backbone.forward_grid(pictures(1))
