"""Uncertainty put on a frozen pair of encoders: the published methods behind one interface.

Each method says how unsure an embedding is and leaves the embedding alone, so that results keep
the order of the encoders bit for bit. ``fit`` learns from training pairs: in closed form, or by
gradient steps on a loss of the method's own (``loss``). Ours, a head for the log-variance trained
by the ranking loss of a recipe, is ``Probabilistic`` on a frozen encoder and needs nothing here.

Facts were read in the official codes: ExplainableML/ProbVLM, li-ju666/asymvlm, AaltoML/BayesVLM.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize, softplus

from gaussmatch.core.gaussian import Gaussian, Side
from gaussmatch.core.losses import sum_of
from gaussmatch.models.encoders.adapter import Standardize, head

OURS = "ours"
"""The method without a class here: heads trained by the recipe's similarity and loss."""


class Sizes(NamedTuple):
    """What a method is made with.

    Args:
        side: whose embeddings.
        dim: D.
        inner: width of what enters the last linear layer of the encoder, or D.
        hidden, dropout: of a method that learns networks.
        reference: embeddings of the other side that a method compares with.
    """

    side: Side
    dim: int
    inner: int
    hidden: int
    dropout: float
    reference: int


class Method(nn.Module, ABC):
    """Embeddings of a side (n, D), of any length → ln σ² of their directions, (n, D) or (n, 1)."""

    learns = False
    """Whether it has a ``loss`` to minimize (``Learned``); else ``fit`` is all."""

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        self.side, self.dim = of.side, of.dim

    def fit(self, own: Tensor, inner: Tensor, other: Tensor) -> None:
        """Learn in closed form from training pairs.

        Args:
            own: (n, D), embeddings of this side, as they are before an L2-norm.
            inner: (n, inner), see ``Posthoc``.
            other: (n, D), their partners.
        """

    @abstractmethod
    def forward(self, embedding: Tensor, inner: Tensor) -> Tensor: ...


class Learned(Method):
    """A method whose network learns by gradient steps."""

    learns = True

    @abstractmethod
    def loss(self, own: Tensor, other: Tensor, negative: Bool[Tensor, "n n"]) -> Tensor:
        """Of this side's network in a batch of pairs; ``negative`` is own × other."""


class ProbVLM(Learned):
    """A generalized Gaussian around each embedding z (Upadhyay et al., ICCV 2023). A network
    rebuilds z as μ̂ and says with which scale α and shape β each dimension is missed:

        −ln p(z) = (|z − μ̂|/α)^β − ln β/α + ln Γ(1/β),   σ² = α² Γ(3/β)/Γ(1/β)

    The loss is |z − μ̂| + 0.05 · (−ln p), and 1e-4 times the same for the partner's embedding. The
    published code writes the residual as β·|z − μ̂|/α; this is the density of the paper. Its
    variance over dropout masks is left out: a repeated query must get the same answer.
    """

    WEIGHT, CROSS = 0.05, 1e-4

    def __init__(self, of: Sizes) -> None:
        super().__init__(of)
        d, hidden = of.dim, of.hidden
        self.trunk = nn.Sequential(
            nn.Linear(d, hidden), nn.ReLU(), nn.Dropout(of.dropout), nn.Linear(hidden, d)
        )
        self.mean, self.scale, self.shape = (
            nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(3)
        )

    def density(self, embedding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """μ̂, ln α and β. Embeddings have unit length, so that a residual is of order D^−½."""
        x = embedding + self.trunk(embedding)
        log_alpha = self.scale(x) - 0.5 * math.log(self.dim)
        return self.mean(x), log_alpha.clamp(-12, 3), 0.5 + softplus(self.shape(x)).clamp_max(4)

    def loss(self, own: Tensor, other: Tensor, negative: Tensor) -> Tensor:
        mean, log_alpha, beta = self.density(own)
        return sum_of(
            weight * ((mean - z).abs() + self.WEIGHT * nll(z - mean, log_alpha, beta)).mean()
            for weight, z in ((1.0, own), (self.CROSS, other))
        )

    def forward(self, embedding: Tensor, inner: Tensor) -> Tensor:
        _, log_alpha, beta = self.density(normalize(embedding, dim=-1))
        return 2 * log_alpha + torch.lgamma(3 / beta) - torch.lgamma(1 / beta)


def nll(residual: Tensor, log_alpha: Tensor, beta: Tensor) -> Tensor:
    """−ln of the generalized Gaussian density, up to ln 2.

    >>> x = torch.tensor([0.3, -1.2])            # β = 2, α = √2: the standard normal
    >>> a, b = torch.full((2,), 0.5 * math.log(2)), torch.full((2,), 2.0)
    >>> nll(x, a, b) + math.log(2) + torch.distributions.Normal(0.0, 1.0).log_prob(x)
    tensor([0., 0.])
    """
    apart = (residual.abs().clamp_min(1e-6).log() - log_alpha).clamp(-9, 7)
    power = (beta * apart).clamp_max(7).exp()
    return power - beta.log() + log_alpha + torch.lgamma(1 / beta)


class AsymVLM(Learned):
    """Texts as power-spherical distributions, images as points (Ju et al., ICCV 2025). A network
    gives η of a text, κ = ‖η‖ its concentration and μ = η/κ its direction:

        ln p(x) = κ ln(1 + μ·x) − ln C(κ),
        ln C = (a + b) ln 2 + ln Γ(a) − ln Γ(a + b) + b ln π,   b = (D − 1)/2,   a = b + κ

    trained by InfoNCE both ways on T·ln p. σ² = 1/κ; all images have the same.
    """

    def __init__(self, of: Sizes) -> None:
        super().__init__(of)
        self.learns = of.side == "captions"
        if self.learns:
            d, hidden = of.dim, of.hidden
            layers = [nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
            self.network = nn.Sequential(*layers, nn.Linear(hidden, d))
            self.temperature = nn.Parameter(torch.tensor(1.0))

    def loss(self, own: Tensor, other: Tensor, negative: Tensor) -> Tensor:
        eta = self.network(own)
        logits = self.temperature * log_power_spherical(eta, other)
        own_pair = torch.eye(len(own), dtype=torch.bool, device=own.device)
        logits = logits.masked_fill(~(negative | own_pair), -torch.inf)
        at = torch.arange(len(own), device=own.device)
        return (cross_entropy(logits, at) + cross_entropy(logits.T, at)) / 2

    def forward(self, embedding: Tensor, inner: Tensor) -> Tensor:
        if not self.learns:
            return embedding.new_zeros(len(embedding), 1)
        eta: Tensor = self.network(normalize(embedding, dim=-1))
        return -eta.norm(dim=-1, keepdim=True).log()


def log_power_spherical(eta: Float[Tensor, "n d"], points: Float[Tensor, "m d"]) -> Tensor:
    """(n, m), ln density of unit points under power-spherical distributions with η = κμ.

    >>> around = torch.linspace(0, 2 * math.pi, 1001)[:-1]                # it integrates to one
    >>> circle = torch.stack([around.cos(), around.sin()], 1)
    >>> density = log_power_spherical(torch.tensor([[0.0, 3.0]]), circle).exp()
    >>> round(float(density.mean() * 2 * math.pi), 4)
    1.0
    """
    kappa = eta.norm(dim=-1, keepdim=True)
    b = (eta.shape[-1] - 1) / 2
    a = b + kappa
    log_c = (a + b) * math.log(2) + torch.lgamma(a) - torch.lgamma(a + b) + b * math.log(math.pi)
    cosine = (eta / kappa.clamp_min(1e-12)) @ points.T
    return kappa * torch.log1p(cosine.clamp_min(-1 + 1e-6)) - log_c


class BayesVLM(Method):
    """Laplace on the last projection g = Wφ (Baumann et al., 2024): with the Kronecker-factored
    curvature of InfoNCE, the variance of dimension d is

        σ_d² = (φᵀA⁻¹φ) · (B⁻¹)_dd / ‖g‖²,   A = √n E[φφᵀ] + √λ I,   B = √n E[∂²ℓ/∂g²] + √λ I

    large for what is unlike the training data (epistemic), whatever it means. The cosine sees the
    direction of g alone, so that a short g is the less certain one. λ maximizes the
    marginal likelihood. φ is what enters the encoder's last linear layer; of embeddings that are
    given without their encoder it is the embedding, and W = I.
    """

    a_inverse: Tensor
    log_b: Tensor
    SOURCES, TARGETS = 256, 1024

    def __init__(self, of: Sizes) -> None:
        super().__init__(of)
        self.register_buffer("a_inverse", torch.eye(of.inner))
        self.register_buffer("log_b", torch.zeros(of.dim))

    def fit(self, own: Tensor, inner: Tensor, other: Tensor) -> None:
        n, phi = len(own), inner.double()
        a, b = phi.T @ phi / n, curvature(own, other, self.SOURCES, self.TARGETS).double()
        (values_a, vectors), (values_b, basis) = torch.linalg.eigh(a), torch.linalg.eigh(b)
        both = values_a.clamp_min(0) * n**0.5, values_b.clamp_min(0) * n**0.5
        weight = float(torch.linalg.lstsq(phi, own.double()).solution.square().sum())
        root = math.sqrt(prior_precision(*both, weight))
        self.a_inverse.copy_(vectors @ torch.diag(1 / (both[0] + root)) @ vectors.T)
        self.log_b.copy_((basis.square() / (both[1] + root)).sum(1).log())

    def forward(self, embedding: Tensor, inner: Tensor) -> Tensor:
        lever = ((inner @ self.a_inverse) * inner).sum(-1, keepdim=True)
        length = embedding.square().sum(-1, keepdim=True)
        return lever.clamp_min(1e-30).log() + self.log_b - length.clamp_min(1e-30).log()


def curvature(own: Tensor, other: Tensor, sources: int, targets: int) -> Float[Tensor, "d d"]:
    """E[∂²ℓ/∂g²] of InfoNCE over embeddings g: P (Yᵀ(diag p − ppᵀ)Y) P / (τ‖g‖)², with the unit
    targets Y, their softmax p and P the projection off g, a mean over some sources."""
    y, tau = normalize(other[_even(len(other), targets)], dim=-1), temperature(own, other)
    total = own.new_zeros(own.shape[-1], own.shape[-1])
    some = own[_even(len(own), sources)]
    for g in some:
        length = g.norm()
        u = g / length
        p = (y @ u / tau).softmax(0)
        off = y - (y @ u)[:, None] * u
        center = p @ off
        total += ((off * p[:, None]).T @ off - torch.outer(center, center)) / (tau * length) ** 2
    return total / len(some)


def prior_precision(a: Tensor, b: Tensor, weight: float) -> float:
    """λ with the greatest marginal likelihood of a Laplace approximation with Kronecker factors:

        ½ P ln λ − ½ λ‖W‖² − ½ ln det((A + √λ I) ⊗ (B + √λ I))

    from the eigenvalues of both factors and ‖W‖², on a grid of a hundred values.
    """
    grid = torch.logspace(-6, 6, 100, dtype=torch.float64)
    root = grid.sqrt()[:, None]
    log_det = len(b) * (a + root).log().sum(1) + len(a) * (b + root).log().sum(1)
    value = len(a) * len(b) * grid.log() - grid * weight - log_det
    return float(grid[value.argmax()])


class Reference(Method):
    """What needs no training: an embedding against a fixed sample of the other side's training
    embeddings, r₁ … r_R, with p = softmax(cos(e, r)/τ); τ is the likeliest for training pairs."""

    others: Tensor
    count: Tensor
    tau: Tensor

    def __init__(self, of: Sizes) -> None:
        super().__init__(of)
        self.register_buffer("others", torch.zeros(of.reference, of.dim))
        self.register_buffer("count", torch.tensor(of.reference))
        self.register_buffer("tau", torch.tensor(1.0))

    def fit(self, own: Tensor, inner: Tensor, other: Tensor) -> None:
        distinct = normalize(other, dim=-1).unique(dim=0)  # an image has several captions
        count = min(len(distinct), len(self.others))
        self.count.fill_(count)
        self.others[:count] = distinct[_even(len(distinct), count)]
        self.tau.fill_(temperature(own, other))

    def forward(self, embedding: Tensor, inner: Tensor) -> Tensor:
        return self.unsure(normalize(embedding, dim=-1))[:, None]

    @abstractmethod
    def unsure(self, unit: Tensor) -> Tensor:
        """ln σ² (n) of unit embeddings."""

    def log_p(self, unit: Tensor) -> Tensor:
        return (self.cosines(unit) / self.tau).log_softmax(-1)

    def cosines(self, unit: Tensor) -> Tensor:
        return unit @ self.others[: int(self.count)].T


class BestScore(Reference):
    """ln σ² = −max_r cos(e, r): nothing near means unsure (uCLIP's first baseline)."""

    def unsure(self, unit: Tensor) -> Tensor:
        return -self.cosines(unit).amax(-1)


class Perplexity(Reference):
    """ln σ² = −Σ p ln p: how many items of the other side share the probability."""

    def unsure(self, unit: Tensor) -> Tensor:
        log_p = self.log_p(unit)
        return -(log_p.exp() * log_p).sum(-1)


class Perturbation(Reference):
    """σ² = the mean KL(p ‖ p′) over fixed dropout masks of the embedding: an answer that changes
    when a part of the embedding is missing is not sure (uCLIP's consistency)."""

    MASKS, KEPT = 8, 0.8

    def unsure(self, unit: Tensor) -> Tensor:
        dice = torch.Generator().manual_seed(0)
        masks = torch.rand(self.MASKS, self.dim, generator=dice).to(unit) < self.KEPT
        log_p = self.log_p(unit)
        p = log_p.exp()
        moved = [
            (p * (log_p - self.log_p(normalize(unit * mask, dim=-1)))).sum(-1) for mask in masks
        ]
        return (torch.stack(moved).mean(0).clamp_min(0) + 1e-6).log()


class FromCaptions(Method):
    """How many photos a text fits, learned from captions alone, without a photo
    (``learn.training.posthoc.adapt_to_captions``). A head takes the centered, unit embedding u and
    how many of some captions r are near it, softly: ln Σ_r exp(κ (u·r − 1)), for two κ. All images
    have the same variance."""

    SCALE, SHARPNESS, WEIGHT = 10.0, (20.0, 8.0), 3.0
    others: Tensor
    middle: Tensor
    spread: Tensor

    def __init__(self, of: Sizes) -> None:
        super().__init__(of)
        if of.side == "captions":
            self.standardize = Standardize(of.dim, self.SCALE)
            self.register_buffer("others", torch.zeros(of.reference, of.dim))
            self.register_buffer("middle", torch.zeros(len(self.SHARPNESS)))
            self.register_buffer("spread", torch.ones(len(self.SHARPNESS)))
            self.network = head(of.dim + len(self.SHARPNESS), 1, of.hidden, of.dropout)

    def inputs(self, embedding: Tensor, same: Bool[Tensor, "n r"] | None = None) -> Tensor:
        """What the head takes; captions of the ``same`` photo are not counted."""
        z = self.standardize(embedding)
        cosines = z @ self.others.T / self.SCALE
        if same is not None:
            cosines = cosines.masked_fill(same, -1.0)
        near = torch.stack([(k * (cosines - 1)).logsumexp(-1) for k in self.SHARPNESS], -1)
        return torch.cat([z, self.WEIGHT * (near - self.middle) / self.spread], -1)

    def refer(self, captions: Tensor, image_of: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Take what is near from captions (n, D) of photos; gives the inputs of these, and of other
        texts (n, D) made of them."""
        some = _even(len(captions), len(self.others))
        self.standardize.fit(captions, center_only=True)
        self.others.copy_(self.standardize(captions[some]) / self.SCALE)
        same = image_of[:, None] == image_of[some][None]
        own, made = (self.inputs(texts, same) for texts in (captions, others))
        near = torch.cat([own, made])[:, self.dim :] / self.WEIGHT
        self.middle.copy_(near.mean(0))
        self.spread.copy_(near.std(0).clamp_min(1e-6))
        return self.inputs(captions, same), self.inputs(others, same)

    def forward(self, embedding: Tensor, inner: Tensor) -> Tensor:
        if self.side == "images":
            return embedding.new_zeros(len(embedding), 1)
        return self.network(self.inputs(embedding))


METHODS: dict[str, Callable[[Sizes], Method]] = {
    "probvlm": ProbVLM,
    "asymvlm": AsymVLM,
    "bayesvlm": BayesVLM,
    "best-score": BestScore,
    "perplexity": Perplexity,
    "perturbation": Perturbation,
    "captions": FromCaptions,
}
"""Every method of ``model.posthoc.method`` beside ``ours``; a new one is a class and a line."""


def temperature(own: Tensor, other: Tensor, most: int = 1024) -> float:
    """τ under which training pairs are likeliest, softmax(cos/τ) among each other.

    >>> x = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    >>> temperature(x, x) < temperature(x, x + torch.randn(200, 16))
    True
    """
    some = _even(len(own), most)
    a, b = (normalize(side[some], dim=-1) for side in (own, other))
    cosines, at = a @ b.T, torch.arange(len(some))
    same = (cosines.diagonal()[:, None] == cosines) & ~torch.eye(len(some), dtype=torch.bool)
    cosines = cosines.masked_fill(same, -torch.inf)  # another caption of the same image, or a copy
    grid = torch.logspace(-2.5, 0, 60)
    return float(grid[torch.stack([cross_entropy(cosines / t, at) for t in grid]).argmin()])


def _even(total: int, count: int) -> Tensor:
    """Evenly spread positions; a small total repeats some."""
    return torch.linspace(0, total - 1, count).long()


class Posthoc(nn.Module):
    """A frozen point encoder, and a method that says how unsure each of its points is.

    Args:
        encoder: its output, or with ``given`` the published embedding that it takes in, is the
            mean, unchanged.
        given: see ``model.adapter.mean``.
        sizes: hidden, dropout and reference of ``Sizes``.
    """

    def __init__(
        self, encoder: nn.Module, method: str, side: Side, *, given: bool, dim: int, **sizes: Any
    ) -> None:
        super().__init__()
        self.encoder, self._given, self.dim = encoder, given, dim
        self._projection, inner = (None, dim) if given else _projection(encoder, dim)
        self.method = METHODS[method](Sizes(side, dim, inner, **sizes))
        encoder.requires_grad_(False)
        if given:
            encoder.head = nn.Sequential()  # nothing comes after the embedding

    def train(self, mode: bool = True) -> Posthoc:
        super().train(mode)
        self.encoder.eval()  # its dropout would move the means
        return self

    def points(self, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        """The means (n, D), the same before an L2-norm, and what enters the last linear layer of
        the encoder, (n, inner)."""
        with torch.no_grad():
            if self._projection is None:
                mean = getattr(self.encoder, "embedding" if self._given else "__call__")(*args)
                return mean, mean, mean
            seen: list[tuple[Tensor, Tensor]] = []
            last = self.encoder.get_submodule(self._projection)
            handle = last.register_forward_hook(lambda _, x, y: seen.append((y, x[0])))
            try:
                mean = self.encoder(*args)
            finally:
                handle.remove()
            return mean, *seen[-1]

    def forward(self, *args: Any) -> Gaussian:
        mean, raw, inner = self.points(*args)
        return Gaussian(mean, self.method(raw, inner))


def _projection(encoder: nn.Module, dim: int) -> tuple[str | None, int]:
    """The name of the last layer of the embedding function and the width of its input, if it is
    linear; or else none, and D."""
    part = str(encoder.part)
    name, last = [
        (name, layer)
        for name, layer in encoder.get_submodule(part).named_modules()
        if not [*layer.children()]
    ][-1]
    if not isinstance(last, nn.Linear):
        return None, dim
    return ".".join(filter(None, (part, name))), last.in_features
