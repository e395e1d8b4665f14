"""The frozen image features of the scenes: a ``SceneNet`` pretrained on attributes, kept as a file.

VSE++ without fine-tuning takes features of a ResNet that learned ImageNet's classes. Here a small
net has learned which attributes a scene shows, on scenes of its own that are in no split.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from gaussmatch.data.scenes.world import (
    BACKGROUNDS,
    COLOURS,
    MOST,
    PATTERNS,
    SHAPES,
    SIZES,
    WIDTH,
    Dice,
    Scene,
    draw,
    sample_scene,
)
from gaussmatch.files import load_tensors, save_tensors, sha256

#: Standard deviation of a pooled feature. A fresh linear layer then starts near zero, well inside
#: the bound of the log-variances; at 1 it would start outside, where the clamp has no gradient.
SPREAD = 0.15
WEIGHTS = Path(__file__).with_name("scenenet.safetensors")

# One thing fills few of the 36 cells, so that the mean is small; the head learns from a larger one.
_GAIN = 12.0
_SIDES = ("left", "right", "top", "bottom")


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


@lru_cache(maxsize=1)
def load_backbone() -> SceneNet:
    """The pretrained net in float32, frozen and in evaluation mode. One copy for a process."""
    net = SceneNet()
    net.load_state_dict({k: v.float() if v.is_floating_point() else v
                         for k, v in load_tensors(WEIGHTS).items()})  # fmt: skip
    return net.requires_grad_(False).eval()


def backbone_hash() -> str:
    """A short hash of the weights, for the name of a cache."""
    return sha256(WEIGHTS)[:12]


def pretrain(
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    scenes: int = 12_000,
    epochs: int = 6,
    batch: int = 32,
    progress: bool = True,
) -> Path:
    """Make the weights file again: learn to recognize the attributes of scenes from their pictures.

    The same questions (``labels``) are put to the pooled features about the whole scene, and to
    each cell about the thing whose center is nearest, which teaches much faster.

    Args:
        seed: of the scenes and of the weights.
        out: the file to write; the shipped one if not given.
        scenes: how many to learn from.
        epochs: how often each is seen, every time through another window (``_Window``).
    """
    out = Path(out or WEIGHTS)
    dice = Dice(f"scenes-pretrain-{seed}")
    order = torch.Generator().manual_seed(seed)
    world = [sample_scene(dice) for _ in tqdm(range(scenes), "scenes", disable=not progress)]
    pictures = torch.from_numpy(
        np.stack([np.asarray(draw(s)) for s in tqdm(world, "pictures", disable=not progress)])
    ).permute(0, 3, 1, 2)
    questions = len(labels(world[0]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = SceneNet().train()
        about_all, about_cell = (nn.Linear(SceneNet.features, questions) for _ in range(2))
    nn.init.constant_(about_all.bias, -3.0)  # most answers are no
    nn.init.constant_(about_cell.bias, -5.0)
    parameters = [p for module in (net, about_all, about_cell) for p in module.parameters()]
    steps = epochs * (scenes // batch)
    optimizer = torch.optim.AdamW(parameters, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    bar = tqdm(total=steps, desc="pretraining", disable=not progress)
    for _ in range(epochs):
        shuffled = torch.randperm(scenes, generator=order)
        for chosen in shuffled[: scenes // batch * batch].split(batch):
            windows = [_Window.sample(dice) for _ in chosen]
            seen = [w.view(world[i]) for w, i in zip(windows, chosen.tolist(), strict=True)]
            grid = net.forward_grid(_look(pictures[chosen].float() / 255, windows))
            answers = torch.tensor([labels(s) for s in seen], dtype=torch.float32)
            loss = _cost(about_all(_GAIN * grid.mean(1)), answers)
            loss = loss + _cost(about_cell(grid), _cell_labels(seen, questions))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update()
            bar.set_postfix(loss=f"{float(loss.detach()):.1f}", refresh=False)
    bar.close()
    _even_out(net.eval(), pictures[:1000].float() / 255)
    weights = net.state_dict()
    save_tensors(out, {k: v.half() if v.is_floating_point() else v for k, v in weights.items()})
    load_backbone.cache_clear()
    return out


def _cost(logits: Tensor, wanted: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / len(logits)


@torch.no_grad()
def _even_out(net: SceneNet, pictures: Float[Tensor, "n 3 64 64"]) -> None:
    """Scale each feature so that its mean over the cells has standard deviation ``SPREAD``.

    A rectifier lets a factor through, so that the last normalization can carry it.
    """
    spread = torch.cat([net(block) for block in pictures.split(250)]).std(0)
    factor = SPREAD / spread.clamp(min=0.02)
    last = net.body.get_submodule("5.1")
    assert isinstance(last, nn.BatchNorm2d)
    last.weight.mul_(factor)
    last.bias.mul_(factor)


def labels(scene: Scene) -> list[bool]:
    """What pretraining predicts: pairs of attributes present, repeats, number, ground."""
    things = scene.things
    pairs: list[tuple[str, str, Sequence[str], Sequence[str]]] = [
        ("colour", "shape", COLOURS, SHAPES),
        ("shape", "pattern", SHAPES, PATTERNS),
        ("colour", "pattern", COLOURS, PATTERNS),
        ("size", "colour", SIZES, COLOURS),
        ("size", "shape", SIZES, SHAPES),
    ]
    found: list[bool] = []
    for one, two, ones, twos in pairs:
        present = {(getattr(t, one), getattr(t, two)) for t in things}
        found += [pair in present for pair in product(ones, twos)]
    for name, values in (("colour", COLOURS), ("shape", SHAPES)):
        present = {(getattr(t, name), side) for t in things for side in _SIDES if t.at(side)}
        found += [pair in present for pair in product(values, _SIDES)]
        shown = [getattr(t, name) for t in things]
        found += [shown.count(value) > 1 for value in values]
    found += [len(things) == n for n in range(MOST + 1)]
    found += [scene.background == ground for ground in BACKGROUNDS]
    return found


def _cell_labels(scenes: Sequence[Scene], questions: int) -> Float[Tensor, "n 36 q"]:
    """For each cell the labels of the thing whose center is nearest to its own, if any."""
    found = torch.zeros(len(scenes), SceneNet.regions, questions)
    for i, scene in enumerate(scenes):
        for t in scene.things:  # cell k looks at pixel 12 + 8k
            row, column = (max(0, min(5, round((at - 12) / 8))) for at in (t.y, t.x))
            found[i, 6 * row + column] = torch.tensor(labels(Scene((t,), scene.background))).float()
    return found


class _Window:
    """The square of a picture that is looked at, perhaps in a mirror."""

    def __init__(self, left: int, top: int, side: int, mirrored: bool) -> None:
        self.left, self.top, self.side, self.mirrored = left, top, side, mirrored

    @staticmethod
    def sample(dice: Dice) -> _Window:
        """The whole picture six times in ten, else a square of 16 pixels or more."""
        side = WIDTH if dice.chance(0.6) else dice.between(16, WIDTH)
        return _Window(
            dice.between(0, WIDTH - side), dice.between(0, WIDTH - side), side, dice.chance(0.5)
        )

    def view(self, scene: Scene) -> Scene:
        """The scene as the window shows it: things of which at least half of the box is in view,
        moved, and of the size that they appear to have."""
        if self.side == WIDTH and not self.mirrored:
            return scene
        scale, shown = WIDTH / self.side, []
        for t in scene.things:
            left, top, right, bottom = t.box
            wide = min(right, self.left + self.side) - max(left, self.left)
            high = min(bottom, self.top + self.side) - max(top, self.top)
            if min(wide, high) <= 0 or wide * high < 0.5 * (right - left) * (bottom - top):
                continue
            x, y = round((t.x - self.left) * scale), round((t.y - self.top) * scale)
            radius = round(t.radius * scale)
            size = "small" if radius < 7 else "medium" if radius < 10 else "large"
            x = WIDTH - x if self.mirrored else x
            shown.append(replace(t, x=x, y=y, radius=radius, size=size))
        return Scene(tuple(shown), scene.background)


def _look(pictures: Float[Tensor, "n 3 64 64"], windows: Sequence[_Window]) -> Tensor:
    """What each window shows, at the full 64×64."""
    rows = []
    for w in windows:
        scale = w.side / WIDTH
        flip = -scale if w.mirrored else scale
        x, y = ((2 * at + w.side) / WIDTH - 1 for at in (w.left, w.top))
        rows.append([[flip, 0.0, x], [0.0, scale, y]])
    grid = F.affine_grid(torch.tensor(rows), list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
