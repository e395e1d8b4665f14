"""Optimizers, schedules, devices, and what a log without a terminal looks like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from toy import toy_data
from training.test_loop import RECIPE

from gaussmatch.learn.training.loop import read_log, schedule, train
from gaussmatch.models.recipe import TrainingRecipe


def rates(settings: TrainingRecipe, steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.learning_rate)
    plan = schedule(optimizer, settings, steps)
    found = []
    for _ in range(steps):
        found.append(plan.get_last_lr()[0])
        optimizer.step()
        plan.step()
    return found


def test_schedules() -> None:
    step = rates(TrainingRecipe(learning_rate=1.0, decay_epoch=3), 5)
    assert step == pytest.approx([1, 1, 1, 0.1, 0.1])
    cosine = rates(TrainingRecipe(learning_rate=1.0, schedule="cosine", warmup=0.5), 8)
    assert cosine[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert cosine[4:] == sorted(cosine[4:], reverse=True)
    cycle = rates(TrainingRecipe(learning_rate=1.0, schedule="one-cycle", warmup=0.25), 12)
    assert max(cycle) == pytest.approx(1.0)
    assert cycle.index(max(cycle)) in (2, 3)
    assert cycle[-1] < cycle[0] < 0.1
    at_once = rates(TrainingRecipe(learning_rate=1.0, schedule="one-cycle", warmup=0.25), 4)
    assert at_once[0] == pytest.approx(1.0)
    assert at_once == sorted(at_once, reverse=True)


def test_weight_decay_needs_adamw() -> None:
    with pytest.raises(ValueError, match=r"needs training\.optimizer adamw"):
        TrainingRecipe(weight_decay=0.1)


def test_fused_adam_is_adam(tmp_path: Path) -> None:
    found = []
    for name in ("adam", "fused-adam"):
        training = replace(RECIPE.training, epochs=1, optimizer=name)
        train(replace(RECIPE, training=training), tmp_path / name, data=toy_data())
        found.append(load_file(tmp_path / name / "model.safetensors"))
    for name, weights in found[0].items():
        torch.testing.assert_close(found[1][name], weights, atol=1e-5, rtol=1e-5)


def test_a_schedule_over_all_steps_is_not_extended_and_the_log_is_one_line_an_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = replace(
        RECIPE.training, epochs=2, optimizer="adamw", weight_decay=0.1, schedule="cosine", steps=3
    )
    recipe = replace(RECIPE, training=training)
    train(recipe, tmp_path, data=toy_data())
    written = capsys.readouterr().err.strip().splitlines()
    assert [line.split(":")[0] for line in written] == ["toy 1/2", "toy 2/2"]
    found = [r["learning_rate"] for r in read_log(tmp_path) if r["event"] == "epoch"]
    assert found[0] == 0.01  # warmed up within the first step
    assert 0 < found[1] < 0.01
    longer = replace(recipe, training=replace(training, epochs=3))
    with pytest.raises(ValueError, match=r"another recipe.*training\.epochs"):
        train(longer, tmp_path, resume=True, data=toy_data())
