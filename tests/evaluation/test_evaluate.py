"""A run measured as a user does, on toy data and on scenes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from toy import toy_data
from training.test_loop import RECIPE

from gaussmatch.apps.cli import main
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance
from gaussmatch.core.similarities import similarity
from gaussmatch.data.pairs import DataSet
from gaussmatch.files import read_json
from gaussmatch.learn.evaluation.evaluate import against, evaluate_run, measure_run
from gaussmatch.learn.evaluation.retrieval import ambiguity
from gaussmatch.learn.evaluation.scores import best_scores, blocks_of
from gaussmatch.learn.evaluation.tables import latex, markdown, rows
from gaussmatch.learn.training.loop import train


@pytest.fixture(scope="module")
def data() -> DataSet:
    return toy_data()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data: DataSet) -> Path:
    out = tmp_path_factory.mktemp("run") / "kl"
    short = replace(RECIPE, training=replace(RECIPE.training, epochs=2))
    train(short, out, data=data, progress_bar=False)
    return out


def test_a_run_without_known_truth(run: Path, data: DataSet) -> None:
    measures = evaluate_run(run, data=data)
    assert measures == read_json(run / "evaluation-test.json")
    for key in ("rsum", "i2t_r1", "t2i_r10", "t2i_aurc", "t2i_aurc_gain"):
        assert math.isfinite(measures[key])
    assert "caption_rho" not in measures
    assert "selection" not in measures
    low, high = measures["intervals"]["t2i_r1"]
    assert low <= measures["t2i_r1"] <= high
    assert len(measures["t2i_deciles"]) == 10
    made = measures["provenance"]
    assert len(made["weights_sha256"]) == 64
    assert made["recipe"]["model"]["similarity"] == RECIPE.model.similarity
    assert made["data"] == {
        "name": "toy/test", "images": 30, "captions": 60, "true_pairs": None,
        "images_with_classes": None, "regions": None,
    }  # fmt: skip
    assert made["versions"]["torch"] == torch.__version__


def test_no_calibration_where_there_is_no_other_split_to_fit_on(run: Path, data: DataSet) -> None:
    assert "i2t_ece" not in evaluate_run(run, "dev", data)


def test_pages_hold_every_row(run: Path, data: DataSet) -> None:
    measures = evaluate_run(run, data=data)
    assert (run / "evaluation-test.md").read_text() == markdown(RECIPE.title or "kl", measures)
    tex = (run / "evaluation-test.tex").read_text()
    assert tex == latex(RECIPE.title or "kl", measures)
    assert tex.count(r"\\") == 1 + len(rows(measures))
    assert "ζ" not in tex


def test_a_run_does_not_differ_from_itself(run: Path, data: DataSet) -> None:
    found = measure_run(run, data=data)
    for row in against(found, found, (data.test, data.test)).values():
        assert row["difference"] == 0
        assert row["p"] == 1
    with pytest.raises(ValueError, match="do not hold the same queries"):
        against(found, found, (data.test, data.dev))


@pytest.mark.parametrize("name", ["kl", "query_kl"])
def test_best_scores_are_the_largest(name: str) -> None:
    images = Gaussian(torch.randn(5, 4), torch.randn(5, 4))
    captions = Gaussian(torch.randn(7, 4), torch.randn(7, 4))
    by_image, by_caption = similarity(name).both_ways(images, captions)
    i2t, t2i = best_scores(blocks_of(similarity(name), images, captions))
    torch.testing.assert_close(i2t.float(), by_image.amax(1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(t2i.float(), by_caption.amax(0), rtol=1e-5, atol=1e-5)


def test_rho_is_left_out_where_it_is_not_defined() -> None:
    g = Gaussian(torch.zeros(2, 3), torch.randn(2, 3))
    alike = Relevance.from_pairs([0, 1], [0, 1], queries=2, gallery=2)
    assert ambiguity(g, g, alike) == {}
    assert ambiguity(g[:1], g[:1], Relevance.from_pairs([0], [0], queries=1, gallery=1)) == {}


def test_scenes_allow_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--data.size", "tiny", "--training.epochs", "1"]
    for name in ("vsepp-kl", "vsepp"):
        assert main(["train", f"scenes/{name}", "--out", str(tmp_path / name), *quick]) == 0
    capsys.readouterr()
    words = ["evaluate", str(tmp_path / "vsepp-kl"), "--against", str(tmp_path / "vsepp")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for word in ("PMRP", "mAP@R", "AURC", "selection by C, area < 50%", "theirs", "p"):
        assert word in printed
    measures = read_json(tmp_path / "vsepp-kl" / "evaluation-test.json")
    assert set(measures["selection"]) == {"10%", "20%", "30%", "40%", "50%"}
    assert measures["selection"]["50%"]["triplets"] > 50
    assert math.isfinite(measures["selection"]["50%"]["caption_c_uncertainty"])
    assert "<svg" in (tmp_path / "vsepp-kl" / "evaluation-test.svg").read_text()
    result = read_json(tmp_path / "vsepp-kl" / "against-test.json")
    assert 0 < result["measures"]["i2t_r1"]["p"] <= 1
    point = read_json(tmp_path / "vsepp" / "evaluation-test.json")
    assert "t2i_aurc" not in point
    assert "t2i_score_aurc" in point
    assert main(["evaluate", str(tmp_path / "vsepp"), "--data.seed", "1"]) == 0
    other = read_json(tmp_path / "vsepp" / "evaluation-test-data.seed-1.json")
    assert other["provenance"]["recipe"]["data"]["seed"] == 1
    assert read_json(tmp_path / "vsepp" / "evaluation-test.json") == point
    assert main([*words, "--data.size", "huge"]) == 2
    assert "huge" in capsys.readouterr().err
