"""A model: an image encoder, a text encoder and the similarity between them (``Matcher``);
trained and ready to use, pictures and captions in, Gaussians out (``Model``)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from gaussmatch.core.gaussian import Gaussian, Side, check_gaussian
from gaussmatch.core.losses import LOSSES, ScoreLoss
from gaussmatch.core.similarities import SIMILARITIES, Similarity, similarity
from gaussmatch.core.similarities.lifted import Divergence
from gaussmatch.data.pairs import Pairs, image_batches
from gaussmatch.data.pictures import open_picture
from gaussmatch.models.encoders.adapter import Adapter, FrozenTexts, GivenMean
from gaussmatch.models.encoders.backbone import Backbone
from gaussmatch.models.encoders.base import ImageTransform, TextEncoder
from gaussmatch.models.encoders.onnx import OnnxImages, OnnxTexts
from gaussmatch.models.encoders.posthoc import Posthoc
from gaussmatch.models.encoders.pretrained.base import Transform
from gaussmatch.models.encoders.probabilistic import Probabilistic
from gaussmatch.models.encoders.systems import SYSTEMS
from gaussmatch.models.features import featurizer, prepared_texts
from gaussmatch.models.recipe import LossRecipe, ModelRecipe, Recipe
from gaussmatch.models.texts import Reading, Tokenizer, UnknownWordsError

T = TypeVar("T")


class Matcher(nn.Module):
    """Two encoders into one joint space. Point encoders give Gaussians without variance, and
    those with several embeddings an item a batch (n, K). A similarity that learns is trained and
    saved with them.

    ``heads`` are modules that only the loss uses, such as a caption generator or a loss with a
    learned scale (``"loss"``); they are trained and saved with the rest.
    """

    def __init__(
        self,
        image: nn.Module,
        text: nn.Module,
        similarity: Similarity,
        heads: dict[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.image, self.text, self.similarity = image, text, similarity
        self.heads = nn.ModuleDict(heads or {})

    def encode_images(self, images: Tensor) -> Gaussian:
        return _gaussian(self.image(images), "images")

    def encode_texts(self, texts: Any) -> Gaussian:
        """A batch that the text encoder collated, as Gaussians."""
        return _gaussian(self.text(texts), "captions")

    def forward(self, images: Tensor, texts: Any) -> tuple[Gaussian, Gaussian]:
        return self.encode_images(images), self.encode_texts(texts)

    def part(self, name: str) -> nn.Module:
        """An encoder (``image``, ``text``) or a part of it, such as ``image.graph``, whether it
        was adapted or not."""
        side, _, inner = name.partition(".")
        encoder = self.get_submodule(side)
        point = encoder.encoder if isinstance(encoder, Probabilistic | Posthoc) else encoder
        return point.get_submodule(inner)

    @property
    def image_transform(self) -> ImageTransform | None:
        """That of the image encoder; ``None`` if its features are made outside the model."""
        if self.backbone is not None:
            return self.backbone.view().batch
        return getattr(self.part("image"), "transform", None)

    @property
    def backbone(self) -> Backbone | None:
        """The network inside the image encoder that takes pictures, if it has one."""
        return getattr(self.part("image"), "backbone", None)

    @property
    def text_encoder(self) -> TextEncoder:
        """The point encoder of texts, which owns the tokenizer."""
        encoder = self.part("text")
        assert isinstance(encoder, TextEncoder)
        return encoder


def build(
    recipe: ModelRecipe,
    tokenizer: Tokenizer | None,
    loss: LossRecipe | None = None,
    pixels: Transform | None = None,
) -> Matcher:
    """The network of a recipe, with random weights. A loss with learned parameters becomes one of
    its heads. A probabilistic model is its point model with both encoders adapted; nothing else
    differs.

    Args:
        tokenizer: of its text encoder; ``None`` if that comes with its own.
        pixels: how its backbone, if it has one, makes pixels of pictures.
    """
    system, own = SYSTEMS[recipe.system], getattr(recipe, recipe.system, None)
    width, backbone = _features(recipe)
    if backbone is not None:
        backbone.pixels = pixels
    fields = vars(recipe) | (vars(own) if is_dataclass(own) else {})
    fields |= {"tokenizer": tokenizer, "feature_dim": width, "backbone": backbone}
    image, text = (with_fields(make, fields) for make in (system.image, system.text))
    heads = {name: with_fields(make, fields) for name, make in system.heads.items()}
    fitted = recipe.posthoc.fitted  # by a loss of its own
    if loss is not None and not fitted and isinstance(learned := loss_of(loss), nn.Module):
        heads["loss"] = learned
    if recipe.probabilistic:
        image, text = (_probabilistic(encoder, recipe) for encoder in (image, text))
    elif fitted:
        image, text = _posthoc(image, "images", recipe), _posthoc(text, "captions", recipe)
    made = {name: head for name, head in heads.items() if head is not None}
    return Matcher(image, text, _similarity(recipe), made)


def with_fields(make: Callable[..., T], fields: Mapping[str, Any]) -> T:
    """Call a class with those of some fields that its constructor has arguments for.

    >>> with_fields(nn.Linear, {"in_features": 2, "out_features": 3, "epochs": 5})
    Linear(in_features=2, out_features=3, bias=True)
    """
    wanted = signature(make).parameters
    return make(**{name: value for name, value in fields.items() if name in wanted})


def loss_of(recipe: LossRecipe) -> ScoreLoss:
    """The loss over scores that a recipe names, with its fields as arguments."""
    return with_fields(LOSSES[recipe.name], vars(recipe))


def exported(
    recipe: ModelRecipe, tokenizer: Tokenizer | None, images: Path, texts: Path
) -> Matcher:
    """The network of a recipe, trained, whose encoders are files in ONNX."""
    image, text = OnnxImages(images), OnnxTexts(texts, tokenizer)
    matcher = Matcher(image, text, _similarity(recipe))
    if isinstance(matcher.similarity, nn.Module):  # one that learned
        learned = image.network.notes["similarity"]
        matcher.similarity.load_state_dict({k: torch.tensor(v) for k, v in learned.items()})
    return ranking(recipe, matcher)


def _similarity(recipe: ModelRecipe) -> Similarity:
    settings: dict[str, Any] = {}
    if recipe.similarity == "match_prob":
        pcme = recipe.pcme
        settings = {"samples": pcme.samples, "scale": pcme.scale, "shift": pcme.shift}
    elif recipe.variance_relative and issubclass(SIMILARITIES[recipe.similarity], Divergence):
        settings = {"per_dimension": True}
    return similarity(recipe.similarity, **settings)


def ranking(recipe: ModelRecipe, matcher: Matcher) -> Matcher:
    """The network as a trained model ranks with it: by the cosine of the means if those are
    given, or of a frozen model, whose variances the similarity of the recipe has trained."""
    if recipe.ranks_by_mean:
        matcher.similarity = similarity("cosine")
    return matcher


def _probabilistic(encoder: nn.Module, recipe: ModelRecipe) -> Probabilistic:
    settings: dict[str, Any] = {
        "shape": recipe.shape,
        "bound": recipe.bound,
        "variance_range": recipe.variance_range,
        "relative": recipe.variance_relative,
    }
    if _is_given(encoder, recipe):
        return GivenMean(encoder, **settings)
    frozen = recipe.ranks_by_mean
    return Probabilistic(encoder, str(encoder.part), frozen=frozen, **settings)


def _posthoc(encoder: nn.Module, side: Side, recipe: ModelRecipe) -> Posthoc:
    settings = dict(vars(recipe.posthoc))
    given = _is_given(encoder, recipe)
    return Posthoc(encoder, settings.pop("method"), side, given=given, dim=recipe.dim, **settings)


def _is_given(encoder: nn.Module, recipe: ModelRecipe) -> TypeGuard[Adapter]:
    """Whether the means are the embeddings that an adapter takes in."""
    return isinstance(encoder, Adapter) and recipe.adapter.mean == "given"


def _features(recipe: ModelRecipe) -> tuple[int, Backbone | None]:
    """The width of the image features, and the backbone that makes them of pictures, if any."""
    if recipe.backbone is not None:
        backbone = Backbone(recipe.backbone, recipe.backbone_norm, recipe.checkpointing)
        return backbone.width, backbone
    if recipe.feature_dim is None:
        raise ValueError("model.feature_dim is not set and no data was given to find it from")
    return recipe.feature_dim, None


def _gaussian(output: Tensor | Gaussian, side: Side) -> Gaussian:
    if isinstance(output, Gaussian):
        return Gaussian(output.mean, output.log_var, side)
    return Gaussian(output, side=side)


Pictures = Sequence[str | os.PathLike[str] | Image.Image] | Tensor | np.ndarray


class UncertaintyWarning(UserWarning):
    """The uncertainty was learned with a similarity under which it means little."""


def _opened(picture: str | os.PathLike[str] | Image.Image) -> Image.Image:
    return picture if isinstance(picture, Image.Image) else open_picture(picture)


class Model:
    """A trained model: pictures and captions in, Gaussians out.

    .. code-block:: python

        model = gm.load("runs/demo/probabilistic")
        images = model.encode_images(["dog.jpg", "cat.jpg"])
        captions = model.encode_texts(["a dog", "a black cat asleep"])
        model.similarity(images, captions)      # 2 × 2, higher is better
        model.uncertainty(captions)             # log det Σ: the vaguer, the higher
    """

    def __init__(self, recipe: Recipe, matcher: Matcher) -> None:
        self.recipe, self.matcher = recipe, matcher.eval()
        self._transform: ImageTransform | None = None

    def __repr__(self) -> str:
        """One line: what was trained, on what.

        ``Model('VSE++ KL', vsepp on scenes, kl, dim=256, 1.2 M parameters)``
        """
        model = self.recipe.model
        size = sum(p.numel() for p in self.matcher.parameters()) / 1e6
        return (
            f"Model({self.recipe.title!r}, {model.system} on {self.recipe.data.name}, "
            f"{model.similarity}, dim={model.dim}, {size:.1f} M parameters)"
        )

    @property
    def reads_text(self) -> bool:
        """Whether it takes words: not if it was adapted to embeddings of an unknown encoder."""
        return self.matcher.text_encoder.reads_text

    @property
    def device(self) -> torch.device:
        """Where it computes; an exported model is on the CPU."""
        return next((p.device for p in self.matcher.parameters()), torch.device("cpu"))

    @property
    def _batch_size(self) -> int:
        """Images at a time: few if whole photos go through a network."""
        photos = self.recipe.model.backbone is not None and self.recipe.data.name != "scenes"
        return 32 if photos else 256

    @torch.inference_mode()
    def encode_images(self, images: Pictures, batch_size: int | None = None) -> Gaussian:
        """Pictures (paths or PIL images), or ready features (n, …), as Gaussians."""
        batch_size = batch_size or self._batch_size
        if isinstance(images, str | os.PathLike | Image.Image):
            images = [images]
        if len(images) == 0:
            raise ValueError("no images to encode")
        parts = []
        for start in range(0, len(images), batch_size):
            chunk = images[start : start + batch_size]
            if not isinstance(chunk, Tensor):
                chunk = torch.from_numpy(
                    chunk if isinstance(chunk, np.ndarray) else self.featurize(chunk)
                )
            if not chunk.isfinite().all():
                bad = int((~chunk.isfinite()).flatten(1).any(1).nonzero()[0])
                raise ValueError(f"the features of image {start + bad} hold a NaN or infinity")
            parts.append(self.matcher.encode_images(chunk.float().to(self.device)).to("cpu"))
        return Gaussian.cat(parts)

    @torch.inference_mode()
    def encode_texts(
        self,
        texts: Sequence[str] | Sequence[Reading] | Tensor | np.ndarray,
        batch_size: int = 512,
        *,
        allow_unknown: bool = False,
    ) -> Gaussian:
        """Captions as Gaussians. A caption without any known word is refused unless allowed.

        To see the unknown words as well, encode what ``read(texts)`` returns. An adapted model
        takes ready embeddings (n, width) too.
        """
        if isinstance(texts, Tensor | np.ndarray):
            rows = np.asarray(texts)
            bad = ~np.isfinite(rows).reshape(len(rows), -1).all(1)
            if bad.any():
                raise ValueError(f"the embedding of text {bad.argmax()} holds a NaN or infinity")
            return self.encode_rows(rows, batch_size)
        return self.encode_rows(self.featurize_texts(texts, allow_unknown=allow_unknown))

    @torch.inference_mode()
    def featurize_texts(
        self, texts: Sequence[str] | Sequence[Reading], *, allow_unknown: bool = False
    ) -> Sequence[Any] | np.ndarray:
        """What ``encode_texts`` makes of texts first, for ``encode_rows``: the embeddings (n, W) of
        a published encoder, or token ids if the network that reads them is a part of the model."""
        texts = [texts] if isinstance(texts, str) else texts
        if not len(texts):
            raise ValueError("no captions to encode")
        unread = iter(self.read([t for t in texts if not isinstance(t, Reading)]))
        read = [t if isinstance(t, Reading) else next(unread) for t in texts]
        for i, reading in enumerate(read):
            if not reading.text.strip():
                raise ValueError(f"caption {i} is empty")
        strange = [] if allow_unknown else [i for i, r in enumerate(read) if not r.known]
        if strange:
            raise UnknownWordsError([r.text for r in read], strange)
        rows = [reading.row for reading in read]
        encoder = self.matcher.text_encoder
        if not isinstance(encoder, FrozenTexts):
            return rows
        parts = [
            encoder.embedding(encoder.collate(rows[start : start + 512]).to(self.device)).cpu()
            for start in range(0, len(rows), 512)
        ]
        return torch.cat(parts).numpy()

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """Texts as the text encoder reads them: tokens, unknown words, whether any is known."""
        return self.matcher.text_encoder.read(texts)

    def unknown_words(self, text: str) -> list[str]:
        """The words that the text encoder does not know; none if it reads parts of words."""
        return self.read([text])[0].unknown

    @property
    def example_text(self) -> str:
        """A text that the model knows, such as a word; empty if it reads none."""
        return self.matcher.text_encoder.tokenizer.example if self.reads_text else ""

    @torch.inference_mode()
    def encode_rows(self, rows: Sequence[Any] | np.ndarray, batch_size: int = 512) -> Gaussian:
        """Texts as ``featurize_texts`` gives them, as Gaussians."""
        collate = self.matcher.text_encoder.collate
        return Gaussian.cat(
            [
                self.matcher.encode_texts(
                    collate(rows[start : start + batch_size]).to(self.device)
                ).to("cpu")
                for start in range(0, len(rows), batch_size)
            ]
        )

    @torch.inference_mode()
    def encode_pairs(
        self, pairs: Pairs, batch_size: int | None = None
    ) -> tuple[Gaussian, Gaussian]:
        """All images and all captions of a split."""
        batches = image_batches(pairs, batch_size or self._batch_size, self.recipe.training.workers)
        images = [self.matcher.encode_images(batch.to(self.device)).to("cpu") for batch in batches]
        rows = prepared_texts(pairs, self.matcher.text_encoder)
        return Gaussian.cat(images), self.encode_rows(rows)

    @torch.no_grad()
    def similarity(self, images: Gaussian, captions: Gaussian, query: Side | None = None) -> Tensor:
        """Scores (n × m) of every image with every caption; higher is better.

        Swapped arguments are refused: KL and others are not symmetric.

        Args:
            query: which side is the query; needed if the model scores each direction
                differently (query_kl).
        """
        check_gaussian(images, "images", encode="model.encode_images(x)")
        check_gaussian(captions, "captions", encode="model.encode_texts(x)")
        if (images.side, captions.side) == ("captions", "images"):
            raise ValueError(
                "the arguments are swapped: similarity(images, captions), and the first holds "
                "captions"
            )
        s = self.matcher.similarity
        return (s if query is None else s.for_query(query)).matrix(images, captions)

    def uncertainty(self, items: Gaussian) -> Tensor:
        """log det Σ of each item: comparable within this model and one modality.

        Warns where the model's similarity gives it little meaning (docs/uncertainty.md).
        """
        note = self.matcher.similarity.uncertainty_note
        learned = self.recipe.model.ranks_by_mean  # beside the ranking
        if note is not None and not items.is_point and not learned:
            warnings.warn(
                f"uncertainty of a model trained with {self.matcher.similarity.name!r}: {note}; "
                "train with query_kl or kl for an uncertainty that separates vague from specific",
                UncertaintyWarning,
                stacklevel=2,
            )
        return items.uncertainty()

    def featurize(self, pictures: Sequence[str | os.PathLike[str] | Image.Image]) -> np.ndarray:
        """What ``encode_images`` makes of pictures first: the features of the network outside the
        model, or pixels where the network is a part of it. (n, …) float32."""
        if self._transform is None:
            own = self.matcher.image_transform
            self._transform = featurizer(self.recipe.data) if own is None else own
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return self._transform([*pool.map(_opened, pictures)])
