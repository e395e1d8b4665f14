"""A run folder loaded by one call, used as people know it from sentence-transformers."""

from __future__ import annotations

import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from toy import toy_data, toy_words
from training.test_loop import RECIPE

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.data import scenes
from gaussmatch.files import read_json, write_json
from gaussmatch.learn.training.loop import train
from gaussmatch.models import run
from gaussmatch.models.model import UnknownWordsError, build
from gaussmatch.models.recipe import ModelRecipe, identity, load
from gaussmatch.models.run import PROBE, keeping, read_listed, replacing


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "kl"
    short = replace(RECIPE, training=replace(RECIPE.training, epochs=1))
    train(short, out, data=toy_data(), progress_bar=False)
    return out


def test_encode_and_compare(folder: Path) -> None:
    model = gm.load(folder)
    images = model.encode_images(torch.rand(3, 16).numpy())
    captions = model.encode_texts(["red cat", "blue dog left"])
    assert (images.shape, captions.shape) == ((3,), (2,))
    assert model.similarity(images, captions).shape == (3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.uncertainty(captions).shape == (2,)


def test_batch_size_does_not_matter(folder: Path) -> None:
    model, texts = gm.load(folder), ["red cat", "blue dog left", "huge bird"]
    a, b = model.encode_texts(texts), model.encode_texts(texts, batch_size=1)
    torch.testing.assert_close(a.mean, b.mean)
    features = torch.rand(5, 16)
    a, b = model.encode_images(features), model.encode_images(features, batch_size=2)
    torch.testing.assert_close(a.log_var, b.log_var)


def test_captions_that_were_read_already_are_encoded_and_refused_alike(folder: Path) -> None:
    model, texts = gm.load(folder), ["red cat", "a blue xyzzy"]
    read = model.read(texts)
    torch.testing.assert_close(model.encode_texts(read).mean, model.encode_texts(texts).mean)
    assert (
        [r.unknown for r in read] == [model.unknown_words(t) for t in texts] == [[], ["a", "xyzzy"]]
    )
    with pytest.raises(ValueError, match="caption 1 'xyzzy' has no word that this model knows"):
        model.encode_texts(model.read(["red cat", "xyzzy"]))


def test_bad_input_is_named(folder: Path) -> None:
    model = gm.load(folder)
    with pytest.raises(UnknownWordsError, match="caption 1 'xyzzy' has no word that this") as found:
        model.encode_texts(["red cat", "xyzzy", "red", "qwerty"])
    assert found.value.rows == [1, 3]
    with pytest.raises(ValueError, match="caption 0 is empty"):
        model.encode_texts(["  "])
    with pytest.raises(ValueError, match="no captions"):
        model.encode_texts([])
    features = torch.rand(3, 16)
    features[2, 0] = torch.nan
    with pytest.raises(ValueError, match="image 2 hold a NaN"):
        model.encode_images(features)


def test_pictures_that_do_not_decode(folder: Path, tmp_path: Path) -> None:
    model, bad = gm.load(folder), tmp_path / "cut.png"
    Image.fromarray((255 * torch.rand(99, 99, 3)).byte().numpy()).save(bad)
    bad.write_bytes(bad.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"cut\.png: cannot be decoded"):
        model.encode_images([bad])
    (tmp_path / "text.jpg").write_text("not a picture")
    with pytest.raises(ValueError, match=r"text\.jpg: cannot be decoded"):
        model.encode_images([tmp_path / "text.jpg"])
    with pytest.raises(FileNotFoundError, match=r"none\.png: no such image"):
        model.encode_images([tmp_path / "none.png"])


def test_weights_cut_in_half_are_named(folder: Path, tmp_path: Path) -> None:
    for name in ("recipe.yaml", "vocabulary.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    run.seal(tmp_path, *run.MODEL)
    with pytest.raises(ValueError, match=r"model\.safetensors: not a complete safetensors file"):
        gm.load(tmp_path)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", run.MODEL)
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_flipped_bit_in_a_run_is_refused(copy: Path, name: str, place: float) -> None:
    content = bytearray((copy / name).read_bytes())
    content[int(place * len(content))] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name} is damaged or was changed.*run\.json; restore"):
        gm.load(copy)


def test_a_run_without_its_manifest_is_refused(copy: Path) -> None:
    (copy / "run.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"no run\.json to check its files by"):
        gm.load(copy)


def test_a_run_without_its_words_is_refused(copy: Path) -> None:
    (copy / "vocabulary.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"not a finished run: vocabulary\.json missing"):
        gm.load(copy)


def test_another_format_is_refused_by_its_number(copy: Path) -> None:
    write_json(copy / "run.json", {**read_json(copy / "run.json"), "format": 2})
    with pytest.raises(ValueError, match=r"run\.json: format 2, but this version reads 3"):
        gm.load(copy)


def test_a_file_that_the_manifest_does_not_list_is_not_trusted(copy: Path) -> None:
    manifest = read_json(copy / "run.json")
    manifest["files"]["modem.safetensors"] = manifest["files"].pop("model.safetensors")
    write_json(copy / "run.json", manifest)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or was changed"):
        gm.load(copy)


@pytest.mark.parametrize("after", ["the manifest", "the file"])
def test_a_kill_while_a_file_changes_places_leaves_a_run_that_loads(
    copy: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    state = {k: v + 1 for k, v in gm.load(copy).matcher.state_dict().items()}
    write, writes = run._write_manifest, iter([1, 2])

    def killed(*args: object) -> None:
        first = next(writes) == 1
        if first:
            write(*args)  # type: ignore[arg-type]
        if first == (after == "the manifest"):
            raise KeyboardInterrupt

    monkeypatch.setattr(run, "_write_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        run.save_weights(state, copy)
    loaded = gm.load(copy).matcher.state_dict()
    name = next(iter(loaded))
    assert torch.equal(loaded[name], state[name]) == (after == "the file")


def test_a_renamed_field_costs_an_entry_and_no_training(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity(gm.load(copy).recipe)
    text = (copy / "recipe.yaml").read_text()
    (copy / "recipe.yaml").write_text(text.replace("  learning_rate:", "  speed:"))
    run.seal(copy, "recipe.yaml")
    with pytest.raises(ValueError, match=r"unknown key 'training\.speed'"):
        gm.load(copy)
    monkeypatch.setitem(load.RENAMED, "training.speed", "training.learning_rate")
    recipe = gm.load(copy).recipe
    assert recipe.training.learning_rate == RECIPE.training.learning_rate
    assert identity(recipe) == {
        k.replace("learning_rate", "speed"): v for k, v in before.items()
    }  # under the first name of the field, whatever it is called now
    run.claim(copy, recipe, resume=True)
    (copy / "recipe.yaml").write_text(text.replace("training:", "training:\n  speed: 1.0"))
    run.seal(copy, "recipe.yaml")
    with pytest.raises(ValueError, match=r"old name of training\.learning_rate"):
        gm.load(copy)


def test_what_is_only_measured_or_only_local_does_not_make_another_run(copy: Path) -> None:
    recipe = gm.load(copy).recipe
    data, training = replace(recipe.data, cxc="cxc"), replace(recipe.training, device="mps")
    run.claim(copy, replace(recipe, title="other", data=data, training=training), resume=True)
    other = replace(recipe, training=replace(recipe.training, learning_rate=1.0))
    with pytest.raises(ValueError, match=r"another recipe.*see training\.learning_rate"):
        run.claim(copy, other, resume=True)


def test_a_foreign_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("mine")
    with pytest.raises(FileExistsError, match=r"is not empty \(log\.jsonl\)"):
        train(RECIPE, tmp_path, data=toy_data(), progress_bar=False)
    assert (tmp_path / "log.jsonl").read_text() == "mine"


def test_two_trainings_in_one_folder(folder: Path, tmp_path: Path) -> None:
    with run.training_lock(tmp_path), pytest.raises(OSError, match="another process is training"):
        train(RECIPE, tmp_path, data=toy_data(), progress_bar=False)
    with run.training_lock(tmp_path):  # free again
        assert not run.is_run(tmp_path)


def test_leftovers_of_a_killed_training_are_removed_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / ".model.safetensors.a1b2c3d_.gaussmatch-partial"
    foreign = [
        tmp_path / ".model.safetensors.mine",
        tmp_path / ".notes.a1b2c3d_.gaussmatch-partial",
    ]
    for path in (left, *foreign):
        path.write_text("half")
    with run.training_lock(tmp_path):
        assert not left.exists()
        assert all(path.exists() for path in foreign)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"recipe\.yaml, model\.safetensors missing"):
        gm.load(tmp_path)


@pytest.mark.parametrize("words", [["evaluate", "OUT"], ["index", "OUT", "--out", "INDEX"]])
def test_a_training_that_failed_before_its_first_step_is_called_unfinished(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, index = tmp_path / "out", tmp_path / "index"
    with pytest.raises(KeyboardInterrupt), run.training_lock(out):
        raise KeyboardInterrupt
    assert main([{"OUT": str(out), "INDEX": str(index)}.get(word, word) for word in words]) == 2
    told = capsys.readouterr().err
    assert f"{out} is not a finished run: recipe.yaml" in told
    assert f"finish it with 'gaussmatch train RECIPE --out {out} --resume'" in told
    assert not index.exists()


def test_meaningless_uncertainty_comes_with_a_warning(folder: Path) -> None:
    model = gm.load(folder)
    for name, similarity in (
        (n, gm.similarity(n)) for n in ("wasserstein", "wasserstein_literal", "csd")
    ):
        model.matcher.similarity = similarity
        with pytest.warns(gm.UncertaintyWarning, match=name):
            model.uncertainty(model.encode_texts(["red cat"]))


def test_a_point_model_has_no_uncertainty() -> None:
    matcher = build(ModelRecipe(dim=8, word_dim=4, feature_dim=16), toy_words(9))
    points = matcher.encode_images(torch.rand(2, 16))
    assert points.is_point
    with pytest.raises(ValueError, match="point embedding"):
        points.uncertainty()


def test_pictures_of_scenes_become_what_the_model_was_trained_on(tmp_path: Path) -> None:
    data = scenes.load("tiny", progress=False)
    recipe = gm.load_recipe("scenes/vsepp-kl", {"data.size": "tiny", "training.epochs": 1})
    model = train(recipe, tmp_path / "run", data=data, progress_bar=False)
    picture = data.test.images.picture(0)
    assert picture is not None
    picture.save(tmp_path / "scene.png")
    stored = model.encode_images(np.stack([data.test.images[0]]))
    for given in (picture, tmp_path / "scene.png", str(tmp_path / "scene.png")):
        torch.testing.assert_close(
            model.encode_images([given]).mean, stored.mean, atol=2e-3, rtol=0
        )


def test_end_to_end_backbone_trains_on_pixels(tmp_path: Path) -> None:
    recipe = gm.load_recipe(
        "scenes/vsepp-kl",
        {"data.size": "tiny", "data.features": "pixels", "model.backbone": "scenenet",
         "training.epochs": 1},
    )  # fmt: skip
    model = train(recipe, tmp_path / "run", progress_bar=False)
    picture = scenes.load("tiny", progress=False).test.images.picture(0)
    assert model.encode_images([picture]).shape == (1,)


def test_what_is_kept_with_a_run_is_verified(tmp_path: Path) -> None:
    assert read_listed(tmp_path, PROBE) is None
    with replacing(tmp_path, PROBE) as temporary:
        temporary.write_text("[2]")
    assert read_listed(tmp_path, PROBE) == [2]
    (tmp_path / PROBE).write_text("[3]")
    with pytest.raises(ValueError, match=r"probe\.json is damaged or was changed"):
        read_listed(tmp_path, PROBE)


def test_processes_that_keep_something_with_a_run_take_turns(tmp_path: Path) -> None:
    """Were they not to, the manifest could list the file of one and the folder hold the other's."""

    def keep(number: int) -> None:
        with keeping(tmp_path, PROBE) as temporary:
            temporary.write_text(f"[{number}]")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(keep, range(20)))
    assert read_listed(tmp_path, PROBE)[0] in range(20)
    assert not list(tmp_path.glob(f"{PROBE}.*"))
