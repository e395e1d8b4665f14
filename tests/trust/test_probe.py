"""The probe knows right from wrong uncertainty; its verdict is kept, and hides a failed gauge."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gaussmatch.apps.cli import main
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data import scenes
from gaussmatch.data.language import FILLERS, OTHER_DOMAINS, OTHER_DOMAINS_DEV, words_of
from gaussmatch.models.run import load
from gaussmatch.search import Index
from gaussmatch.search.trust import Calibration, canonical, kept_calibration
from gaussmatch.search.trust.probe import (
    Prober,
    edits,
    fitting_photos,
    ordered_chains,
    probe,
    read_chains,
    read_fitting,
    verdict,
)


class WordModel:
    """Uncertainty falls with the number of words (sign = 1), or rises with it."""

    def __init__(self, run: Path, sign: float) -> None:
        self.matcher, self.sign = load(run).matcher, sign

    def encode_texts(self, texts, allow_unknown=False) -> Gaussian:
        sizes = torch.tensor([[self.sign * -0.1 * len(words_of(t))] for t in texts])
        return Gaussian(torch.ones(len(texts), 64) / 8, sizes)


def prober(run: Path, sign: float) -> Prober:
    gallery = Gaussian(torch.eye(64)[:9], torch.zeros(9, 1))
    share = np.linspace(-300, 300, 1001)
    return Prober(WordModel(run, sign), gallery, Calibration({"captions": tuple(share)}))


CAPTIONS = [f"a brown dog runs through the deep white snow near tree {i}" for i in range(20)]


@pytest.mark.parametrize(("sign", "share"), [(1.0, 1.0), (-1.0, 0.0)])
def test_edits_and_chains_separate_a_right_uncertainty_from_a_wrong_one(tiny_run, sign, share):
    p = prober(tiny_run, sign)
    found = edits(p, CAPTIONS)
    assert found["truncation"] == share
    assert found["adjectives"] == share
    assert found["fillers"] == 1.0
    assert found["fillers_as_typed"] < 1.0
    chains = ordered_chains(p, [["dog", "brown dog", "brown dog in snow"]] * 4)
    assert chains["steps"] == chains["whole"] == share
    assert chains["words"] == {"steps": 1.0, "whole": 1.0}


def test_what_length_explains_is_taken_out(tiny_run):
    words = ["old", "brown", "dog", "running", "through", "deep", "snow", "today"]
    texts = [" ".join(words[:n]) for n in range(1, 9)]
    fits = torch.tensor([99.0, 50, 30, 20, 10, 5, 3, 1])
    found = fitting_photos(prober(tiny_run, 1.0), texts, fits)
    assert found["rho_length"] == found["rho"] == pytest.approx(1.0)
    assert found["rho_given_length"] is None  # nothing is left


@pytest.mark.parametrize("text", ["a red circle", "two dogs in the snow", "a man and a woman"])
def test_fillers_and_repetitions_change_nothing(text):
    assert {canonical(filler.replace("{}", text)) for filler in FILLERS} == {canonical(text)}


def test_a_verdict_says_what_failed():
    found = {"chains": {"steps": 0.5}, "edits": {"truncation": 0.9, "hypernyms": 0.8}}
    judged = verdict(found)["captions"]
    assert not judged["passed"]
    assert judged["failed"] == ["chains steps 0.50 < 0.7"]
    assert verdict({}) == {}


def test_files_with_faults_are_named(tmp_path: Path):
    (tmp_path / "f.jsonl").write_text('{"caption": "a dog", "fits": 3}\n{"caption": "a cat"}\n')
    with pytest.raises(ValueError, match=r"f\.jsonl, line 2"):
        read_fitting(tmp_path / "f.jsonl")
    (tmp_path / "c.csv").write_text("image,caption\n1,a dog\n")
    with pytest.raises(ValueError, match="level_1"):
        read_chains(tmp_path / "c.csv")


@pytest.fixture(scope="module")
def probed(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("probed") / "run"
    shutil.copytree(tiny_run, run)
    return run


def test_the_command_writes_what_it_found_and_keeps_the_verdict(probed, tmp_path, capsys):
    (tmp_path / "f.jsonl").write_text(
        "".join(json.dumps({"caption": c, "fits": n}) + "\n" for c, n in
                [("a star", 90), ("a red star", 20), ("a red star on the left", 4)])
    )  # fmt: skip
    (tmp_path / "c.csv").write_text("image,level_1,level_2\n1,star,a red star\n2,moon,a moon\n")
    files = ["--fitting", tmp_path / "f.jsonl", "--chains", tmp_path / "c.csv"]
    out, plots = tmp_path / "out.json", tmp_path / "plots"
    written = ["--json", str(out), "--plots", str(plots)]
    assert main(["probe", str(probed), *map(str, files), *written]) == 0
    shown = capsys.readouterr().out
    assert "best score" in shown
    assert "uncertainty of captions: " in shown
    found = json.loads(out.read_text())
    assert {"rho", "rho_given_length", "rho_length"} <= found["fitting_photos"].keys()
    assert {"steps", "whole"} <= found["chains"].keys()
    assert {"truncation", "hypernyms", "adjectives", "fillers"} <= found["edits"].keys()
    assert found["surest_half"]["captions"]["probability"]["ratio"] is not None
    assert found["unfamiliar"]["auroc"] > 0.95  # every query of another domain has unknown words
    assert abs(found["balanced"]["rho_length"]) < 0.2  # length says nothing there
    assert {"blur", "crop", "occlusion", "collage"} <= found["photo_edits"].keys()
    assert {"best_score", "perplexity"} <= found["photo_edits"]["by_others"]["blur"].keys()
    assert {p.name for p in plots.glob("*.svg")} == {
        "edits.svg", "risk-coverage-captions.svg", "risk-coverage-images.svg",
    }  # fmt: skip
    assert found == json.loads((probed / "probe.json").read_text())
    kept = kept_calibration(probed)
    assert kept.gauges == {k: v["passed"] for k, v in found["verdict"].items()}


def test_counts_of_the_few_that_people_judged_decide_nothing(probed):
    """Flickr8k's judges saw a few photos for each caption; how many of these fit says little."""
    model, data = load(probed), scenes.load("tiny")
    partly = replace(data, dev=replace(data.dev, exhaustive=False))
    found = probe(model, partly, kept_calibration(probed), split="dev")
    assert "judged_counts" in found
    assert "true_counts" not in found


def test_other_data_and_other_photos_are_probed_and_not_kept(probed, tmp_path, capsys):
    kept_calibration(probed)  # of its own data, and its probe, if there is none yet
    before = (probed / "probe.json").read_text()
    for number in range(12):
        noise = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
    out = tmp_path / "out.json"
    words = ["probe", str(probed), "--data.seed", "1", "--split", "dev"]
    assert main([*words, "--photos", str(tmp_path), "--json", str(out)]) == 0
    assert "other photos" in capsys.readouterr().out
    strange = json.loads(out.read_text())["unfamiliar_photos"]
    assert strange["photos"] == 12
    assert strange["auroc"] > 0.9  # noise is unlike drawn shapes
    assert {"auroc_sigma", "auroc_best_score", "auroc_perplexity"} <= strange.keys()
    assert (probed / "probe.json").read_text() == before


@pytest.mark.parametrize(("ratio", "passed"), [(1.2, True), (1.0, False)])
def test_what_cannot_be_edited_is_judged_by_what_acting_on_it_gains(ratio, passed):
    half = {side: {"r1": 10.0, "sigma": {"ratio": ratio}} for side in ("captions", "images")}
    judged = verdict({"surest_half": half, "edits": {"truncation": 0.9, "hypernyms": 0.9}})
    assert judged["captions"]["passed"]  # by the edits
    assert judged["images"]["passed"] == passed
    assert verdict({"surest_half": {"images": {"r1": 10.0}}}) == {}  # points


def test_search_separates_vague_unfamiliar_and_absent(probed, tmp_path):
    from gaussmatch.models.features import load_data
    from gaussmatch.search import index_pairs

    model = load(probed)
    data = load_data(model.recipe.data)
    calibration = kept_calibration(probed)
    index = Index.create(tmp_path / "i", probed, calibration=calibration)
    index_pairs(index, data.test, "test")
    ordinary, strange, nothing, padded = index.search_text(
        ["a red star", "a dog on the beach", "of the and a", "a photo of a red star, a red star"]
    )
    assert ordinary[0].probability is not None
    assert ordinary.count.low <= ordinary.count.about <= ordinary.count.high <= 100
    for hits in (strange, nothing):
        assert hits[0].probability is None
        assert hits.familiar == 0.0
        assert hits.verdict.kind == "unfamiliar"
    assert "“dog”" in strange.verdict.sentence
    assert strange.percentile is strange.level is None  # not known is not vague
    assert padded.percentile == ordinary.percentile
    same = [hit.probability for hit in ordinary.hits]
    assert [hit.probability for hit in padded.hits] == pytest.approx(same)
    chances = [hit.probability for hit in ordinary.hits]
    assert chances == sorted(chances, reverse=True)
    if not calibration.gauges["captions"]:
        assert ordinary.percentile is None
        assert "failed its probe" in ordinary.notes[0]
    few, many = (index.search_text(["a red star"], guarantee=g)[0] for g in (0.5, 0.95))
    assert few.guarantee == 0.5
    assert len(few) <= len(many) <= len(data.test.images)
    with pytest.raises(ValueError, match="between 0 and 1"):
        index.search_text(["a red star"], guarantee=1.0)


def test_the_lists_are_what_they_say():
    for some in (OTHER_DOMAINS, OTHER_DOMAINS_DEV):
        assert len(set(some)) == len(some) >= 50
    assert not set(OTHER_DOMAINS) & set(OTHER_DOMAINS_DEV)


def test_a_point_model_is_probed_too(tmp_path: Path):
    quick = ["--data.size", "mini", "--training.epochs", "1", "--training.calibrate", "true"]
    assert main(["train", "scenes/vsepp", "--out", str(tmp_path / "run"), *quick]) == 0
    assert (tmp_path / "run" / "calibration.json").is_file()
    assert kept_calibration(tmp_path / "run").gauges == {}
    found = json.loads((tmp_path / "run" / "probe.json").read_text())
    assert "sigma" not in found["surest_half"]["captions"]
    assert "truncation" not in found["edits"]
