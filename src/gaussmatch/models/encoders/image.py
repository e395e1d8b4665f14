"""Images → points: a linear projection of a feature vector, or of a backbone's output."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize


class Linear(nn.Linear):
    """A linear layer as VSE++ starts it: Xavier-uniform weight, zero bias."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)


class Projection(nn.Module):
    """VSE++ image side: features f(i) → linear → L2-norm.

    Args:
        feature_dim: width of the features.
        dim: D.
        backbone: pictures (n, 3, H, W) → features (n, feature_dim), trained end to end ("ft");
            ``None`` when the input is already a feature vector (n, feature_dim).
        normalise: L2-norm of the output.
        normalise_features: L2-norm of the features, before the projection. The official code does
            so with those of its backbone and not with given ones; that is what ``None`` means.

    ``embed`` is f_emb of the paper: the part that ``Probabilistic`` duplicates.
    """

    part = "embed"

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        backbone: nn.Module | None = None,
        normalise: bool = True,
        normalise_features: bool | None = None,
    ) -> None:
        super().__init__()
        self.dim, self.normalise = dim, normalise
        official = backbone is not None
        self.normalise_features = official if normalise_features is None else normalise_features
        self.backbone = backbone
        self.embed = Linear(feature_dim, dim)

    def forward(self, images: Float[Tensor, "n ..."]) -> Float[Tensor, "n d"]:
        features = images if self.backbone is None else self.backbone(images)
        if self.normalise_features:
            features = normalize(features, dim=-1)
        point = self.embed(features)
        return normalize(point, dim=-1) if self.normalise else point
