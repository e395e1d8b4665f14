"""Fine-tuning: it starts where the frozen run ended, and says why it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data.files import own_photos
from safetensors.torch import load_file, save_file
from toy import Rows, killed_at, toy_data

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.data.pairs import DataSet, Pairs
from gaussmatch.files import read_json
from gaussmatch.learn.training import loop, start
from gaussmatch.learn.training.loop import read_log, train
from gaussmatch.learn.training.start import StartWarning, frozen_recipe, load_backbone_weights
from gaussmatch.models.encoders.backbone import Backbone, create
from gaussmatch.models.encoders.pretrained.base import make_importable
from gaussmatch.models.published import export_onnx
from gaussmatch.models.recipe import DataRecipe, LossRecipe, ModelRecipe, Recipe, TrainingRecipe

make_importable()
pytest.importorskip("timm", reason="networks by name need the extra 'vision'")
NAME = "test_resnet"

FROZEN = Recipe(
    title="frozen",
    data=DataRecipe(min_count=1),
    model=ModelRecipe(dim=16, word_dim=12, probabilistic=True, similarity="kl"),
    loss=LossRecipe(warmup_epochs=1),
    training=TrainingRecipe(
        epochs=3, batch_size=16, learning_rate=0.01, decay_epoch=2, device="cpu"
    ),
)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of timm with random weights, classifier included, as it would be downloaded."""
    torch.manual_seed(0)
    net = create(NAME)
    for layer in net.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.ones_(layer.weight)
    path = tmp_path_factory.mktemp("weights") / "net.safetensors"
    save_file(net.state_dict(), path)
    return path


def pictured(pairs: Pairs) -> Pairs:
    """The toy's attribute vectors as pictures of colored patches."""
    rows = np.stack([pairs.images[i] for i in range(len(pairs.images))])
    patches = rows.reshape(len(rows), 1, 4, 4).repeat(8, 2).repeat(8, 3)
    tints = np.stack([patches[:, 0], patches[:, 0, ::-1], patches[:, 0, :, ::-1]], 1)
    return Pairs(pairs.name, Rows(tints.clip(0, 1)), pairs.captions, pairs.image_of)


@pytest.fixture(scope="module")
def pixels() -> DataSet:
    data = toy_data()
    return DataSet("toy", *(pictured(p) for p in (data.train, data.dev, data.test)))


@pytest.fixture(scope="module")
def features(pixels: DataSet, weights: Path) -> DataSet:
    """What ``gaussmatch extract`` would give for these pictures."""
    net = Backbone(NAME)
    load_backbone_weights(net, str(weights))
    net.eval()

    @torch.inference_mode()
    def seen(pairs: Pairs) -> Pairs:
        images = torch.from_numpy(np.stack([pairs.images[i] for i in range(len(pairs.images))]))
        return Pairs(pairs.name, Rows(net(images).numpy()), pairs.captions, pairs.image_of)

    return DataSet("toy", *(seen(p) for p in (pixels.train, pixels.dev, pixels.test)))


@pytest.fixture(scope="module")
def frozen(features: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "frozen"
    train(FROZEN, out, data=features, progress_bar=False)
    return out


def tuned(frozen: Path, weights: Path, **changes: Any) -> Recipe:
    """The recipe that goes on from the frozen run; ``model_dim=8`` changes ``model.dim``."""
    recipe = replace(
        FROZEN,
        title="tuned",
        data=replace(FROZEN.data, features="pixels"),
        model=replace(
            FROZEN.model, backbone=NAME, backbone_weights=str(weights), normalize_features=False
        ),
        loss=LossRecipe(),
        training=replace(
            FROZEN.training, epochs=2, learning_rate=1e-3, start_from=str(frozen), steps=4
        ),
    )
    for name, value in changes.items():
        section, _, field = name.partition("_")
        recipe = replace(recipe, **{section: replace(getattr(recipe, section), **{field: value})})
    return recipe


def test_it_starts_at_the_frozen_runs_accuracy(
    tmp_path: Path, frozen: Path, weights: Path, pixels: DataSet
) -> None:
    train(tuned(frozen, weights), tmp_path / "run", data=pixels, progress_bar=False)
    before = read_json(frozen / "metrics.json")["dev"]["rsum"]
    log = read_log(tmp_path / "run")
    assert before > 150  # chance is about 100
    assert [r["rsum"] for r in log if r["event"] == "start"] == [pytest.approx(before)]
    assert [r["epoch"] for r in log if r["event"] == "epoch"] == [1, 2]
    assert log[-1]["step"] == 8
    assert read_json(tmp_path / "run" / "metrics.json")["dev"]["rsum"] >= before - 1e-9
    (memory,) = [r for r in log if r["event"] == "memory"]
    assert memory["activation_bytes_an_image"] > 4 * 3 * 32 * 32


def test_the_backbone_learns_and_the_model_loads_again(
    tmp_path: Path, frozen: Path, weights: Path, pixels: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start.Progress, "best_rsum", -1.0)  # keep a later epoch, not the start
    out = tmp_path / "run"
    model = train(tuned(frozen, weights), out, data=pixels, progress_bar=False)
    weights.rename(tmp_path / "moved")  # a finished run needs no other file
    try:
        again = gm.load(out)
    finally:
        (tmp_path / "moved").rename(weights)
    a, b = (m.encode_pairs(pixels.dev)[0] for m in (model, again))
    assert torch.equal(a.mean, b.mean)
    checkpoint = torch.load(out / "checkpoint.pt", weights_only=True)["matcher"]
    given = load_file(weights)
    learned = "image.encoder.backbone.net."
    assert not torch.equal(checkpoint[learned + "conv1.0.weight"], given["conv1.0.weight"])
    assert torch.equal(checkpoint[learned + "bn1.running_mean"], given["bn1.running_mean"])
    assert not torch.equal(checkpoint[learned + "bn1.weight"], given["bn1.weight"])
    assert not any("fc." in name for name in checkpoint)


def test_batch_statistics_are_trained_where_set(
    tmp_path: Path, frozen: Path, weights: Path, pixels: DataSet
) -> None:
    recipe = tuned(frozen, weights, model_backbone_norm="train", training_epochs=1)
    train(recipe, tmp_path / "run", data=pixels, progress_bar=False)
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["matcher"]
    name = "bn1.running_mean"
    assert not torch.equal(state[f"image.encoder.backbone.net.{name}"], load_file(weights)[name])


def test_a_backbone_at_rate_zero_stays(
    tmp_path: Path, frozen: Path, weights: Path, pixels: DataSet
) -> None:
    recipe = tuned(frozen, weights, training_backbone_rate=0.0, training_epochs=1)
    train(recipe, tmp_path / "run", data=pixels, progress_bar=False)
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["matcher"]
    for name, value in load_file(weights).items():
        if not name.startswith("fc."):
            assert torch.equal(state[f"image.encoder.backbone.net.{name}"], value), name


def test_rates_of_the_two_parts(frozen: Path, weights: Path) -> None:
    recipe = tuned(frozen, weights, training_backbone_rate=0.1)
    matcher = gm.load(frozen).matcher
    assert len(loop.optimizer_of(matcher, recipe.training).param_groups) == 1
    matcher = start.initial_model(recipe, toy_data().train, gm.load(frozen)).matcher
    groups = loop.optimizer_of(matcher, recipe.training).param_groups
    assert [g["lr"] for g in groups] == [1e-3, pytest.approx(1e-4)]
    held = [p for g in groups for p in g["params"]]
    assert {id(p) for p in held} == {id(p) for p in matcher.parameters()}
    assert len(held) == len(list(matcher.parameters()))


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_resumed_equals_uninterrupted(
    tmp_path: Path,
    frozen: Path,
    weights: Path,
    pixels: DataSet,
    precision: str,
) -> None:
    """Also in float16, whose scale of the loss is part of the checkpoint."""
    recipe = tuned(frozen, weights, training_precision=precision, training_steps=2)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(recipe, whole, data=pixels, progress_bar=False)
    with killed_at(3):
        train(recipe, broken, data=pixels, progress_bar=False)
    train(recipe, broken, resume=True, data=pixels, progress_bar=False)
    a, b = (torch.load(out / "checkpoint.pt", weights_only=True) for out in (whole, broken))
    assert all(torch.equal(a["matcher"][k], b["matcher"][k]) for k in a["matcher"])
    assert a["scaler"] == b["scaler"]
    assert all(v.isfinite().all() for v in a["matcher"].values())
    assert [r["event"] for r in read_log(whole)] == [r["event"] for r in read_log(broken)]


def test_bfloat16_steps_stay_finite_and_near(
    tmp_path: Path, frozen: Path, weights: Path, pixels: DataSet
) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        changes = {"training_precision": precision, "training_epochs": 1, "training_steps": 1}
        out = tmp_path / precision
        model = train(tuned(frozen, weights, **changes), out, data=pixels, progress_bar=False)
        assert all(v.isfinite().all() for v in model.matcher.state_dict().values())
        assert all(p.dtype == torch.float32 for p in model.matcher.parameters())
        losses += [r["loss"] for r in read_log(out) if r["event"] == "step"]
    assert losses[0] != losses[1]  # it was at work
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_killed_in_the_first_epoch_it_starts_again_from_the_run(
    tmp_path: Path, frozen: Path, weights: Path, pixels: DataSet
) -> None:
    recipe = tuned(frozen, weights, training_epochs=1)
    with killed_at(0):
        train(recipe, tmp_path / "run", data=pixels, progress_bar=False)
    train(recipe, tmp_path / "run", resume=True, data=pixels, progress_bar=False)
    events = [r["event"] for r in read_log(tmp_path / "run")]
    assert events == ["memory", "start", "step", "epoch"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_dim": 8}, r"model\.dim is 8, but .*frozen \(training\.start_from\) has 16"),
        ({"model_word_dim": 8}, r"model\.word_dim is 8, but .* has 12"),
        ({"model_shape": "spherical-avgpool"}, r"model\.shape is spherical-avgpool, but"),
        ({"model_normalize_features": None}, r"model\.normalize_features.*set it to false"),
        ({"data_min_count": 2}, r"data\.min_count is 2, but the vocabulary comes from .* is 1"),
        ({"data_words": "nltk"}, r"data\.words is nltk, but the vocabulary comes from"),
        (
            {"model_backbone": "scenenet", "model_backbone_weights": None},
            r"model\.backbone scenenet gives features of width 256, but .* of width",
        ),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path,
    frozen: Path,
    weights: Path,
    pixels: DataSet,
    changes: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        train(tuned(frozen, weights, **changes), tmp_path / "run", data=pixels)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_captions_of_other_data_are_refused(
    tmp_path: Path, frozen: Path, weights: Path, pixels: DataSet
) -> None:
    strange = replace(pixels.train, captions=["ein Hund rennt fort"] * len(pixels.train.captions))
    data = replace(pixels, train=strange)
    with pytest.raises(ValueError, match="knows only 0% of the words of toy/train"):
        train(tuned(frozen, weights), tmp_path / "run", data=data)


def test_a_start_that_loses_is_warned_of(
    tmp_path: Path, frozen: Path, weights: Path, pixels: DataSet
) -> None:
    """Pictures other than those the features were made of."""
    upside_down = Rows(1 - np.stack([pixels.dev.images[i] for i in range(30)]))
    data = replace(pixels, dev=replace(pixels.dev, images=upside_down))
    with pytest.warns(StartWarning, match="do model.backbone, its weights and data.crop"):
        train(
            tuned(frozen, weights, training_epochs=1),
            tmp_path / "run",
            data=data,
            progress_bar=False,
        )


def test_a_point_run_starts_a_probabilistic_one(
    tmp_path: Path, features: DataSet, pixels: DataSet, weights: Path
) -> None:
    point = replace(
        FROZEN,
        model=replace(FROZEN.model, probabilistic=False, similarity="cosine"),
        training=replace(FROZEN.training, epochs=1),
    )
    old = train(point, tmp_path / "point", data=features, progress_bar=False)
    recipe = tuned(tmp_path / "point", weights)
    new = start.initial_model(recipe, pixels.train, old)
    a, b = old.encode_pairs(features.dev), new.encode_pairs(pixels.dev)
    for before, now in zip(a, b, strict=True):
        torch.testing.assert_close(now.mean, before.mean, atol=1e-5, rtol=0)
        assert not now.is_point


def test_weights_of_another_network(tmp_path: Path) -> None:
    save_file(create("test_vit").state_dict(), tmp_path / "vit.safetensors")
    with pytest.raises(ValueError, match=r"vit\.safetensors: not the weights of test_resnet"):
        load_backbone_weights(Backbone(NAME), str(tmp_path / "vit.safetensors"))
    with pytest.raises(ValueError, match=r"not the weights of scenenet; body\.0"):
        load_backbone_weights(Backbone("scenenet"), str(tmp_path / "vit.safetensors"))
    with pytest.raises(FileNotFoundError, match="no such file of weights"):
        load_backbone_weights(Backbone("scenenet"), str(tmp_path / "none.safetensors"))


# ---- a recipe to start from ----


def test_the_recipe_that_comes_first() -> None:
    recipe = gm.load_recipe(
        "scenes/vsepp-ft-kl",
        {"training.seed": 3, "model.shape": "spherical-avgpool", "data.size": "tiny"},
    )
    first, named = frozen_recipe(recipe), gm.load_recipe("scenes/vsepp-kl")
    assert (first.title, first.loss) == (named.title, named.loss)
    assert first.training == replace(named.training, seed=3)
    assert first.data == replace(named.data, size="tiny")
    assert first.model == replace(named.model, shape="spherical-avgpool", normalize_features=False)
    again = replace(recipe, training=replace(recipe.training, start_from="scenes/vsepp-ft"))
    with pytest.raises(ValueError, match="not a recipe on frozen features"):
        frozen_recipe(again)
    nowhere = replace(recipe, training=replace(recipe.training, start_from="runs/nowhere"))
    with pytest.raises(ValueError, match="runs/nowhere is not the folder of a run"):
        frozen_recipe(nowhere)


@pytest.mark.filterwarnings("ignore::gaussmatch.learn.training.start.StartWarning")
def test_photos_fine_tune_in_one_command(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen features first, then end to end; new photos are then encoded from their files."""
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    root, run = own_photos(tmp_path / "mine"), tmp_path / "run"
    done = main(
        ["train", "flickr8k/vsepp-ft", "--data.name", "folder", "--data.root", str(root),
         "--data.min_count", "1", "--data.crop", "32", "--model.dim", "8", "--model.backbone", NAME,
         "--model.backbone_weights", str(weights), "--training.epochs", "1",
         "--training.batch_size", "8", "--training.steps", "3", "--training.workers", "1",
         "--out", str(run)]
    )  # fmt: skip
    assert done == 0
    first = read_json(run / "frozen" / "metrics.json")
    assert first["finished"]
    assert gm.load(run / "frozen").recipe.data.backbone == NAME
    model = gm.load(run)
    images = model.encode_images([root / "0.jpg", root / "1.jpg"])
    assert model.similarity(images, model.encode_texts(["a dog"])).shape == (2, 1)
    seen = gm.load_data(model.recipe.data).train.images
    picture = model.encode_images([seen.picture(0)])
    assert torch.equal(picture.mean, model.encode_images(np.stack([seen[0]])).mean)
    pytest.importorskip("onnx", reason="needs the extra 'onnx'")
    export_onnx(run, tmp_path / "onnx")  # with its transform
    torch.testing.assert_close(
        gm.load(tmp_path / "onnx").encode_images([seen.picture(0)]).mean, picture.mean
    )
