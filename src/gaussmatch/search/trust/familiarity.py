"""Is an input like those the model was trained on? Distance to training features, calibrated.

Features are what an encoder gives before its head learns from them: an image network knows an X-ray
from a beach, but the head maps both into the space of its captions, where they look alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import factorial
from typing import Any, NamedTuple

import numpy as np

from gaussmatch.core.gaussian import ArrayGaussian, Gaussian, normalized
from gaussmatch.data.language import base, content_words, spelling
from gaussmatch.lazy import torch

CLEARLY = 0.01
"""Below this p-value an input counts as unfamiliar: one held-out item in a hundred does."""
HARDLY = 0.05
"""Below this one nothing is counted: where little is known, a likely result is often wrong."""
CENTERS: dict[str, int] = {"images": 64, "captions": 256}
"""Means of the training features of each side that a distance is measured from, at most."""
PER_CENTER = 4
"""Training items for each mean, at least."""
ROUNDS = 10
"""Of k-means."""


class Features(NamedTuple):
    """What familiarity goes by, (n, W)."""

    values: np.ndarray
    of_means: bool

    @staticmethod
    def of(inputs: Any, g: Gaussian | ArrayGaussian) -> Features:
        """The inputs of an encoder's head if they are features, or else the means of its
        Gaussians, as of a network that takes pixels or words."""
        if getattr(inputs, "ndim", None) == 2:
            return Features(np.asarray(inputs, np.float32), of_means=False)
        return Features.of_gaussians(g)

    @staticmethod
    def of_gaussians(g: Gaussian | ArrayGaussian) -> Features:
        mean = (g.numpy() if isinstance(g, Gaussian) else g).mean
        return Features(
            mean.astype(np.float32).reshape(len(mean), int(np.prod(mean.shape[1:]))), of_means=True
        )


@dataclass(frozen=True)
class Words:
    """In how many training captions each word stands, in its base form; rare ones are left out.

    >>> words = Words.of(["two dogs", "a dog", "a dog in snow", "deep snow"])
    >>> words.counts, words.meant("snwo")
    ({'dog': 3, 'snow': 2}, 'snow')
    >>> [round(words.usual(text), 2) for text in ("a dog", "snow", "a dog in the snow", "of the")]
    [1.0, 0.4, 0.77, 0.0]
    """

    counts: Mapping[str, int] = field(default_factory=dict)

    @staticmethod
    def of(captions: Sequence[str], least: int = 2) -> Words:
        counts: dict[str, int] = {}
        for caption in captions:
            for word in content_words(caption):
                counts[word] = counts.get(word, 0) + 1
        return Words({word: n for word, n in counts.items() if n >= least})

    def __contains__(self, word: str) -> bool:
        return base(word.lower()) in self.counts

    def __len__(self) -> int:
        return len(self.counts)

    def usual(self, text: str) -> float:
        """How usual the content words of a text are, as a p-value; 0 if it has none. That of a word
        is the share of the words of training captions that are no more frequent; Fisher's
        −Σ_w ln p_w joins them, so that of many words one may be rare, of two not both."""
        each = [self._share(self.counts.get(word, 0)) for word in content_words(text)]
        x = -float(np.log(each).sum())
        return float(np.exp(-x) * sum(x**k / factorial(k) for k in range(len(each))))

    def _share(self, count: int) -> float:
        values, below = self._ranked
        at = int(np.searchsorted(values, max(count, values[0]), "right"))
        return float(below[at - 1] / below[-1])

    @cached_property
    def _ranked(self) -> tuple[np.ndarray, np.ndarray]:
        values = np.sort(np.array(list(self.counts.values()) or [1]))
        return values, np.cumsum(values)

    def meant(self, word: str) -> str | None:
        """The word that was probably meant by one that is not known."""
        return spelling(word, self.counts)


@dataclass(frozen=True, eq=False)
class Familiarity:
    """The distance to the nearest of some means of training features, against that of items that
    were held out. Features have unit length; the means of Gaussians, which stand for them if a
    network takes pixels or words, stay as they are.

    A text is judged by its words too: Fisher's ln p + ln p′ of the distance and of how usual its
    words are (``Words.usual``), again against held-out queries. So neither one odd word nor an
    unusual sentence of ordinary words is unfamiliar, but both together are.

    Args:
        centers: (K, W), k-means of training features.
        held_out: (m), the distances of items that were held out, ascending.
        usual: (m), how usual their words are, ascending; none for images.
        joined: (m), the sums of both logarithms, ascending.
        of_means: whether the features are the means of Gaussians.
    """

    centers: np.ndarray
    held_out: np.ndarray
    usual: np.ndarray | None = None
    joined: np.ndarray | None = None
    of_means: bool = False

    @staticmethod
    def fit(
        seen: Features, held_out: Features, centers: int, usual: Sequence[float] | None = None
    ) -> Familiarity:
        """From training features and those of held-out items, with how usual the words of each are
        if they are texts."""
        most = min(centers, max(1, len(seen.values) // PER_CENTER))
        means = _k_means(_placed(seen), most)
        plain = Familiarity(means.astype(np.float16), np.zeros(0), of_means=seen.of_means)
        far = plain.distance(held_out)
        plain = replace(plain, held_out=np.sort(far).astype(np.float32))
        if usual is None:
            return plain
        both = replace(plain, usual=np.sort(np.array(usual, np.float32)))
        return replace(both, joined=np.sort(both._logarithms(far, usual)).astype(np.float32))

    def distance(self, features: Features) -> np.ndarray:
        """(n), Euclidean, to the nearest mean."""
        x, centers = _placed(features), self._centers
        squares = np.vecdot(centers, centers) / 2
        near = [
            (part @ centers.T - squares).max(1)
            for part in (x[start : start + 4096] for start in range(0, len(x), 4096))
        ]
        far = np.maximum(np.vecdot(x, x) - 2 * np.concatenate(near), 0)
        return np.sqrt(far, dtype=np.float64)

    def p_value(
        self, features: Features, usual: Sequence[float] | None = None
    ) -> np.ndarray | None:
        """(n), the share of held-out items that are at least as strange; near 0 is unlike all.
        ``None`` for features of another kind.

        Args:
            usual: how usual the words of each text are; without, its distance alone counts.
        """
        kind = features.of_means, features.values.shape[1]
        if kind != (self.of_means, self.centers.shape[1]):
            return None
        far = self.distance(features)
        if self.joined is None or self.usual is None or usual is None:
            return self._far(far)
        return _share(self.joined, self._logarithms(far, usual).astype(np.float32))

    def _far(self, distance: np.ndarray) -> np.ndarray:
        return _share(-self.held_out[::-1], -distance.astype(np.float32))

    def _logarithms(self, distance: np.ndarray, usual: Sequence[float]) -> np.ndarray:
        assert self.usual is not None
        rare = _share(self.usual, np.asarray(usual, np.float32))
        return np.asarray(np.log(self._far(distance)) + np.log(rare))

    @cached_property
    def _centers(self) -> np.ndarray:
        return self.centers.astype(np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """What is stored: the means in float16."""
        stored = {name: getattr(self, name) for name in _STORED}
        given = {name: a for name, a in stored.items() if a is not None}
        return {**given, "of_means": np.array(self.of_means)}

    @staticmethod
    def from_arrays(stored: Mapping[str, np.ndarray]) -> Familiarity:
        centers, held_out = stored["centers"], stored["held_out"]
        words = stored.get("usual"), stored.get("joined")
        return Familiarity(centers, held_out, *words, bool(stored["of_means"]))


_STORED = ("centers", "held_out", "usual", "joined")


def _placed(features: Features) -> np.ndarray:
    """Features where distances are measured: on the unit sphere."""
    return features.values if features.of_means else normalized(features.values)


def _share(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(n), the share of ascending known values up to each value, the value itself included."""
    return np.asarray((1 + np.searchsorted(known, values, "right")) / (1 + len(known)))


def _k_means(values: np.ndarray, k: int) -> np.ndarray:
    """k means of vectors, from evenly chosen ones; of unit length if all vectors are."""
    x, normalize = torch.from_numpy(values), torch.nn.functional.normalize
    unit = bool(torch.allclose(x.norm(dim=1), torch.ones(len(x)), atol=1e-4))
    centers = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:k]]
    for _ in range(ROUNDS):
        nearest = torch.cat([torch.cdist(part, centers).argmin(1) for part in x.split(4096)])
        n = torch.bincount(nearest, minlength=len(centers))[:, None]
        total = torch.zeros_like(centers).index_add_(0, nearest, x) / n.clamp_min(1)
        centers = torch.where(n == 0, centers, normalize(total, dim=1) if unit else total)
    return centers.numpy()
