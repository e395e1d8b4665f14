"""Networks in ONNX: written from torch, checked against it, and run by onnxruntime.

Three things use it: ``gaussmatch export`` (a whole model as two files), frozen encoders, which run
about twice as fast so on a CPU, and ``onnx:FILE`` as an encoder.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from gaussmatch.checks import extra
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.files import atomic, made_once, read_json
from gaussmatch.models.encoders.base import (
    UNREAD,
    ImageTransform,
    TextEncoder,
    Tokens,
    pad,
)
from gaussmatch.models.encoders.pretrained.base import (
    ImageTower,
    TextTower,
    Transform,
    files_sha256,
)
from gaussmatch.models.texts import (
    NETWORK,
    NOTES,
    OnnxSession,
    Subwords,
    Tokenizer,
    onnx_cache,
    onnx_wanted,
)

CLOSE = 1e-5
"""The largest difference from torch that an export may have."""
CLOSE_TO_FROZEN = 1e-4
"""The same for a frozen encoder that runs in onnxruntime instead of torch."""


class Network:
    """A network in onnxruntime: tensors in, tensors out. ``notes`` is what was written with it.

    Args:
        by_rows: each thread takes some rows of a batch, instead of all sharing the work on each
            operator. For pictures, of which few go through together, that takes less time: they
            wait for each other once a batch, and what decodes the next ones is not in the way.
        ours: see ``OnnxSession``.
    """

    def __init__(self, file: Path, *, by_rows: bool = False, ours: bool = False) -> None:
        threads = torch.get_num_threads()
        self._parts = threads if by_rows else 1
        self._session = OnnxSession(file, 1 if by_rows else threads, ours=ours)
        self.notes = self._session.notes

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        parts = min(self._parts, len(inputs[0]))
        if parts < 2:
            return self._run(*inputs)
        with ThreadPoolExecutor(parts) as pool:
            outputs = pool.map(self._run, *(t.tensor_split(parts) for t in inputs))
            return [torch.cat(some) for some in zip(*outputs, strict=True)]

    def _run(self, *inputs: Tensor) -> list[Tensor]:
        return [torch.from_numpy(out) for out in self._session(*(t.cpu().numpy() for t in inputs))]

    def gaussian(self, *inputs: Tensor) -> Gaussian:
        """Of a network with one output (a mean) or two."""
        mean, *log_var = self(*inputs)
        return Gaussian(mean, log_var[0] if log_var else None)


class _Traced(nn.Module):
    """A function of tensors as the module that torch exports."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        out = self.run(*inputs)
        if not isinstance(out, Gaussian):
            return (out,)
        return (out.mean,) if out.log_var is None else (out.mean, out.log_var)


def write(
    run: Callable[..., Any],
    examples: Sequence[tuple[Tensor, ...]],
    names: Mapping[str, Sequence[str]],
    file: Path,
    notes: Mapping[str, Any] | None = None,
    close: float = CLOSE,
) -> float:
    """Write a function of tensors (→ points or ``Gaussian``) as ONNX; gives the largest difference
    from torch on the examples, and refuses one above ``close``.

    Args:
        examples: inputs of several sizes; the first is traced, all are checked.
        names: input → the names of its axes that are free, such as ``{"tokens": ("n", "t")}``.
    """
    with extra("onnx", "an ONNX file"):
        import onnx
    traced = _Traced(run).eval()
    with torch.no_grad():
        wanted = [traced(*inputs) for inputs in examples]
    outputs = ("mean", "log_variance")[: len(wanted[0])]
    free = {name: dict(enumerate(axes)) for name, axes in names.items()}
    with atomic(file) as temporary:
        with warnings.catch_warnings(), torch.no_grad(), _plain_attention():
            warnings.simplefilter("ignore")  # that the tracer is old: 16 times as fast, and checked
            torch.onnx.export(
                traced,
                examples[0],
                os.fspath(temporary),
                input_names=list(names),
                output_names=list(outputs),
                dynamic_axes={**free, **{name: {0: "n"} for name in outputs}},
                opset_version=18,
                dynamo=False,
            )
        model = onnx.load(os.fspath(temporary))
        onnx.helper.set_model_props(model, {NOTES: json.dumps(notes or {})})
        onnx.save(model, os.fspath(temporary))
        made, most = Network(temporary), 0.0
        for inputs, tensors in zip(examples, wanted, strict=True):
            for ours, torchs in zip(made(*inputs), tensors, strict=True):
                most = max(most, float((ours - torchs).abs().max()))
        if not most <= close:
            raise ValueError(
                f"{file.name}: differs from torch by {most:.1e}, more than {close:.0e}; this "
                "network cannot be exported"
            )
    return most


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention as its products, without the fused operator of torch that ONNX does not have."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class OnnxImages(nn.Module):
    """The image encoder of an exported model: pictures, or ready features, as Gaussians."""

    transform: ImageTransform | None

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.network = Network(file, by_rows=True)
        held = self.network.notes.get("transform")
        self.transform = None if held is None else Transform(**held).batch

    def forward(self, images: Tensor) -> Gaussian:
        if self.transform is not None and images.ndim != 4:
            raise ValueError(
                f"an exported model takes pictures (n, 3, H, W), not features {tuple(images.shape)}"
            )
        return self.network.gaussian(images.float())


class OnnxTexts(TextEncoder):
    """The text encoder of an exported model; without a tokenizer it takes ready embeddings."""

    def __init__(self, file: Path, tokenizer: Tokenizer | None) -> None:
        super().__init__()
        self.network = Network(file)
        cut = self.network.notes.get("tokenizer")
        self._tokenizer = tokenizer if cut is None else Subwords.of(cut)

    @property
    def reads_text(self) -> bool:
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:  # type: ignore[override]
        if self._tokenizer is None:
            raise ValueError(UNREAD)
        return self._tokenizer

    def forward(self, texts: Tokens | Tensor) -> Gaussian:
        return self.network.gaussian(*([texts] if isinstance(texts, Tensor) else texts))


def examples(*shape: int) -> tuple[tuple[Tensor], ...]:
    """Batches of two, three and one random items of a shape."""
    noise = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    return (noise[:2],), (noise,), (noise[:1],)


def picture_examples(tower: ImageTower) -> tuple[tuple[Tensor], ...]:
    """``examples`` of what an image encoder takes."""
    return examples(*tower.transform(Image.new("RGB", (64, 48))).shape)


def text_examples(tokenizer: Tokenizer) -> tuple[Tokens, ...]:
    """Batches of other sizes and lengths."""
    texts = [tokenizer.example, f"{tokenizer.example} and {tokenizer.example}"]
    return tuple(pad(tokenizer.rows(some)) for some in (texts, texts[:1], [*texts, texts[1] * 3]))


PICTURES, TOKENS = {"pictures": ("n",)}, {"tokens": ("n", "t"), "lengths": ("n",)}
"""The inputs of networks, and which of their axes are free."""


def cache_name(tower: ImageTower | TextTower) -> str:
    """The folder of the cache that holds an encoder's network."""
    return f"{type(tower).__name__.lower()}-{tower.sha256()[:24]}"


def accelerate(tower: ImageTower | TextTower) -> None:
    """Let a frozen encoder run in onnxruntime, if that is installed: the same embeddings to
    1e-4, in about half the time. Its network is exported into the cache at first use."""
    wanted = tower.accelerated and tower.device.type == "cpu" and tower.fast is None
    if not wanted or not onnx_wanted() or find_spec("onnx") is None:
        return

    def export(folder: Path) -> None:
        file = folder / NETWORK
        if isinstance(tower, ImageTower):
            write(tower, picture_examples(tower), PICTURES, file, close=CLOSE_TO_FROZEN)
        else:
            given = text_examples(tower.tokenizer)
            run = lambda *tokens: tower(Tokens(*tokens))  # noqa: E731
            write(run, given, TOKENS, file, close=CLOSE_TO_FROZEN)

    try:
        file = made_once(onnx_cache(cache_name(tower)), export) / NETWORK
        tower.fast = Network(file, by_rows=isinstance(tower, ImageTower), ours=True)
    except Exception as error:  # exporters raise whatever they like
        warnings.warn(f"{tower.name} runs in torch, as ONNX failed: {error}", stacklevel=2)


class OnnxTower(ImageTower):
    """``onnx:FILE``: an image network in onnxruntime.

    Its first input is pictures (n, 3, H, W), its first output embeddings (n, width). The transform
    is ``FILE.json`` beside it, ``{"size": 260, "mean": [r, g, b], "std": [r, g, b]}``: short side
    to ``size``, center crop, (x − mean) / std.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        beside = file.with_name(f"{file.name}.json")
        for path in (file, beside):
            if not path.is_file():
                raise FileNotFoundError(f"{path}: missing; an ONNX encoder is these two files")
        settings = read_json(beside)
        try:
            size, mean, std = (settings[name] for name in ("size", "mean", "std"))
            self.published = Transform(int(size), mean, std, resize=int(size))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{beside}: needs size, mean and std ({error})") from error
        self.name, self._hash = f"onnx:{file.name}", files_sha256([file])
        self._network = Network(file)
        self.width = int(self(torch.zeros(1, 3, int(size), int(size))).shape[-1])
        self.freeze()

    def forward(self, pictures: Tensor) -> Tensor:
        if torch.onnx.is_in_onnx_export():
            raise ValueError(f"{self.name} cannot be exported: it is an ONNX file already")
        return self._network(pictures)[0]


def image(name: str, place: Path | None) -> OnnxTower:
    """``onnx:FILE``, or ``onnx:NAME@FOLDER`` with both files in the folder."""
    if place is None:
        place = Path(name).expanduser()
    return OnnxTower(place / name if place.is_dir() else place)
