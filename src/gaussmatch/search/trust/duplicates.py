"""Copies of photos: resized, cropped, recompressed, mirrored, slightly rotated or with a border.

Encoders put copies near each other, and similar photos too. So the nearest photos are candidates,
and each candidate is laid over the photo: an affine map between them (mirrored or not) is found by
Gauss–Newton from coarse to fine, and what both show must then agree in its details.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample, interpolate, normalize

SIDE = 64
"""Pixels of the squares that photos are compared at."""
CANDIDATES = 5
"""Nearest photos that each is compared with."""
ALIKE = 0.4
"""Cosine of centered features below which two photos are not compared."""
COPY = 0.5
"""Correlation of details from which one photo counts as a copy of another, see ``overlaid``."""
SHARED = 0.5
"""Part of a photo that its copy must show, at least."""
STARTS = tuple(
    (mirror * scale, scale) for mirror in (1.0, -1.0) for scale in (1.0, 0.8, 1.25)
)  # horizontal and vertical scale
LEVELS = ((16, 12), (32, 8), (64, 5))
"""Resolution, and steps of Gauss–Newton at it."""
BLOCK = 512
"""Pairs that are compared at a time."""


@dataclass(frozen=True)
class Copies:
    """Photos of which one is a copy of another.

    Args:
        members: positions, the one to keep first.
        likeness: of each member with the one that it was found by, at least ``COPY``.
    """

    members: tuple[int, ...]
    likeness: tuple[float, ...]


def small(picture: Image.Image) -> Tensor:
    """A picture as ``overlaid`` takes it: gray, squeezed into a square, (SIDE, SIDE) from 0 to 1.

    >>> small(Image.new("RGB", (40, 30), "white")).mean().item()
    1.0
    """
    gray = picture.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return torch.frombuffer(bytearray(gray.tobytes()), dtype=torch.uint8).view(SIDE, SIDE) / 255


def nearest(vectors: Tensor, count: int = 1, block: int = 1000) -> tuple[Tensor, Tensor]:
    """Cosines (n, count) of each photo with the nearest others, and their positions. Vectors are
    centered first: what all photos share tells nothing."""
    x = normalize(vectors.float() - vectors.float().mean(0), dim=1)
    found = []
    for start in range(0, len(x), block):
        cosines = x[start : start + block] @ x.T
        rows = torch.arange(len(cosines))
        cosines[rows, rows + start] = -2  # not with itself
        found.append(cosines.topk(min(count, len(x))))
    return torch.cat([near.values for near in found]), torch.cat([near.indices for near in found])


def candidates(vectors: Tensor) -> Tensor:
    """(p, 2), pairs of photos that may be copies: each with its nearest ones."""
    cosines, others = nearest(vectors, CANDIDATES)
    rows, columns = (cosines >= ALIKE).nonzero(as_tuple=True)
    pairs = torch.stack([rows, others[rows, columns]], 1)
    return torch.stack([pairs.amin(1), pairs.amax(1)], 1).unique(dim=0)


def copies_of(
    vectors: Tensor, read: Callable[[int], tuple[Tensor, int] | None], prefer: Sequence[int] = ()
) -> list[Copies]:
    """Groups of copies, most alike first, in each the one to keep first: the one with most pixels.

    Args:
        vectors: (n, F) of the photos, by any encoder.
        read: position → ``small`` of its picture and its pixels; ``None`` if it has none.
        prefer: (n), which to keep among those of equal size, the highest; such as its captions.
    """
    pairs = candidates(vectors)
    held = {i: found for i in pairs.unique().tolist() if (found := read(i)) is not None}
    both = torch.tensor([a in held and b in held for a, b in pairs.tolist()], dtype=torch.bool)
    pairs = pairs[both]
    if not len(pairs):
        return []
    parts = [
        overlaid(*(torch.stack([held[i][0] for i in side.tolist()]) for side in some.T))
        for some in pairs.split(BLOCK)
    ]
    likeness = torch.cat(parts)
    sure = likeness >= COPY
    value = {i: (pixels, prefer[i] if len(prefer) else 0, -i) for i, (_, pixels) in held.items()}
    return grouped(pairs[sure], likeness[sure], value)


def grouped(
    pairs: Tensor, likeness: Tensor, value: Mapping[int, tuple[int, ...]] | None = None
) -> list[Copies]:
    """Pairs (p, 2) with their likeness as groups; of each the one of the highest value is first.

    >>> pairs = torch.tensor([[4, 2], [2, 9], [5, 6]])
    >>> [g.members for g in grouped(pairs, torch.tensor([0.9, 0.8, 0.95]))]
    [(5, 6), (2, 4, 9)]
    """
    group: dict[int, set[int]] = {}
    best: dict[int, float] = {}
    for (a, b), how in zip(pairs.tolist(), likeness.tolist(), strict=True):
        joined = group.get(a, {a}) | group.get(b, {b})
        group |= dict.fromkeys(joined, joined)
        for i in (a, b):
            best[i] = max(best.get(i, 0.0), how)
    made = []
    for members in {min(g): g for g in group.values()}.values():
        order = sorted(members, key=lambda i: value[i] if value else (-i,), reverse=True)
        made.append(Copies(tuple(order), tuple(best[i] for i in order)))
    return sorted(made, key=lambda g: -max(g.likeness))


def overlaid(a: Tensor, b: Tensor) -> Tensor:
    """(n), how far photos ``a`` and ``b``, both (n, SIDE, SIDE), agree in their details once one is
    laid over the other: the correlation of what is finer than an eighth of the photo; 0 where
    they share too little."""
    return torch.cat([_overlaid(x, y) for x, y in zip(a.split(BLOCK), b.split(BLOCK), strict=True)])


def _overlaid(a: Tensor, b: Tensor) -> Tensor:
    n = len(a)
    starts = torch.tensor([[[x, 0.0, 0.0], [0.0, y, 0.0]] for x, y in STARTS])
    maps = starts.repeat(n, 1, 1)
    side, steps = LEVELS[0]
    rough_a, rough_b = (_scaled(x, side).repeat_interleave(len(STARTS), 0) for x in (a, b))
    maps = _fitted(rough_a, rough_b, maps, steps)
    score, _ = _agreement(rough_a, rough_b, maps)
    best = score.view(n, -1).argmax(1)
    maps = maps.view(n, -1, 2, 3)[torch.arange(n), best]
    for side, steps in LEVELS[1:]:
        maps = _fitted(_scaled(a, side), _scaled(b, side), maps, steps)
    score, shared = _agreement(_details(a), _details(b), maps)
    return torch.where(shared >= SHARED, score, torch.zeros(()))


def _scaled(x: Tensor, side: int) -> Tensor:
    return interpolate(x[:, None], (side, side), mode="area")[:, 0]


def _details(x: Tensor) -> Tensor:
    """What is finer than an eighth of the photo."""
    return x - avg_pool2d(x[:, None], 9, 1, 4, count_include_pad=False)[:, 0]


def _grid(side: int) -> tuple[Tensor, Tensor]:
    at = (torch.arange(side) + 0.5) * 2 / side - 1
    y, x = torch.meshgrid(at, at, indexing="ij")
    return x.flatten(), y.flatten()


def _sampled(stack: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """Images (n, c, s, s) where the maps lead, (n, c, s²), and which places lie inside, (n, s²)."""
    x, y = _grid(stack.shape[-1])
    places = torch.stack([x, y, torch.ones_like(x)])  # 3 × s²
    to = (maps @ places).transpose(1, 2)
    inside = (to.abs() <= 1).all(2)
    values = grid_sample(stack, to[:, None], padding_mode="border", align_corners=False)
    return values[:, :, 0], inside.float()


def _standard(values: Tensor, inside: Tensor) -> Tensor:
    """Zero mean and unit spread over the places inside; 0 elsewhere."""
    count = inside.sum(1, keepdim=True).clamp_min(1)
    centered = (values - (values * inside).sum(1, keepdim=True) / count) * inside
    return centered / (centered.square().sum(1, keepdim=True) / count).sqrt().clamp_min(1e-4)


def _fitted(a: Tensor, b: Tensor, maps: Tensor, steps: int) -> Tensor:
    """Maps from ``a`` into ``b`` after some steps of Gauss–Newton on their difference."""
    side = a.shape[-1]
    x, y = _grid(side)
    across = (b.roll(-1, 2) - b.roll(1, 2)) * side / 4  # per unit of [-1, 1]
    down = (b.roll(-1, 1) - b.roll(1, 1)) * side / 4
    stack = torch.stack([b, across, down], 1)
    damping = 1e-3 * torch.eye(6)
    for _ in range(steps):
        values, inside = _sampled(stack, maps)
        w, gx, gy = values.unbind(1)
        count = inside.sum(1, keepdim=True).clamp_min(1)
        mean = (w * inside).sum(1, keepdim=True) / count
        spread = (((w - mean) * inside).square().sum(1, keepdim=True) / count).sqrt()
        spread = spread.clamp_min(1e-4)
        r = _standard(a.flatten(1), inside) - _standard(w, inside)
        slopes = torch.stack([gx * x, gx * y, gx, gy * x, gy * y, gy], 2)
        slopes = (slopes * inside[..., None]) / spread[..., None]
        normal = slopes.transpose(1, 2) @ slopes / count[..., None]
        scale = normal.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp_min(1e-9)
        step = torch.linalg.solve(
            normal + damping * scale, (slopes.transpose(1, 2) @ r[..., None]) / count[..., None]
        )
        maps = maps + step.view(-1, 2, 3).clamp(-0.2, 0.2)
    return maps


def _agreement(a: Tensor, b: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
    """The correlation where both are, and the part of ``a`` that this is."""
    values, inside = _sampled(b[:, None], maps)
    one, other = _standard(a.flatten(1), inside), _standard(values[:, 0], inside)
    share = inside.mean(1)
    area = (maps[:, 0, 0] * maps[:, 1, 1] - maps[:, 0, 1] * maps[:, 1, 0]).abs()
    sane = (area > 0.3) & (area < 3.0)
    score = (one * other).sum(1) / inside.sum(1).clamp_min(1)
    return torch.where(sane, score, torch.zeros(())), share
