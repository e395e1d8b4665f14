"""Checkpoints with a whole network: VSE++ fine-tuned, PVSE and PCME, over photos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from data.files import flickr8k
from official.layouts import WORDS, pcme, pvse, resnet18, save, vocabulary, vsepp
from official.test_vsepp import CAPTIONS, NUMBERS, read_by_a_gru
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.files import read_json
from gaussmatch.models.official import import_checkpoint
from gaussmatch.models.official.systems import Weights, torchvision_rules

PICTURES = torch.rand(2, 3, 64, 64)
MEAN, STD = (torch.tensor(v).view(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return resnet18()


def grid(net: Any, pictures: Tensor) -> Tensor:
    """The cells of the last map of torchvision's ResNet: (n, 4, 512)."""
    with torch.no_grad():
        x = net.maxpool(net.relu(net.bn1(net.conv1((pictures - MEAN) / STD))))
        for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
            x = layer(x)
    return x.flatten(2).transpose(1, 2)


def linear(state: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", torch.zeros(()))


def attended(state: dict[str, Tensor], name: str, local: Tensor) -> Tensor:
    """What each head of their attention gathers from one item's local features: (K, F)."""
    hidden = torch.tanh(linear(state, f"{name}.w_1", local))
    return linear(state, f"{name}.w_2", hidden).softmax(0).T @ local


def points(state: dict[str, Tensor], name: str, whole: Tensor, local: Tensor) -> Tensor:
    """Their ``PIENet`` for one item, then the L2-norm: (K, D)."""
    residual = linear(state, f"{name}.fc", attended(state, f"{name}.attention", local)).sigmoid()
    shape, scale = whole.shape, [state[f"{name}.layer_norm.{n}"] for n in ("weight", "bias")]
    return normalize(layer_norm(whole + residual, shape, *scale), dim=-1)


def both_ways(state: dict[str, Tensor], name: str, words: Tensor, last_token: bool) -> Tensor:
    """Their bi-directional GRU over one caption."""
    own = {n.removeprefix(f"{name}."): w for n, w in state.items() if n.startswith(f"{name}.")}
    gru = nn.GRU(words.shape[1], own["weight_hh_l0"].shape[1], bidirectional=True)
    gru.load_state_dict(own)
    with torch.no_grad():
        outputs, states = gru(words)
    return outputs[-1] if last_token else states.flatten()


def the_run(tmp_path: Path, content: dict[str, Any], words: bool = True) -> gm.Model:
    path = save(tmp_path / "model_best.pth.tar", content)
    given = vocabulary(tmp_path / "v.pkl") if words else None
    import_checkpoint(path, tmp_path / "run", given)
    return gm.load(tmp_path / "run")


def test_vsepp_with_its_network(tmp_path: Path, net: nn.Module) -> None:
    """Frozen or fine-tuned, the whole network is in the checkpoint, behind DataParallel."""
    network = {f"module.{n}": w for n, w in net.state_dict().items()}
    content = vsepp(
        img_dim=512, network=network, data_name="f30k", cnn_type="resnet18", finetune=True
    )
    model, (image, text) = the_run(tmp_path, content), content["model"]
    features = normalize(grid(net, PICTURES).mean(1), dim=-1)
    wanted = normalize(linear(image, "fc", features), dim=-1)
    torch.testing.assert_close(model.encode_images(PICTURES).mean, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.encode_texts(CAPTIONS).mean, read_by_a_gru(text, NUMBERS))
    assert (model.recipe.data.name, model.recipe.data.features) == ("flickr30k", "pixels")
    assert model.recipe.model.backbone == "resnet18"


@pytest.mark.parametrize(
    ("heads", "legacy", "prefix"), [(3, False, ""), (2, True, "module."), (1, False, "")]
)
def test_pvse(tmp_path: Path, net: nn.Module, heads: int, legacy: bool, prefix: str) -> None:
    content = pvse(net, heads=heads, legacy=legacy, prefix=prefix)
    model = the_run(tmp_path, content)
    state = {name.removeprefix("module."): value for name, value in content["model"].items()}
    local = grid(net, PICTURES)
    wanted = torch.stack(
        [points(state, "img_enc.pie_net", linear(state, "img_enc.fc", x.mean(0)), x) for x in local]
    )
    found = model.encode_images(PICTURES).mean
    torch.testing.assert_close(found, wanted.squeeze(1), atol=1e-5, rtol=0)
    rows = [state["txt_enc.embed.weight"][row] for row in NUMBERS]
    wanted = torch.stack(
        [points(state, "txt_enc.pie_net", both_ways(state, "txt_enc.rnn", x, legacy), x)
         for x in rows]
    )  # fmt: skip
    torch.testing.assert_close(model.encode_texts(CAPTIONS).mean, wanted.squeeze(1))
    assert model.recipe.model.pvse.dropout == 0.1
    assert model.recipe.model.similarity == "mil"
    loss = model.recipe.loss
    assert (loss.diversity, loss.mmd, loss.reduction) == (0.1, 0.01, "mean")


def test_pcme(tmp_path: Path, net: nn.Module) -> None:
    content = pcme(net)
    model, state = the_run(tmp_path, content, words=False), content["model"]
    assert model.matcher.text_encoder.tokenizer.words == WORDS
    own = "img_enc.uncertain_net"
    images = model.encode_images(PICTURES)
    for k, x in enumerate(grid(net, PICTURES)):
        mean = points(state, "img_enc.pie_net", linear(state, "img_enc.fc", x.mean(0)), x)[0]
        spread = linear(state, f"{own}.fc", attended(state, f"{own}.attention", x)[0])
        spread = spread + linear(state, f"{own}.fc2", x.mean(0))
        torch.testing.assert_close(images[k].mean, mean, atol=1e-5, rtol=0)
        torch.testing.assert_close(images[k].log_var, 2 * spread, atol=1e-5, rtol=1e-5)
    own, captions = "txt_enc.uncertain_net", model.encode_texts(CAPTIONS)
    for k, row in enumerate(NUMBERS):
        x = state["txt_enc.embed.weight"][row]
        mean = points(state, "txt_enc.pie_net", both_ways(state, "txt_enc.rnn", x, True), x)[0]
        spread = linear(state, f"{own}.fc", attended(state, f"{own}.attention", x)[0])
        spread = spread + both_ways(state, f"{own}.rnn", x, True)
        torch.testing.assert_close(captions[k].mean, mean)
        torch.testing.assert_close(captions[k].log_var, 2 * spread)
    weights = model.matcher.state_dict()
    assert (weights["similarity.scale"], weights["similarity.shift"]) == (4.5, 5.25)
    assert model.recipe.model.pcme.samples == 7
    assert (model.recipe.loss.name, model.recipe.loss.vib_as_published) == (
        "soft-contrastive",
        1e-5,
    )


@pytest.mark.parametrize("system", ["vsepp", "pvse", "pcme"])
def test_the_command(
    tmp_path: Path, net: nn.Module, system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    network = {f"module.{n}": w for n, w in net.state_dict().items()}
    content = {
        "vsepp": lambda: vsepp(img_dim=512, network=network, data_name="f8k", cnn_type="resnet18"),
        "pvse": lambda: pvse(net),
        "pcme": lambda: pcme(net),
    }[system]()
    out, path = tmp_path / "run", save(tmp_path / "model_best.pth.tar", content)
    photos = flickr8k(tmp_path / "photos")
    words = ["import", system, str(path), "--vocab", str(vocabulary(tmp_path / "v.pkl"))]
    words += ["--out", str(out), "--data.name", "flickr8k", "--data.root", str(photos)]
    assert main([*words, "--data.crop", "32"]) == 0
    assert "official" in capsys.readouterr().out
    assert main(["evaluate", str(out)]) == 0
    assert read_json(out / "evaluation-test.json")["images"] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": True}, "order = True.*no order embedding"),
        ({"max_video_length": 8}, "max_video_length = 8.*videos"),
        ({"img_attention": False}, "img_attention = False"),
        ({"data_name": "tgif"}, "'tgif', which is not one of coco"),
        ({"num_embeds": 2}, "num_embeds is 2, but its weights have 3"),
        ({"cnn_type": "inception_v3"}, "'inception_v3' is not a ResNet or VGG"),
    ],
)
def test_pvse_refused(tmp_path: Path, net: nn.Module, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        the_run(tmp_path, pvse(net, **change))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"img_probemb": False}, "img_probemb = False"),
        ({"n_samples_inference": 0}, "draws no samples"),
        ({"embed_dim": 6}, "embed_dim is 6, but its weights have 8"),
    ],
)
def test_pcme_refused(tmp_path: Path, net: nn.Module, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        the_run(tmp_path, pcme(net, **change), words=False)


def test_pcme_holds_its_vocabulary(tmp_path: Path, net: nn.Module) -> None:
    path = save(tmp_path / "x.pth", pcme(net))
    other = vocabulary(tmp_path / "v.pkl", [*WORDS[:4], "a", "dog", *WORDS[6:]])
    with pytest.raises(ValueError, match=r"v\.pkl: not the vocabulary that .*x\.pth holds"):
        import_checkpoint(path, tmp_path / "run", other)
    with pytest.raises(ValueError, match=r"word2idx: the numbers of the words are not"):
        the_run(tmp_path, pcme(net) | {"word2idx": {"<pad>": 1}}, words=False)
    with pytest.raises(ValueError, match=r"config\.model: holds no options"):
        the_run(tmp_path, pcme(net) | {"config": []}, words=False)


@pytest.mark.parametrize("first", [0, 1])
def test_vgg_of_old_and_new(first: int) -> None:
    """Before 2017 torchvision's VGG had its dropouts in front: numbers 1 and 4."""
    state = {
        "cnn.features.module.0.weight": torch.rand(2, 3, 3, 3),
        f"cnn.classifier.{first}.weight": torch.rand(5, 2 * 49),
        f"cnn.classifier.{first}.bias": torch.rand(5),
        f"cnn.classifier.{first + 3}.weight": torch.rand(4, 5),
        f"cnn.classifier.{first + 3}.bias": torch.rand(4),
    }
    weights = Weights()
    weights.take(state, torchvision_rules("vgg19", r"cnn\.", "x"), "x")
    picture = torch.rand(2, 7, 7)
    dense = state[f"cnn.classifier.{first}.weight"] @ picture.flatten()
    as_map = weights.values["image.backbone.net.pre_logits.fc1.weight"]
    torch.testing.assert_close((as_map * picture).sum((1, 2, 3)), dense)
    assert weights.values["image.backbone.net.pre_logits.fc2.weight"].shape == (4, 5, 1, 1)
