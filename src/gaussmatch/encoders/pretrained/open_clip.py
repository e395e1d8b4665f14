"""``open_clip:ARCH[/PRETRAINED]``: both towers of the models of open_clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn

from gaussmatch.encoders.base import Tokens
from gaussmatch.encoders.pretrained import hub
from gaussmatch.encoders.pretrained.base import ImageTower, Subwords, TextTower, needs
from gaussmatch.encoders.torchvision_compat import make_importable


class OpenClipImages(ImageTower):
    """The image tower, unit length."""

    def __init__(self, name: str, place: Path | None) -> None:
        super().__init__()
        model, self._transform = _load(name, place)
        self.name, self.net = f"open_clip:{name}", model.visual
        self.width = _width(model)
        self.freeze()

    def transform(self, picture: Image.Image, crop: bool = True) -> Tensor:
        out: Tensor = self._transform(picture.convert("RGB"))
        return out

    def forward(self, pictures: Tensor) -> Tensor:
        return nn.functional.normalize(self.net(pictures), dim=-1)


class OpenClipTexts(TextTower):
    """The text tower, unit length. Texts are padded to the context length, as in training."""

    def __init__(self, name: str, place: Path | None) -> None:
        super().__init__()
        model, _ = _load(name, place)
        self.name, self.width = f"open_clip:{name}", _width(model)
        model.visual = nn.Identity()
        self.net = model
        cut = _library().get_tokenizer(name.partition("/")[0])
        self.tokenizer = Subwords(lambda texts: cut(texts).tolist(), getattr(cut, "vocab_size", 0))
        self.freeze()

    def forward(self, tokens: Tokens) -> Tensor:
        out: Tensor = self.net.encode_text(tokens.ids, normalize=True)
        return out


def image(name: str, place: Path | None) -> OpenClipImages:
    return OpenClipImages(name, place)


def text(name: str, place: Path | None) -> OpenClipTexts:
    return OpenClipTexts(name, place)


def _library() -> Any:
    make_importable()
    try:
        import open_clip
    except ImportError as error:
        raise needs("open_clip", "clip", error) from error
    return open_clip


def _load(name: str, place: Path | None) -> tuple[Any, Any]:
    """Model and transform, with weights of a local file, or of the hub."""
    library, (architecture, _, tag) = _library(), name.partition("/")
    if architecture not in library.list_models():
        raise ValueError(f"open_clip has no model {architecture!r}; see open_clip.list_models()")
    if place is not None:
        if place.suffix != ".safetensors" or not place.is_file():
            raise FileNotFoundError(f"{place}: no .safetensors file of open_clip:{name}")
        weights = str(place)
    else:
        if tag not in library.list_pretrained_tags_by_model(architecture):
            known = ", ".join(library.list_pretrained_tags_by_model(architecture)) or "none"
            raise ValueError(f"open_clip:{name}: pretrained weights of {architecture} are {known}")
        repository = library.get_pretrained_cfg(architecture, tag).get("hf_hub", "").strip("/")
        files = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")
        if not repository or not hub.is_cached(repository, *files):
            hub.check_reachable(repository or f"open_clip:{name}")
        weights = tag
    model, _, transform = library.create_model_and_transforms(architecture, weights)
    return model, transform


def _width(model: Any) -> int:
    head = getattr(model, "text_projection", None)
    if isinstance(head, Tensor):
        return int(head.shape[-1])
    return int(model.visual.output_dim)
