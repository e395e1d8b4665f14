"""The training loop, from top to bottom: the run, its epochs, their steps, the rates, the log, the
watch for a collapse."""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, StepLR
from tqdm import tqdm

from gaussmatch.core.losses import ScoreLoss, TripletLoss
from gaussmatch.core.similarities import similarity
from gaussmatch.data import DataSet
from gaussmatch.data.pairs import Pairs, read_images
from gaussmatch.device import choose_device
from gaussmatch.files import write_text
from gaussmatch.learn.evaluation.retrieval import recalls
from gaussmatch.learn.training import gather, start
from gaussmatch.learn.training.batches import Batch, Batches, Waiting, mixed
from gaussmatch.learn.training.posthoc import fit as fit_posthoc
from gaussmatch.learn.training.step import (
    Gradients,
    Objective,
    Precision,
    activation_bytes,
    memory_line,
)
from gaussmatch.models import run
from gaussmatch.models.features import load_data
from gaussmatch.models.model import Matcher, Model
from gaussmatch.models.recipe import LossRecipe, Recipe, TrainingRecipe, load_recipe

REPORT_EVERY = 20
"""Steps between two records of the loss."""


def train(
    recipe: Recipe | str,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    data: DataSet | None = None,
    progress_bar: bool = True,
    accept_changed_data: bool = False,
) -> Model:
    """Train a recipe into the run folder ``out`` and return its best model on validation.

    Args:
        recipe: or its name or file, such as ``scenes/vsepp-kl``.
        resume: continue after the last checkpoint and end as if never interrupted; a finished run
            is returned as it is, or continued if ``training.epochs`` was raised.
        data: used instead of loading the recipe's data.
        accept_changed_data: resume although images, features or captions are not those of before.
    """
    recipe = load_recipe(recipe) if isinstance(recipe, str) else recipe
    out = Path(out)
    with gather.joined(choose_device(recipe.training.device)) as device:
        if gather.on_main(partial(_is_wanted, recipe, out, resume)):
            with run.training_lock(out) if gather.is_main() else nullcontext():
                _train(recipe, out, resume, data, device, progress_bar, accept_changed_data)
        gather.on_main(bool)  # wait until everything is written
        return run.load(out)


def _is_wanted(recipe: Recipe, out: Path, resume: bool) -> bool:
    """Whether there is anything to train; refuses a folder that is not for this recipe."""
    run.claim(out, recipe, resume=resume)
    wanted = not (resume and run.is_finished(out)) or run.extends(recipe, run.read_recipe(out))
    if not wanted:
        with suppress(OSError), run.training_lock(out):
            pass  # which removes what an interruption at the very end left
    return wanted


def _is_resumed(recipe: Recipe, out: Path, resume: bool) -> bool:
    """Whether training continues from a checkpoint; called with the lock held."""
    run.claim(out, recipe, resume=resume)  # again: another training may have been faster
    resumed = resume and start.find_checkpoint(out)
    if run.is_finished(out):
        if not resumed:
            raise FileNotFoundError(
                f"{out} is finished and has no checkpoint to continue from; choose another folder"
            )
        run.write_metrics(out, finished=False)
    return resumed


def _train(
    recipe: Recipe,
    out: Path,
    resume: bool,
    data: DataSet | None,
    device: torch.device,
    progress_bar: bool,
    accept_changed_data: bool,
) -> None:
    """Train with the lock held; only the main process validates and writes."""
    main = gather.is_main()
    resumed = gather.on_main(partial(_is_resumed, recipe, out, resume))
    origin = None if resumed else _origin(recipe, out, progress_bar)
    data = data if data is not None else load_data(recipe.data)
    recipe = replace(recipe, model=run.read_recipe(out).model) if resumed else recipe
    recipe = start.resolved(recipe, data.train)
    seed_everything(recipe.training.seed)
    if resumed:
        model = start.resumed_model(recipe, out)
    else:
        model = start.initial_model(recipe, data.train, origin)
    model.matcher.to(device)
    if recipe.model.posthoc.fitted:
        if main:
            _fit(model, data, out)
        return

    ranks, fits = (gather.rank(), gather.ranks()), bool(recipe.loss.fitting)
    batches = Batches(data.train, model.matcher.text_encoder, recipe.training, ranks, fits)
    precision = Precision(recipe.training.precision, device)
    state = _state(model, data, len(batches), precision)
    if resumed:
        state.load(out, accept_changed_data)
    gather.broadcast(model.matcher.state_dict().values())
    if main:
        run.save_parts(out, recipe, start.vocabulary_of(model))
    log = RunLog(out, state.progress.step, writes=main)
    steps = Steps(recipe, state, log, precision, partial(state.save, out))
    if main and not resumed:
        _report(model, data, out, steps, started=origin is not None)
    while state.progress.epoch < recipe.training.epochs:
        _epoch(model, data, out, batches, steps, progress_bar)
    if main:
        _finish(out, log)


def _state(model: Model, data: DataSet, steps: int, precision: Precision) -> start.TrainingState:
    """All that changes while a run trains, before the first of ``steps`` an epoch."""
    settings = model.recipe.training
    optimizer = optimizer_of(model.matcher, settings)
    rates = schedule(optimizer, settings, settings.epochs * steps)
    marks = {
        f"{what} of {name}": mark
        for name in ("train", "dev")
        for what, mark in data.split(name).fingerprint().items()
    }
    return start.TrainingState(model.matcher, optimizer, rates, precision.scaler, data=marks)


def _report(model: Model, data: DataSet, out: Path, steps: Steps, *, started: bool) -> None:
    """What a new run takes of memory and, if it started from another one, where it starts."""
    recipe = model.recipe
    if recipe.model.backbone is not None:
        at_once = recipe.training.micro_batch or recipe.training.batch_size // gather.ranks()
        report_memory(model.matcher, data.train, at_once, steps.precision, steps.log)
    if started and not recipe.model.ranks_by_mean:
        dev = _validated(model, data)
        start.report_start(start.origin_folder(recipe, out), dev["rsum"])
        steps.log.write("start", 0, 0, **dev)
        _keep_best(out, model.matcher, steps.progress, 0, dev)


def _epoch(
    model: Model, data: DataSet, out: Path, batches: Batches, steps: Steps, progress_bar: bool
) -> None:
    """Train one epoch, or the rest of it; validate, keep the best, save a checkpoint."""
    recipe, progress, rates = model.recipe, steps.progress, steps.state.rates
    settings, main, epoch = recipe.training, gather.is_main(), progress.epoch + 1
    started, began, rate = time.perf_counter(), time.process_time(), rates.get_last_lr()[0]
    title = f"{recipe.title or out.name} {epoch}/{settings.epochs}"
    shown = main and progress_bar and sys.stderr.isatty()
    if gather.ranks() > 1:  # the ranks draw different numbers, the same ones when resumed
        seed_everything(settings.seed * 1_000_003 + epoch * gather.ranks() + gather.rank())
    loss = steps.epoch(epoch, _bar(batches, epoch, progress.batch, title, shown))
    if settings.schedule == "step":
        rates.step()
    took = {
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - began, 2),
    }
    progress.epoch, progress.batch, progress.summed = epoch, 0, 0.0
    if not main:
        return
    dev = _validated(model, data)
    steps.log.write("epoch", epoch, progress.step, loss=loss, learning_rate=rate, **took, **dev)
    _keep_best(out, model.matcher, progress, epoch, dev, latest=recipe.model.ranks_by_mean)
    steps.save()
    if progress_bar and not shown:
        figures = f"loss {loss:.2f}, validation rsum {dev['rsum']:.1f}, {took['seconds']:.1f} s"
        print(f"{title}: {figures}", file=sys.stderr)


def _finish(out: Path, log: RunLog) -> None:
    log.close()
    run.seal(out, run.LOG)
    run.write_metrics(out, finished=True)


def _fit(model: Model, data: DataSet, out: Path) -> None:
    """What a post-hoc method takes instead of epochs; it is short, and starts again if it was
    interrupted."""
    run.save_parts(out, model.recipe, start.vocabulary_of(model))
    log = RunLog(out, 0, writes=True)
    found = fit_posthoc(model, data.train)
    dev = _validated(model, data)
    log.write("fit", 0, int(found.pop("steps")), **found, **dev)
    _keep_best(out, model.matcher, start.Progress(), 0, dev)
    _finish(out, log)


def _validated(model: Model, data: DataSet) -> dict[str, float]:
    """Recalls on validation, computed as a finished model does."""
    model.matcher.eval()
    s = similarity("cosine") if model.recipe.model.ranks_by_mean else model.matcher.similarity
    return recalls(s, *model.encode_pairs(data.dev), data.dev)


def _bar(batches: Batches, epoch: int, done: int, title: str, shown: bool) -> tqdm[Batch]:
    """The batches of an epoch that are not done, with a bar that disappears at the end."""
    return tqdm(
        batches.epoch(epoch, done),
        title,
        total=len(batches),
        initial=done,
        unit="step",
        disable=not shown,
        leave=False,
    )


def _keep_best(
    out: Path,
    matcher: Matcher,
    progress: start.Progress,
    epoch: int,
    dev: dict[str, float],
    latest: bool = False,
) -> None:
    """Weights and measures of the best epoch so far; the first is always kept, and the ``latest``
    if the ranking is not what is learned."""
    if latest or dev["rsum"] > progress.best_rsum:
        progress.best_rsum, progress.best_epoch = dev["rsum"], epoch
        run.save_weights(matcher.state_dict(), out)
        run.write_metrics(out, epoch=epoch, dev=dev, finished=False)


def _origin(recipe: Recipe, out: Path, progress_bar: bool) -> Model | None:
    """The best model of the run to start from; a run that is only named is trained first."""
    if recipe.training.start_from is None:
        return None
    folder = start.origin_folder(recipe, out)
    if run.is_run(recipe.training.start_from):
        return run.load(folder)
    return train(start.frozen_recipe(recipe), folder, resume=True, progress_bar=progress_bar)


@dataclass
class Steps:
    """Gradient steps over an epoch's batches: encode, score, loss, clip, step, report."""

    recipe: Recipe
    state: start.TrainingState
    log: RunLog
    precision: Precision
    save: Callable[[], None]
    watch: CollapseWatch = field(default_factory=lambda: CollapseWatch())

    def __post_init__(self) -> None:
        self.matcher, self.progress = self.state.matcher, self.state.progress
        self.gradients = Gradients(self.matcher, self.precision, self.recipe.training.micro_batch)

    def epoch(self, epoch: int, bar: tqdm[Batch]) -> float:
        """Train on every batch; returns the mean loss."""
        self.matcher.train()
        objective = replace(
            Objective.of_epoch(self.recipe.loss, epoch, self.matcher.heads),
            shortened_as=self.recipe.training.shorten_as,
        )
        progress, interval = (
            self.progress,
            start.CheckpointTimer(self.recipe.training.checkpoint_every),
        )
        first, started = progress.batch, time.perf_counter()
        waiting = Waiting(bar)
        for batch in waiting:
            terms, pairs = self.step(objective, batch)
            value = sum(terms.values())
            progress.step, progress.batch = progress.step + 1, progress.batch + 1
            progress.summed += value
            ranking = objective.ranking
            if self.watch.update(ranking, terms[ranking.name], pairs):
                advice = self.watch.advice(ranking, terms[ranking.name], self.recipe.loss)
                warnings.warn(advice, CollapseWarning, stacklevel=2)
            last = progress.batch == bar.total
            if progress.batch % REPORT_EVERY == 0 or last:
                elapsed = time.perf_counter() - started
                speed = (progress.batch - first) * self.recipe.training.batch_size / elapsed
                mean = progress.summed / progress.batch
                bar.set_postfix(loss=f"{mean:.2f}", pairs_per_s=f"{speed:.0f}")
                self.log.write(
                    "step",
                    epoch,
                    progress.step,
                    loss=value,
                    **(terms if len(terms) > 1 else {}),
                    pairs_per_s=round(speed, 1),
                    waiting=round(waiting.seconds / elapsed, 4),
                )
            if interval.due(progress.step) and not last and gather.is_main():
                self.save()
        return progress.summed / progress.batch

    def step(self, objective: Objective, batch: Batch) -> tuple[dict[str, float], int]:
        """One gradient step; returns the terms of the loss before it, and the number of pairs."""
        self.state.optimizer.zero_grad(set_to_none=True)
        batch = mixed(batch, self.recipe.training.mix) if self.recipe.training.mix else batch
        terms, pairs = self.gradients(objective, batch.to(self.precision.device))
        values = {name: float(value.detach()) for name, value in terms.items()}
        if not math.isfinite(sum(values.values())):
            found = ", ".join(f"{name} {value}" for name, value in values.items())
            raise ValueError(
                f"the loss is {sum(values.values())} at step {self.progress.step} ({found}); lower "
                "training.learning_rate, or look for outliers in the features"
            )
        self.precision.step(self.state.optimizer, self.recipe.training.clip)
        if self.recipe.training.schedule != "step":
            self.state.rates.step()
        return values, pairs


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - third-party code may draw from it
    torch.manual_seed(seed)


def optimizer_of(matcher: Matcher, settings: TrainingRecipe) -> torch.optim.Optimizer:
    """Adam or AdamW at one rate; a backbone at ``backbone_rate`` times it, or not at all."""
    inside = {id(p) for name, p in matcher.named_parameters() if ".backbone." in name}
    rest = [p for p in matcher.parameters() if id(p) not in inside and p.requires_grad]
    groups = [{"params": rest, "lr": settings.learning_rate}]
    backbone = [p for p in matcher.parameters() if id(p) in inside]
    if backbone and settings.backbone_rate > 0:
        rate = settings.backbone_rate * settings.learning_rate
        groups.append({"params": backbone, "lr": rate})
    for p in backbone:
        p.requires_grad_(settings.backbone_rate > 0)
    if settings.optimizer == "adamw":  # one pass over the weights: an eighth of the time
        return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=True)
    return torch.optim.Adam(groups, fused=settings.optimizer == "fused-adam" or None)


def schedule(optimizer: torch.optim.Optimizer, settings: TrainingRecipe, steps: int) -> LRScheduler:
    """The learning rate over time: ``step`` moves with each epoch, the others with each step."""
    if settings.schedule == "step":
        return StepLR(optimizer, settings.decay_epoch, settings.decay)
    if settings.schedule == "one-cycle":
        rise = settings.warmup
        if rise * steps == 1:  # torch divides by rise · steps − 1
            rise *= 1 - 1e-9
        rates = [group["lr"] for group in optimizer.param_groups]
        return OneCycleLR(optimizer, rates, steps, pct_start=rise, cycle_momentum=False)
    return LambdaLR(optimizer, lambda step: cosine(step, steps, settings.warmup))


def cosine(step: int, steps: int, warmup: float) -> float:
    """Factor of the rate: up in a line over a share of all steps, then down half a cosine to 0.

    >>> [round(cosine(step, 8, warmup=0.25), 2) for step in range(9)]
    [0.5, 1.0, 1.0, 0.93, 0.75, 0.5, 0.25, 0.07, 0.0]
    """
    up = warmup * steps
    if step + 1 <= up:
        return (step + 1) / up
    done = max(0.0, step - up) / max(1.0, steps - up)
    return (1 + math.cos(math.pi * min(1.0, done))) / 2


class RunLog:
    """Appends records to the run's log; numbers also go to TensorBoard.

    A resumed run first drops the records after its checkpoint, so that the log reads as that of
    an uninterrupted run. One that does not write is for a process that is not the main one.
    """

    def __init__(self, folder: Path, steps_done: int = 0, *, writes: bool = True) -> None:
        self._path, self._writes, self._board = folder / run.LOG, writes, None
        if not writes:
            return
        kept = [r for r in read_log(folder) if r["step"] <= steps_done] if steps_done else []
        write_text(self._path, "".join(json.dumps(r) + "\n" for r in kept))
        run.unseal(folder, run.LOG)
        self._board = _board(folder / run.BOARD, kept[-1]["step"] if kept else 0)

    def write(self, event: str, epoch: int, step: int, **values: Any) -> None:
        if not self._writes:
            return
        record = {"event": event, "epoch": epoch, "step": step, **values}
        with run.writing(self._path):
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            if self._board is not None:
                for name, value in values.items():
                    if isinstance(value, int | float):
                        self._board.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All records of a run's log; a last line that an interruption cut short is left out."""
    path = folder / run.LOG
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        tqdm.write("TensorBoard is not installed (extra 'report'): curves go to log.jsonl only")
        return None
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)


TOLERANCE = 0.02  # share by which a loss may differ from that value


class CollapseWarning(UserWarning):
    """The loss is stuck at the value of a model that maps everything to one point."""


class CollapseWatch:
    """Watches for a loss that is stuck at the value of a model that scores all pairs alike because
    it maps everything to one point: 2·B·margin for the hinge. With hardest negatives from the first
    step this can last for epochs; a first epoch with the sum of all violations prevents it.

    >>> watch = CollapseWatch(patience=3)
    >>> loss = TripletLoss(margin=0.2)
    >>> [watch.update(loss, value=51.2, batch=128) for _ in range(3)]
    [False, False, True]
    """

    def __init__(self, patience: int = 50) -> None:
        self.patience = patience
        self._stuck = 0
        self._warned = False

    def update(self, loss: ScoreLoss, value: float, batch: int) -> bool:
        """Take one step's loss; true once, when it has been stuck for ``patience`` steps."""
        target = loss.collapsed_value(batch)
        near = target > 0 and abs(value / target - 1) < TOLERANCE
        self._stuck = self._stuck + 1 if near else 0
        if self._stuck < self.patience or self._warned:
            return False
        self._warned = True
        return True

    @staticmethod
    def advice(loss: ScoreLoss, value: float, recipe: LossRecipe) -> str:
        if not isinstance(loss, TripletLoss):
            return (
                f"the loss is stuck at {value:.1f}, that of a guess: all pairs score alike. To "
                "cure it, change training.learning_rate or loss.scale."
            )
        cure = (
            f"raise loss.warmup_epochs (now {recipe.warmup_epochs}) or lower training.learning_rate"
            if recipe.warmup_epochs
            else "set loss.warmup_epochs to 1"
        )
        return (
            f"the loss is stuck at {value:.1f}, its collapsed value (every violation is the "
            f"margin; all pairs score alike). To cure it, {cure}. If captions fit many images, "
            "the hardest negative is often a true match: loss.mining semi-hard leaves those out."
        )


def report_memory(
    matcher: Matcher, pairs: Pairs, batch: int, precision: Precision, log: RunLog
) -> None:
    """Measure it on a few images of the data, print it and log it."""
    if len(pairs.images) < 2:
        return
    images = read_images(pairs, range(min(4, len(pairs.images))))
    with precision.forward():
        per_image = activation_bytes(matcher.image, images.to(precision.device))
    tqdm.write(memory_line(per_image, batch), file=sys.stderr)
    log.write("memory", 0, 0, activation_bytes_an_image=per_image)
