"""What goes wrong around training ends with one clear line, and what was made is kept."""

from __future__ import annotations

import resource
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toy import Rows, killed_at, toy_data
from training.test_loop import RECIPE, run, weights

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.learn.training import loop
from gaussmatch.learn.training.loop import read_log
from gaussmatch.models import run as run_folder
from gaussmatch.models.recipe import Recipe, TrainingRecipe, load_recipe


def with_training(**fields: object) -> Recipe:
    return replace(RECIPE, training=replace(RECIPE.training, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("every", ["3 steps", "0.00001 minutes"])
def test_a_checkpoint_within_an_epoch_resumes_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str
) -> None:
    whole, broken, recipe = tmp_path / "whole", tmp_path / "broken", with_training(epochs=2)
    run(whole, recipe)
    drawn = torch.get_rng_state()
    often = replace(recipe, training=replace(recipe.training, checkpoint_every=every))
    with killed_at(13):  # of 16
        run(broken, often)
    steps: list[int] = []
    step = loop.Steps.step

    def noted(self: loop.Steps, *args: object) -> object:
        steps.append(self.progress.step)
        return step(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(loop.Steps, "step", noted)
    run(broken, often, resume=True)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert steps == list(range(12 if "steps" in every else 13, 16))
    a, b = weights(whole), weights(broken)
    assert all(torch.equal(a[k], b[k]) for k in a)
    logs = [[(r["step"], r.get("loss")) for r in read_log(f)] for f in (whole, broken)]
    assert logs[0] == logs[1]


def test_an_interval_that_is_none_is_refused() -> None:
    for every in ("often", "0 steps", "1.5 steps", "-1 minutes"):
        with pytest.raises(ValueError, match="must be like '500 steps' or '10 minutes'"):
            TrainingRecipe(checkpoint_every=every)


def test_a_finished_run_goes_on_for_more_epochs(tmp_path: Path) -> None:
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    run(whole)
    run(longer, with_training(epochs=2))
    run(longer, resume=True)
    a, b = weights(whole), weights(longer)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert [r["epoch"] for r in read_log(longer) if r["event"] == "epoch"] == [1, 2, 3, 4]
    assert gm.load(longer).recipe.training.epochs == 4
    with pytest.raises(ValueError, match=r"another recipe.*training\.epochs"):
        run(longer, with_training(epochs=3), resume=True)


def test_a_finished_run_without_a_checkpoint_cannot_go_on(tmp_path: Path) -> None:
    run(tmp_path, with_training(epochs=1))
    run_folder.drop_checkpoints(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint to continue from"):
        run(tmp_path, with_training(epochs=2), resume=True)
    assert gm.load(tmp_path).recipe.training.epochs == 1


def test_what_a_kill_at_the_very_end_left_is_swept(tmp_path: Path) -> None:
    run(tmp_path, with_training(epochs=1))
    left = tmp_path / ".run.json.abcdefgh.gaussmatch-partial"
    left.touch()
    run(tmp_path, with_training(epochs=1), resume=True)
    assert not left.exists()


def test_a_full_disk_costs_one_line_and_nothing_that_was_saved(tmp_path: Path) -> None:
    """No file may grow beyond what the weights need, so that the checkpoint does not fit."""
    whole, out, recipe = tmp_path / "whole", tmp_path / "out", with_training(epochs=2)
    run(whole, recipe)
    with killed_at(11):
        run(out, recipe)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with pytest.raises(OSError, match=r"could not be written .*free some space.*--resume"):
            run(out, recipe, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(out.glob("*partial"))
    run(out, recipe, resume=True)
    a, b = weights(whole), weights(out)
    assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--training.device", "cuda:63"], "torch finds no cuda device here"),
        (["--training.device", "gpu"], "unknown device 'gpu': choose cpu, cuda"),
        (["--out", "{file}"], "is a file; choose a new folder with --out"),
        (["--training.checkpoint_every", "often"], "'500 steps' or '10 minutes'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    given = [word.format(file=file) for word in options]
    out = [] if "--out" in given else ["--out", str(tmp_path / "run")]
    assert main(["train", "scenes/vsepp-kl", "--data.size", "mini", *out, *given]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert message in error[0]
    assert file.read_text() == "mine"
    assert not (tmp_path / "run").exists()


def test_a_recipe_cut_anywhere_is_a_recipe_or_one_clear_error(tmp_path: Path) -> None:
    path, cut = tmp_path / "whole.yaml", tmp_path / "cut.yaml"
    replace(RECIPE, title="ünï: [c]").save(path)
    content, refused = path.read_bytes(), []
    for length in range(0, len(content), 41):
        cut.write_bytes(content[:length])
        try:
            load_recipe(cut)
        except ValueError as error:
            refused.append(str(error))
    assert refused
    assert all(message.startswith(f"recipe {cut}: ") for message in refused)


@pytest.mark.parametrize("content", ["a: " + "[" * 3000, "{a: " * 3000, "- " * 3000 + "1"])
def test_a_recipe_that_is_nested_too_deeply(tmp_path: Path, content: str) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"deep\.yaml: (nested too deeply|not valid YAML)"):
        load_recipe(path)


def test_a_run_that_claims_to_be_large_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    run(tmp_path / "run", with_training(epochs=1))
    claims = tmp_path / "claims"
    claims.mkdir()
    for name in run_folder.MODEL:
        shutil.copyfile(tmp_path / "run" / name, claims / name)
    text = (claims / "recipe.yaml").read_text()
    (claims / "recipe.yaml").write_text(text.replace("  dim: 16\n", "  dim: 8000\n"))
    run_folder.seal(claims, *run_folder.MODEL)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"does not fit recipe\.yaml beside it: .* \(.*8000"):
        gm.load(claims)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB; 1.7 GB else


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    with killed_at(10):  # of 16: after the first epoch
        run(tmp_path / "run", with_training(epochs=2))
    data, out, recipe = toy_data(), tmp_path / "run", with_training(epochs=2)
    train = data.train
    other = {
        "images of train": toy_data(40).train,
        "captions of train": replace(train, captions=[*train.captions[1:], "a red cat"]),
        "features of train": replace(train, images=Rows(train.images.array + 1)),  # type: ignore[attr-defined]
    }
    for what, pairs in other.items():
        with pytest.raises(ValueError, match=rf"other data: the .*{what}.*--accept-changed-data"):
            gm.train(recipe, out, resume=True, data=replace(data, train=pairs))
    fewer = replace(data, train=other["captions of train"])
    gm.train(recipe, out, resume=True, data=fewer, accept_changed_data=True)


def test_one_endless_caption_is_cut_with_a_note(tmp_path: Path) -> None:
    data = toy_data()
    captions = ["red " * 100_000, *data.train.captions[1:]]
    with pytest.warns(UserWarning, match="more than 256 words .* such as caption 0"):
        gm.train(RECIPE, tmp_path, data=replace(data, train=replace(data.train, captions=captions)))


def test_an_image_that_vanishes_within_an_epoch_ends_it_and_training_goes_on(
    tmp_path: Path,
) -> None:
    data, recipe = toy_data(), with_training(epochs=2)

    class Vanishing(Rows):
        def __getitem__(self, index: int) -> np.ndarray:
            if index == 7 and (tmp_path / "run" / "checkpoint.pt").exists():
                raise FileNotFoundError("photos/7.jpg: no such photo")
            return super().__getitem__(index)

    gone = replace(data, train=replace(data.train, images=Vanishing(data.train.images.array)))  # type: ignore[attr-defined]
    with pytest.raises(FileNotFoundError, match=r"photos/7\.jpg"):
        gm.train(recipe, tmp_path / "run", data=gone)
    gm.train(recipe, tmp_path / "run", resume=True, data=data)  # it is back
    run(tmp_path / "whole", recipe)
    a, b = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.equal(a[k], b[k]) for k in a)
