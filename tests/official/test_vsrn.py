"""VSRN: official checkpoints become run folders with the official model's embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from official.layouts import precomputed, save, vocabulary, vsrn
from official.test_vsepp import CAPTIONS, NUMBERS, read_by_a_gru, refused
from torch import Tensor, nn
from torch.nn.functional import batch_norm, normalize

import gaussmatch as gm
from gaussmatch.apps.cli import main
from gaussmatch.files import read_json
from gaussmatch.models.official import import_checkpoint


def reason(state: dict[str, Tensor], regions: Tensor, flickr: bool) -> Tensor:
    """What their image encoder computes, from its weights: L2-norms run over the regions."""
    v = regions @ state["fc.weight"].T + state["fc.bias"]
    v = v if flickr else v / v.norm(dim=1, keepdim=True)
    for block in range(1, 5):
        p = {n.removeprefix(f"Rs_GCN_{block}."): w for n, w in state.items()}

        def layer(name: str, x: Tensor, p: dict[str, Tensor] = p) -> Tensor:
            return x @ p[f"{name}.weight"][:, :, 0].T + p[f"{name}.bias"]

        relation = layer("theta", v) @ layer("phi", v).transpose(1, 2) / v.shape[1]
        message = layer("W.0", relation @ layer("g", v))
        v = v + normed(p, "W.1.", message.flatten(0, 1)).view_as(v)
    v = v / v.norm(dim=1, keepdim=True)
    gru = nn.GRU(v.shape[2], v.shape[2], batch_first=True)
    gru.load_state_dict({n.removeprefix("img_rnn."): w for n, w in state.items() if "img_" in n})
    with torch.no_grad():
        last = gru(v)[0][:, -1]
    return normalize(normed(state, "bn.", last) if flickr else last, dim=-1)


def normed(state: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    names = ("running_mean", "running_var", "weight", "bias")
    return batch_norm(x, *(state[prefix + name] for name in names))


@pytest.mark.parametrize("flickr", [False, True])
@pytest.mark.parametrize("how", ["zip", "python2"])
def test_the_same_embeddings(tmp_path: Path, flickr: bool, how: str) -> None:
    content = vsrn(flickr=flickr) | {"best_rsum": 300.0}
    path = save(tmp_path / "model_best.pth.tar", content, how)
    recipe = import_checkpoint(path, tmp_path / "run", vocabulary(tmp_path / "v.pkl"))
    model, (image, text) = gm.load(tmp_path / "run"), content["model"]
    torch.testing.assert_close(model.encode_texts(CAPTIONS).mean, read_by_a_gru(text, NUMBERS))
    regions = torch.rand(5, 36, 10)
    torch.testing.assert_close(model.encode_images(regions).mean, reason(image, regions, flickr))
    assert recipe.model.vsrn.batch_norm is flickr
    assert recipe.model.vsrn.over == "regions"
    assert recipe.data.features == "regions"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = precomputed(tmp_path / "precomp", (36, 10), lambda i: f"A dog {'runs ' * (i % 3)}.")
    out, path = tmp_path / "run", save(tmp_path / "model_best.pth.tar", vsrn())
    words = ["--vocab", str(vocabulary(tmp_path / "v.pkl")), "--out", str(out)]
    assert main(["import", str(path), *words, "--data.root", str(data)]) == 0
    assert "VSRN official coco_precomp" in capsys.readouterr().out
    assert read_json(out / "metrics.json")["imported"]["system"] == "vsrn"
    assert main(["evaluate", str(out)]) == 0
    assert read_json(out / "evaluation-test.json")["captions"] == 20


def test_old_checkpoints_have_no_counters(tmp_path: Path) -> None:
    """BatchNorm counts its batches since torch 0.4.1."""
    content = vsrn(flickr=True)
    image = {n: w for n, w in content["model"][0].items() if "num_batches" not in n}
    path = save(tmp_path / "x.pth.tar", content | {"model": [image, content["model"][1]]})
    import_checkpoint(path, tmp_path / "run", vocabulary(tmp_path / "v.pkl"))
    regions = torch.rand(2, 36, 10)
    found = gm.load(tmp_path / "run").encode_images(regions).mean
    torch.testing.assert_close(found, reason(image, regions, flickr=True))


def test_refused(tmp_path: Path) -> None:
    refused(tmp_path, vsrn(no_imgnorm=True), "no_imgnorm = True")
    refused(tmp_path, vsrn(data_name="coco"), "'coco', not on region features")
    refused(tmp_path, vsrn(flickr=True, data_name="coco_precomp"), r"has no weights bn\.weight")
    refused(tmp_path, vsrn(data_name="f30k_precomp"), r"nothing for our weights image\.norm")
    path = save(tmp_path / "x.pth.tar", vsrn())
    with pytest.raises(ValueError, match="not a checkpoint of vsepp"):
        import_checkpoint(path, tmp_path / "run", vocabulary(tmp_path / "v.pkl"), "vsepp")
