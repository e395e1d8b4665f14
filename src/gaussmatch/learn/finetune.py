"""Fine-tune the photo model's encoders on photos with captions: the last stages of its image
network and, if wanted, the last layers of its text encoder.

The first stages stay as published, so their output is computed once for each photo (a map, kept as
float16) and an epoch costs what the last stages cost: about 5 ms a photo on a core for one stage,
12 for two, instead of 200. Captions likewise: the states of their tokens before the layers that
learn are computed once. The loss is InfoNCE between the pooled features, through a head, and the
sentence embeddings of the captions, through another. Text layers that learn are held near the
published embedding of each caption, so that words the captions lack keep their meaning. If the data
set has boxes, a linear layer also learns how often each class is in a photo (at least 1, 2, 3 or 5
times), which captions rarely say.

Batch normalization keeps its published statistics, and the depthwise kernels (2 % of the weights)
stay as published: torch's gradient of them takes two thirds of a step. Each batch sees a random
window of the maps, as crops do for photos, and half of the photos mirrored. What is saved is the
running average of the weights; the heads are thrown away, as ``recipes/photos/photos.yaml`` trains
its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from PIL.ImageOps import mirror
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, conv2d, linear, relu6
from torch.nn.functional import pad as pad_sides
from tqdm import tqdm

from gaussmatch.checks import positive
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.losses import InfoNCE, negatives
from gaussmatch.core.similarities import similarity
from gaussmatch.data.listing import Listing, Photo
from gaussmatch.data.pairs import Pairs, image_batches
from gaussmatch.data.pictures import open_picture
from gaussmatch.data.stored import StoredFeatures
from gaussmatch.files import atomic, claim_folder, read_json, save_tensors, write_json
from gaussmatch.learn.evaluation.retrieval import recalls
from gaussmatch.models.encoders.adapter import ARRAYS, ImageAdapter, TextAdapter
from gaussmatch.models.encoders.backbone import Backbone, EfficientNetLite2, Inverted, SameConv
from gaussmatch.models.encoders.base import pad
from gaussmatch.models.encoders.pretrained.st import Sentences
from gaussmatch.models.features import prepared

SETTINGS, CHECKPOINT, LOG = "finetune.json", "checkpoint.pt", "log.json"
MAPS, MIRRORED = "maps.npy", "mirrored.npy"
WEIGHTS, TEXT_WEIGHTS = "encoder.safetensors", "text.safetensors"
COUNTS = (1, 2, 3, 5)
"""A class is learned as "at least so often" for each of these."""


@dataclass(frozen=True)
class FineTuning:
    """How the encoders learn.

    Args:
        stages: how many of the image network's seven learn, the last ones.
        text_layers: how many layers of the text encoder learn, the last ones.
        epochs, batch, seed: of the training.
        rate: the highest learning rate of the network; it rises and falls in one cycle.
        text_rate, head_rate: the same for the text layers and for the heads.
        keep: the weight of 1 − cosine between a caption's embedding and the published one.
        temperature: of InfoNCE.
        boxes: the weight of the classes and their counts, if the data set has boxes.
        window: the shortest side of the window of a map that a batch sees, as a share of its side.
        mirror: see half of the photos mirrored; their maps take as much time and disk again.
        text_encoder: whose sentence embeddings are the captions.
        start: a folder with the weights to begin with: an earlier fine-tuning with fewer stages,
            whose heads are taken too, or a model such as ``photos``.
    """

    stages: int = 1
    text_layers: int = 0
    epochs: int = 5
    batch: int = 256
    seed: int = 0
    rate: float = 1e-3
    text_rate: float = 1e-4
    head_rate: float = 1e-3
    keep: float = 1.0
    temperature: float = 0.05
    boxes: float = 0.3
    window: float = 0.8
    mirror: bool = False
    text_encoder: str = "st:all-MiniLM-L6-v2"
    start: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.stages < len(EfficientNetLite2().blocks):
            raise ValueError(f"stages: {self.stages}; from 1 to 6 of the network's 7 can learn")
        if self.text_layers < 0:
            raise ValueError(f"text_layers: {self.text_layers}; from 0 on")
        rates = "rate", "text_rate", "head_rate"
        positive("finetune", self, "epochs", "batch", *rates, "temperature", "window")
        if self.window > 1:
            raise ValueError(f"window: {self.window}; a share of the map's side, at most 1")


def fine_tune(
    listings: Sequence[Listing], out: Path, how: FineTuning, *, progress: bool = True
) -> Path:
    """Train on the ``train`` photos of all listings, validate on ``dev`` of the first.

    Returns the file of weights, for ``timm:tf_efficientnet_lite2+whole@FILE``; that of the text
    layers, for ``st:all-MiniLM-L6-v2@FILE``, lies beside it. Resumes if interrupted: photos within
    256, training within an epoch.
    """
    for listing in listings:
        listing.check_files()
    claim_folder(out, SETTINGS)
    _claim(out, listings, how)
    torch.manual_seed(how.seed)
    tower = Backbone.pretrained(
        EfficientNetLite2.name, Path(how.start) / WEIGHTS if how.start else None
    )
    tower.whole = True
    first, last = tower.net.split(how.stages)
    train = [photo for listing in listings for photo in listing.splits["train"]]
    dev = listings[0].splits.get("dev", [])
    maps = _maps(tower, first, [*train, *dev], out / MAPS, progress)
    mirrored = _maps(tower, first, train, out / MIRRORED, progress) if how.mirror else None
    trainer = _Trainer(last, train, how)
    trainer.run(out, maps, mirrored, _pairs(dev, maps, len(train)) if dev else None, progress)
    last.load_state_dict(trainer.average["last"].state_dict())
    learned = {k: v for k, v in tower.net.state_dict().items() if not k.startswith("classifier.")}
    _save_half(out / WEIGHTS, learned)
    if how.text_layers:
        _save_half(out / TEXT_WEIGHTS, trainer.text_weights())
    return out / WEIGHTS


def _save_half(path: Path, weights: Mapping[str, Tensor]) -> None:
    save_tensors(path, {k: v.half() for k, v in weights.items() if v.is_floating_point()})


def _claim(out: Path, listings: Sequence[Listing], how: FineTuning) -> None:
    """A folder holds one training: its settings, and how many photos of which data."""
    now = {"settings": asdict(how), "photos": {x.name: len(x.splits["train"]) for x in listings}}
    path = out / SETTINGS
    if path.is_file() and read_json(path, dict) != now:
        raise ValueError(f"{out} was begun with other settings or data; choose another --out")
    write_json(path, now)


def _maps(
    tower: Backbone, first: nn.Module, photos: Sequence[Photo], path: Path, progress: bool
) -> np.ndarray:
    """What the last stages take of each photo (n, h, w, c), float16, on disk."""
    note, step = path.with_suffix(".json"), 16
    seen = mirror if path.name == MIRRORED else Image.Image.copy
    shape = (len(photos), *_forward(tower, first, [Image.new("RGB", (8, 8))]).shape[1:])
    done = read_json(note, dict)["done"] if note.is_file() else 0
    mode = "r+" if done else "w+"
    maps = np.lib.format.open_memmap(path, mode, np.float16, shape)
    with tqdm(total=len(photos), initial=done, unit="photo", disable=not progress) as bar:
        for start in range(done, len(photos), step):
            some = [seen(open_picture(photo.path)) for photo in photos[start : start + step]]
            maps[start : start + step] = _forward(tower, first, some).numpy()
            bar.update(len(some))
            if start % 256 == 256 - step or start + step >= len(photos):
                maps.flush()
                write_json(note, {"done": min(start + step, len(photos))})
    return maps


@torch.inference_mode()
def _forward(tower: Backbone, first: nn.Module, pictures: Sequence[Image.Image]) -> Tensor:
    given = torch.stack([tower.transform(picture) for picture in pictures])
    with torch.autocast("cpu", torch.bfloat16):
        found: Tensor = first(tower._normalized(given))
    return found.half().permute(0, 2, 3, 1)


def _pairs(photos: Sequence[Photo], maps: np.ndarray, start: int) -> Pairs:
    """Photos whose maps are the rows from ``start`` on, with their captions."""
    captions = [(i, said.text) for i, photo in enumerate(photos) for said in photo.captions]
    own, texts = zip(*captions, strict=True)
    rows = range(start, start + len(photos))
    return Pairs("dev", StoredFeatures(maps, rows), texts, torch.tensor(own))


def _counts(photos: Sequence[Photo]) -> Tensor | None:
    """(n, classes · 4): whether a class is there at least 1, 2, 3, 5 times; NaN if unknown."""
    each = [Counter(region.caption for region in photo.regions) for photo in photos]
    classes = sorted(set().union(*each))
    if not classes:
        return None
    found = torch.tensor([[c[name] for name in classes] for c in each])
    known = torch.tensor([bool(c) for c in each])
    reached = torch.cat([found >= often for often in COUNTS], 1).float()
    return torch.where(known[:, None], reached, torch.nan)


class _Depthwise(torch.autograd.Function):
    """A depthwise convolution whose kernels do not learn. The gradient of its input is another
    depthwise convolution: of the gradient, spread by the stride, with the kernels mirrored."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Tensor, stride: int, around: int) -> Tensor:
        ctx.save_for_backward(kernels)
        ctx.like = x.shape, stride, around
        return conv2d(x, kernels, None, stride, around, groups=len(kernels))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (kernels,), (gradient,) = ctx.saved_tensors, gradients
        (_, _, *sides), stride, around = ctx.like
        if stride > 1:
            n, c, h, w = gradient.shape
            spread = gradient.new_zeros(n, (h - 1) * stride + 1, (w - 1) * stride + 1, c)
            spread[:, ::stride, ::stride] = gradient.permute(0, 2, 3, 1)
            gradient = spread.permute(0, 3, 1, 2)
        around = kernels.shape[-1] - 1 - around
        found = conv2d(gradient, kernels.flip(-1, -2), None, 1, around, groups=len(kernels))
        missing = [0, sides[1] - found.shape[3], 0, sides[0] - found.shape[2]]
        return pad_sides(found, missing) if any(missing) else found, None, None, None


def _normalized(x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    scale = norm.weight / (variance + norm.eps).sqrt()
    return x * scale.to(x.dtype) + (norm.bias - mean * scale).to(x.dtype)


def _pointwise(x: Tensor, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> Tensor:
    return _normalized(linear(x, conv.weight[:, :, 0, 0].to(x.dtype)), norm)


def _block(x: Tensor, block: Inverted) -> Tensor:
    wide = relu6(_pointwise(x, block.conv_pw, block.bn1)).permute(0, 3, 1, 2)
    conv = block.conv_dw
    if isinstance(conv, SameConv):
        wide = conv.padded(wide)
    kernels = conv.weight.detach().to(x.dtype)
    wide = _Depthwise.apply(wide, kernels, conv.stride[0], conv.padding[0])
    wide = relu6(_normalized(wide.permute(0, 2, 3, 1), block.bn2))
    out = _pointwise(wide, block.conv_pwl, block.bn3)
    return out + x if block.residual else out


def _pooled(
    last: nn.Module, maps: np.ndarray, dtype: torch.dtype = torch.bfloat16, step: int = 64
) -> Float[Tensor, "n f"]:
    """The last stages of maps (n, h, w, c): pointwise convolutions as matrix products, few photos
    at a time, whose activations stay in the processor's cache."""
    *stages, conv, norm, _ = last.children()
    blocks = [cast(Inverted, block) for stage in stages for block in stage.children()]
    found = []
    for start in range(0, len(maps), step):
        x = torch.from_numpy(maps[start : start + step]).to(dtype)
        for block in blocks:
            x = _block(x, block)
        features = relu6(_pointwise(x, cast(nn.Conv2d, conv), cast(nn.BatchNorm2d, norm)))
        found.append(features.to(torch.promote_types(dtype, torch.float32)).mean((1, 2)))
    return torch.cat(found)


class _States:
    """The states of captions' tokens before the layers that learn, float16, one after the other."""

    def __init__(self, tower: Sentences, layers: int, texts: Sequence[str], progress: bool) -> None:
        rows = tower.tokenizer.rows(texts)
        lengths = np.array([len(row) for row in rows])
        self.starts = np.r_[0, lengths.cumsum()]
        self.flat = torch.empty(int(self.starts[-1]), tower.width, dtype=torch.float16)
        order = lengths.argsort(kind="stable")
        for some in tqdm(np.split(order, range(256, len(order), 256)), disable=not progress):
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
                states, seen = tower.net(pad([rows[i] for i in some]), layers)
            for i, one, own in zip(some, states, seen, strict=True):
                self.flat[self.starts[i] : self.starts[i + 1]] = one[own].half()

    def batch(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """States (n, t, w) of captions, and which of them are of real tokens."""
        each = [self.flat[self.starts[i] : self.starts[i + 1]].float() for i in rows]
        seen = nn.utils.rnn.pad_sequence([torch.ones(len(one)) for one in each], True).bool()
        return nn.utils.rnn.pad_sequence(each, True), seen


class _Trainer:
    """The last stages, the last text layers and two heads, and the running average of them all."""

    def __init__(self, last: nn.Module, photos: Sequence[Photo], how: FineTuning) -> None:
        self.how, self.counts = how, _counts(photos) if how.boxes else None
        width = EfficientNetLite2.num_features
        self.encoder = TextAdapter(how.text_encoder, 384, 512, 1024, 0.3, 10.0)  # its tower alone
        text = TextAdapter(ARRAYS, 384, 512, 1024, 0.3, 10.0)
        captions: list[str] = []
        self.of_image: list[range] = []
        for photo in photos:
            self.of_image.append(range(len(captions), len(captions) + len(photo.captions)))
            captions += [said.text for said in photo.captions]
        self.texts = torch.from_numpy(np.array(prepared(captions, self.encoder)))
        self.states = self._states(captions) if how.text_layers else None
        self.parts = nn.ModuleDict(
            {"last": last, "images": ImageAdapter(width, 512, 1024, 0.3, 20.0), "texts": text}
        )
        if self.counts is not None:
            self.parts["classes"] = nn.Linear(width, self.counts.shape[1])
        learning = [self.parts["last"]]
        if how.text_layers:
            self.parts["layers"] = deepcopy(self.sentences.net.layers[-how.text_layers :])
            learning.append(self.parts["layers"])
        for part in learning:
            part.requires_grad_(True)
        text.fit(self.texts)
        self.average = deepcopy(self.parts)
        self.loss = InfoNCE(1 / how.temperature, learn_scale=False, reduction="mean")
        rates = {"last": how.rate, "layers": how.text_rate}
        groups: list[dict[str, Any]] = [
            {
                "params": [*part.parameters()],
                "lr": rates.get(name, how.head_rate),
                **({"weight_decay": 0.0} if name in rates else {}),
            }
            for name, part in self.parts.items()
        ]
        self.optimizer = torch.optim.AdamW(groups)
        self.steps = max(len(photos) // how.batch, 1)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            [group["lr"] for group in groups],
            total_steps=how.epochs * self.steps + 1,
            pct_start=0.1,
        )

    @property
    def sentences(self) -> Sentences:
        """The text encoder, as published."""
        tower = self.encoder.tower
        if not isinstance(tower, Sentences) or self.how.text_layers >= len(tower.net.layers):
            raise ValueError(
                f"text_layers: {self.how.text_layers} of {tower.name}; only layers of an st: "
                "encoder can learn, and not all of them"
            )
        return tower

    def _states(self, texts: Sequence[str], progress: bool = True) -> _States:
        tower = self.sentences
        return _States(tower, len(tower.net.layers) - self.how.text_layers, texts, progress)

    def _embedded(self, parts: nn.ModuleDict, states: _States, rows: Sequence[int]) -> Tensor:
        """(n, w), captions as the learning layers embed them."""
        x, seen = states.batch(rows)
        with torch.autocast("cpu", torch.bfloat16):
            for layer in cast(nn.ModuleList, parts["layers"]):
                x = layer(x, seen[:, None, None])
        return self.sentences.pooled(x.float(), seen)

    def text_weights(self) -> dict[str, Tensor]:
        """What the text layers learned, under their names in the encoder."""
        first = len(self.sentences.net.layers) - self.how.text_layers
        learned = cast(nn.ModuleList, self.average["layers"])
        return {
            f"layers.{first + at}.{name}": value
            for at, layer in enumerate(learned)
            for name, value in layer.state_dict().items()
        }

    def run(
        self,
        out: Path,
        maps: np.ndarray,
        mirrored: np.ndarray | None,
        dev: Pairs | None,
        progress: bool,
    ) -> None:
        """All epochs that are left; after each, validation and a checkpoint."""
        log: list[dict[str, Any]] = []
        if (out / CHECKPOINT).is_file():
            log = self._resume(out)
        elif (Path(self.how.start) / CHECKPOINT).is_file():
            self._begin(Path(self.how.start))
        else:
            sample = np.sort(np.random.default_rng(0).permutation(len(self.of_image))[:1024])
            with torch.no_grad():
                pooled = [
                    _pooled(self.parts["last"], maps[i])
                    for i in np.array_split(sample, min(16, len(sample)))
                ]
            for parts in (self.parts, self.average):
                _adapter(parts["images"]).fit(torch.cat(pooled))
        for epoch in range(len(log), self.how.epochs):
            self._epoch(epoch, maps, mirrored, progress)
            log.append({"epoch": epoch + 1, **({} if dev is None else self._measured(dev))})
            self._save(out, log)
            reached = f", validation rsum {log[-1]['rsum']:.1f}" if dev is not None else ""
            print(f"epoch {epoch + 1} of {self.how.epochs}{reached}", flush=True)

    def _epoch(
        self, epoch: int, maps: np.ndarray, mirrored: np.ndarray | None, progress: bool
    ) -> None:
        random = np.random.default_rng([self.how.seed, epoch])
        torch.manual_seed(int(random.integers(2**31)))  # of dropout, also when resumed
        order = random.permutation(len(self.of_image))[: self.steps * self.how.batch]
        self.parts.train()
        self.parts["last"].eval()  # batch normalization as published
        batches = np.array_split(order, self.steps)
        for batch in tqdm(batches, desc=f"epoch {epoch + 1}", disable=not progress):
            rows = np.sort(batch)
            captions = [random.choice(self.of_image[row]) for row in rows]
            seen = maps[rows]
            if mirrored is not None:
                turned = random.random(len(rows)) < 0.5
                seen[turned] = mirrored[rows[turned]]
            loss = self._step(self._window(seen, random), captions, rows)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.parts.parameters(), 2.0)
            self.optimizer.step()
            self.schedule.step()
            done = self.schedule.last_epoch
            with torch.no_grad():
                keep = min(0.995, done / (done + 10))
                for old, new in zip(
                    self.average.parameters(), self.parts.parameters(), strict=True
                ):
                    old.lerp_(new, 1 - keep)

    def _window(self, maps: np.ndarray, random: np.random.Generator) -> np.ndarray:
        side = maps.shape[1]
        h, w = random.integers(round(self.how.window * side), side + 1, 2)
        top, left = random.integers(side - h + 1), random.integers(side - w + 1)
        return maps[:, top : top + h, left : left + w]

    def _step(self, maps: np.ndarray, captions: Sequence[int], rows: np.ndarray) -> Tensor:
        pooled, published = _pooled(self.parts["last"], maps), self.texts[captions]
        texts = published
        if self.states is not None:
            texts = self._embedded(self.parts, self.states, captions)
        scores = self.parts["images"](pooled) @ self.parts["texts"](texts).T
        loss: Tensor = self.loss(scores, scores, negatives(torch.from_numpy(rows)))["infonce"] / 2
        if self.states is not None:
            loss = loss + self.how.keep * (1 - (published * texts).sum(1)).mean()
        if self.counts is not None:
            target = self.counts[rows]
            known = ~target[:, 0].isnan()
            if known.any():
                standard = _adapter(self.parts["images"]).standardize(pooled[known])
                said = self.parts["classes"](standard)
                miss = binary_cross_entropy_with_logits(said, target[known], reduction="none")
                loss = loss + self.how.boxes * miss.sum(1).mean() / 10
        return loss

    @torch.no_grad()
    def _measured(self, dev: Pairs) -> dict[str, float]:
        last, head = self.average.eval()["last"], self.average["images"]
        images = [head(_pooled(last, batch.numpy())) for batch in image_batches(dev, 64)]
        if self.states is None:
            texts = torch.from_numpy(np.array(prepared(dev.captions, self.encoder)))
        else:
            states = self._states(dev.captions, progress=False)
            every = [*range(len(dev.captions))]
            each = [every[at : at + 256] for at in range(0, len(every), 256)]
            texts = torch.cat([self._embedded(self.average, states, rows) for rows in each])
        captions = Gaussian(self.average["texts"](texts))
        return recalls(similarity("cosine"), Gaussian(torch.cat(images)), captions, dev)

    def _save(self, out: Path, log: list[dict[str, Any]]) -> None:
        state = {
            name: getattr(self, name).state_dict()
            for name in ("parts", "average", "optimizer", "schedule")
        }
        with atomic(out / CHECKPOINT) as temporary:
            torch.save({**state, "log": log}, temporary)
        write_json(out / LOG, log)

    def _begin(self, earlier: Path) -> None:
        """Take the heads of another training; its network is already loaded."""
        state = torch.load(earlier / CHECKPOINT, weights_only=True)["average"]
        heads = {name: value for name, value in state.items() if not name.startswith("last.")}
        for parts in (self.parts, self.average):
            parts.load_state_dict({**parts.state_dict(), **heads})

    def _resume(self, out: Path) -> list[dict[str, Any]]:
        state = torch.load(out / CHECKPOINT, weights_only=True)
        for name in ("parts", "average", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(state[name])
        log: list[dict[str, Any]] = state["log"]
        return log


def _adapter(part: nn.Module) -> ImageAdapter:
    assert isinstance(part, ImageAdapter)
    return part
