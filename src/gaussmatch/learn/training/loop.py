"""The training loop, from top to bottom."""

from __future__ import annotations

import math
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm

from gaussmatch.data import DataSet
from gaussmatch.device import choose_device
from gaussmatch.learn.evaluation.retrieval import recalls
from gaussmatch.learn.training import gather
from gaussmatch.learn.training.batches import Batch, Batches, Waiting
from gaussmatch.learn.training.checkpoint import (
    CheckpointTimer,
    Progress,
    TrainingState,
    find_checkpoint,
)
from gaussmatch.learn.training.collapse import CollapseWarning, CollapseWatch
from gaussmatch.learn.training.gradients import Gradients
from gaussmatch.learn.training.log import RunLog
from gaussmatch.learn.training.memory import report_memory
from gaussmatch.learn.training.objective import Objective
from gaussmatch.learn.training.setup import (
    Precision,
    optimizer,
    schedule,
    seed_everything,
    with_feature_dim,
)
from gaussmatch.learn.training.start import (
    frozen_recipe,
    initial_model,
    origin_folder,
    report_start,
    resumed_model,
)
from gaussmatch.models import run
from gaussmatch.models.features import load_data
from gaussmatch.models.matcher import Matcher
from gaussmatch.models.model import Model
from gaussmatch.models.recipe import Recipe, load_recipe

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
    return not (resume and run.is_finished(out)) or run.extends(recipe, run.read_recipe(out))


def _is_resumed(recipe: Recipe, out: Path, resume: bool) -> bool:
    """Whether training continues from a checkpoint; called with the lock held."""
    run.claim(out, recipe, resume=resume)  # again: another training may have been faster
    resumed = resume and find_checkpoint(out)
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
    recipe = with_feature_dim(recipe, data.train)
    settings = recipe.training

    seed_everything(settings.seed)
    model = resumed_model(recipe, out) if resumed else initial_model(recipe, data.train, origin)
    matcher = model.matcher.to(device)
    ranks, fits = (gather.rank(), gather.ranks()), bool(recipe.loss.fitting)
    batches = Batches(data.train, matcher.text_encoder, settings, ranks, fits)
    optimiser = optimizer(matcher, settings)
    rates = schedule(optimiser, settings, settings.epochs * len(batches))
    precision = Precision(settings.precision, device)
    splits = {"train": data.train, "dev": data.dev}
    marks = {
        f"{what} of {name}": mark
        for name, pairs in splits.items()
        for what, mark in pairs.fingerprint().items()
    }
    state = TrainingState(matcher, optimiser, rates, precision.scaler, data=marks)
    if resumed:
        state.load(out, accept_changed_data)
    progress = state.progress

    gather.broadcast(matcher.state_dict().values())
    if main:
        run.save_parts(out, recipe, matcher.text_encoder.tokenizer)
    log = RunLog(out, progress.step, writes=main)
    save = partial(state.save, out)
    steps = Steps(recipe, state, log, precision, save)
    if main and not resumed and recipe.model.backbone is not None:
        at_once = settings.micro_batch or settings.batch_size // gather.ranks()
        report_memory(matcher, data.train, at_once, precision, log)
    if main and origin is not None:
        dev = _validated(model, data)
        report_start(origin_folder(recipe, out), dev["rsum"])
        log.write("start", 0, 0, **dev)
        _keep_best(out, matcher, progress, 0, dev)

    while progress.epoch < settings.epochs:
        epoch = progress.epoch + 1
        started, rate = time.perf_counter(), rates.get_last_lr()[0]
        title = f"{recipe.title or out.name} {epoch}/{settings.epochs}"
        shown = main and progress_bar and sys.stderr.isatty()
        if gather.ranks() > 1:  # the ranks draw different numbers, the same ones when resumed
            seed_everything(settings.seed * 1_000_003 + epoch * gather.ranks() + gather.rank())
        loss = steps.epoch(epoch, _bar(batches, epoch, progress.batch, title, shown))
        if settings.schedule == "step":
            rates.step()
        seconds = round(time.perf_counter() - started, 2)

        progress.epoch, progress.batch, progress.summed = epoch, 0, 0.0
        if main:
            dev = _validated(model, data)
            log.write(
                "epoch", epoch, progress.step, loss=loss, learning_rate=rate, seconds=seconds, **dev
            )
            _keep_best(out, matcher, progress, epoch, dev)
            save()
        if main and progress_bar and not shown:
            print(
                f"{title}: loss {loss:.2f}, validation rsum {dev['rsum']:.1f}, {seconds:.1f} s",
                file=sys.stderr,
            )
    log.close()
    if main:
        run.seal(out, run.LOG)
        run.write_metrics(out, finished=True)


def _validated(model: Model, data: DataSet) -> dict[str, float]:
    """Recalls on validation, computed as a finished model does."""
    model.matcher.eval()
    return recalls(model.matcher.similarity, *model.encode_pairs(data.dev), data.dev)


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
    out: Path, matcher: Matcher, progress: Progress, epoch: int, dev: dict[str, float]
) -> None:
    """Weights and measures of the best epoch so far; the first is always kept."""
    if dev["rsum"] > progress.best_rsum:
        progress.best_rsum, progress.best_epoch = dev["rsum"], epoch
        run.save_weights(matcher.state_dict(), out)
        run.write_metrics(out, epoch=epoch, dev=dev, finished=False)


def _origin(recipe: Recipe, out: Path, progress_bar: bool) -> Model | None:
    """The best model of the run to start from; a run that is only named is trained first."""
    if recipe.training.start_from is None:
        return None
    folder = origin_folder(recipe, out)
    if run.is_run(recipe.training.start_from):
        return run.load(folder)
    return train(frozen_recipe(recipe), folder, resume=True, progress_bar=progress_bar)


@dataclass
class Steps:
    """Gradient steps over an epoch's batches: encode, score, loss, clip, step, report."""

    recipe: Recipe
    state: TrainingState
    log: RunLog
    precision: Precision
    save: Callable[[], None]
    watch: CollapseWatch = field(default_factory=CollapseWatch)

    def __post_init__(self) -> None:
        self.matcher, self.progress = self.state.matcher, self.state.progress
        self.gradients = Gradients(self.matcher, self.precision, self.recipe.training.micro_batch)

    def epoch(self, epoch: int, bar: tqdm[Batch]) -> float:
        """Train on every batch; returns the mean loss."""
        self.matcher.train()
        objective = replace(
            Objective.of_epoch(self.recipe.loss, epoch, self.matcher.heads),
            queries_only=self.recipe.training.shorten_as == "query",
        )
        progress, interval = self.progress, CheckpointTimer(self.recipe.training.checkpoint_every)
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
        self.state.optimiser.zero_grad(set_to_none=True)
        terms, pairs = self.gradients(objective, batch.to(self.precision.device))
        values = {name: float(value.detach()) for name, value in terms.items()}
        if not math.isfinite(sum(values.values())):
            found = ", ".join(f"{name} {value}" for name, value in values.items())
            raise ValueError(
                f"the loss is {sum(values.values())} at step {self.progress.step} ({found}); lower "
                "training.learning_rate, or look for outliers in the features"
            )
        self.precision.step(self.state.optimiser, self.recipe.training.clip)
        if self.recipe.training.schedule != "step":
            self.state.rates.step()
        return values, pairs
