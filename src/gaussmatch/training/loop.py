"""The training loop, from top to bottom."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from gaussmatch.data import DataSet, load_data
from gaussmatch.data.batches import Batch, Batches, Waiting
from gaussmatch.evaluation.retrieval import recalls
from gaussmatch.matcher import Matcher
from gaussmatch.model import Model
from gaussmatch.recipe import Recipe, load_recipe
from gaussmatch.run import (
    LOG,
    claim,
    extends,
    is_finished,
    is_run,
    load,
    read_recipe,
    save_parts,
    save_weights,
    seal,
    training_lock,
    write_metrics,
)
from gaussmatch.training.checkpoint import (
    Interval,
    Progress,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from gaussmatch.training.collapse import CollapseWarning, CollapseWatch
from gaussmatch.training.log import RunLog
from gaussmatch.training.memory import tell_memory
from gaussmatch.training.objective import Objective, total
from gaussmatch.training.precision import Precision
from gaussmatch.training.setup import adam, choose_device, seed_everything, with_feature_dim
from gaussmatch.training.start import (
    begin,
    frozen_recipe,
    origin_folder,
    resumable,
    tell_start,
)

REPORT_EVERY = 20
"""Steps between two records of the loss."""


def train(
    recipe: Recipe | str,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    data: DataSet | None = None,
    progress_bar: bool = True,
) -> Model:
    """Train a recipe into the run folder ``out`` and return its best model on validation.

    Args:
        recipe: or its name or file, such as ``scenes/vsepp-kl``.
        resume: continue after the last checkpoint and end as if never interrupted; a finished run
            is returned as it is, or continued if ``training.epochs`` was raised.
        data: used instead of loading the recipe's data.
    """
    recipe = load_recipe(recipe) if isinstance(recipe, str) else recipe
    out = Path(out)
    choose_device(recipe.training.device)
    claim(out, recipe, resume=resume)
    if not (resume and is_finished(out)) or extends(recipe, read_recipe(out)):
        with training_lock(out):
            claim(out, recipe, resume=resume)  # again: another training may have come first
            _train(recipe, out, resume, data, progress_bar)
    return load(out)


def _train(
    recipe: Recipe, out: Path, resume: bool, data: DataSet | None, progress_bar: bool
) -> None:
    """Train with the lock held."""
    resumed = resume and find_checkpoint(out)
    if is_finished(out):
        if not resumed:
            raise FileNotFoundError(
                f"{out} is finished and has no checkpoint to go on from; train into another folder"
            )
        write_metrics(out, finished=False)
    origin = None if resumed else _origin(recipe, out, progress_bar)
    data = data if data is not None else load_data(recipe.data)
    recipe = with_feature_dim(recipe, data.train)
    settings, device = recipe.training, choose_device(recipe.training.device)

    seed_everything(settings.seed)
    model = resumable(recipe, out) if resumed else begin(recipe, data.train, origin)
    matcher = model.matcher.to(device)
    optimiser = adam(matcher, settings)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, settings.decay_epoch, settings.decay)
    precision = Precision(settings.precision, device)
    batches = Batches(
        data.train,
        matcher.text_encoder,
        settings.batch_size,
        settings.seed,
        settings.workers,
        settings.bucket,
        settings.steps,
        settings.shorten,
        settings.shorten_as == "add",
    )

    progress = Progress()
    if resumed:
        progress = load_checkpoint(out, matcher, optimiser, schedule, precision.scaler)
    save_parts(out, recipe, matcher.text_encoder.tokenizer)
    log = RunLog(out, progress.step)
    save = partial(save_checkpoint, out, matcher, optimiser, schedule, progress, precision.scaler)
    steps = Steps(recipe, matcher, optimiser, log, progress, precision, save)
    if not resumed and recipe.model.backbone is not None:
        tell_memory(matcher, data.train, settings.batch_size, precision, log)
    if origin is not None:
        dev = recalls(matcher.similarity, *model.encode_pairs(data.dev), data.dev)
        tell_start(origin_folder(recipe, out), dev["rsum"])
        log.write("start", 0, 0, **dev)
        _keep_best(out, matcher, progress, 0, dev)

    while progress.epoch < settings.epochs:
        epoch = progress.epoch + 1
        started, rate = time.perf_counter(), schedule.get_last_lr()[0]
        title = f"{recipe.title or out.name} {epoch}/{settings.epochs}"
        loss = steps.epoch(epoch, _bar(batches, epoch, progress.batch, title, progress_bar))
        schedule.step()
        seconds = round(time.perf_counter() - started, 2)

        matcher.eval()
        dev = recalls(matcher.similarity, *model.encode_pairs(data.dev), data.dev)
        log.write(
            "epoch", epoch, progress.step, loss=loss, learning_rate=rate, seconds=seconds, **dev
        )
        _keep_best(out, matcher, progress, epoch, dev)
        progress.epoch, progress.batch, progress.summed = epoch, 0, 0.0
        save()
    log.close()
    seal(out, LOG)
    write_metrics(out, finished=True)


def _bar(batches: Batches, epoch: int, done: int, title: str, shown: bool) -> tqdm[Batch]:
    """The batches of an epoch that are not done, with a bar that goes when it is over."""
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
    out: Path, matcher: Matcher, progress: Progress, epoch: int, dev: dict[str, float]
) -> None:
    """Weights and measures of the best epoch so far; the first is always kept."""
    if dev["rsum"] > progress.best_rsum:
        progress.best_rsum, progress.best_epoch = dev["rsum"], epoch
        save_weights(matcher.state_dict(), out)
        write_metrics(out, epoch=epoch, dev=dev, finished=False)


def _origin(recipe: Recipe, out: Path, progress_bar: bool) -> Model | None:
    """The best model of the run to start from; a run that is only named is trained first."""
    if recipe.training.start_from is None:
        return None
    folder = origin_folder(recipe, out)
    if is_run(recipe.training.start_from):
        return load(folder)
    return train(frozen_recipe(recipe), folder, resume=True, progress_bar=progress_bar)


@dataclass
class Steps:
    """Gradient steps over an epoch's batches: encode, score, loss, clip, step, report."""

    recipe: Recipe
    matcher: Matcher
    optimiser: torch.optim.Optimizer
    log: RunLog
    progress: Progress
    precision: Precision
    save: Callable[[], None]
    watch: CollapseWatch = field(default_factory=CollapseWatch)

    def epoch(self, epoch: int, bar: tqdm[Batch]) -> float:
        """Train on every batch; returns the mean loss."""
        self.matcher.train()
        objective = Objective.of_epoch(self.recipe.loss, epoch, self.matcher.heads)
        progress, interval = self.progress, Interval(self.recipe.training.checkpoint_every)
        first, started = progress.batch, time.perf_counter()
        waiting = Waiting(bar)
        for batch in waiting:
            terms = self.step(objective, batch)
            value = sum(terms.values())
            progress.step, progress.batch = progress.step + 1, progress.batch + 1
            progress.summed += value
            ranking = objective.ranking
            if self.watch.sees(ranking, terms[ranking.name], len(batch.image_ids)):
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
            if interval.due(progress.step) and not last:
                self.save()
        return progress.summed / progress.batch

    def step(self, objective: Objective, batch: Batch) -> dict[str, float]:
        """One gradient step; returns the terms of the loss before it."""
        batch = batch.to(self.precision.device)
        with self.precision.forward():
            terms = objective(self.matcher, batch)
        loss = total(terms)
        if not loss.isfinite():
            found = ", ".join(f"{name} {float(value.detach())}" for name, value in terms.items())
            raise ValueError(
                f"the loss is {float(loss.detach())} at step {self.progress.step} ({found}); lower "
                "training.learning_rate, or look for outliers in the features"
            )
        self.precision.step(loss, self.optimiser, self.recipe.training.clip)
        return {name: float(value.detach()) for name, value in terms.items()}
