"""The paper's experiments as data: transcribed right, every row trainable, shared where alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gaussmatch.learn.studies.paper import (
    NUMBERED,
    PAPER,
    Claim,
    Column,
    Experiment,
    TableRow,
    experiment,
)
from gaussmatch.learn.studies.report import _commands
from gaussmatch.learn.studies.study import Setting, claim, made_before, reproduction
from gaussmatch.models.encoders.pretrained.base import make_importable
from gaussmatch.models.recipe import all_recipes, find_recipe, load_recipe

DATA = ("scenes", "flickr8k", "flickr30k", "coco")
SIX = [f"{way}_r{k}" for way in ("i2t", "t2i") for k in (1, 5, 10)]


def test_the_nine_names() -> None:
    assert PAPER == (
        "coco", "cxc", "flickr30k", "ablation", "reverse-kl", "stability", "area", "selection",
        "galleries",
    )  # fmt: skip
    with pytest.raises(ValueError, match="no experiment 'cocoa'; choose from coco"):
        experiment("cocoa")
    assert [NUMBERED[f"table{n}"] for n in range(1, 9)] == [
        "coco", "cxc", "flickr30k", "selection", "ablation", "reverse-kl", "stability", "stability",
    ]  # fmt: skip
    assert (NUMBERED["figure2"], NUMBERED["figure4"], NUMBERED["figure7"]) == (
        "area", "galleries", "galleries",
    )  # fmt: skip
    assert "figure1" not in NUMBERED


@pytest.mark.parametrize("name", PAPER)
def test_published_figures_are_complete_and_possible(name: str) -> None:
    one = experiment(name)
    printed = [row for row in one.rows if row.published]
    assert printed or name in ("area", "galleries")
    assert len({frozenset(row.published) for row in printed}) <= 1  # no hole in a table
    for row in printed:
        for key, value in row.published.items():
            assert 0 < value < (600 if "rsum" in key else 100)
        for prefix in ("", "1k_"):
            recalls = [[row.published.get(f"{prefix}{way}_r{k}") for k in (1, 5, 10)]
                       for way in ("i2t", "t2i")]  # fmt: skip
            for values in recalls:
                if None not in values:
                    assert values == sorted(values)  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["ablation", "reverse-kl"])
def test_printed_rsum_is_the_sum_or_a_known_slip(name: str) -> None:
    for row in experiment(name).rows:
        total = sum(row.published[key] for key in SIX)
        assert row.true_figure("rsum") == pytest.approx(total, abs=0.21), row.title
    slips = [row.title for row in experiment(name).rows if row.slips]
    assert slips == (["VSE++ minKL, ellipsoidal"] if name == "ablation" else [])


def test_some_figures_by_hand() -> None:
    coco, ablation = experiment("coco"), experiment("ablation")
    assert coco.row("VSRN ours").published["t2i_r10"] == 80.2
    assert coco.row("VSE++ †").published["1k_t2i_pmrp"] == 33.3
    assert coco.row("VSE++ †").true_figure("1k_t2i_pmrp") == 39.3
    assert experiment("cxc").row("PVSE").published["i2t_r_precision"] == 30.3
    assert experiment("flickr30k").row("VSE++ft ours").published["i2t_r1"] == 56.9
    assert ablation.row("VSRN Wasserstein, ellipsoidal").published["rsum"] == 524.0
    assert ablation.row("VSE++ft KL, spherical-one value").published["i2t_r1"] == 61.7
    assert experiment("stability", "flickr30k").row("VSE++ ours").spread["rsum"] == 1.86
    assert experiment("selection").row("VSE++").published["mean_caption_a"] == 74.8
    reverse = experiment("reverse-kl").row("VSRN reverse KL, ellipsoidal")
    assert reverse.published["rsum"] == 520.4
    assert reverse.against == "VSRN KL, ellipsoidal"


def test_the_ablation_has_27_different_rows() -> None:
    rows = experiment("ablation").rows
    assert len({(row.recipe, str(row.overrides)) for row in rows}) == 27


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", PAPER)
def test_every_row_of_every_table_has_a_valid_recipe(name: str, data: str, tmp_path) -> None:
    judged = {"data.cxc": "cxc"} if (name, data) == ("cxc", "coco") else {}
    for cell in reproduction([name], Setting(data, seeds=1, overrides=judged), tmp_path).cells:
        assert cell.run is not None, cell.problem


@pytest.mark.parametrize("data", ["coco", "flickr30k"])
def test_photos_have_the_papers_settings(data: str) -> None:
    for name in PAPER:
        for row in experiment(name, data).rows:
            if row.recipe in ("pvse", "pcme"):
                continue
            recipe = load_recipe(f"{data}/{row.recipe}", row.overrides)
            vsrn, ft = row.recipe.startswith("vsrn"), "-ft" in row.recipe
            t = recipe.training
            assert (t.batch_size, t.clip) == (128, 2.0)
            assert t.learning_rate == (2e-5 if ft else 2e-4)
            if not ft:
                assert (t.epochs, t.decay_epoch, t.decay) == (30, 15, 0.1)
            assert recipe.loss.margin == (0.1 if vsrn else 0.2)
            assert recipe.loss.mining == "hardest"
            width = (2048 if vsrn else 1024) * (2 if "high-capacity" in row.recipe else 1)
            assert (recipe.model.dim, recipe.model.word_dim) == (width, 300)
            assert recipe.model.bound == "clamp"
            assert recipe.data.backbone == "resnet152.tv_in1k"


@pytest.mark.parametrize("data", DATA)
def test_a_file_and_its_base_with_overrides_are_one_run(data: str, tmp_path) -> None:
    """Rows of the ablation that are rows of another table too are trained once."""
    cells = reproduction(["coco", "ablation", "flickr30k"], Setting(data, seeds=1), tmp_path).cells
    run = {(cell.table, cell.row.title): cell.run for cell in cells}
    for table, ours, row in (
        ("coco", "VSE++ ours", "VSE++ Wasserstein, ellipsoidal"),
        ("coco", "VSE++ft ours", "VSE++ft minKL, ellipsoidal"),
        ("coco", "VSRN ours", "VSRN Wasserstein, ellipsoidal"),
        ("flickr30k", "VSE++ ours", "VSE++ KL, spherical-avgpool"),
        ("flickr30k", "VSE++ft ours", "VSE++ft KL, spherical-avgpool"),
        ("flickr30k", "VSRN ours", "VSRN Wasserstein, spherical-avgpool"),
    ):
        assert run[table, ours].digest == run["ablation", row].digest, (ours, row)


def test_recipe_files_are_where_the_rows_say() -> None:
    for name in ("coco", "cxc", "flickr30k"):
        for row in experiment(name).rows:
            assert not row.overrides
            for data in DATA:
                assert find_recipe(f"{data}/{row.recipe}").stem == row.recipe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": (TableRow("a", "x"), TableRow("a", "y"))}, "two rows have one name"),
        ({"rows": (TableRow("a", "x", against="b"),)}, "no row 'b'"),
        ({"rows": (TableRow("a", "x", published={"nothing": 1.0}),)}, "no column"),
        ({"claims": (Claim("c", ("a", "k"), ("b", "k")),)}, "names b, k"),
    ],
)
def test_a_wrong_table_is_refused(change: dict, message: str) -> None:
    fields = {"name": "n", "title": "", "about": "", "place": "", "data": "coco", "split": "test",
              "columns": (Column("k", "K"),), "rows": (TableRow("a", "x"),)}  # fmt: skip
    Experiment(**fields)
    with pytest.raises(ValueError, match=message):
        Experiment(**fields | change)


def test_forgetting_the_judgments_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cxc: nothing can run; .*--data\.cxc FOLDER"):
        reproduction(["cxc"], Setting("coco_real", seeds=1), tmp_path).check()
    made = reproduction(["coco", "cxc"], Setting("coco_real", seeds=1), tmp_path)
    lost = {cell.problem for cell in made.cells if cell.table == "cxc"}
    assert any("--data.cxc FOLDER" in str(problem) for problem in lost)
    judged = reproduction(
        ["cxc"], Setting("coco_real", seeds=1, overrides={"data.cxc": "c"}), tmp_path
    )
    assert judged.cells[0].run is not None


def test_the_papers_networks() -> None:
    """ResNet-152 with torchvision's weights and pixels; VSRN's BatchNorm variant on Flickr30K."""
    make_importable()
    timm = pytest.importorskip("timm")
    for path in all_recipes():
        if path.parent.name not in ("coco", "flickr30k"):
            continue
        recipe = load_recipe(path)
        assert recipe.data.backbone == "resnet152.tv_in1k"
        assert recipe.model.backbone in (None, recipe.data.backbone)
        if recipe.model.system == "vsrn":
            assert recipe.model.vsrn.batch_norm == (path.parent.name == "flickr30k")
    seen = timm.get_pretrained_cfg("resnet152.tv_in1k")
    assert (seen.interpolation, 224 / seen.crop_pct) == ("bilinear", 256)


def test_local_weights_reach_both_stages_and_nothing_else(tmp_path: Path) -> None:
    setting = Setting("coco", seeds=1, weights="net.pth", checkpointing=True)
    made = reproduction(["coco"], setting, tmp_path)
    assert all(cell.run is not None for cell in made.cells)
    runs = {cell.row.title: cell.run for cell in made.cells if cell.run is not None}
    tuned = runs["VSE++ft"]
    assert (tuned.recipe.model.backbone_weights, tuned.recipe.model.checkpointing) == (
        "net.pth",
        True,
    )
    assert tuned.start is not None
    assert tuned.start.recipe.data.weights == "net.pth"
    assert not runs["VSE++"].recipe.model.checkpointing
    plain = reproduction(["coco"], replace(setting, checkpointing=False), tmp_path)
    assert [run.digest for run in plain.runs] == [run.digest for run in made.runs]


def test_a_row_may_be_a_run_that_is_there(tmp_path: Path, tiny_run: Path) -> None:
    setting = Setting("scenes", seeds=2, imported={"VSRN": str(tiny_run)})
    made = reproduction(["stability"], setting, tmp_path)
    first, second = (cell for cell in made.cells if cell.row.title == "VSRN")
    assert first.run is not None
    assert first.run.folder == tiny_run
    assert first.run.trained
    assert (second.run, "is one run" in str(second.problem)) == (None, True)
    with pytest.raises(ValueError, match=r"--imported: no row 'VSRM'; choose from VSE\+\+"):
        reproduction(["stability"], replace(setting, imported={"VSRM": str(tiny_run)}), tmp_path)
    places = {"data.root": "/data/x=1", "data.cxc": "/cxc"}
    cell = reproduction(["stability"], replace(setting, overrides=places), tmp_path).cells
    (first, _) = (c for c in cell if c.row.title == "VSRN")
    assert first.run is not None
    assert (first.run.recipe.data.root, first.run.recipe.data.cxc) == ("/data/x=1", "/cxc")


@pytest.mark.parametrize("data", ["coco_real", "flickr8k"])
@pytest.mark.parametrize(("name", "system"), [("best-loss", "VSE++"), ("sentence", "MiniLM")])
def test_rows_under_their_best_loss_differ_in_nothing_else(
    data: str, name: str, system: str
) -> None:
    recipes = {row.title: load_recipe(f"{data}/{row.recipe}") for row in experiment(name).rows}
    point, wide = recipes[system], recipes[f"{system} †"]
    assert wide.model.dim == 2 * point.model.dim
    for title, recipe in recipes.items():
        assert recipe.model.adapter == point.model.adapter, title
        assert recipe.model.normalize_features == point.model.normalize_features, title
        assert (recipe.data, recipe.training) == (point.data, point.training), title
        assert recipe.model.probabilistic == (title not in (system, f"{system} †"))


def test_some_rows_alone_keep_the_claims_about_them(tmp_path: Path) -> None:
    whole = experiment("coco")
    one = whole.only(("VSE++", "VSE++ ours", "P*"))
    assert [row.title for row in one.rows] == ["VSE++", "VSE++ ours", "PCME", "PVSE"]
    assert {claim.text for claim in one.claims} == {
        "VSE++ ours is above VSE++ in rsum",
        "VSE++ ours is above VSE++ in image-to-text PMRP",
    }
    assert "4 of its 10 rows" in one.about
    assert whole.only(("VSE++ ours",)).rows[0].against is None
    assert whole.only(()) is whole
    with pytest.raises(ValueError, match=r"no row fits CLIP\*; it has 'VSE\+\+'"):
        whole.only(("CLIP*",))
    made = reproduction(["coco"], Setting("flickr8k", rows=("PVSE",), seeds=2), tmp_path)
    assert [(cell.row.title, cell.seed) for cell in made.cells] == [("PVSE", 0), ("PVSE", 1)]
    assert "--rows 'PVSE'" in _commands(made.experiments[0], made)[0]


def test_rows_may_be_added_to_a_folder(tmp_path: Path) -> None:
    setting = Setting("flickr8k", rows=["PVSE"])
    claim(tmp_path, setting, ["coco"])
    assert made_before(tmp_path) == {"coco": setting}
    claim(tmp_path, replace(setting, rows=("P*",)), ["coco"])
    with pytest.raises(ValueError, match="another setting"):
        claim(tmp_path, Setting("flickr8k", overrides={"model.dim": 8}), ["coco"])
