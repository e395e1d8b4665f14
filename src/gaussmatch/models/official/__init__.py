"""Checkpoints of the official codes of VSE++, VSRN, PVSE, PCME, PCME++ and ProLIP become run
folders.

Files are read as data; nothing in them is executed (``checkpoint``). Published encoders become runs
of which nothing learns: those that are probabilistic themselves, and those by name whose embeddings
are points. What lies in the layout of the hub stays where it is; a checkpoint of the official
training code of PCME++ (``train.py``, Lightning) is written as such a folder into the run.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gaussmatch.data import hub
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.files import read_json, save_tensors, sha256, write_json
from gaussmatch.models.encoders.base import Vocabulary
from gaussmatch.models.encoders.pretrained import (
    GAUSSIAN,
    LIBRARIES,
    WHOLE,
    Spec,
    image_tower,
    text_tower,
)
from gaussmatch.models.encoders.pretrained.base import weights_file
from gaussmatch.models.encoders.pretrained.gaussians import read_side
from gaussmatch.models.model import build
from gaussmatch.models.official.checkpoint import read_checkpoint, read_words
from gaussmatch.models.official.systems import (
    SYSTEMS,
    OfficialOptions,
    Translation,
    plain,
    state_of,
)
from gaussmatch.models.recipe import LossRecipe, ModelRecipe, PublishedRecipe, Recipe, changed
from gaussmatch.models.run import claim_place, is_run, save_imported


def import_checkpoint(
    checkpoint: Path,
    out: Path,
    vocabulary: Path | None = None,
    system: str | None = None,
    overrides: Mapping[str, Any] = {},
) -> Recipe:
    """Turn an official checkpoint into a run folder that loads and evaluates like any other.

    Args:
        checkpoint: the file that ``torch.save`` of the official code wrote; of ProLIP and PCME++
            also a folder in the layout of the hub, or the name of a repository there; or an encoder
            of both sides by name, such as ``open_clip:ViT-B-32/openai``.
        out: the run folder.
        vocabulary: its vocabulary file; PCME's checkpoints hold theirs.
        system: one of ``SYSTEMS`` or ``GAUSSIAN``; found from the file or folder when none.
        overrides: fields of the recipe's data, as ``{"data.root": "coco_precomp"}``.
    """
    if is_run(out):
        raise FileExistsError(f"{out} already holds a run; choose another folder with --out")
    claim_place(out)
    encoders = system in GAUSSIAN or checkpoint.is_dir() or is_named(checkpoint)
    where, content = str(checkpoint), {} if encoders else read_checkpoint(checkpoint)
    if encoders or (system is None and "pytorch-lightning_version" in content):
        if system not in (None, *GAUSSIAN):
            folders = " and ".join(GAUSSIAN)
            raise ValueError(f"{where}: a folder, but {system} has files; folders are of {folders}")
        if vocabulary is not None:
            raise ValueError(f"{where}: comes with its tokenizer; leave --vocab out")
        return _import_encoders(checkpoint, out, system, overrides)
    system = system or recognized(content, where)
    if not SYSTEMS[system].recognizes(content):
        raise ValueError(f"{where}: not a checkpoint of {system}; leave its name out to detect it")
    found = SYSTEMS[system].translate(content, where)
    words = Vocabulary.of(_words(found, vocabulary, where))
    recipe = changed(found.recipe, overrides)
    weights = found.weights.fitted(recipe.model, words, where)
    about: dict[str, Any] = {
        "system": system,
        "checkpoint": checkpoint.name,
        "sha256": sha256(checkpoint),
    }
    about |= {"training": found.training, "ignored": found.weights.ignored}
    about |= {"unknown_options": found.options.unread}
    save_imported(out, recipe, words, weights, about)
    if found.options.unread:
        warnings.warn(
            f"options of its training that are not known here: {', '.join(found.options.unread)}; "
            "if they change the model, its results differ",
            stacklevel=2,
        )
    return recipe


def recognized(content: Mapping[str, Any], where: str) -> str:
    """The name of the official code that wrote a checkpoint."""
    for name, system in SYSTEMS.items():
        if system.recognizes(content):
            return name
    held = ", ".join(str(key) for key in list(content)[:10]) or "nothing"
    known = ", ".join((*SYSTEMS, *GAUSSIAN))
    raise ValueError(f"{where}: no checkpoint of {known}: it holds {held}")


def _words(found: Translation, vocabulary: Path | None, where: str) -> list[str]:
    """The words of the model, as many as it has vectors for."""
    if vocabulary is None and found.words is None:
        raise ValueError(
            f"{where}: holds no vocabulary; give the file it was trained with, --vocab"
        )
    words = found.words if vocabulary is None else read_words(vocabulary)
    assert words is not None
    if found.words is not None and words != found.words:
        raise ValueError(f"{vocabulary}: not the vocabulary that {where} holds; leave --vocab out")
    vectors = found.weights.size("text.words.weight", 0, where)
    if len(words) != vectors:
        raise ValueError(
            f"{vocabulary or where}: {len(words):,} words, but the model has {vectors:,} word "
            "vectors; give the vocabulary that it was trained with"
        )
    return words


ENCODER = "encoder"
"""The folder of a run that a converted checkpoint lies in."""
SCALARS = ("logit_scale", "logit_bias", "shift", "negative_scale")


def is_named(given: Path) -> bool:
    """Whether it is the name of an encoder rather than a path, such as open_clip:ARCH/TAG."""
    return ":" in str(given) and not given.exists()


def is_lightning(checkpoint: Path) -> bool:
    return checkpoint.is_file() and checkpoint.suffix != ".safetensors"


def library_of(folder: Path) -> str:
    """Which of the libraries reads a folder of the hub."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing; a folder of the hub must hold it")
    held = read_json(path, dict).get("vision_cfg")
    return "pcmepp" if isinstance(held, dict) and "unc_layers" in held else "prolip"


def _import_encoders(
    given: Path, out: Path, library: str | None, overrides: Mapping[str, Any]
) -> Recipe:
    """A run of a folder in the layout of the hub, of a repository there, of a checkpoint of
    PCME++'s training code, or of an encoder by name; ``library`` is found of a folder."""
    training: dict[str, Any] = {}
    unknown: list[str] = []
    place: Path | None
    if given.is_file() and (library == "prolip" or not is_lightning(given)):
        raise ValueError(
            f"{given}: a file, but {library or 'the hub'} has folders: give the one that holds "
            "config.json and model.safetensors"
        )
    if is_lightning(given):
        library, name, place = "pcmepp", given.stem, out.resolve() / ENCODER
        training, unknown = convert(given, place)
    elif given.is_dir():
        library, name, place = library or library_of(given), given.name, given.resolve()
    elif is_named(given):
        library, name, at, whole = Spec.of(str(given))
        if len(LIBRARIES[library]) < 2:
            both = ", ".join(f"{name}:" for name, sides in LIBRARIES.items() if len(sides) == 2)
            raise ValueError(
                f"{given}: {library}: has {LIBRARIES[library][0]} encoders only; take one of {both}"
            )
        name, place = name + WHOLE * whole, Path(at).expanduser().resolve() if at else None
    elif library in GAUSSIAN and re.fullmatch(r"[\w.-]+/[\w.-]+", str(given)):
        name, place = str(given), None
    else:
        raise FileNotFoundError(f"{given}: no such checkpoint, nor a folder of the hub")
    name = re.sub(r"[^\w./+-]+", "-", name)
    encoder = f"{library}:{name}" + ("" if place is None else f"@{place}")
    try:
        image, text = image_tower(encoder), text_tower(encoder)
    except (ValueError, OSError):
        if is_lightning(given):  # what was written of it is of no use
            shutil.rmtree(out / ENCODER)
        raise
    if image.width != text.width:
        raise ValueError(f"{given}: images have {image.width} dimensions, texts {text.width}")
    title, dim, similarity = f"{library}:{name}", image.width, "cosine"
    loss, weights = LossRecipe(), dict[str, Tensor]()
    if library in GAUSSIAN:
        loss, weights = _loss(library, hub.snapshot(name) if place is None else place)
        kind, similarity = ("ProLIP", "prolip") if library == "prolip" else ("PCME++", "csd")
        title, dim = f"{kind} {Path(name).name}", image.width // 2
    sides = PublishedRecipe(encoder, image.sha256(), encoder, text.sha256())
    model = ModelRecipe(
        system="published",
        dim=dim,
        feature_dim=image.width,
        similarity=similarity,
        published=sides,
    )
    recipe = changed(Recipe(title, DataRecipe("coco", backbone=encoder), model, loss), overrides)
    assert set(build(recipe.model, None, recipe.loss).state_dict()) == set(weights)
    about: dict[str, Any] = {"system": library, "checkpoint": given.name, "sha256": image.sha256()}
    about |= {"training": training, "ignored": {}, "unknown_options": unknown}
    save_imported(out, recipe, None, weights, about)
    return recipe


def _loss(library: str, folder: Path) -> tuple[LossRecipe, dict[str, Tensor]]:
    """The loss that it was trained with, and its learned scale and bias."""
    path = weights_file(folder, "model.safetensors")
    found = {name: read_side(path, name).get("") for name in SCALARS}
    if library == "prolip":
        loss = LossRecipe("prolip", scale=10.0, bias=-10.0, vib_as_published=1e-4)
        names = {"log_scale": found["logit_scale"], "bias": found["logit_bias"]}
    else:
        loss = LossRecipe("pcmepp", scale=5.0, bias=5.0, pseudo_positives=0.1, vib=1e-4)
        names = {"scale": found["negative_scale"], "bias": found["shift"]}
    start = build(ModelRecipe(system="published", similarity="csd", feature_dim=1), None, loss)
    own = start.heads["loss"].state_dict()
    held = {name: own[name] if value is None else value for name, value in names.items()}
    return loss, {f"heads.loss.{n}": v.float().reshape(()).clone() for n, v in held.items()}


# ---- a checkpoint of the official training code ----


def convert(checkpoint: Path, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Write the networks of a checkpoint as a folder of ``pcmepp:``. The averaged weights (SWA) are
    taken if there are any, as the official code evaluates. Gives what its training says, and its
    unknown options."""
    where, content = str(checkpoint), read_checkpoint(checkpoint)
    if "state_dict" not in content:
        held = ", ".join(map(str, list(content)[:10])) or "nothing"
        raise ValueError(f"{where}: no state_dict, found {held}: not a checkpoint of PCME++")
    state = state_of(content.get("state_dict"), where)
    options = _lightning_options(content, where)
    averaged = int(state.get("swa_txt_enc.n_averaged", torch.zeros(()))) > 0
    sides = {}
    for side in ("img_enc.", "txt_enc.", "criterion."):
        prefix = f"swa_{side}module." if averaged else side
        sides[side] = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    for side in ("img_enc.", "txt_enc."):
        if not any(name.startswith("backbone.") for name in sides[side]):
            some = ", ".join(list(state)[:3])
            raise ValueError(
                f"{where}: no weights {side}backbone.…, found {some}, …: not a PCME++ over CLIP"
            )
        if not any(re.search(r"prob_resblocks|uncertainty_transformer", n) for n in sides[side]):
            raise ValueError(
                f"{where}: {side}backbone has no blocks for the variance: a model of points "
                "(is_probabilistic_model false), not PCME++"
            )
    config = _config(sides["img_enc."], sides["txt_enc."], where)
    options.agree("embed_size", config["embed_dim"])
    tensors = {f"{side}{n}": v for side in ("img_enc.", "txt_enc.") for n, v in sides[side].items()}
    tensors |= {n: v.squeeze() for n, v in sides["criterion."].items() if n in SCALARS}
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", config)
    training = {"epoch": plain(content.get("epoch")), "weights": "averaged" if averaged else "last"}
    return training, options.unread


def _lightning_options(content: Mapping[str, Any], where: str) -> OfficialOptions:
    held = content.get("hyper_parameters")
    opt = held.get("opt") if isinstance(held, dict) else None
    model = opt.get("model") if isinstance(opt, dict) else None
    harmless = ["n_unc_layers", "backbone_source", "img_dim", "sigma_ln_init", "bias_init"]
    options = OfficialOptions(
        model, f"{where}, hyper_parameters.opt.model", [*harmless, "rand_init", "no_freeze"]
    )
    options.require("is_probabilistic_model", True, "it is a model of points")
    options.require("precomp_enc_type", "backbone", "only towers of CLIP are verified there")
    options.require("no_imgnorm", False, "its means are not of unit length")
    options.require("no_txtnorm", False, "its means are not of unit length")
    options.require("no_gpo", False, "it pools by the mean")
    return options


def _config(image: Mapping[str, Tensor], text: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """The sizes of both towers, as their weights have them."""
    conv, places = (
        _weight(image, f"backbone.{n}", where) for n in ("conv1.weight", "positional_embedding")
    )
    width, patch = conv.shape[0], conv.shape[-1]
    words = _weight(text, "backbone.token_embedding.weight", where)
    context = _weight(text, "backbone.positional_embedding", where).shape[0]
    own = "uncertainty_transformer.resblocks", "transformer.prob_resblocks"
    blocks = [
        {"layers": _count(side, "transformer.resblocks"), "unc_layers": _count(side, name)}
        for side, name in zip((image, text), own, strict=True)
    ]
    grid = round((places.shape[0] - 1) ** 0.5)
    return {
        "embed_dim": _weight(image, "image_encoder.fc.weight", where).shape[0],
        "pooling": "gpo",
        "normed": "image_std_ln.weight" in image,
        "quick_gelu": True,
        "vision_cfg": {
            "width": width,
            "head_width": min(64, width),
            "patch_size": patch,
            "image_size": patch * grid,
            **blocks[0],
        },
        "text_cfg": {
            "width": words.shape[1],
            "heads": max(1, words.shape[1] // 64),
            "context_length": context,
            "vocab_size": words.shape[0],
            **blocks[1],
        },
    }


def _weight(side: Mapping[str, Tensor], name: str, where: str) -> Tensor:
    if name not in side or side[name].ndim < 2:
        raise ValueError(f"{where}: the weight {name} is missing or not a matrix")
    return side[name]


def _count(side: Mapping[str, Tensor], name: str) -> int:
    found = {re.match(rf"backbone\.{re.escape(name)}\.(\d+)\.", key) for key in side}
    return len({match[1] for match in found if match})
