"""Make your own two-tower model probabilistic and train it: about forty lines, no files needed.

The toy: an "image" is a noisy vector of four attributes with four values each; a "caption" names
one to four of them, the rest is left open. After a minute the caption's uncertainty follows how
much was left open.

    python examples/own_encoder.py
"""

from __future__ import annotations

import torch
from torch import nn

import gaussmatch as gm
from gaussmatch.core.losses import TripletLoss, negatives
from gaussmatch.core.metrics import spearman


class Tower(nn.Module):
    """Yours: anything that maps an input to points (n, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU())
        self.head = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.head(self.body(x)), dim=-1)


def draw(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """n images, a caption of each, and how many attributes each caption names."""
    values = nn.functional.one_hot(torch.randint(4, (n, 4)), 4).float()
    named = torch.rand(n, 4).argsort(-1) < torch.randint(1, 5, (n, 1))
    images = values + 0.1 * torch.randn_like(values)
    return images.flatten(1), (values * named[..., None]).flatten(1), named.sum(-1)


def train(steps: int = 1500) -> tuple[nn.Module, nn.Module]:
    """Encoders of images and captions."""
    torch.manual_seed(0)
    images = gm.Probabilistic(Tower(), part="head")  # the output stays the mean;
    captions = gm.Probabilistic(Tower(), part="head")  # a copy of "head" gives the variance
    similarity = gm.similarity("kl")
    parameters = [*images.parameters(), *captions.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2e-3)
    for step in range(steps):
        x, c, _ = draw(128)
        loss = TripletLoss(margin=0.2, mining="sum" if step < steps // 3 else "hardest")
        scores = similarity.matrix(images(x), captions(c))
        optimizer.zero_grad()
        loss(scores, scores, negatives(torch.arange(len(x))))["triplet"].backward()
        nn.utils.clip_grad_norm_(parameters, 2.0)
        optimizer.step()
    return images, captions


def main(steps: int = 1500) -> float:
    _, captions = train(steps)
    _, c, named = draw(1000)
    with torch.no_grad():
        rho = spearman(captions(c).uncertainty(), -named.float())
    print(f"Spearman ρ between uncertainty and what the captions leave open: {rho:.2f}")
    return rho


if __name__ == "__main__":
    main()
