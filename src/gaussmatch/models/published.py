"""Models in the conventions of the Hugging Face hub: a folder of safetensors, JSON and a card.

``save_pretrained`` copies what a model is loaded from and writes ``config.json`` and a card;
``from_pretrained`` loads such a folder, or a repository of the hub. A run folder loads as well.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity as similarity_called
from gaussmatch.data import hub
from gaussmatch.files import (
    claim_folder,
    load_tensors,
    made_once,
    read_json,
    save_tensors,
    write_json,
    write_text,
)
from gaussmatch.models.encoders.adapter import FrozenImages, FrozenTexts
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.onnx import (
    PICTURES,
    TOKENS,
    cache_name,
    examples,
    picture_examples,
    text_examples,
    write,
)
from gaussmatch.models.encoders.pretrained import image_tower, text_tower
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import AdapterRecipe, DataRecipe, ModelRecipe, Recipe
from gaussmatch.models.run import (
    CALIBRATION,
    FILES,
    IMAGES,
    MODEL,
    PROBE,
    RECIPE,
    TEXTS,
    VOCABULARY,
    WEIGHTS,
    is_run,
    load,
    locate,
    read_metrics,
    read_recipe,
    seal,
)
from gaussmatch.models.texts import NETWORK, TextSide

CONFIG, CARD, LIBRARY = "config.json", "README.md", "gaussmatch"
LARGEST = 2**31 - 2**20
"""Bytes of weights that fit into one ONNX file."""


def save_pretrained(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    results: Mapping[str, float] | None = None,
    half: bool = False,
) -> Path:
    """A run as a folder to publish, with its calibration and the verdict of its probe.

    Args:
        run: a finished run.
        out: an empty or new folder.
        results: measures on test for the card; if not given, those that ``gaussmatch evaluate``
            left in the run, else those on validation.
        half: weights in float16, half the size; they are computed with in float32 all the same.
    """
    source, target = locate(run), Path(out)
    load(source)  # a run that does not load is not published
    claim_folder(target, None)
    target.mkdir(parents=True, exist_ok=True)
    for name in (*MODEL, CALIBRATION, PROBE):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if half:
        whole = load_tensors(source / WEIGHTS)
        halved = {name: t.half() if t.is_floating_point() else t for name, t in whole.items()}
        save_tensors(target / WEIGHTS, halved)
    recipe = read_recipe(source)
    if recipe.model.system in ("adapter", "published"):  # needs no data again: hide where it was
        data = replace(recipe.data, root=None, also={}, images=None, texts=None, pairs=None)
        recipe = replace(recipe, data=data)
        recipe.save(target / RECIPE)
    write_json(target / CONFIG, {"library_name": LIBRARY, "recipe": asdict(recipe)})
    evaluated = source / "evaluation-test.json"
    if results is None and evaluated.is_file():
        results = {k: v for k, v in read_json(evaluated, dict).items() if isinstance(v, float)}
    measured = dict(results or read_metrics(source).get("dev", {}))
    split = "test" if results else "validation"
    title = recipe.title or source.name
    write_text(target / CARD, _card(title, recipe.data.name, measured, split))
    _seal(target)
    return target


def _seal(folder: Path) -> None:
    """The manifest of a folder to publish: it loads, and is verified, as a run."""
    seal(folder, *(name for name in FILES if (folder / name).is_file()))


def export_onnx(run: str | os.PathLike[str], out: str | os.PathLike[str]) -> dict[str, float]:
    """A model as two networks in ONNX, any number of pictures or texts of any length → mean and
    log-variance, with all weights, transform and tokenizer. The folder loads like a run, and any
    runtime of ONNX runs its files. Gives the largest difference of each from torch.

    A model on published encoders takes pictures and token ids; one on ready embeddings or features
    takes those.
    """
    source, target = locate(run), Path(out)
    claim_folder(target, None)
    model = load(source)
    model.matcher.requires_grad_(False)  # constants of the networks
    networks = {IMAGES: _image_network(model), TEXTS: _text_network(model)}
    target.mkdir(parents=True, exist_ok=True)
    for name in (RECIPE, VOCABULARY, CALIBRATION, PROBE):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    return _written(networks, target)


def keep_texts(model: Model, run: Mapping[str, str]) -> None:
    """Keep the text side of a model in the cache, for searches without torch (``TextSide``). Only
    if its text encoder is published, known by its hash and already there in ONNX.

    Args:
        run: its files, name → SHA-256.
    """
    point, scored = model.matcher.text_encoder, model.matcher.similarity
    if not isinstance(point, FrozenTexts) or point.frozen is None or not scored.on_arrays:
        return
    tower = point.tower
    if point.frozen.sha256 is None or tower.fast is None or tower.tokenizer.definition is None:
        return
    notes = {
        "encoder": cache_name(tower),
        "tokenizer": tower.tokenizer.portable(),
        "similarity": {"name": scored.name, **vars(scored)},
    }

    def make(folder: Path) -> None:
        given = examples(point.width)
        write(model.matcher.text, given, {"embeddings": ("n",)}, folder / NETWORK, notes)

    try:
        made_once(TextSide.folder(run), make)
    except Exception as error:  # exporters raise whatever they like
        warnings.warn(f"searches in words need torch, as ONNX failed: {error}", stacklevel=2)


def export(
    images: nn.Module,
    captions: nn.Module,
    out: str | os.PathLike[str],
    *,
    inputs: tuple[Tensor, Tensor],
    similarity: str = "kl",
    title: str = "",
) -> dict[str, float]:
    """Two encoders of your own as a model: a folder that ``load`` and ``Index.create`` take like a
    run, in ONNX, so that it needs neither their code nor a recipe. Gives the largest difference of
    each file from torch.

    .. code-block:: python

        gm.export(images, captions, "mine", inputs=(x[:8], c[:8]), similarity="kl")
        index = gm.Index.create("mine.index", "mine")
        index.add(index.model.encode_images(x), [gm.Record(str(i)) for i in range(len(x))])
        index.search(index.model.encode_texts(c[:1]), k=5)

    Args:
        images, captions: trained modules, each of one float tensor (n, …) → Gaussians, such as
            ``Probabilistic``, or points (n, D) for a similarity that takes points. They are copied.
        out: an empty or new folder.
        inputs: two items or more of each side: they fix the shapes, and both forms must agree on
            them to 1e-5.
        similarity: that they were trained with.
    """
    target = Path(out)
    claim_folder(target, None)
    sides = {IMAGES: (images, "features"), TEXTS: (captions, "embeddings")}
    networks, made = {}, []
    for (name, (module, word)), given in zip(sides.items(), inputs, strict=True):
        if len(given) < 2:
            raise ValueError(f"inputs: {len(given)} of {name}; two items or more are needed")
        frozen, batch = deepcopy(module).eval().requires_grad_(False), given.detach().float()
        found = frozen(batch)
        made.append(found if isinstance(found, Gaussian) else Gaussian(found))
        networks[name] = _Network(
            frozen, [(batch[:2],), (batch,), (batch[:1],)], {word: ("n",)}, {}
        )
    scored = similarity_called(similarity)
    scored.both_ways(*made)  # they fit each other, and the similarity
    model = ModelRecipe(
        system="adapter",
        dim=made[0].dim,
        probabilistic=scored.needs_variance,
        similarity=similarity,
        adapter=AdapterRecipe(text_encoder="arrays"),
    )
    target.mkdir(parents=True, exist_ok=True)
    Recipe(title or target.name, DataRecipe(name="arrays"), model).save(target / RECIPE)
    return _written(networks, target)


def _written(networks: Mapping[str, _Network], target: Path) -> dict[str, float]:
    """The networks in a folder, which then loads as a run; the difference of each from torch."""
    differs = {
        name: write(net.run, net.examples, net.axes, target / name, net.notes)
        for name, net in networks.items()
    }
    _seal(target)
    return differs


class _Network(NamedTuple):
    """What ``encoders.onnx.write`` takes of an encoder."""

    run: Callable[..., Any]
    examples: Sequence[tuple[Tensor, ...]]
    axes: Mapping[str, Sequence[str]]
    notes: dict[str, Any]


def _image_network(model: Model) -> _Network:
    encoder, point = model.matcher.image, model.matcher.part("image")
    backbone = model.matcher.backbone
    notes: dict[str, Any] = {}
    if isinstance(model.matcher.similarity, nn.Module):
        state = model.matcher.similarity.state_dict()
        notes["similarity"] = {name: value.tolist() for name, value in state.items()}
    if backbone is not None:
        notes["transform"] = asdict(backbone.view())
        return _Network(encoder, picture_examples(backbone), PICTURES, notes)
    if isinstance(point, FrozenImages) and point.frozen is not None:
        tower = image_tower(point.frozen.name)
        _check_size(tower.name, tower, encoder)
        notes["transform"] = asdict(tower.view())
        see = lambda pictures: encoder(tower(pictures))  # noqa: E731
        return _Network(see, picture_examples(tower), PICTURES, notes)
    width = model.recipe.model.feature_dim
    assert width is not None
    shape = (width,) if model.recipe.data.features == "pooled" else (36, width)
    return _Network(encoder, examples(*shape), {"features": ("n",)}, notes)


def _text_network(model: Model) -> _Network:
    encoder, point, notes = model.matcher.text, model.matcher.text_encoder, {}
    if isinstance(point, FrozenTexts):
        if point.frozen is None:
            return _Network(encoder, examples(point.width), {"embeddings": ("n",)}, {})
        tower = point.frozen.tower = text_tower(point.frozen.name)  # in torch
        _check_size(tower.name, tower, encoder)
        try:
            notes["tokenizer"] = tower.tokenizer.portable()
        except ValueError as error:
            raise ValueError(f"{tower.name} cannot be exported: {error}") from error
    read = lambda *tokens: encoder(Tokens(*tokens))  # noqa: E731
    return _Network(read, text_examples(point.tokenizer), TOKENS, notes)


def _check_size(name: str, *modules: nn.Module) -> None:
    size = sum(t.nbytes for module in modules for t in module.state_dict().values())
    if size > LARGEST:
        raise ValueError(
            f"{name} cannot be exported: its weights are {size / 1e9:.1f} GB, and one ONNX file "
            f"holds {LARGEST / 1e9:.1f} GB"
        )


def from_pretrained(name: str | os.PathLike[str], device: str | None = None) -> Model:
    """The model of a folder, or of a repository of the hub such as ``someone/photos-kl``."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = hub.snapshot(str(name), (*hub.FILES, "*.yaml"))
    if not is_run(folder):
        raise FileNotFoundError(f"{folder}: no {RECIPE}; it is not a model of {LIBRARY}")
    config = folder / CONFIG
    if config.is_file() and read_json(config, dict).get("library_name") != LIBRARY:
        raise ValueError(f"{config}: a model of another library than {LIBRARY}")
    return load(folder, device)


def push_to_hub(folder: str | os.PathLike[str], repository: str, *, private: bool = False) -> str:
    """Upload a folder of ``save_pretrained``; returns its address. The token is that of the hub."""
    from huggingface_hub import HfApi

    if not (Path(folder) / CONFIG).is_file():
        raise FileNotFoundError(f"{folder}: no {CONFIG}; make the folder with save_pretrained")
    api = HfApi()
    address = api.create_repo(repository, private=private, exist_ok=True)
    api.upload_folder(repo_id=repository, folder_path=Path(folder))
    return str(address)


def _card(title: str, data: str, measured: Mapping[str, float], split: str) -> str:
    """A model card with its metadata in front, as the hub reads it."""
    metrics = [
        {"type": name, "value": round(float(value), 4)}
        for name, value in measured.items()
        if isinstance(value, int | float)
    ]
    result = {
        "task": {"type": "image-text-retrieval"},
        "dataset": {"type": data, "name": data, "split": split},
        "metrics": metrics,
    }
    index = f"model-index: {json.dumps([{'name': title, 'results': [result]}])}\n"
    rows = "".join(f"| {m['type']} | {m['value']} |\n" for m in metrics)
    table = f"Measured on {split} of {data}:\n\n| measure | value |\n|---|---|\n{rows}"
    unknown = "Not measured: run `gaussmatch evaluate` before `save_pretrained`.\n"
    return (
        f"---\nlibrary_name: {LIBRARY}\ntags: [image-text-retrieval, uncertainty]\n"
        f"{index if metrics else ''}---\n\n# {title}\n\n"
        "Photos and captions as Gaussians in one space. Load it with\n"
        "`gaussmatch.from_pretrained(FOLDER)`; `recipe.yaml` has every field of its training.\n\n"
        f"{table if metrics else unknown}"
    )
