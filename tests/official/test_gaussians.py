"""Published encoders as they are: imported, indexed, searched, calibrated and served, untrained."""

from __future__ import annotations

import json
import sys
import types
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.files import own_photos
from encoders.small import (
    SMALL_PCMEPP,
    SMALL_PROLIP,
    random_state,
    small_hf,
    small_open_clip,
    small_pcmepp,
    small_prolip,
)
from encoders.test_pretrained import ImageTowerContract, TextTowerContract
from official.layouts import save
from PIL import Image
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient
from torch import nn

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.apps.service.app import create_app
from gaussmatch.data.language import canonical
from gaussmatch.learn.training.start import initial_model
from gaussmatch.models.encoders.pretrained import image_tower, pcmepp, text_tower
from gaussmatch.models.official import import_checkpoint
from gaussmatch.search.trust.verdict import UNCALIBRATED


def munch(values: dict[str, Any]) -> Any:
    """Options as ``munch.Munch``, a dict that the training code of PCME++ saves them in."""

    def state(self: dict[str, Any]) -> dict[str, Any]:
        return dict(self)

    def restore(self: dict[str, Any], held: dict[str, Any]) -> None:
        self.update(held)

    body = {"__module__": "munch", "__getstate__": state, "__setstate__": restore}
    home = sys.modules.setdefault("munch", types.ModuleType("munch"))
    if not hasattr(home, "Munch"):
        home.Munch = type("Munch", (dict,), body)  # type: ignore[attr-defined]
    return home.Munch({k: munch(v) if isinstance(v, dict) else v for k, v in values.items()})


def lightning(tmp: Path, averaged: int = 0, **options: Any) -> dict[str, Any]:
    """What the training code of PCME++ saves, with small networks."""
    model = {
        "is_probabilistic_model": True, "n_unc_layers": 1, "backbone_source": "clip_ViT-B/32",
        "precomp_enc_type": "backbone", "embed_size": 16, "img_dim": 64, "no_imgnorm": False,
        "no_txtnorm": False, "sigma_ln_init": None,
    } | options  # fmt: skip
    (tmp / "config.json").write_text(json.dumps({**SMALL_PCMEPP, "pooling": "gpo"}))
    save_file({}, tmp / "model.safetensors")
    of = pcmepp.PCMEPPFolder("", tmp)
    nets: dict[str, nn.Module] = {
        "img_enc": pcmepp.PooledImage(of),
        "txt_enc": pcmepp.PooledText(of),
    }
    state = {
        "criterion.shift": torch.tensor([4.5]),
        "criterion.negative_scale": torch.tensor([6.5]),
    }
    for seed, (name, net) in enumerate(nets.items()):
        state |= random_state(net, f"{name}.", seed)
        state |= random_state(net, f"swa_{name}.module.", seed + 9) if averaged else {}
        state |= {f"swa_{name}.n_averaged": torch.tensor(averaged)} if averaged else {}
    state |= {n.replace("criterion", "swa_criterion.module"): v + 1 for n, v in state.items()
              if averaged and n.startswith("criterion")}  # fmt: skip
    return {
        "epoch": 24,
        "pytorch-lightning_version": "2.0.1",
        "state_dict": state,
        "hyper_parameters": {"opt": munch({"model": model, "train": {"grad_clip": 2}})},
    }


@pytest.fixture
def prolip_folder(tmp_path: Path) -> Path:
    (tmp_path / "tiny-prolip").mkdir()
    small_prolip(tmp_path / "tiny-prolip")
    return tmp_path / "tiny-prolip"


@pytest.mark.parametrize("kind", ["prolip", "pcmepp", "checkpoint"])
def test_every_verb(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is trained: the encoders give means and variances themselves."""
    given = tmp_path / "given"
    given.mkdir()
    if kind == "prolip":
        small_prolip(given)
    elif kind == "pcmepp":
        small_pcmepp(given)
    else:
        pytest.importorskip("open_clip", reason="needs the extra 'clip'")
        given = save(tmp_path / "last.ckpt", lightning(given))
    photos, run, index = own_photos(tmp_path / "photos", 120), tmp_path / "run", tmp_path / "x"
    words = ["import", str(given), "--out", str(run)]
    assert main([*words, "--data.name", "folder", "--data.root", str(photos)]) == 0
    assert main(["calibrate", str(run)]) == 0
    assert main(["index", str(run), str(photos), "--out", str(index)]) == 0
    capsys.readouterr()
    assert main(["search", str(index), "a dog", "--json"]) == 0
    first, model = json.loads(capsys.readouterr().out)["hits"][0], gm.load(run)
    text = model.encode_texts([canonical("a dog")])
    images = model.encode_images([photos / f"{i}.jpg" for i in range(120)])
    scores = model.similarity(images, text)[:, 0]
    assert first["id"] == f"{int(scores.argmax())}.jpg"
    assert first["score"] == pytest.approx(float(scores.max()), abs=1e-4)
    assert text.uncertainty().isfinite().all()
    with TestClient(create_app(gm.Index.open(index))) as client:
        answer = client.get("/api/search", params={"text": "a dog", "k": 3})
        assert answer.status_code == 200, answer.text
        assert answer.json()["results"]["hits"][0]["id"] == first["id"]
    for verb in (["probe", str(run)], ["audit", str(photos), "--run", str(run)]):
        assert (
            main([*verb, *(["--out", str(tmp_path / "audit")] if verb[0] == "audit" else [])]) == 0
        )
    assert "uncertainty of captions: " in capsys.readouterr().out
    assert "missing positive" in (tmp_path / "audit/audit.csv").read_text()  # captions repeat
    if find_spec("onnxruntime"):
        assert main(["export", str(run), "--onnx", str(tmp_path / "onnx")]) == 0
        exported = gm.load(tmp_path / "onnx")
        texts = ["a dog", "A much longer text about a dog, and more of them."]
        for wanted, found in (
            (model.encode_texts(texts), exported.encode_texts(texts)),
            (images[:3], exported.encode_images([photos / f"{i}.jpg" for i in range(3)])),
        ):
            torch.testing.assert_close(found.mean, wanted.mean, atol=1e-5, rtol=0)
            torch.testing.assert_close(found.log_var, wanted.log_var, atol=1e-5, rtol=1e-5)


def test_the_learned_scale_and_shift_come_along(tmp_path: Path, prolip_folder: Path) -> None:
    recipe = import_checkpoint(prolip_folder, tmp_path / "run")
    loss = gm.load(tmp_path / "run").matcher.heads["loss"]
    assert (loss.log_scale, loss.bias) == (3.0, -8.0)
    assert (recipe.model.similarity, recipe.model.dim, recipe.title) == (
        "prolip", 16, "ProLIP tiny-prolip"
    )  # fmt: skip


def test_averaged_weights_are_taken(tmp_path: Path) -> None:
    pytest.importorskip("open_clip", reason="needs the extra 'clip'")
    path = save(tmp_path / "last.ckpt", lightning(tmp_path, averaged=9))
    import_checkpoint(path, tmp_path / "run")
    held, state = load_file(tmp_path / "run/encoder/model.safetensors"), lightning(tmp_path, 9)
    wanted = state["state_dict"]["swa_txt_enc.module.linear.weight"]
    assert torch.equal(held["txt_enc.linear.weight"], wanted)
    loss = gm.load(tmp_path / "run").matcher.heads["loss"]
    assert (loss.scale, loss.bias) == (7.5, 5.5)


# ---- refused ----


def without(folder: Path, *names: str, **changed: torch.Tensor) -> None:
    state = load_file(folder / "model.safetensors")
    kept = {n: v for n, v in state.items() if not n.startswith(names)} if names else state
    save_file({**kept, **{n.replace("__", "."): v for n, v in changed.items()}},
              folder / "model.safetensors")  # fmt: skip


def test_a_folder_without_uncertainty_heads(tmp_path: Path, prolip_folder: Path) -> None:
    without(prolip_folder, "visual.uncertainty_proj")
    with pytest.raises(ValueError, match=r"no uncertainty heads, visual\.uncertainty_proj"):
        import_checkpoint(prolip_folder, tmp_path / "run")
    config = json.loads(json.dumps(SMALL_PROLIP))
    config["vision_cfg"]["embed_unc"] = False
    (prolip_folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"vision_cfg\.embed_unc is not true.*open_clip:"):
        import_checkpoint(prolip_folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embed_dim": 24}, r"visual\.proj is \(32, 16\), but config\.json wants \(32, 24\)"),
        ({"embed_dim": "x"}, "embed_dim is 'x', not a whole number"),
        ({"vision_cfg": None}, "no vision_cfg, found embed_dim"),
    ],
)
def test_weights_and_sizes_of_other_models(
    tmp_path: Path, prolip_folder: Path, change: dict[str, Any], message: str
) -> None:
    (prolip_folder / "config.json").write_text(json.dumps({**SMALL_PROLIP, **change}))
    with pytest.raises(ValueError, match=message):
        import_checkpoint(prolip_folder, tmp_path / "run")


def test_a_tokenizer_of_another_model(tmp_path: Path, prolip_folder: Path) -> None:
    config = json.loads(json.dumps(SMALL_PROLIP))
    config["text_cfg"]["vocab_size"] = 20
    small_prolip(prolip_folder, config)
    with pytest.raises(ValueError, match=r"tokenizer\.json: 59 tokens, but .* has 20"):
        import_checkpoint(prolip_folder, tmp_path / "run")


def test_embeddings_of_other_widths(tmp_path: Path, prolip_folder: Path) -> None:
    import_checkpoint(prolip_folder, tmp_path / "run")
    model = gm.load(tmp_path / "run")
    rows = np.zeros((2, 30), np.float32)
    for encode in (model.encode_images, model.encode_texts):
        with pytest.raises(ValueError, match=r"embeddings of 30 values, but prolip:.* gives 32"):
            encode(rows)


def test_one_model_under_the_name_of_another(
    tmp_path: Path, prolip_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found and what was expected, in one line; nothing is written."""
    other, held = tmp_path / "tiny-pcmepp", {"model": {}, "opt": None, "epoch": 3}
    other.mkdir()
    small_pcmepp(other)
    vsepp = save(tmp_path / "model_best.pth.tar", held)
    for system, given, message in (
        ("prolip", other, "vision_cfg.unc_layers is that of PCME++, not of ProLIP"),
        ("pcmepp", prolip_folder, "no vision_cfg.unc_layers, found image_size, layers, width"),
        ("prolip", vsepp, "a file, but prolip has folders"),
        ("pcmepp", vsepp, "no state_dict, found model, opt, epoch: not a checkpoint of PCME++"),
        ("pcmepp", other / "model.safetensors", "a file, but pcmepp has folders"),
        ("vsrn", other, "a folder, but vsrn has files"),
    ):
        assert main(["import", system, str(given), "--out", str(tmp_path / "run")]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.strip().splitlines()) == 1, said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "drop", "message"),
    [
        ({"is_probabilistic_model": False}, "-", "is_probabilistic_model = False"),
        ({"precomp_enc_type": "basic"}, "-", "precomp_enc_type = 'basic'"),
        ({"embed_size": 24}, "-", "embed_size is 24, but its weights have 16"),
        ({}, "img_enc.backbone", r"no weights img_enc\.backbone\.…, found"),
        ({}, "txt_enc.backbone.transformer.prob", "has no blocks for the variance"),
        ({}, "img_enc.image_std_encoder", r"image_std_encoder.* is missing, but config\.json"),
    ],
)
def test_checkpoints_of_other_models(
    tmp_path: Path, options: dict[str, Any], drop: str, message: str
) -> None:
    pytest.importorskip("open_clip", reason="needs the extra 'clip'")
    content = lightning(tmp_path, **options)
    state = content["state_dict"]
    content["state_dict"] = {n: v for n, v in state.items() if not n.startswith(drop)}
    with pytest.raises(ValueError, match=message):
        import_checkpoint(save(tmp_path / "last.ckpt", content), tmp_path / "run")
    assert not (tmp_path / "run" / "encoder").exists()


def test_there_is_nothing_to_adapt_or_train(tmp_path: Path, prolip_folder: Path) -> None:
    recipe = import_checkpoint(prolip_folder, tmp_path / "run", overrides={"data.name": "scenes"})
    with pytest.raises(ValueError, match="published has nothing to train"):
        initial_model(recipe, None, None)  # type: ignore[arg-type]


class TestImages(ImageTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_prolip(tmp)


class TestTexts(TextTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_prolip(tmp)


class TestPCMEPPImages(ImageTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_pcmepp(tmp)


class TestPCMEPPTexts(TextTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_pcmepp(tmp)


# ---- encoders by name whose embeddings are points ----


@pytest.mark.parametrize("kind", ["open_clip", "siglip", "prolip"])
def test_an_encoder_by_name_is_indexed_searched_served_and_calibrated(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a calibration it says so; one is learned later, and no photo encoded again."""
    (tmp_path / "model").mkdir()
    make = {"open_clip": small_open_clip, "siglip": partial(small_hf, kind="siglip")}
    encoder = make.get(kind, small_prolip)(tmp_path / "model")
    photos, run, index = own_photos(tmp_path / "photos", 120), tmp_path / "run", tmp_path / "x"
    assert main(["index", str(photos), "--model", encoder, "--out", str(index)]) == 0
    assert "not calibrated: it ranks" in capsys.readouterr().err
    assert main(["search", str(index), "a dog"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Best first. Not calibrated: I can’t say whether they fit.")
    assert "%" not in said
    opened = gm.Index.open(index)
    (found,) = opened.search_text(["a dog"], 3)
    if kind != "prolip":
        pictures = [Image.open(photos / f"{i}.jpg") for i in range(120)]
        text = text_tower(encoder).encode([canonical("a dog")])
        scores = (image_tower(encoder).encode(pictures) @ text.T)[:, 0]
        assert found.ids[0] == f"{int(scores.argmax())}.jpg"
        assert found.hits[0].score == pytest.approx(float(scores.max()), abs=1e-5)
        assert found.uncertainty is None
    with TestClient(create_app(opened)) as client:
        answer = client.get("/api/search", params={"text": "a dog", "k": 3}).json()
        assert answer["results"]["verdict"]["reason"] == UNCALIBRATED
        assert answer["results"]["hits"][0]["probability"] is None
        assert client.get("/api/about").json()["probabilistic"] == (kind == "prolip")
    encoded = opened.manifest.galleries
    assert main(["import", encoder, "--out", str(run)]) == 0
    words = ["--data.name", "folder", "--data.root", str(photos)]
    assert main(["calibrate", str(run), *words]) == 0
    assert main(["index", str(run), str(photos), "--out", str(index)]) == 0
    opened.reload()
    (found,) = opened.search_text(["a dog number 2"], 3)
    assert 0 <= found.hits[0].probability <= 1
    assert opened.manifest.galleries == encoded


def test_names_folders_and_weights_that_do_not_fit_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    name = small_open_clip(tmp_path)
    (arch, _, file), index = name.partition("@"), tmp_path / "x"
    photos = own_photos(tmp_path / "photos", 3)
    (tmp_path / "empty").mkdir()
    cases = {
        "open_clip:ViT-B-32/openay": "no pretrained weights 'openay' (ARCH/TAG); did you mean",
        "open_clip:ViT-B-33/openai": "open_clip has no model 'ViT-B-33'; did you mean",
        "open_clip:ViT-B-32/openai": "is not in the cache of the Hugging Face hub and cannot be",
        f"{arch}@{tmp_path / 'nowhere'}": "nowhere: no such file of weights, nor",
        f"{arch}@{tmp_path / 'empty'}": "empty: no .safetensors; only those",
        f"open_clip:ViT-B-16/openai@{file}": "not the weights of open_clip:ViT-B-16",
        "st:all-MiniLM-L6-v2": "st: has text encoders only; take one of open_clip:, hf:",
        "openclip:ViT-B-32/openai": "no encoder 'openclip:ViT-B-32/openai': it begins with none",
    }
    for encoder, said in cases.items():
        assert main(["index", str(photos), "--model", encoder, "--out", str(index)]) == 2, encoder
        told = capsys.readouterr().err
        assert said in told, encoder
        assert told.strip().count("\n") <= 1, told
        assert not index.exists()
    assert main(["index", str(photos), "--model", name, "--out", str(index)]) == 0
    save_file({k: v + 1 for k, v in load_file(file).items()}, file)  # other weights
    assert main(["search", str(index), "a dog"]) == 2
    assert "are not those that this model was" in capsys.readouterr().err
