"""Small random-weight models of the real classes of open_clip and transformers, as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from gaussmatch.models.encoders.pretrained.base import make_importable

make_importable()


def pictures(n: int = 2) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)) for _ in range(n)]


SMALL_CLIP = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def small_open_clip(tmp: Path, config: dict[str, Any] = SMALL_CLIP) -> str:
    library = pytest.importorskip("open_clip", reason="needs the extra 'clip'")
    name = "gaussmatch-custom" if "custom_text" in config else "gaussmatch-small"
    (tmp / f"{name}.json").write_text(json.dumps(config))
    library.add_model_config(tmp / f"{name}.json")
    torch.manual_seed(0)
    model = library.create_model(name)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, tmp / "c.safetensors")
    return f"open_clip:{name}@{tmp / 'c.safetensors'}"


def small_open_siglip(tmp: Path) -> str:
    """As SigLIP in open_clip: a text tower of its own with a tokenizer of transformers."""
    cut = word_pieces(tmp, 12)
    text = {
        "context_length": 12,
        "vocab_size": len(cut),
        "hf_tokenizer_name": str(tmp),
        "tokenizer_kwargs": {"clean": "canonicalize"},
        "width": 16,
        "heads": 2,
        "layers": 1,
        "no_causal_mask": True,
        "proj_bias": True,
        "pool_type": "last",
    }
    return small_open_clip(tmp, {**SMALL_CLIP, "custom_text": True, "text_cfg": text})


def word_pieces(tmp: Path, longest: int) -> Any:
    """A small tokenizer of transformers that cuts unknown words into letters."""
    transformers = pytest.importorskip("transformers", reason="needs the extra 'hf'")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["ä"]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in letters), "dog"]
    cut = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    cut.normalizer, cut.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    cut.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=cut,
        pad_token="[PAD]",
        unk_token="[UNK]",
        eos_token="[SEP]",
        bos_token="[CLS]",
        model_max_length=longest,
    )
    made.save_pretrained(tmp)
    return made


def small_hf(tmp: Path, kind: str) -> str:
    cut = word_pieces(tmp, 12)
    import transformers as t

    text = {
        "vocab_size": len(cut),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 12,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 16,
    }
    torch.manual_seed(0)
    side = {"height": 32, "width": 32}
    if kind == "clip":
        config = t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
        t.CLIPModel(config).save_pretrained(tmp)
        t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=side).save_pretrained(tmp)
    elif kind == "siglip2":
        del vision["image_size"]
        config = t.Siglip2Config(
            text_config=text, vision_config={**vision, "patch_size": 8, "num_patches": 16}
        )
        t.Siglip2Model(config).save_pretrained(tmp)
        t.Siglip2ImageProcessor(patch_size=8, max_num_patches=12).save_pretrained(tmp)
    else:
        config = t.SiglipConfig(text_config=text, vision_config=vision)
        t.SiglipModel(config).save_pretrained(tmp)
        t.SiglipImageProcessor(size=side).save_pretrained(tmp)
    return f"hf:nobody/{kind}@{tmp}"


def small_bert(tmp: Path, pooling: str = "mean") -> str:
    cut = word_pieces(tmp, 20)
    import transformers as t

    torch.manual_seed(0)
    config = t.BertConfig(
        vocab_size=len(cut),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=20,
    )
    t.BertModel(config).save_pretrained(tmp)
    package = "sentence_transformers.models"
    parts = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [{"idx": i, "path": p, "type": f"{package}.{k}"} for i, (p, k) in enumerate(parts)]
    (tmp / "modules.json").write_text(json.dumps(modules))
    (tmp / "1_Pooling").mkdir()
    name = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[pooling]
    (tmp / "1_Pooling" / "config.json").write_text(json.dumps({name: True}))
    return f"st:small@{tmp}"


SMALL_PROLIP = {
    "embed_dim": 16,
    "init_logit_bias": -10,
    "vision_cfg": {
        "image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16,
        "embed_unc": True,
    },
    "text_cfg": {
        "context_length": 12, "vocab_size": 80, "width": 16, "heads": 2, "layers": 2,
        "tokenizer_kwargs": {"clean": "canonicalize"}, "norm_kwargs": {"eps": 1e-6},
        "embed_unc": True,
    },
}  # fmt: skip
SMALL_PCMEPP = {
    "embed_dim": 16,
    "vision_cfg": {
        "image_size": 32, "layers": 2, "width": 64, "head_width": 64, "patch_size": 16,
        "unc_layers": 1,
    },
    "text_cfg": {
        "context_length": 12, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 2,
        "unc_layers": 1,
    },
}  # fmt: skip


def small_prolip(tmp: Path, config: dict[str, Any] = SMALL_PROLIP, seed: int = 0) -> str:
    """ProLIP with random weights, as a folder of the hub."""
    from gaussmatch.models.encoders.pretrained import prolip

    word_pieces(tmp, 12)
    (tmp / "config.json").write_text(json.dumps(config))
    save_file({}, tmp / "model.safetensors")
    of = prolip.ProLIPFolder("", tmp)
    state = {
        **random_state(prolip.ProLIPImage(of), "visual.", seed),
        **random_state(prolip.ProLIPText(of), "text.", seed + 1),
        "logit_scale": torch.tensor(3.0),
        "logit_bias": torch.tensor(-8.0),
    }
    save_file(state, tmp / "model.safetensors")
    return f"prolip:small@{tmp}"


def small_pcmepp(tmp: Path, config: dict[str, Any] = SMALL_PCMEPP) -> str:
    """PCME++ with random weights, as a folder of the hub."""
    pytest.importorskip("open_clip", reason="needs the extra 'clip'")
    from gaussmatch.models.encoders.pretrained import pcmepp

    (tmp / "config.json").write_text(json.dumps(config))
    save_file({}, tmp / "model.safetensors")
    of = pcmepp.PCMEPPFolder("", tmp)
    scalars = {"logit_scale": 2.0, "shift": 4.0, "negative_scale": 6.0}
    state = {
        **random_state(pcmepp.HubImage(of), "visual."),
        **random_state(pcmepp.HubText(of), "", 1),
        **{name: torch.tensor([value]) for name, value in scalars.items()},
    }
    save_file(state, tmp / "model.safetensors")
    return f"pcmepp:small@{tmp}"


def random_state(net: torch.nn.Module, prefix: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights of the size of trained ones: normal, and layer norms near 1."""
    dice = torch.Generator().manual_seed(seed)
    state = {}
    for name, value in net.state_dict().items():
        noise = torch.randn(value.shape, generator=dice)
        norm = ("ln_" in name and name.endswith("weight")) or name.endswith("gamma")
        size = value.shape[-1] ** -0.5 if value.ndim > 1 else 0.1
        state[f"{prefix}{name}"] = 1 + 0.1 * noise if norm else size * noise
    return state
