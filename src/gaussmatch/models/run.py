"""A run folder: everything that training leaves, in a format with a number, loaded by one call.

run.json                  the format, and the SHA-256 of each of the files below
recipe.yaml               every field of the recipe, with the SHA-256 of the encoders that it names
vocabulary.json           the words of the text encoder, if it learned them
model.safetensors         the best weights on validation; in an exported model instead
images.onnx, texts.onnx   both encoders with all their weights
metrics.json              their validation measures, and whether training finished
checkpoint.pt             what is needed to continue
checkpoint.previous.pt    the one before it, in case the newest is damaged
log.jsonl                 one line for each step report and each epoch
tensorboard/              the same curves for TensorBoard
frozen/                   the run that this one started from, if it was trained along with it
.lock                     held by the one process that trains

No other module knows these names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaussmatch.device import default_device
from gaussmatch.files import (
    atomic,
    claim_folder,
    load_tensors,
    locked,
    plain_name,
    read_json,
    save_tensors,
    sha256,
    sweep,
    sync,
    to_json,
    write_json,
)
from gaussmatch.lazy import torch

if TYPE_CHECKING:  # names of files are needed in many places, and models in few
    from gaussmatch.models.encoders.base import Vocabulary
    from gaussmatch.models.model import Matcher, Model
    from gaussmatch.models.recipe import Recipe

FORMAT = 3
MANIFEST, LOCK = "run.json", ".lock"
RECIPE, WEIGHTS, VOCABULARY = "recipe.yaml", "model.safetensors", "vocabulary.json"
METRICS, LOG, BOARD, FROZEN = "metrics.json", "log.jsonl", "tensorboard", "frozen"
CHECKPOINT, PREVIOUS = "checkpoint.pt", "checkpoint.previous.pt"
CALIBRATION, PROBE = "calibration.json", "probe.json"

SHIPPED, PHOTOS, FORMER = Path(__file__).parent, "photos", "photos-v1"
"""Runs that come with the package: the photo model, and the one before it (docs/photos.md)."""

MODEL = (RECIPE, VOCABULARY, WEIGHTS)
IMAGES, TEXTS = "images.onnx", "texts.onnx"
EXPORTED = (RECIPE, VOCABULARY, IMAGES, TEXTS)
"""What a model, or an exported one, is loaded from, as far as it has it; an index copies these."""

FILES = (*MODEL, IMAGES, TEXTS, METRICS, LOG, CHECKPOINT, PREVIOUS, CALIBRATION, PROBE)
"""All files that the manifest knows."""


def locate(run: str | os.PathLike[str]) -> Path:
    """The folder of a run; ``"photos"`` is the photo model that comes with the package and
    ``"photos-v1"`` the one before it, unless there is a run of that name here."""
    folder = Path(run).expanduser()
    shipped = os.fspath(run) in (PHOTOS, FORMER) and not is_run(folder)
    return SHIPPED / folder if shipped else folder


def is_shipped(folder: Path) -> bool:
    """Whether a run comes with the package, so that nothing is written into it."""
    return folder.parent == SHIPPED


def load(run: str | os.PathLike[str], device: str | torch.device | None = None) -> Model:
    """Load the best model of a run folder, or ``"photos"``, the photo model of the package; its
    files are checked against their SHA-256.

    Args:
        device: if not given, that of ``--device``, or the CPU.
    """
    folder = locate(run)
    _check_complete(folder, *model_files(folder))
    verify(folder, *model_files(folder))
    return load_model(folder, device)


def load_model(folder: Path, device: str | torch.device | None = None) -> Model:
    """As ``load``, of files that the caller has verified: an index has the hashes of its copy."""
    from gaussmatch.models.features.photos import pixel_transform
    from gaussmatch.models.model import Model, build, exported, ranking
    from gaussmatch.models.recipe import load_recipe

    _check_complete(folder, *model_files(folder))
    recipe = load_recipe(folder / RECIPE)
    words = read_vocabulary(recipe, folder)
    if _is_exported(folder):
        return Model(recipe, exported(recipe.model, words, folder / IMAGES, folder / TEXTS))
    with torch.device("meta"):  # shapes alone: a recipe may claim more than there is memory for
        check_shapes(build(recipe.model, words, recipe.loss), folder / WEIGHTS)
    matcher = build(recipe.model, words, recipe.loss, pixel_transform(recipe.data))
    matcher.load_state_dict(load_tensors(folder / WEIGHTS))
    return Model(recipe, ranking(recipe.model, matcher).to(device or default_device()))


def _check_complete(folder: Path, *names: str) -> None:
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        advice = "make one with 'gaussmatch train RECIPE --out DIR'"
        if is_begun(folder):
            advice = f"finish it with 'gaussmatch train RECIPE --out {folder} --resume'"
        raise FileNotFoundError(
            f"{folder} is not a finished run: {', '.join(missing)} missing; {advice}"
        )


def model_files(folder: Path) -> tuple[str, ...]:
    """The files that the model of a folder is loaded from: weights, or what ``gaussmatch export``
    made of them, and its words if it has any."""
    files = EXPORTED if _is_exported(folder) else MODEL
    return tuple(name for name in files if name != VOCABULARY or (folder / name).is_file())


def _is_exported(folder: Path) -> bool:
    return (folder / IMAGES).is_file() and not (folder / WEIGHTS).is_file()


def is_run(folder: str | os.PathLike[str]) -> bool:
    return (Path(folder).expanduser() / RECIPE).is_file()


def is_begun(folder: Path) -> bool:
    """Whether a training has claimed a folder, but left no model in it yet."""
    claimed = all((folder / name).is_file() for name in (LOCK, MANIFEST))
    return claimed and not any((folder / name).is_file() for name in (WEIGHTS, IMAGES))


def is_finished(folder: Path) -> bool:
    return bool(read_metrics(folder).get("finished"))


def read_recipe(folder: Path, overrides: Mapping[str, Any] = {}) -> Recipe:
    """The recipe of a run, with some fields changed. On other data the features of its own
    photos may be missing: its image network makes them there."""
    from gaussmatch.models.features import find_extracted
    from gaussmatch.models.recipe import changed, load_recipe

    _check_complete(folder, RECIPE)
    verify(folder, RECIPE)
    recipe = load_recipe(folder / RECIPE)
    if not overrides:
        return recipe
    own, recipe = recipe.data, changed(recipe, overrides)
    data = recipe.data
    if (data.name, data.root) != (own.name, own.root) and data.extracted == own.extracted:
        try:
            find_extracted(data, Path(data.root or ""))
        except FileNotFoundError:
            return replace(recipe, data=replace(data, extracted=None))
    return recipe


def read_metrics(folder: Path) -> dict[str, Any]:
    """Best epoch, its validation measures, finished or not; empty before the first epoch."""
    if not (folder / METRICS).is_file():
        return {}
    verify(folder, METRICS)
    return dict(read_json(folder / METRICS, dict))


def write_metrics(folder: Path, **changes: Any) -> None:
    """Write or update the metrics of a run."""
    with replacing(folder, METRICS) as temporary:
        temporary.write_text(to_json({**read_metrics(folder), **changes}), encoding="utf-8")


def save_parts(folder: Path, recipe: Recipe, words: Vocabulary | None) -> None:
    """The recipe of a run, and its words if it learned any."""
    if words is not None:
        with replacing(folder, VOCABULARY) as temporary:
            words.save(temporary)
    with replacing(folder, RECIPE) as temporary:  # last: with it the folder is a run
        recipe.save(temporary)


def read_vocabulary(recipe: Recipe, folder: Path) -> Vocabulary | None:
    """The words of a run; ``None`` if its text encoder comes with its own tokenizer."""
    from gaussmatch.models.encoders.base import Vocabulary
    from gaussmatch.models.encoders.systems import SYSTEMS

    if not SYSTEMS[recipe.model.system].vocabulary:
        return None
    _check_complete(folder, VOCABULARY)
    return Vocabulary.load(folder / VOCABULARY)


def save_weights(state: dict[str, torch.Tensor], folder: Path) -> None:
    """Save the weights, and remove what was learned about other ones: calibration and verdict."""
    for name in (CALIBRATION, PROBE):
        if (folder / name).exists():
            (folder / name).unlink()
            unseal(folder, name)
    with replacing(folder, WEIGHTS) as temporary:
        save_tensors(temporary, state)


def save_imported(
    folder: Path,
    recipe: Recipe,
    words: Vocabulary | None,
    weights: dict[str, torch.Tensor],
    about: Mapping[str, Any],
) -> None:
    """A finished run of a model that was trained elsewhere; ``about`` says where it comes from."""
    save_weights(weights, folder)
    write_metrics(folder, finished=True, dev={}, imported=dict(about))
    save_parts(folder, recipe, words)


def check_shapes(matcher: Matcher, path: Path) -> None:
    """Raise a clear error unless a file of weights holds what a network needs, by its header."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            found = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        raise ValueError(
            f"{path}: not a complete safetensors file ({error}); copy it again or train again"
        ) from error
    wanted = {name: tuple(tensor.shape) for name, tensor in matcher.state_dict().items()}
    for name in sorted(wanted | found):
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"{path}: does not fit {RECIPE} beside it: {name} is {found.get(name, 'missing')}, "
                f"but the recipe wants {wanted.get(name, 'none')}; restore both from a copy"
            )


def claim_place(folder: Path) -> None:
    """Refuse a folder that holds anything but a run, or what a killed training left of one."""
    claim_folder(folder, RECIPE if is_run(folder) else MANIFEST, ignore=[LOCK])


def claim(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """Never overwrite another run or a foreign file, and never continue with another recipe.

    A run may continue for more epochs than planned, unless its schedule is spread over them.
    """
    from gaussmatch.models.recipe import FOUND, identity

    claim_place(folder)
    if not is_run(folder):
        return
    if not resume:
        raise FileExistsError(
            f"{folder} already holds a run; continue with --resume, or choose another folder with "
            "--out"
        )
    old = read_recipe(folder)
    if extends(recipe, old):
        old = replace(old, training=replace(old.training, epochs=recipe.training.epochs))
    before, now = identity(old), identity(recipe)
    both = {name: (before.get(name), now.get(name)) for name in before | now}
    different = sorted(
        name for name, (a, b) in both.items() if a != b and not (name in FOUND and None in (a, b))
    )
    if different:
        raise ValueError(
            f"{folder / RECIPE} is another recipe than the one given (see {different[0]}); "
            "resume with the same recipe, or choose another folder with --out"
        )


def extends(recipe: Recipe, old: Recipe) -> bool:
    """Whether a recipe only sets more epochs of a schedule that does not depend on them."""
    more = recipe.training.epochs > old.training.epochs
    return more and recipe.training.schedule == "step"


@contextmanager
def training_lock(folder: Path) -> Iterator[None]:
    """Held while a run is made: a second training in the same folder is refused.

    What a killed training left half-written is removed.
    """
    busy = f"{folder}: another process is training into this folder; wait for it, or choose "
    with locked(folder / LOCK, busy + "another with --out"):
        sweep(folder, (*FILES, MANIFEST))
        if not (folder / MANIFEST).exists():  # first, so that the folder is known as ours
            _write_manifest(folder, _manifest(folder))
        yield


@contextmanager
def replacing(folder: Path, name: str, keep: str | None = None) -> Iterator[Path]:
    """As ``files.atomic``, with the SHA-256 of the new file in the manifest.

    While the file is being replaced both its hashes are listed, so that a process that is killed at
    any moment leaves a run that verifies.

    Args:
        keep: the name under which the old file is kept.
    """
    known = _manifest(folder)
    before = known.get(name, [])
    with atomic(folder / name) as temporary:
        with writing(folder / name):
            yield temporary
        after = sha256(temporary)
        listed = {**known, name: [*before, after]}
        if keep is not None and (folder / name).exists():
            _write_manifest(folder, {**listed, keep: [*known.get(keep, []), *before]})
            os.replace(folder / name, folder / keep)
            known = {**known, keep: before}
        else:
            _write_manifest(folder, listed)
    _write_manifest(folder, {**known, name: [after]})


@contextmanager
def keeping(folder: Path, name: str) -> Iterator[Path]:
    """As ``replacing``, for what is kept with a finished run; processes that do so take turns."""
    busy = f"{folder}: another process is writing to this run; try again when it is done"
    with locked(folder / LOCK, busy, wait=60), replacing(folder, name) as temporary:
        yield temporary


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns whatever a library raises on a full disk into one line that says what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"{path} could not be written ({' '.join(str(error).split())[:150]}); the previous "
            "file is kept: free some space on the disk, then continue with --resume"
        ) from error


def verify(folder: Path, *names: str) -> None:
    """Raise a clear error unless these files are, bit for bit, what was written."""
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(
            f"{folder}: no {MANIFEST} to check its files by; copy the folder again, with all files"
        )
    for name in names:
        if not is_intact(folder, name):
            raise ValueError(
                f"{folder / name} is damaged or was changed: its SHA-256 is not the one in "
                f"{MANIFEST}; restore it from a copy, or train again"
            )


def read_listed(folder: Path, name: str) -> Any:
    """The content of a JSON file of a run, verified; ``None`` if there is no such file."""
    if not (folder / name).is_file():
        return None
    verify(folder, name)
    return read_json(folder / name)


def is_intact(folder: Path, name: str) -> bool:
    """Whether a file is what was written."""
    return sha256(folder / name) in _manifest(folder).get(name, [])


def seal(folder: Path, *names: str) -> None:
    """List files in their present state: the log, when training ends; a folder to publish."""
    _write_manifest(folder, _manifest(folder) | {n: [sha256(folder / n)] for n in names})


def unseal(folder: Path, *names: str) -> None:
    """No longer list files that will grow or be removed."""
    _write_manifest(folder, {k: v for k, v in _manifest(folder).items() if k not in names})


def restore_previous(folder: Path) -> None:
    """Replace a newest checkpoint that is missing or damaged by the previous one."""
    known = _manifest(folder)
    _write_manifest(folder, {**known, CHECKPOINT: known[PREVIOUS]})
    os.replace(folder / PREVIOUS, folder / CHECKPOINT)
    sync(folder)


def drop_checkpoints(folder: Path) -> None:
    """Remove the checkpoints: a finished run needs none, unless it will be trained for longer."""
    for name in (CHECKPOINT, PREVIOUS):
        (folder / name).unlink(missing_ok=True)
    unseal(folder, CHECKPOINT, PREVIOUS)


def _manifest(folder: Path) -> dict[str, list[str]]:
    """File → its SHA-256, or two while it is being replaced. A new run has none yet."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    content = read_json(path)
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"{path}: format {found!r}, but this version reads {FORMAT}; use the version that made "
            "the run"
        )
    files = content.get("files")
    if not isinstance(files, dict) or not all(isinstance(v, list) for v in files.values()):
        raise ValueError(f"{path}: not the manifest of a run; restore it from a copy")
    return {plain_name(name, path): digests for name, digests in files.items()}


def _write_manifest(folder: Path, files: dict[str, list[str]]) -> None:
    write_json(folder / MANIFEST, {"format": FORMAT, "files": files})
