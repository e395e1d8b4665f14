"""One command, one folder, nine experiments: whole, shared, resumable, and honest about failure."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from data.files import flickr8k
from reproduced import MINI, SMALL

from gaussmatch.apps.cli import main
from gaussmatch.files import read_json
from gaussmatch.learn.studies import study
from gaussmatch.learn.studies.estimate import Cost, estimate
from gaussmatch.learn.studies.paper import PAPER
from gaussmatch.learn.studies.study import Run, Setting, reproduction
from gaussmatch.models.recipe import parse_overrides

FIELDS = parse_overrides(MINI[6:])


def test_all_nine_have_their_files(whole: Path) -> None:
    for name in PAPER:
        folder = whole / name
        assert (folder / "table.md").read_text(encoding="utf-8").startswith("# ")
        assert r"\begin{tabular}" in (folder / "table.tex").read_text(encoding="utf-8")
        records = [read_json(path) for path in (folder / "cells").iterdir()]
        assert records
        assert {r["state"] for r in records} == {"done"}, [r["error"] for r in records]
        plots = {path.suffix for path in folder.iterdir()}
        assert {".png", ".svg"} <= plots


def test_alike_runs_are_trained_once(whole: Path) -> None:
    made = reproduction(PAPER, Setting("scenes", seeds=1, overrides=FIELDS), whole)
    runs = list((whole / "runs").iterdir())
    assert len(runs) == len(made.runs) < len(made.cells)
    ours = read_json(whole / "coco/cells/vsepp-ours-seed-0.json")
    ablation = read_json(whole / "ablation/cells/vsepp-wasserstein-ellipsoidal-seed-0.json")
    assert ours["run"] == ablation["run"]
    assert ours["measures"]["data"] == "scenes/test"
    assert ablation["measures"]["data"] == "scenes/dev"
    assert not list((whole / "runs").glob("*/checkpoint.pt"))


def test_fine_tuning_starts_from_its_frozen_run(whole: Path) -> None:
    made = reproduction(["coco"], Setting("scenes", seeds=1, overrides=FIELDS), whole)
    runs = {cell.row.title: cell.run for cell in made.cells if cell.run is not None}
    assert {t for t, run in runs.items() if run.start is not None} == {"VSE++ft", "VSE++ft ours"}
    assert runs["VSE++ft"].start == runs["VSE++"]
    for run in (runs["VSE++ft"], runs["VSE++ft ours"]):
        assert run.start is not None
        assert run.start.trained
        assert run.start.recipe.model.similarity == run.recipe.model.similarity


def test_a_second_start_trains_nothing(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **options: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(study, "train", forbidden)
    before = (whole / "stability" / "table.md").read_bytes()
    assert main(["reproduce", "stability", "--out", str(whole), *MINI]) == 0
    assert (whole / "stability" / "table.md").read_bytes() == before
    page = (whole / "report.html").read_text(encoding="utf-8")
    assert all(f'<section id="{name}">' in page for name in PAPER)  # the others stay in it


def test_another_setting_is_refused_in_the_same_folder(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "coco", "--out", str(whole), *MINI, "--training.clip", "1"]) == 2
    assert "another setting" in capsys.readouterr().err


def test_a_failed_cell_is_shown_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = study.train

    def unlucky(recipe, *args, **options):
        if recipe.model.similarity == "kl":
            raise MemoryError("no room for KL")
        return train(recipe, *args, **options)

    monkeypatch.setattr(study, "train", unlucky)
    words = ["reproduce", "selection", "--out", str(tmp_path), *MINI]
    assert main(words) == 2
    assert "no room for KL" in capsys.readouterr().err
    text = (tmp_path / "selection" / "table.md").read_text(encoding="utf-8")
    assert "| VSE++ KL | 0 | failed |" in text
    assert "MemoryError: no room for KL" in text
    assert read_json(tmp_path / "selection/cells/vsepp-kl-seed-0.json")["state"] == "failed"
    assert read_json(tmp_path / "selection/cells/vsepp-seed-0.json")["state"] == "done"
    assert "failed" in (tmp_path / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr(study, "train", train)
    assert main(words) == 0  # and a second start tries it again
    assert "failed" not in (tmp_path / "selection" / "table.md").read_text(encoding="utf-8")


def test_dry_run_measures_and_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", "galleries", "--out", str(out), "--dry-run", *MINI]) == 0
    printed = capsys.readouterr().out
    assert "1 experiment, 2 cells: 2 runs, 0 of them finished" in printed
    assert "2 × vse++ probabilistic" in printed
    assert "ms a step" in printed
    assert "of disk" in printed
    assert not out.exists()


def test_dry_run_times_what_keeps_the_points_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "peers", "--rows", "points + [AB]*", "--out", str(tmp_path), "--dry-run"]
    assert main([*words, *MINI]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"1 × vse\+\+ points \+ asymvlm.*: \d+ ms a step", printed)
    assert re.search(r"1 × vse\+\+ points \+ bayesvlm.*: closed form", printed)
    assert "not measured" not in printed


def test_dry_run_counts_photos_whose_features_are_not_there_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = flickr8k(tmp_path / "f8k")
    words = ["reproduce", "table4", "--data", "flickr8k", "--dry-run", "--out", str(tmp_path)]
    words += ["--data.root", str(root), "--model.dim", "16", "--training.batch_size", "20"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "1 experiment, 3 cells: 3 runs" in printed
    assert "ms a step" in printed
    assert "extraction of pooled features: 10 pictures through resnet50" in printed
    assert "crops for 3 runs, at most: 20,000 pictures" in printed


@pytest.mark.parametrize("root", [None, "nowhere", "captions"])
def test_dry_run_on_missing_data_stops_at_once_with_the_files(
    root: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gaussmatch.learn.studies.estimate.measured", None)  # nothing is timed
    monkeypatch.setattr("gaussmatch.learn.studies.estimate.seconds_of_picture", None)
    flickr8k(tmp_path / "captions", photos=False)
    words = ["reproduce", "selection", "--data", "flickr8k", "--dry-run", "--out", "out"]
    words += [] if root is None else ["--data.root", str(tmp_path / root)]
    assert main(words) == 2
    printed = capsys.readouterr().err
    missing = {
        None: "data.root is not set",
        "nowhere": "no such folder of flickr8k",
        "captions": "no such image (10 of 10 are missing)",
    }
    assert missing[root] in printed
    assert "(3 runs)" in printed
    assert "Flickr_8k.trainImages.txt" in printed  # what the folder must hold


def test_a_folder_without_the_name_of_its_data_is_not_ignored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reproduce", "table1", "--dry-run", "--data.root", "COCO"]) == 2
    assert "scenes are drawn and have no data.root; name the data" in capsys.readouterr().err


def test_a_trained_run_that_is_not_measured_costs_only_the_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = reproduction(
        ["galleries"], Setting("scenes", overrides={"training.epochs": 1}), tmp_path
    )
    costs = Cost(step=10.0, encode=0.0, measure=0.0, peak=0, kept=0)
    monkeypatch.setattr("gaussmatch.learn.studies.estimate.measured", lambda *_: costs)
    assert "in all about 0 s" not in estimate(made, 1)
    monkeypatch.setattr(Run, "trained", True)
    assert "in all about 0 s" in estimate(made, 1)


def test_fast_is_for_scenes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "coco", "--data", "coco", "--fast", "--dry-run"]) == 2
    assert "--fast is a setting of scenes" in capsys.readouterr().err


def test_a_kill_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    """Killed twice with SIGKILL at moments drawn by lot, it ends with the tables of a run that
    was left in peace."""
    words = ["reproduce", "selection", *SMALL, "--training.epochs", "3", "--seeds", "2"]
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    broken = tmp_path / "broken"
    command = [sys.executable, "-m", "gaussmatch", *words, "--out", str(broken)]
    dice, kills = random.Random(os.getpid()), 0
    for least in (1, 4):
        until = least + dice.randrange(12)
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        started = len(list(broken.rglob("*")))
        while process.poll() is None and len(list(broken.rglob("*"))) - started < until:
            time.sleep(0.002)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills
    assert main([*words, "--out", str(broken)]) == 0
    for name in ("table.md", "table.tex", "image-to-text.svg"):
        again, before = (tmp_path / n / "selection" / name for n in ("broken", "whole"))
        assert again.read_bytes() == before.read_bytes()
    for cell in (tmp_path / "whole/selection/cells").iterdir():
        assert read_json(broken / "selection/cells" / cell.name) == read_json(cell)
