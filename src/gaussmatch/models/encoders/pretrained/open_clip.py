"""``open_clip:ARCH[/PRETRAINED]``: both towers of the models of open_clip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from safetensors import SafetensorError
from tokenizers import Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Cutter
from torch import Tensor, nn

from gaussmatch.checks import did_you_mean, extra
from gaussmatch.data import hub
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.pretrained.base import (
    ImageTower,
    Subwords,
    TextTower,
    Transform,
    filled,
    make_importable,
    weights_file,
)


class OpenClipImages(ImageTower):
    """The image tower, unit length."""

    def __init__(self, name: str, place: Path | None) -> None:
        super().__init__()
        model, self._transform = _load(name, place)
        self.name, self.net = f"open_clip:{name}", model.visual
        self.width = _width(model)
        self.freeze()

    def transform(self, picture: Image.Image, whole: bool | None = None) -> Tensor:
        if self.whole if whole is None else whole:
            return self.view(whole=True)(picture)
        return self._transform(picture.convert("RGB"))

    def described(self) -> Transform:
        config = self.net.preprocess_cfg
        size, mode = config["size"], config["resize_mode"]
        high, wide = (size, size) if isinstance(size, int) else size
        if high != wide or mode not in ("shortest", "squash"):
            raise ValueError(
                f"{self.name}: an export has no transform to {high} × {wide} by {mode!r}"
            )
        how = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
        resize = wide if mode == "shortest" else None
        return Transform(wide, tuple(config["mean"]), tuple(config["std"]), resize, how)

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
        cut = _tokenizer(name.partition("/")[0], place)
        inner = getattr(cut, "tokenizer", None)  # one of transformers
        self._length = int(cut.context_length)
        self._padding = 0 if inner is None else int(inner.pad_token_id)
        self._left = getattr(inner, "padding_side", "right") == "left"

        def rows(texts: list[str]) -> list[list[int]]:
            return [self._trimmed(row) for row in cut(texts).tolist()]

        size = cut.vocab_size if inner is None else len(inner)
        self.tokenizer = Subwords(rows, int(size), _definition(cut))
        self.freeze()

    def _trimmed(self, row: list[int]) -> list[int]:
        """Without its padding, which ``forward`` adds."""
        end = -1 if self._left else 1
        row = row[::end]
        while len(row) > 1 and row[-1] == self._padding:
            row.pop()
        return row[::end]

    def forward(self, tokens: Tokens) -> Tensor:
        ids = filled(tokens, self._length, self._padding, self._left)
        return self.net.encode_text(ids, normalize=True)


image, text = OpenClipImages, OpenClipTexts


def clip_words(longest: int) -> Subwords:
    """The tokenizer of OpenAI's CLIP, which cuts texts off at ``longest`` tokens."""
    definition = _definition(_library().tokenizer.SimpleTokenizer(context_length=longest))
    assert definition is not None
    return Subwords.of(definition)


def _tokenizer(architecture: str, place: Path | None) -> Any:
    """The tokenizer of an architecture. One of transformers lies beside the weights, or is of the
    hub; open_clip by itself would ask the hub each time, and wait for it."""
    library = _library()
    config = library.get_model_config(architecture)["text_cfg"]
    repository = config.get("hf_tokenizer_name")
    if not repository:
        return library.get_tokenizer(architecture)
    beside = [] if place is None else [place if place.is_dir() else place.parent]
    held = ("tokenizer.json", "tokenizer_config.json")
    folders = (f for f in (*beside, Path(repository)) if any((f / n).is_file() for n in held))
    return library.tokenizer.HFTokenizer(
        str(next(folders, None) or hub.snapshot(repository, hub.TOKENIZERS)),
        context_length=config.get("context_length", library.tokenizer.DEFAULT_CONTEXT_LENGTH),
        tokenizer_mode=config.get("tokenizer_mode"),
        **config.get("tokenizer_kwargs", {}),
    )


def _definition(cut: Any) -> str | None:
    """A tokenizer of open_clip as one of `tokenizers`, but for what its ``ftfy`` mends beside
    quotes (text in a wrong encoding, HTML entities, wide letters); ``None`` for the few that change
    the ids afterwards."""
    inner = getattr(cut, "tokenizer", None)
    if inner is not None:
        if cut.tokenizer_mode or cut.strip_sep_token or not hasattr(inner, "backend_tokenizer"):
            return None
        made = Cutter.from_str(inner.backend_tokenizer.to_str())
        then = [] if made.normalizer is None else [made.normalizer]
    else:
        ends = [(cut.decoder[i], i) for i in (cut.sot_token_id, cut.eot_token_id)]
        (start, _), (end, _) = ends
        merges = sorted(cut.bpe_ranks, key=cut.bpe_ranks.__getitem__)
        made, then = Cutter(models.BPE(cut.encoder, merges, end_of_word_suffix="</w>")), []
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        made.post_processor = processors.TemplateProcessing(
            f"{start} $A {end}", special_tokens=ends
        )
    library = _library().tokenizer
    cleaning = next(
        steps for name, steps in CLEANING.items() if library.get_clean_fn(name) is cut.clean_fn
    )
    made.normalizer = normalizers.Sequence([*QUOTES, *cleaning, *SPACES, *then])
    made.enable_truncation(int(cut.context_length))
    made.no_padding()
    return str(made.to_str())


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
QUOTES = [
    normalizers.NFC(),
    normalizers.Replace(Regex("[\u02bc\u2018-\u201b]"), "'"),
    normalizers.Replace(Regex("[\u201c-\u201f]"), '"'),
]
SPACES = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
CLEANING: dict[str, list[Any]] = {
    "whitespace": [],
    "lower": [normalizers.Lowercase()],
    "canonicalize": [
        normalizers.Replace("_", " "),
        normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), ""),
        normalizers.Lowercase(),
    ],
}
"""How open_clip cleans texts, by the names of its ``get_clean_fn``."""


def _library() -> Any:
    make_importable()
    with extra("clip", "this encoder"):
        import open_clip
    return open_clip


FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors")
"""What the weights of a model are called in its repository."""
VIEW = ("mean", "std", "interpolation", "resize_mode")
"""What weights say of the transform that they were trained with."""


def _load(name: str, place: Path | None) -> tuple[Any, Any]:
    """Model and transform, with weights of a local file or folder, or of the hub.

    The tag says how weights were trained, also if they are a file: by which activation and which
    transform. By itself open_clip takes the activation of the architecture, and warns.
    """
    library, (architecture, _, tag) = _library(), name.partition("/")
    names = library.list_models()
    if architecture not in names:
        hint = did_you_mean(architecture, names) or "see open_clip.list_models()"
        raise ValueError(f"open_clip has no model {architecture!r}; {hint}")
    tags = library.list_pretrained_tags_by_model(architecture)
    if tag not in tags and (tag or place is None):
        hint = did_you_mean(tag, tags) or f"there are {', '.join(tags) or 'none'}"
        raise ValueError(f"open_clip:{name}: no pretrained weights {tag!r} (ARCH/TAG); {hint}")
    trained = library.get_pretrained_cfg(architecture, tag) if tag else {}
    if place is None:
        repository, _, held = str(trained["hf_hub"]).rpartition("/")
        file = hub.weights(repository, *((Path(held).stem + ".safetensors",) if held else FILES))
    else:
        file = weights_file(place, *FILES)
    if file.suffix != ".safetensors":
        raise ValueError(f"{file}: only .safetensors are loaded")
    inner = library.get_model_config(architecture)["text_cfg"].get("hf_model_name")
    if inner and not hub.is_cached(inner, "config.json"):
        hub.check_reachable(inner)
    try:
        model, _, transform = library.create_model_and_transforms(
            architecture,
            str(file),
            force_quick_gelu=bool(trained.get("quick_gelu")),
            **{f"image_{key}": trained[key] for key in VIEW if key in trained},
        )
    except (AssertionError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(f"{file}: not the weights of open_clip:{name} ({first})") from error
    return model, transform


def _width(model: Any) -> int:
    head = getattr(model, "text_projection", None)
    if isinstance(head, Tensor):
        return int(head.shape[-1])
    return int(model.visual.output_dim)
