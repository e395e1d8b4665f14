"""From cells to tables: means, spread, the best, the paper's figure, paired tests, verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gaussmatch.files import write_json
from gaussmatch.learn.studies.paper import Claim, Column, Experiment, Slip, TableRow, experiment
from gaussmatch.learn.studies.results import Table, latex, markdown, table, verdicts
from gaussmatch.learn.studies.study import Cell, Reproduction, Run, Setting, merged
from gaussmatch.models.recipe import load_recipe

KEYS = [f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]
ONE = Experiment(
    name="one",
    title="One",
    about="Two sentences. Here.",
    place="Table 0",
    data="coco",
    split="test",
    columns=(Column("i2t_r1", "R@1", ("image-to-text",)), Column("rsum", "rsum"), Column("x", "X")),
    rows=(
        TableRow("point", "vsepp", published={"i2t_r1": 50.0, "rsum": 300.0}),
        TableRow("ours", "vsepp-kl", published={"i2t_r1": 55.0, "rsum": 1.0}, against="point",
            slips={"rsum": Slip(310.0, "misprinted")}),
        TableRow("lost", "vsepp-min-kl", group="other"),
    ),
    claims=(
        Claim("ours is above point", ("ours", "rsum"), ("point", "rsum")),
        Claim("point is above ours", ("point", "rsum"), ("ours", "rsum")),
        Claim("lost is above zero", ("lost", "rsum"), None),
    ),
)  # fmt: skip


def outcome(out: Path, data: str = "coco", seeds: int = 2) -> tuple[Reproduction, list[dict]]:
    cells, records = [], []
    for seed in range(seeds):
        for row in ONE.rows:
            recipe = load_recipe(f"scenes/{row.recipe}", {"training.seed": seed})
            run = Run(replace(recipe, title=""), out / "runs", "shared")
            cells.append(Cell(row, seed, run, None, "one"))
            record = {"experiment": "one", "row": row.title, "seed": seed, "state": "done",
                      "error": None, "measures": {}}  # fmt: skip
            if row.title == "lost":
                record |= {"state": "failed", "error": "ValueError: out of luck"}
            else:
                right = torch.zeros(200, dtype=torch.double)
                right[: 100 if row.title == "point" else 140] = 100.0
                captions = right.repeat_interleave(2)
                each = {key: right if key[0] == "i" else captions for key in KEYS}
                rsum = float(sum(v.mean() for v in each.values()))
                record["measures"] = {"i2t_r1": float(right.mean()), "rsum": rsum + 2 * seed}
                run.folder.mkdir(parents=True)
                image_of = torch.arange(200).repeat_interleave(2)
                save_file({**{k: v.clone() for k, v in each.items()}, "image_of": image_of},
                          run.each("test"))  # fmt: skip
            records.append(record)
    return Reproduction(out, cells, None, {}, Setting(data), [ONE]), records


def test_means_best_and_differences(tmp_path: Path) -> None:
    found = table(ONE, *outcome(tmp_path))
    assert [c.key for c in found.columns] == ["i2t_r1", "rsum"]  # nobody has x
    point, ours, lost = found.lines
    assert (point.figures["rsum"].mean, ours.figures["rsum"].mean) == (301.0, 421.0)
    assert point.figures["rsum"].std == pytest.approx(2**0.5)
    assert (point.figures["rsum"].best, ours.figures["rsum"].best) == (False, True)
    assert point.figures["i2t_r1"].difference == 0
    assert ours.figures["rsum"].published == 1.0
    assert ours.figures["rsum"].difference == pytest.approx(111.0)  # from what is true
    assert (lost.runs, lost.state) == (0, "failed")
    assert lost.errors == ["seed 0: ValueError: out of luck", "seed 1: ValueError: out of luck"]


def test_paired_over_queries_and_images(tmp_path: Path) -> None:
    (test,) = table(ONE, *outcome(tmp_path)).tests
    assert (test.ours, test.theirs, test.runs) == ("ours", "point", 2)
    assert test.measures["i2t_r1"]["difference"] == pytest.approx(20)
    rsum = test.measures["rsum"]
    assert rsum["difference"] == pytest.approx(120)  # six recalls, 20 each
    assert 0 < rsum["low"] < 120 < rsum["high"]
    assert rsum["p"] < 0.001


def test_verdicts(tmp_path: Path) -> None:
    assert [v.state for v in verdicts(table(ONE, *outcome(tmp_path)))] == [
        "holds", "does not hold", "not measured",
    ]  # fmt: skip


def test_a_difference_within_the_spread_is_unclear(tmp_path: Path) -> None:
    result, records = outcome(tmp_path)
    for record in records:
        if record["row"] == "ours":
            record["measures"]["rsum"] = 302.0 if record["seed"] == 0 else 301.0
    assert [v.state for v in verdicts(table(ONE, result, records))][:2] == ["unclear", "unclear"]


def test_one_run_decides_only_with_a_test(tmp_path: Path) -> None:
    result, records = outcome(tmp_path, seeds=1)
    found = table(ONE, result, records)
    assert [v.state for v in verdicts(found)][:2] == ["holds", "does not hold"]  # over queries
    untested = verdicts(replace(found, tests=()))
    assert [(v.state, v.why) for v in untested][:2] == [("unclear", "one run and no test")] * 2


def area(**gaps: tuple[float, float]) -> Table:
    """One run of a row that is unsure of crops A and C at two thresholds."""
    one = experiment("area", "scenes")
    measures = {}
    for t, (low, high) in gaps.items():
        start = t.replace("_", "") + "%"
        measures |= {
            f"{start}_crop_a_uncertainty": 0.0,
            f"{start}_crop_c_uncertainty": (low + high) / 2,
            f"{start}_crop_gap_low": low,
            f"{start}_crop_gap_high": high,
        }
    return Table(one, False, one.columns, (), (), {"VSE++ ours": [measures]})


def test_a_claim_about_every_threshold_is_as_weak_as_its_weakest() -> None:
    sure = {f"_{t}": (1.0, 2.0) for t in (4, 7, 10, 15, 20)}
    assert verdicts(area(**sure))[0].state == "holds"
    assert verdicts(area(**sure | {"_10": (-0.1, 2.0)}))[0].state == "unclear"
    against = verdicts(area(**sure | {"_10": (-2.0, -1.0)}))[0]
    assert (against.state, against.difference) == ("does not hold", -1.5)
    assert against.why.startswith("4 of 5 hold; the weakest: over triplets [-2.00, -1.00]")
    assert verdicts(area(_4=(1.0, 2.0)))[0].state == "not measured"


def test_markdown_and_latex(tmp_path: Path) -> None:
    found = table(ONE, *outcome(tmp_path))
    text = markdown(found)
    assert "| point | 2 | 50.0 ± 0.0 (50.0, +0.0) | 301.0 ± 1.4 (300.0, +1.0) |" in text
    assert "**421.0 ± 1.4** (1.0, +111.0)" in text
    assert "| lost | 0 | failed |" in text
    assert "- ours: misprinted" in text
    assert "- lost failed, seed 0: ValueError: out of luck" in text
    tex = latex(found)
    assert r"\textbf{421.0 $\pm$ 1.4}" in tex
    assert r"\multicolumn{2}{c}{failed}" in tex
    assert tex.count(r"\\") == 5


def test_on_other_data_published_figures_stand_apart(tmp_path: Path) -> None:
    text = markdown(table(ONE, *outcome(tmp_path, data="scenes")))
    assert "| point | 2 | 50.0 ± 0.0 | 301.0 ± 1.4 |" in text
    assert "no difference is taken" in text
    assert "| ours | 55.0 | 1.0* |" in text


def shared(recipe: str, fields: dict | None = None, start: Run | None = None) -> Run:
    return Run(load_recipe(recipe, fields or {}), Path("runs"), "shared", start)


def test_a_run_is_known_by_its_content() -> None:
    kl = shared("scenes/vsepp-kl")
    titled = replace(kl, recipe=replace(kl.recipe, title="another"))
    fields = {"model.probabilistic": True, "model.similarity": "kl"}
    assert kl.digest == titled.digest == shared("scenes/vsepp", fields).digest
    others = [
        shared("scenes/vsepp-kl", {"training.seed": 1}),
        shared("scenes/vsepp-kl", {"data.size": "tiny"}),
        shared("scenes/vsepp-kl", start=shared("scenes/vsepp")),
    ]
    assert len({run.digest for run in [kl, *others]}) == 4
    assert shared("scenes/vsepp-kl", {"training.device": "cpu"}).digest == kl.digest


def test_what_a_run_is_only_measured_with_is_no_part_of_it(tmp_path: Path) -> None:
    plain, judged = (
        Run(load_recipe("coco_real/vsepp", fields), tmp_path, "shared", wants=frozenset({"test"}))
        for fields in ({}, {"data.cxc": "cxc", "data.weights": "net.safetensors"})
    )
    assert plain.digest == judged.digest
    assert judged.trained_recipe == plain.trained_recipe
    extracting = shared("coco/vsepp"), shared("coco/vsepp", {"data.weights": "a"})
    assert len({run.digest for run in extracting}) == 2  # there they make the features
    plain.folder.mkdir()
    save_file({"x": torch.zeros(1)}, plain.each("test"))
    training = {"epochs": plain.recipe.training.epochs}
    about = {"recipe": {"data": {"cxc": None}, "training": training}}
    write_json(plain.result("test"), {"provenance": about})
    assert plain.missing == []
    assert judged.missing == ["test"]  # measured again, not trained again
    longer = replace(plain.recipe.training, epochs=99)
    again = replace(plain, recipe=replace(plain.recipe, training=longer), kind="own")
    again = replace(again, place=plain.folder)
    assert again.missing == ["test"]  # what was measured before it got more epochs
    assert Setting("coco").training == Setting("coco", overrides={"data.cxc": "x"}).training


def test_merged_runs_want_everything_and_come_after_their_start() -> None:
    base = shared("scenes/vsepp")
    tuned = shared("scenes/vsepp", {"training.seed": 1}, base)
    tuned = replace(tuned, wants=frozenset({"test"}))
    again = replace(tuned, wants=frozenset({"dev"}))
    found = merged([tuned, again])
    assert found == [base, tuned]
    assert [run.wants for run in found] == [frozenset(), frozenset({"dev", "test"})]
