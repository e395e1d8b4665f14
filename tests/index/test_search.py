"""Search with a trained model: percentiles, probabilities, words, pictures; filling one."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from gaussmatch.apps.cli import main
from gaussmatch.apps.cli.search import conditions
from gaussmatch.core.metrics import calibration_error
from gaussmatch.data.language import length_of
from gaussmatch.models import run
from gaussmatch.models.features import load_data
from gaussmatch.models.model import UnknownWordsError
from gaussmatch.models.run import load
from gaussmatch.search import Index, Query, update
from gaussmatch.search import index as index_module
from gaussmatch.search.trust import Calibration, calibrate, canonical
from gaussmatch.search.trust.familiarity import CLEARLY

QUICK = ["--data.size", "tiny", "--training.epochs", "1"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short runs on tiny scenes: kl, and the point model."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("vsepp-kl", "vsepp"):
        assert main(["train", f"scenes/{name}", "--out", str(folder / name), *QUICK]) == 0
    return folder


@pytest.fixture(scope="module")
def made(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "tiny"
    assert main(["index", str(runs / "vsepp-kl"), "--out", str(path)]) == 0
    index = Index.open(path)  # a model of so few steps fails its probe; its gauges are shown here
    index.set_calibration(replace(index.calibration, gauges={"captions": True, "images": True}))
    return path


def test_an_index_answers_with_how_sure_it_is(made, runs):
    index = Index.open(made)
    assert (index.size("images"), index.size("captions")) == (100, 500)
    vague, plain = index.search_text(["something", "a small red star and a blue zebra"], 5)
    assert vague.uncertainty == pytest.approx(
        float(index.model.uncertainty(index.model.encode_texts(["something"])))
    )
    for hits in (vague, plain):
        assert len(hits) == 5
        known = hits.familiar >= CLEARLY  # else the model does not know such queries
        assert (0 <= hits.percentile <= 100) if known else hits.percentile is None
        for hit in hits.hits:
            assert (0 <= hit.probability <= 1) if known else hit.probability is None
            assert 0 <= hit.percentile <= 100
    assert plain.familiar >= CLEARLY
    assert plain.unknown == ["zebra"]
    assert "of whole captions" in plain.phrase
    model = load(runs / "vsepp-kl")
    images, captions = model.encode_pairs(load_data(model.recipe.data).test)
    scores = model.similarity(images, captions[:7])
    found = index.search(captions[:7], 3)
    for q, hits in enumerate(found):
        best = scores[:, q].topk(3).indices.tolist()
        assert hits.ids == [f"scenes/test/{i}" for i in best]


def test_queries_of_all_kinds_are_searched_together(made):
    index = Index.open(made)
    picture = load_data(index.model.recipe.data).test.images.picture(3)
    like = "scenes/test/3"
    words, shown, item, both = index.search(
        [
            Query("a red star"),
            Query(picture=picture),
            Query(item=like),
            Query("a red star", item=like),
        ],
        4,
    )
    assert words.ids == index.search_text(["a red star"], 4)[0].ids
    assert shown.ids == index.search_image([picture], 4)[0].ids
    assert item.ids == index.search_id(like, 4).ids
    parts = [index.gaussian(like), index.model.encode_texts(["red star"])]
    wanted = index.search(index.together(parts), 4, side="images", exclude=[like])[0]
    assert both.ids == wanted.ids
    assert both.side == "images"
    assert both.familiar is both.hits[0].probability is None
    with pytest.raises(UnknownWordsError, match="qwxzjk"):
        index.search([Query("a red star"), Query("qwxzjk")], 4)
    with pytest.raises(ValueError, match="empty query"):
        Query()


def test_pictures_and_items_as_queries(made):
    index = Index.open(made)
    data = load_data(index.model.recipe.data).test
    near = index.search_image([data.images.picture(3)], 4, gallery="captions")[0]
    again = index.search_id("scenes/test/3", 4, gallery="captions")
    assert near.ids == again.ids
    assert near.hits[0].probability is not None
    assert near.hits[0].meta["caption"] in data.captions
    like = index.search_id("scenes/test/3", 4)
    assert "scenes/test/3" not in like.ids
    assert like.hits[0].probability is None
    assert any("no probability of fitting" in note for note in like.notes)
    picture = index.get("scenes/test/3").thumbnail
    assert picture[:2] == b"\xff\xd8"


def test_a_point_model_has_no_uncertainty_and_says_so(runs, tmp_path, capsys):
    assert main(["index", str(runs / "vsepp"), "--out", str(tmp_path / "i")]) == 0
    hits = Index.open(tmp_path / "i").search_text(["a red star"], 2)[0]
    assert hits.uncertainty is hits.percentile is hits.hits[0].uncertainty is None
    assert 0 <= hits.hits[0].probability <= 1
    assert any("point model" in note for note in hits.notes)
    capsys.readouterr()
    assert main(["search", str(tmp_path / "i"), "a red star", "-k", "2"]) == 0
    assert "point model" in capsys.readouterr().out


def test_p_fits_is_honest_on_test(runs):
    """Fitted on dev; on test far better than a model that is always sure."""
    model = load(runs / "vsepp-kl")
    data = load_data(model.recipe.data)
    images, captions = model.encode_pairs(data.test)
    best = model.similarity(images, captions).T.topk(10)
    scores = model.similarity(images, captions).T.double()
    kinds = [length_of(canonical(caption)) for caption in data.test.captions]
    judged = calibrate(model, data).judge(
        captions, "captions", "images", best.values.numpy(), scores.numpy(), len(images), kinds
    )
    p = torch.from_numpy(judged.probability)
    familiar = ~p.isnan().any(1)
    right = data.test.relevance.dense().gather(1, best.indices).double()
    assert calibration_error(p[familiar].flatten(), right[familiar].flatten()) < 0.1


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "trip").mkdir(parents=True)
    for i, name in enumerate(["a.jpg", "b.png", "trip/c.jpg"]):
        Image.new("RGB", (80, 60), (80 * i, 10, 10)).save(folder / name)
    (folder / "captions.csv").write_text("image,caption\na.jpg,a red square\na.jpg,a star\n")
    return folder


def test_update_encodes_only_what_is_new_or_changed(runs, photos, tmp_path, monkeypatch):
    index = Index.create(tmp_path / "i", runs / "vsepp-kl")
    done = update(index, photos, progress=False)
    assert (done.added, done.changed, done.deleted) == (3, 0, 0)
    assert index.get("trip/c.jpg").meta == {"file": "trip/c.jpg", "folder": "trip"}
    assert [r.meta["caption"] for r in index.records("captions")] == ["a red square", "a star"]
    assert len(index.search_text(["a star"], 9, where={"folder": "trip"})[0]) == 1
    encoded = []
    encode = type(index.model).encode_images
    monkeypatch.setattr(
        type(index.model),
        "encode_images",
        lambda self, pictures, *a: (encoded.append(len(pictures)), encode(self, pictures, *a))[1],
    )
    done = update(index, photos, progress=False)
    assert (done.added, done.changed, done.deleted, encoded) == (0, 0, 0, [])
    Image.new("RGB", (9, 9)).save(photos / "b.png")
    (photos / "trip" / "c.jpg").unlink()
    shutil.copy(photos / "a.jpg", photos / "d.jpg")
    done = update(index, photos, progress=False)
    assert (done.added, done.changed, done.deleted) == (1, 1, 1)
    assert sum(encoded) == 2
    assert {r.id for r in index.records()} == {"a.jpg", "b.png", "d.jpg"}


def test_a_broken_photo_is_skipped_with_its_reason_or_stops_a_strict_index(runs, photos, tmp_path):
    (photos / "e.jpg").write_bytes(b"no picture")
    index = Index.create(tmp_path / "i", runs / "vsepp-kl")
    with pytest.raises(ValueError, match=r"e\.jpg: cannot be decoded"):
        update(index, photos, strict=True, progress=False)
    for added in (3, 0):
        done = update(index, photos, progress=False)
        assert done.added == added
        assert list(done.skipped) == ["e.jpg"]
        assert done.skipped["e.jpg"].startswith("cannot be decoded as an image")
    assert index.size() == 3
    photos.joinpath("a.jpg").write_bytes(b"damaged since")
    done = update(index, photos, progress=False)
    assert (done.changed, list(done.skipped)) == (0, ["a.jpg", "e.jpg"])
    assert {r.id for r in index.records()} == {"b.png", "trip/c.jpg"}


@pytest.mark.filterwarnings("default")  # as on the command line
@pytest.mark.parametrize("format", ["DDS", "EPS", "PPM"])
def test_another_format_named_jpg_is_one_clear_line(runs, photos, tmp_path, capsys, format):
    Image.new("RGB", (16, 16)).save(photos / "e.jpg", format)
    words = ["index", str(runs / "vsepp-kl"), str(photos), "--out", str(tmp_path / "i")]
    assert main([*words, "--strict"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "e.jpg" in line]
    assert "its content is not JPEG, PNG" in line
    assert main(words) == 0
    shown = capsys.readouterr()
    assert re.search("skipped: e.jpg: .*its content is not JPEG, PNG", shown.out)
    assert "Traceback" not in shown.err
    assert main(["index", "add", str(tmp_path / "i"), str(photos / "e.jpg")]) == 2
    assert "e.jpg: " in capsys.readouterr().err


def test_a_folder_that_is_empty_now_deletes_nothing(runs, photos, tmp_path):
    index = Index.create(tmp_path / "i", runs / "vsepp-kl")
    update(index, photos, progress=False)
    shutil.rmtree(photos)
    photos.mkdir()
    with pytest.raises(ValueError, match="no photos"):
        update(index, photos, progress=False)
    assert index.size() == 3


def test_names_that_are_no_text_and_what_is_no_file(runs, photos, tmp_path):
    (photos / "folder.jpg").mkdir()
    (photos / "gone.jpg").symlink_to(tmp_path / "nowhere")
    index = Index.create(tmp_path / "i", runs / "vsepp-kl")
    assert update(index, photos, progress=False).added == 3
    try:
        shutil.copy(photos / "a.jpg", os.fsencode(photos) + b"/\xe9.jpg")
    except OSError:  # this file system holds text only
        return
    with pytest.raises(ValueError, match=r"udce9\.jpg.*its name is not UTF-8; rename"):
        update(index, photos, strict=True, progress=False)
    done = update(index, photos, progress=False)
    assert done.added == 0
    assert list(done.skipped.values()) == ["its name is not UTF-8; rename the file"]


def test_the_verbs_as_a_user_types_them(runs, photos, tmp_path, capsys):
    path = str(tmp_path / "i")
    assert main(["index", str(runs / "vsepp-kl"), str(photos), "--out", path]) == 0
    assert "3 added" in capsys.readouterr().out
    assert main(["index", str(runs / "vsepp-kl"), str(photos), "--out", path]) == 0
    assert "0 added, 0 changed, 0 deleted" in capsys.readouterr().out
    assert main(["index", str(runs / "vsepp"), str(photos), "--out", path]) == 2
    assert "another model" in capsys.readouterr().err
    new = tmp_path / "new.png"
    Image.new("RGB", (20, 20), "red").save(new)
    assert main(["index", "add", path, str(new)]) == 0
    assert main(["index", "delete", path, "b.png"]) == 0
    assert main(["index", "update", path]) == 0
    assert "1 added" in capsys.readouterr().out  # b.png is still in the folder
    assert main(["index", "compact", path, "--structure", "hnsw", "--search", "200"]) == 0
    assert (Index.open(path).settings.structure, Index.open(path).settings.search) == ("hnsw", 200)
    assert main(["index", "merge", str(tmp_path / "j"), path]) == 0
    assert "4 images" in capsys.readouterr().out
    assert main(["index", "info", str(tmp_path / "j")]) == 0
    assert '"structure": "hnsw"' in capsys.readouterr().out
    assert main(["search", path, "a zebra and a star", "--where", "folder=trip"]) == 0
    shown = capsys.readouterr().out
    assert "'zebra'" in shown
    assert "trip/c.jpg" in shown
    assert "a.jpg" not in shown
    assert main(["search", path, "--image", str(new), "--gallery", "captions", "--json"]) == 0
    assert '"phrase"' in capsys.readouterr().out
    assert main(["search", path, "--like", "a.jpg"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["xyzzy"], "has no word that this model knows"),
        (["--like", "nobody"], "no item 'nobody'"),
        (["--like", "scenes/test/0#0", "--gallery", "captions"], "it is one of its captions"),
        (["--image", "nothing.jpg"], "no such image"),
        (["star", "--where", "split"], "FIELD=VALUE"),
        (["star", "--where", "splitt=test"], "no item has a field 'splitt'; did you mean 'split'?"),
        (["star", "--sort", "taken"], "The fields are captions, split"),
        (["star", "-k", "0"], "at least 1"),
    ],
)
def test_errors_of_search_are_one_clear_line(made, words, message, capsys):
    assert main(["search", str(made), *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_making_and_continuing_an_index_loads_the_model_once(runs, photos, tmp_path, monkeypatch):
    loads, load_model = [], run.load_model
    for module in (run, index_module):
        monkeypatch.setattr(
            module, "load_model", lambda *given: loads.append(given) or load_model(*given)
        )
    words = ["index", str(runs / "vsepp-kl"), str(photos), "--out", str(tmp_path / "i")]
    for _ in range(2):
        loads.clear()
        assert main(words) == 0
        assert len(loads) == 1


def test_conditions_as_typed():
    assert conditions(["a=1", "a=x", "b!=2"]) == {
        "a": {"in": ["1", 1, "x"]},
        "b": {"not": ["2", 2]},
    }
    assert conditions(["a>=2023", "a<true"]) == {"a": {"gte": ["2023", 2023], "lt": ["true"]}}


def test_without_its_data_a_model_can_still_be_indexed(runs, photos, tmp_path, capsys):
    run = tmp_path / "moved"
    shutil.copytree(runs / "vsepp-kl", run)
    (run / "run.json").unlink()  # or the edited recipe is refused
    for kept in ("calibration.json", "probe.json"):
        (run / kept).unlink(missing_ok=True)
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(
        text.replace("name: scenes", "name: precomputed").replace("root: null", "root: nowhere")
    )
    from gaussmatch.search.trust import kept_calibration

    with pytest.warns(UserWarning, match="neither percentiles nor"):
        assert kept_calibration(run) == Calibration()
    assert photos.is_dir()
    capsys.readouterr()
