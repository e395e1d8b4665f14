"""VSE++: official checkpoints become run folders with the official model's embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from official.layouts import WORDS, precomputed, save, vocabulary, vsepp
from torch import Tensor, nn
from torch.nn.functional import normalize

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.files import read_json
from gaussmatch.models.official import import_checkpoint

CAPTIONS = ["A dog runs.", 'a "CAFÉ" doesn\'t', "dog"]
NUMBERS = [[1, 5, 4, 11, 6, 2], [1, 5, 10, 8, 9, 3, 7, 2], [1, 4, 2]]


def read_by_a_gru(state: dict[str, Tensor], rows: list[list[int]]) -> Tensor:
    """What their text encoder computes: the state after the last word, of length one."""
    gru = nn.GRU(state["embed.weight"].shape[1], state["rnn.weight_hh_l0"].shape[1])
    gru.load_state_dict({n.removeprefix("rnn."): v for n, v in state.items() if n[:4] == "rnn."})
    with torch.no_grad():
        last = [gru(state["embed.weight"][row])[0][-1] for row in rows]
    return normalize(torch.stack(last), dim=-1)


@pytest.mark.parametrize("how", ["zip", "legacy", "python2"])
def test_the_same_embeddings(tmp_path: Path, how: str) -> None:
    content = vsepp() | {"best_rsum": 431.5}
    path = save(tmp_path / "model_best.pth.tar", content, how)
    recipe = import_checkpoint(path, tmp_path / "run", vocabulary(tmp_path / "v.pkl"))
    model, (image, text) = gm.load(tmp_path / "run"), content["model"]
    assert model.matcher.text_encoder.tokenizer.words == WORDS
    assert model.matcher.text_encoder.tokenizer.rows(CAPTIONS) == NUMBERS
    torch.testing.assert_close(model.encode_texts(CAPTIONS).mean, read_by_a_gru(text, NUMBERS))
    features = torch.rand(5, 10)
    wanted = normalize(features @ image["fc.weight"].T + image["fc.bias"], dim=-1)
    torch.testing.assert_close(model.encode_images(features).mean, wanted)
    assert recipe == model.recipe
    assert (recipe.model.dim, recipe.model.word_dim, recipe.model.feature_dim) == (8, 6, 10)
    assert (recipe.data.name, recipe.data.words) == ("precomputed", "nltk")
    assert (recipe.loss.mining, recipe.loss.same_image_negatives) == ("hardest", True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = precomputed(tmp_path / "coco_precomp", (10,), lambda i: f"A dog {'runs ' * (i % 3)}.")
    out, path = tmp_path / "run", save(tmp_path / "model_best.pth.tar", vsepp())
    words = ["--vocab", str(vocabulary(tmp_path / "v.pkl")), "--out", str(out)]
    assert main(["import", "vsepp", str(path), *words, "--data.root", str(data)]) == 0
    printed = capsys.readouterr().out
    assert "VSE++ official coco_precomp, D = 8" in printed
    assert "epoch 27, best_rsum 431.5" in printed
    about = read_json(out / "metrics.json")
    assert about["finished"]
    assert about["imported"]["system"] == "vsepp"
    assert len(about["imported"]["sha256"]) == 64
    assert main(["evaluate", str(out)]) == 0
    assert read_json(out / "evaluation-test.json")["images"] == 4
    assert main(["import", str(path), *words]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_a_network_is_left_out_where_features_are_given(tmp_path: Path) -> None:
    content = vsepp(network={"module.conv1.weight": torch.rand(2, 3, 1, 1)})
    path = save(tmp_path / "x.pth.tar", content)
    import_checkpoint(path, tmp_path / "run", vocabulary(tmp_path / "v.pkl"))
    ignored = read_json(tmp_path / "run" / "metrics.json")["imported"]["ignored"]
    assert ignored == {"cnn.module.conv1.weight": "the model is used with precomputed features"}


def refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = save(tmp_path / "x.pth.tar", content)
    with pytest.raises(ValueError, match=message):
        import_checkpoint(path, tmp_path / "run", vocabulary(tmp_path / "v.pkl"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"measure": "order"}, "measure = 'order'.*no order embedding"),
        ({"use_abs": True}, "use_abs = True"),
        ({"no_imgnorm": True}, "no_imgnorm = True"),
        ({"num_layers": 2}, "num_layers = 2"),
        ({"embed_size": 9}, "embed_size is 9, but its weights have 8"),
        ({"num_epochs": "many"}, "num_epochs is 'many', not a whole number"),
        ({"max_violation": 1}, "max_violation is 1, not a truth value"),
        ({"data_name": "mine"}, "'mine', which is not one of coco"),
    ],
)
def test_options_that_cannot_be_reproduced(
    tmp_path: Path, option: dict[str, Any], message: str
) -> None:
    network = {"module.conv1.weight": torch.rand(2, 3, 1, 1)} if "data_name" in option else None
    refused(tmp_path, vsepp(network=network, cnn_type="resnet18", **option), message)


def test_options_of_a_fork_are_reported(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pth.tar", vsepp(temperature=0.1))
    with pytest.warns(UserWarning, match="not known here: temperature"):
        import_checkpoint(path, tmp_path / "run", vocabulary(tmp_path / "v.pkl"))


def test_the_loss_of_the_sum(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pth.tar", vsepp(max_violation=False, grad_clip=0.0))
    recipe = import_checkpoint(path, tmp_path / "run", vocabulary(tmp_path / "v.pkl"))
    assert recipe.loss.mining == "sum"
    assert gm.load(tmp_path / "run").recipe.training.clip == float("inf")


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    content = vsepp()
    del content["model"][1]["rnn.bias_hh_l0"]
    refused(tmp_path, content, r"there is nothing for our weights text\.embed\.rnn\.bias_hh_l0")
    content = vsepp()
    content["model"][0]["pooling.scale"] = torch.zeros(1)
    refused(tmp_path, content, r"unknown weights pooling\.scale")
    content = vsepp()
    content["model"][1]["rnn.weight_ih_l1"] = torch.zeros(24, 8)
    refused(tmp_path, content, r"no weights rnn\.weight_ih_l1")
    content = vsepp()
    content["model"][1]["rnn.bias_hh_l0"] = torch.zeros(23)
    refused(tmp_path, content, r"rnn\.bias_hh_l0 \(23,\) instead of \(24,\)")
    content = vsepp()
    content["model"][0]["module.fc.bias"] = torch.zeros(8)
    refused(tmp_path, content, r"fc\.bias and fc\.bias are the same|module\.fc\.bias and fc\.bias")
    content = vsepp()
    content["model"][0]["fc.bias"] = "none"
    refused(tmp_path, content, "'fc.bias' is a str, not a weight")
    content = vsepp()
    content["model"][0]["fc.bias"] = torch.zeros(1).expand(8)
    refused(tmp_path, content, r"fc\.bias claims more numbers than the file holds")
    content = vsepp()
    del content["model"][0]["fc.weight"]
    refused(tmp_path, content, r"the weight that becomes image\.embed\.weight is missing")
    refused(tmp_path, {**vsepp(), "opt": 3}, "holds no options")
    refused(tmp_path, {**vsepp(), "model": [{}, {}]}, "no state dict")


def test_sizes_out_of_proportion_cost_no_memory(tmp_path: Path) -> None:
    content = vsepp(embed_size=2_000_000, img_dim=1)
    content["model"][0] = {
        "fc.weight": torch.zeros(2_000_000, 1), "fc.bias": torch.zeros(2_000_000)
    }  # fmt: skip
    refused(tmp_path, content, r"rnn\.weight_hh_l0 \(24, 8\) instead of \(6000000, 2000000\)")


def test_the_vocabulary_must_be_its_own(tmp_path: Path) -> None:
    path = save(tmp_path / "x.pth.tar", vsepp())
    words = vocabulary(tmp_path / "v.pkl", [*WORDS, "more"])
    with pytest.raises(ValueError, match="13 words, but the model has 12 word vectors"):
        import_checkpoint(path, tmp_path / "run", words)
    with pytest.raises(ValueError, match="give the file it was trained with, --vocab"):
        import_checkpoint(path, tmp_path / "run")


def test_files_of_nobody(tmp_path: Path) -> None:
    refused(tmp_path, {"net": np.float64(3)}, "no checkpoint of vsepp.*it holds net")
    with pytest.raises(SystemExit):
        main(["import", "x.pth", "--out", "run", "--model.dim", "3"])


def test_malicious_files_end_the_command_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "x.pth.tar", vsepp())
    (tmp_path / "v.pkl").write_bytes(b"\x80\x02cos\ngetcwd\n)R.")
    words = [
        "import",
        str(path),
        "--out",
        str(tmp_path / "run"),
        "--vocab",
        str(tmp_path / "v.pkl"),
    ]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "v.pkl: not an official vocabulary: refused" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()
