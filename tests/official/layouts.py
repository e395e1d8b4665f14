"""Small files in the layouts of the official codes, written by the tests themselves."""

from __future__ import annotations

import argparse
import io
import pickle
import sys
import types
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WORDS = ["<pad>", "<start>", "<end>", "<unk>", "dog", "a", ".", "n't", "café", "''", "``", "runs"]


class Python2(pickle._Pickler):
    """Writes text as Python 2 wrote its byte strings."""

    dispatch = dict(pickle._Pickler.dispatch)  # noqa: RUF012

    def save_text(self, text: str) -> None:
        if text.isascii() and len(text) < 256:
            self.write(pickle.SHORT_BINSTRING + bytes([len(text)]) + text.encode())
            self.memoize(text)
        else:
            pickle._Pickler.save_str(self, text)

    dispatch[str] = save_text


python2 = types.ModuleType("pickle")
python2.Pickler = Python2  # type: ignore[attr-defined]
python2.dump = lambda value, file, protocol=2: Python2(file, protocol).dump(value)  # type: ignore[attr-defined]


def save(path: Path, content: dict[str, Any], how: str = "zip") -> Path:
    """``torch.save`` of today (zip), before 1.6 (legacy), and of Python 2 (python2)."""
    more = {"pickle_module": python2} if how == "python2" else {}
    torch.save(content, path, _use_new_zipfile_serialization=how == "zip", **more)
    return path


def vocabulary_bytes(
    words: Iterable[str] = WORDS, module: str = "vocab", protocol: int = 2, old: bool = False
) -> bytes:
    """A pickled object of the class ``Vocabulary`` of a script; ``old`` as Python 2 wrote it."""
    there = sys.modules.get(module)
    home = there if module == "__main__" and there is not None else types.ModuleType(module)
    kind = type("Vocabulary", (), {"__module__": module})
    before = getattr(home, "Vocabulary", None)
    home.Vocabulary = kind  # type: ignore[attr-defined]
    sys.modules[module] = home
    try:
        value, numbers = kind(), {word: i for i, word in enumerate(words)}
        value.word2idx, value.idx = numbers, len(numbers)  # type: ignore[attr-defined]
        value.idx2word = {i: word for word, i in numbers.items()}  # type: ignore[attr-defined]
        file = io.BytesIO()
        (Python2 if old else pickle.Pickler)(file, protocol).dump(value)
        return file.getvalue()
    finally:
        if there is None:
            del sys.modules[module]
        elif before is None:
            del home.Vocabulary  # type: ignore[attr-defined]


def vocabulary(path: Path, words: Iterable[str] = WORDS) -> Path:
    path.write_bytes(vocabulary_bytes(words))
    return path


def zipped(program: bytes) -> bytes:
    """A pickle program in the place of the contents of a checkpoint of today."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", program)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return file.getvalue()


def legacy(program: bytes) -> bytes:
    """A pickle program in the place of the contents of a checkpoint before torch 1.6."""
    first = [
        torch.serialization.MAGIC_NUMBER,
        torch.serialization.PROTOCOL_VERSION,
        {"protocol_version": 1001, "little_endian": True, "type_sizes": {}},
    ]
    return b"".join(pickle.dumps(value, 2) for value in first) + program


def gru(inputs: int, width: int, both: bool = False, seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(nn.GRU(inputs, width, batch_first=True, bidirectional=both).state_dict())


def named(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": value.clone() for name, value in state.items()}


def linear(inputs: int, outputs: int) -> dict[str, Tensor]:
    return dict(nn.Linear(inputs, outputs).state_dict())


def vsepp(
    dim: int = 8,
    word_dim: int = 6,
    img_dim: int = 10,
    network: dict[str, Tensor] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """What VSE++ saves, with the options of its command line."""
    chosen = {
        "data_path": "/w/data", "data_name": "coco_precomp", "vocab_path": "./vocab/",
        "margin": 0.2, "num_epochs": 30, "batch_size": 128, "word_dim": word_dim,
        "embed_size": dim, "grad_clip": 2.0, "crop_size": 224, "num_layers": 1,
        "learning_rate": 0.0002, "lr_update": 15, "workers": 10, "log_step": 10, "val_step": 500,
        "logger_name": "runs/runX", "resume": "", "max_violation": True, "img_dim": img_dim,
        "finetune": False, "cnn_type": "vgg19", "use_restval": False, "measure": "cosine",
        "use_abs": False, "no_imgnorm": False, "reset_train": False, "vocab_size": len(WORDS),
    } | options  # fmt: skip
    image = {**named("cnn.", network or {}), **named("fc.", linear(img_dim, dim))}
    text = {"embed.weight": torch.randn(len(WORDS), word_dim), **named("rnn.", gru(word_dim, dim))}
    return {
        "epoch": 27,
        "model": [image, text],
        "best_rsum": np.float64(431.5),
        "opt": argparse.Namespace(**chosen),
        "Eiters": 1234,
    }


def precomputed(root: Path, shape: tuple[int, ...], captions: Callable[[int], str]) -> Path:
    """Features in the layout that their data loaders read, five captions an image."""
    root.mkdir()
    for split, images in (("train", 3), ("dev", 2), ("test", 4)):
        rng = np.random.default_rng(images)
        np.save(root / f"{split}_ims.npy", rng.random((images, *shape), dtype=np.float32))
        lines = "".join(f"{captions(i)}\n" for i in range(5 * images))
        (root / f"{split}_caps.txt").write_text(lines, encoding="utf-8")
    return root


def batch_norm(width: int) -> dict[str, Tensor]:
    """A BatchNorm that does something, as after training."""
    return {
        "weight": torch.rand(width) + 0.5,
        "bias": torch.rand(width),
        "running_mean": torch.rand(width),
        "running_var": torch.rand(width) + 0.5,
        "num_batches_tracked": torch.tensor(7),
    }


def vsrn(
    dim: int = 8, word_dim: int = 6, img_dim: int = 10, flickr: bool = False, **options: Any
) -> dict[str, Any]:
    """What VSRN saves: the options of VSE++ and those of its caption generator."""
    content = vsepp(dim, word_dim, img_dim, **options)
    name = "f30k_precomp" if flickr else "coco_precomp"
    own = {
        "data_name": name, "dim_vid": 2048, "dim_hidden": 512, "bidirectional": 0,
        "input_dropout_p": 0.2, "rnn_type": "gru", "rnn_dropout_p": 0.5, "dim_word": 300,
        "max_len": 60,
    }  # fmt: skip
    vars(content["opt"]).update(own | options)
    image = content["model"][0] | named("img_rnn.", gru(dim, dim, seed=1))
    for block in range(1, 5):
        for layer in ("g", "theta", "phi", "W.0"):
            image |= named(f"Rs_GCN_{block}.{layer}.", dict(nn.Conv1d(dim, dim, 1).state_dict()))
        image |= named(f"Rs_GCN_{block}.W.1.", batch_norm(dim))
    content["model"][0] = image | (named("bn.", batch_norm(dim)) if flickr else {})
    return content


def resnet18() -> nn.Module:
    """torchvision's network without its classifier, as the official codes leave it."""
    from gaussmatch.models.encoders.pretrained.base import make_importable

    make_importable()
    import torchvision

    torch.manual_seed(3)
    net = torchvision.models.resnet18(weights=None)
    net.fc = nn.Identity()
    for name, layer in net.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.load_state_dict(batch_norm(layer.num_features))
            if name.endswith("bn2"):  # residuals of the size that trained ones have
                layer.weight.data *= 0.2
    return net.eval()


def pie(prefix: str, local: int, dim: int, heads: int) -> dict[str, Tensor]:
    return {
        f"{prefix}attention.w_1.weight": torch.randn(local // 2, local),
        f"{prefix}attention.w_2.weight": torch.randn(heads, local // 2),
        **named(f"{prefix}fc.", linear(local, dim)),
        f"{prefix}layer_norm.weight": torch.rand(dim) + 0.5,
        f"{prefix}layer_norm.bias": torch.rand(dim),
    }


def pvse_state(net: nn.Module, dim: int, word_dim: int, heads: int) -> dict[str, Tensor]:
    return {
        **named("img_enc.cnn.", dict(net.state_dict())),
        **named("img_enc.fc.", linear(512, dim)),
        **pie("img_enc.pie_net.", 512, dim, heads),
        "txt_enc.embed.weight": torch.randn(len(WORDS), word_dim),
        **named("txt_enc.rnn.", gru(word_dim, dim // 2, both=True)),
        **pie("txt_enc.pie_net.", word_dim, dim, heads),
    }


def pvse(
    net: nn.Module, dim: int = 8, word_dim: int = 6, heads: int = 3, prefix: str = "", **args: Any
) -> dict[str, Any]:
    """What PVSE saves, with the options of its command line; ``prefix`` as of DataParallel."""
    chosen = {
        "data_name": "coco", "data_path": "data", "vocab_path": "vocab", "logger_name": "runs/x",
        "log_step": 10, "log_file": "logs/x.log", "debug": False, "word_dim": word_dim,
        "workers": 16, "crop_size": 224, "max_video_length": 1, "cnn_type": "resnet18",
        "embed_size": dim, "wemb_type": "glove", "margin": 0.1, "dropout": 0.1,
        "max_violation": True, "order": False, "img_attention": True, "txt_attention": True,
        "num_embeds": heads, "mmd_weight": 0.01, "div_weight": 0.1, "img_finetune": True,
        "txt_finetune": True, "val_metric": "rsum", "num_epochs": 30, "batch_size": 32,
        "batch_size_eval": 16, "grad_clip": 2.0, "weight_decay": 0.0, "lr": 0.0002, "ckpt": "",
        "eval_on_gpu": False, "legacy": False,
    } | args  # fmt: skip
    state = named(prefix, pvse_state(net, dim, word_dim, heads))
    return {
        "args": argparse.Namespace(**chosen),
        "epoch": 12,
        "best_score": np.float64(450.5),
        "model": state,
    }


def pcme(net: nn.Module, dim: int = 8, word_dim: int = 6, **model: Any) -> dict[str, Any]:
    """What PCME saves: weights, criterion, optimizer, configuration and vocabulary."""
    state = pvse_state(net, dim, word_dim, 1)
    for side, local in (("img", 512), ("txt", word_dim)):
        own = f"{side}_enc.uncertain_net."
        spread = pie(own, local, dim, 1)
        state |= {name: value for name, value in spread.items() if "layer_norm" not in name}
    state |= named("img_enc.uncertain_net.fc2.", linear(512, dim))
    state |= named("txt_enc.uncertain_net.rnn.", gru(word_dim, dim // 2, both=True, seed=4))
    config = {
        "dataloader": {"batch_size": 128, "crop_size": 224},
        "model": {
            "name": "pcme", "embed_dim": dim, "cnn_type": "resnet18", "wemb_type": "glove",
            "word_dim": word_dim, "cache_dir": None, "img_attention": True, "txt_attention": True,
            "img_finetune": True, "txt_finetune": True, "img_probemb": True, "txt_probemb": True,
            "no_sigma_ln": True, "n_samples_inference": 7, "eval_method": "matmul",
            "pretrained_resnet_model_path": "",
        } | model,
        "optimizer": {"name": "adamp", "learning_rate": 0.00002, "weight_decay": 0.0},
        "criterion": {"name": "pcme", "init_negative_scale": 15, "init_shift": 15,
                      "num_samples": 7, "vib_beta": 0.00001},
        "train": {"finetune_epochs": 30, "grad_clip": 2},
    }  # fmt: skip
    return {
        "model": state,
        "criterion": {"shift": torch.tensor([5.25]), "negative_scale": torch.tensor([4.5])},
        "optimizer": {"state": {0: {"step": 3, "exp_avg": torch.zeros(2)}}, "param_groups": []},
        "lr_scheduler": {"T_max": 30, "base_lrs": [0.00002]},
        "config": config,
        "word2idx": {word: i for i, word in enumerate(WORDS)},
        "metadata": {"cur_epoch": 30, "lr": 0.00001, "scores": {"rsum": np.float64(0.5)}},
    }
