"""Models as folders of the Hugging Face hub: saved by one call, loaded by the other, offline."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
import yaml
from toy import toy_data

import gaussmatch as gm
from gaussmatch.files import read_json, write_json
from gaussmatch.learn.evaluation.evaluate import evaluate_run
from gaussmatch.learn.training.loop import train
from gaussmatch.models import run as run_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = gm.load_recipe("scenes/vsepp-kl", {"model.dim": 8, "model.word_dim": 4})
    recipe = replace(recipe, training=replace(recipe.training, epochs=1))
    recipe = replace(recipe, data=replace(recipe.data, min_count=1))
    out = tmp_path_factory.mktemp("run") / "kl"
    train(recipe, out, data=toy_data(), progress_bar=False)
    return out


def test_what_is_saved_loads_as_the_same_model(run: Path, tmp_path: Path) -> None:
    folder = gm.save_pretrained(run, tmp_path / "out", results={"rsum": 123.4})
    texts = ["red cat", "blue dog left"]
    a, b = (model.encode_texts(texts) for model in (gm.load(run), gm.from_pretrained(folder)))
    assert torch.equal(a.mean, b.mean)
    assert a.log_var is not None
    assert b.log_var is not None
    assert torch.equal(a.log_var, b.log_var)
    names = {p.name for p in folder.iterdir()}
    assert names == {"README.md", "config.json", "run.json", *run_folder.MODEL}
    assert read_json(folder / "config.json")["library_name"] == "gaussmatch"
    card = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---")[1])
    (result,) = card["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "rsum", "value": 123.4}]
    assert torch.equal(gm.from_pretrained(run).encode_texts(texts).mean, a.mean)


def test_a_published_folder_is_verified_as_a_run_is(run: Path, tmp_path: Path) -> None:
    folder = gm.save_pretrained(run, tmp_path / "out")
    text = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(text.replace("  bound: clamp", "  bound: smooth"))
    with pytest.raises(ValueError, match=r"recipe\.yaml is damaged or was changed"):
        gm.from_pretrained(folder)


def test_the_model_of_the_package_is_what_its_manifest_says() -> None:
    """After a change of one of its files: ``seal(SHIPPED / "photos", NAME)``, of ``models.run``."""
    folder = run_folder.locate("photos")
    held = [name for name in run_folder.FILES if (folder / name).is_file()]
    assert set(read_json(folder / "run.json")["files"]) == set(held)
    run_folder.verify(folder, *held)
    recipe = gm.load("photos").recipe
    assert read_json(folder / "config.json")["recipe"] == json.loads(json.dumps(asdict(recipe)))
    own = recipe.model.adapter
    assert None not in (own.text_width, own.text_sha256, own.image_sha256)


def test_nothing_is_overwritten_and_foreign_models_are_refused(run: Path, tmp_path: Path) -> None:
    folder = gm.save_pretrained(run, tmp_path / "out")
    with pytest.raises(FileExistsError, match="is not empty"):
        gm.save_pretrained(run, folder)
    write_json(folder / "config.json", {"library_name": "other"})
    with pytest.raises(ValueError, match="another library"):
        gm.from_pretrained(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="not a model of gaussmatch"):
        gm.from_pretrained(tmp_path / "empty")


def test_offline_a_repository_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra 'hf'")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match="nobody/none is not in the cache"):
        gm.from_pretrained("nobody/none")


def test_a_published_folder_has_the_measures_of_evaluate_and_is_uploaded_whole(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub is a folder here: what is uploaded must load again, offline."""
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra 'hf'")
    measured = evaluate_run(run, "test", toy_data())
    folder = gm.save_pretrained(run, tmp_path / "out")
    for file in run.glob("evaluation-test.*"):
        file.unlink()
    card = (folder / "README.md").read_text(encoding="utf-8")
    (result,) = yaml.safe_load(card.split("---")[1])["model-index"][0]["results"]
    shown = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert shown["rsum"] == pytest.approx(measured["rsum"], abs=1e-4)
    assert shown["t2i_r1"] == pytest.approx(measured["t2i_r1"], abs=1e-4)
    assert "Measured on test" in card
    made: list[tuple[str, bool]] = []

    class Hub:
        def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
            made.append((name, private))
            return f"https://hub/{name}"

        def upload_folder(self, *, repo_id: str, folder_path: Path) -> None:
            shutil.copytree(folder_path, tmp_path / "hub" / repo_id)

    monkeypatch.setattr(hub, "HfApi", Hub)
    assert gm.push_to_hub(folder, "me/mine", private=True) == "https://hub/me/mine"
    assert made == [("me/mine", True)]

    def download(
        repository: str, *, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        if local_files_only:
            raise hub.errors.LocalEntryNotFoundError("not in the cache")
        target = tmp_path / "cache"
        target.mkdir()
        for file in (tmp_path / "hub" / repository).iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, target)
        return str(target)

    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.setattr("gaussmatch.data.hub.check_reachable", lambda _: None)
    monkeypatch.setattr("gaussmatch.data.hub._about", lambda _: ({"model.safetensors": 9}, "mit"))
    texts = ["red cat"]
    a, b = (m.encode_texts(texts).mean for m in (gm.load(run), gm.from_pretrained("me/mine")))
    assert torch.equal(a, b)
    with pytest.raises(FileNotFoundError, match="make the folder with save_pretrained"):
        gm.push_to_hub(tmp_path, "me/mine")
