"""PCME++ and ProLIP against their official code, with random weights: forward, loss, gradients.

The code of others is not a part of this project. Name a checkout of each to run these::

    GAUSSMATCH_PCMEPP=pcmepp GAUSSMATCH_PROLIP=prolip pytest tests/official/test_peers.py
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders.small import SMALL_PROLIP, random_state, small_prolip
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.core import losses
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.similarities import similarity
from gaussmatch.models.encoders.base import Tokens
from gaussmatch.models.encoders.pretrained import image_tower, pcmepp, prolip
from gaussmatch.models.encoders.pretrained.base import make_importable
from gaussmatch.models.encoders.pvse import GPO, PCMEPPImage

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
STEPS = 20


def official(name: str, below: str = "") -> Path:
    given = os.environ.get(name)
    if not given:
        pytest.skip(f"set {name} to a checkout of the official code")
    return Path(given).expanduser().resolve() / below


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports modules of a checkout, and forgets them afterwards."""
    before = set(sys.modules)
    make_importable()

    def load(root: Path, *names: str) -> list[Any]:
        monkeypatch.syspath_prepend(str(root))
        import packaging.version  # their code takes it from a package that is gone

        gone = types.ModuleType("pkg_resources")
        gone.packaging = packaging  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "pkg_resources", gone)
        return [import_module(name) for name in names]

    yield load
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("pcmepp", "prolip", "hf_models"):
            del sys.modules[name]


def noisy(net: nn.Module, seed: int = 0) -> nn.Module:
    """Random weights in a network of theirs."""
    state = {n: v.to(net.state_dict()[n].dtype) for n, v in random_state(net, "", seed).items()}
    net.load_state_dict({n: v.abs() if "running_var" in n else v for n, v in state.items()})
    return net


def copied(ours: nn.Module, theirs: Mapping[str, Tensor]) -> nn.Module:
    """Our network with weights of theirs, every one of them."""
    assert set(ours.state_dict()) == set(theirs)
    ours.load_state_dict(dict(theirs))
    return ours


def same_steps(
    ours: nn.Module, theirs: nn.Module, one: Any, other: Any, names: Mapping[str, str], rate: float
) -> None:
    """Losses and gradients of twenty steps of gradient descent are equal.

    Args:
        one, other: the loss of a step, by its number.
        names: of their parameters → ours; what is not named, they do not use.
    """
    left, right = (dict(net.named_parameters()) for net in (ours, theirs))
    assert set(names.values()) == set(left)
    for step in range(STEPS):
        a, b = one(step), other(step)
        torch.testing.assert_close(a, b, **CLOSE)
        for net, loss in ((ours, a), (theirs, b)):
            net.zero_grad()
            loss.backward()
        for theirs_, ours_ in names.items():
            got, wanted = left[ours_].grad, right[theirs_].grad
            assert (got is None) == (wanted is None), theirs_
            if got is not None:
                torch.testing.assert_close(got, wanted.view_as(got), **CLOSE, msg=theirs_)
        assert all(p.grad is None for name, p in right.items() if name not in names)
        with torch.no_grad():
            for parameter in (*left.values(), *right.values()):
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad


# ---- PCME++ ----


def test_gpo(code: Any) -> None:
    (theirs,) = code(official("GAUSSMATCH_PCMEPP"), "pcmepp.modules.aggr.gpo")
    net, local = noisy(theirs.GPO(32, 32)), torch.randn(4, 7, 6)
    ours, lengths = copied(GPO(), net.state_dict()), torch.tensor([7, 3, 1, 5])
    padding = torch.arange(7) >= lengths[:, None]
    torch.testing.assert_close(ours(local, padding), net(local, lengths)[0], **CLOSE)
    shuffled = torch.randperm(7)  # where padding stands does not count
    out = ours(local[:, shuffled], padding[:, shuffled])
    torch.testing.assert_close(out, net(local, lengths)[0], **CLOSE)


def deep(theirs: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The weights of their ``EncoderImageAggr`` over regions, under our names."""
    moved = {"mlp.layers.0": "mlp.0", "mlp.bns.0": "mlp.1", "mlp.layers.1": "mlp.3"}
    out = {}
    for name, value in theirs.items():
        head, _, last = name.rpartition(".")
        if head != "mlp.bns.1":  # which their code never calls
            out[f"{prefix}{moved.get(head, head)}.{last}"] = value
    return out


def test_regions_train_as_theirs(code: Any) -> None:
    """Forward pass, loss with pseudo-positives and VIB, and the gradients of twenty steps."""
    root = official("GAUSSMATCH_PCMEPP")
    images, criterion = code(root, "pcmepp.models.img_encoder", "pcmepp.criterions.pcmepp")
    torch.manual_seed(0)
    both = nn.ModuleDict(
        {name: images.EncoderImageAggr(12, 8, "basic", True) for name in ("mean", "spread")}
    )
    rule = criterion.ClosedFormSampledDistanceLoss(5, 5, vib_beta=1e-2, smoothness_alpha=0.1)
    theirs = nn.ModuleDict({"image": both, "loss": rule})
    ours = nn.ModuleDict(
        {
            "image": PCMEPPImage(12, 8),
            "loss": losses.PCMEPPLoss(5.0, 5.0, pseudo_positives=0.1, label_smoothing=1e-2),
        }
    )
    state = {k: v for side in both for k, v in deep(both[side].state_dict(), f"{side}.").items()}
    copied(ours["image"], state)
    dice = torch.Generator().manual_seed(1)
    data = torch.randn(STEPS, 6, 9, 12, generator=dice)
    means = normalize(torch.randn(STEPS, 6, 8, generator=dice), dim=-1)
    spreads = torch.randn(STEPS, 6, 8, generator=dice) - 2
    eye, csd = torch.eye(6), similarity("csd")

    def one(step: int) -> Tensor:
        image, text = ours["image"](data[step]), Gaussian(means[step], spreads[step])
        scores = csd.matrix(image, text)
        terms = ours["loss"](scores, scores, ~torch.eye(6, dtype=torch.bool))
        vib = sum(losses.bottleneck(g) for g in (image, text)) / image.mean.numel()
        return sum(terms.values()) + 1e-2 * vib

    def other(step: int) -> Tensor:
        lengths = torch.full((6,), 9)
        mean, std = (both[side](data[step], lengths) for side in ("mean", "spread"))
        image = {"mean": normalize(mean, dim=-1), "std": std}
        text = {"mean": means[step], "std": spreads[step]}
        return rule(image, text, matched=eye + 1e-2 * (1 - 2 * eye))[0]

    names = {"loss.negative_scale": "loss.scale", "loss.shift": "loss.bias"}
    for side in both:
        for name, value in both[side].named_parameters():
            for new in deep({name: value}, f"{side}."):
                names[f"image.{side}.{name}"] = f"image.{new}"
    same_steps(ours, theirs, one, other, names, rate=1e-2)


def test_mixed_samples_have_their_targets(code: Any) -> None:
    """The loss of a batch with mixed images, given the same shares."""
    root = official("GAUSSMATCH_PCMEPP")
    augment, criterion = code(root, "pcmepp.augmentation", "pcmepp.criterions.pcmepp")
    torch.manual_seed(0)
    share = torch.tensor([1.0, 0.3, 1.0, 0.8, 1.0, 0.55])[:, None]
    soft, _ = augment.mixup_target(torch.arange(6), 6, share, 1e-3, "cpu")
    rule = criterion.ClosedFormSampledDistanceLoss(5, 5, smoothness_alpha=0.1)
    image, text = (
        {"mean": normalize(torch.randn(6, 8), dim=-1), "std": torch.randn(6, 8) - 2} for _ in "12"
    )
    wanted, _ = rule(image, text, matched=soft)
    g, h = (Gaussian(side["mean"], side["std"]) for side in (image, text))
    scores = similarity("csd").matrix(g, h)
    own = losses.PCMEPPLoss(5.0, 5.0, pseudo_positives=0.1, label_smoothing=1e-3)
    matched = losses.mixture_targets(share[:, 0], torch.arange(5, -1, -1))
    terms = own(scores, scores, ~torch.eye(6, dtype=torch.bool), matched)
    torch.testing.assert_close(sum(terms.values()), wanted, **CLOSE)


def clip_folder(tmp: Path, **config: Any) -> pcmepp.PCMEPPFolder:
    """A folder of sizes alone."""
    plain = {
        "embed_dim": 16,
        "vision_cfg": {
            "image_size": 32, "layers": 3, "width": 64, "patch_size": 16, "unc_layers": 1
        },
        "text_cfg": {
            "context_length": 12, "vocab_size": 90, "width": 512, "heads": 8, "layers": 2,
            "unc_layers": 1,
        },
    }  # fmt: skip
    (tmp / "config.json").write_text(json.dumps({**plain, **config}))
    save_file({}, tmp / "model.safetensors")
    return pcmepp.PCMEPPFolder("", tmp)


IDS = torch.tensor([[80, 4, 7, 89, 0, 0], [80, 9, 9, 9, 5, 89], [80, 89, 0, 0, 0, 0]])
LENGTHS = torch.tensor([4, 6, 2])


@pytest.mark.parametrize("normed", [False, True])
def test_trained_towers(code: Any, tmp_path: Path, normed: bool) -> None:
    """The networks of their training code: CLIP, blocks of the variance, GPO."""
    root = official("GAUSSMATCH_PCMEPP")
    clip, images, texts = code(
        root, "pcmepp.modules.clip.model", "pcmepp.models.img_encoder", "pcmepp.models.txt_encoder"
    )
    pair = clip.ProbCLIP(16, 32, 3, 64, 16, 12, 90, 512, 8, 2, 1), None
    for module in (images, texts):
        module.clip.load = lambda *_, **__: pair
    settings = {"sigma_ln_init": 0.5 if normed else None, "n_unc_layers": 1}
    sides = (
        images.ProbEncoderClipImageFull("ViT-B/32", 64, 16, **settings),
        texts.ProbEncoderTextClip(16, "ViT-B/32", **settings),
    )
    seen, read = (noisy(side, k).eval() for k, side in enumerate(sides))
    of = clip_folder(tmp_path, pooling="gpo", normed=normed, quick_gelu=True)
    image = copied(pcmepp.PooledImage(of).eval(), seen.state_dict())
    text = copied(pcmepp.PooledText(of).eval(), read.state_dict())
    pictures = torch.randn(2, 3, 32, 32)
    full = torch.cat([IDS, torch.zeros(3, 6, dtype=torch.long)], 1)  # theirs are of full length
    with torch.no_grad():
        check(image(pictures), seen(pictures))
        check(text(IDS, LENGTHS), read(full, LENGTHS))


@pytest.mark.parametrize("quick", [False, True])
def test_hub_towers_of_pcmepp(code: Any, tmp_path: Path, quick: bool) -> None:
    (theirs,) = code(official("GAUSSMATCH_PCMEPP"), "hf_models.hf_clip")
    of = clip_folder(tmp_path, quick_gelu=quick)
    config = json.loads(of.path.read_text())
    net = noisy(theirs.HfPCMEPPModel(**config)).eval()
    state = net.state_dict()
    visual = {n.removeprefix("visual."): v for n, v in state.items() if n.startswith("visual.")}
    scalars = ("visual.", "logit_scale", "shift", "negative_scale")
    image = copied(pcmepp.HubImage(of).eval(), visual)
    rest = {n: v for n, v in state.items() if not n.startswith(scalars)}
    text = copied(pcmepp.HubText(of).eval(), rest)
    full = torch.cat([IDS, torch.zeros(3, 6, dtype=torch.long)], 1)
    pictures = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        out = net(pictures, full)
        check(image(pictures), {"mean": out["image_features"], "std": out["image_stds"]})
        check(text(IDS, LENGTHS), {"mean": out["text_features"], "std": out["text_stds"]})


def check(ours: tuple[Tensor, Tensor], theirs: Mapping[str, Tensor]) -> None:
    mean, log_var = ours
    torch.testing.assert_close(normalize(mean, dim=-1), normalize(theirs["mean"], dim=-1), **CLOSE)
    torch.testing.assert_close(log_var, theirs["std"], **CLOSE)


# ---- ProLIP ----


@pytest.mark.parametrize("changes", [{}, {"quick_gelu": True}, {"text_cfg.proj_bias": False}])
def test_prolip_from_a_folder(code: Any, tmp_path: Path, changes: dict[str, Any]) -> None:
    """A folder that their class saved is read as their class reads it."""
    (theirs,) = code(official("GAUSSMATCH_PROLIP", "src"), "prolip.model")
    config = json.loads(json.dumps(SMALL_PROLIP))
    for name, value in changes.items():
        *section, last = name.split(".")
        (config[section[0]] if section else config)[last] = value
    net = noisy(theirs.ProLIPHF(**config)).eval()
    small_prolip(tmp_path, config)  # its tokenizer
    net.save_pretrained(tmp_path)
    again = theirs.ProLIPHF.from_pretrained(str(tmp_path)).eval()
    image, text = image_tower(f"prolip:x@{tmp_path}"), prolip.text("x", tmp_path)
    pictures, ids = torch.randn(3, 3, 32, 32), torch.randint(4, 50, (3, 12))
    with torch.no_grad():
        out = again(pictures, ids)
        dim = image.width // 2
        for side, got in (
            ("image", image(pictures)),
            ("text", text(Tokens(ids, torch.full((3,), 12)))),
        ):
            wanted = out[f"{side}_features"]
            torch.testing.assert_close(got[:, :dim], wanted["mean"], **CLOSE)
            torch.testing.assert_close(got[:, dim:], wanted["std"], **CLOSE)


def test_prolip_trains_as_theirs(code: Any) -> None:
    """Loss with inclusion of shortened texts and of images, and VIB; gradients of twenty steps."""
    (theirs,) = code(official("GAUSSMATCH_PROLIP", "src"), "prolip.loss")
    rule = theirs.ProLIPLoss(
        inclusion_alpha=1e-3, inclusion_alpha_occ=1e-2, inclusion_loss_eps=-10, vib_beta=1e-2
    )
    torch.manual_seed(0)
    sides = nn.ModuleDict({name: nn.Linear(12, 16) for name in ("image", "text")}).double()
    for side in sides.values():
        nn.init.constant_(side.bias[8:], -3)
    ours = nn.ModuleDict({"sides": sides, "loss": losses.ProLIPLoss(10.0, -10.0)}).double()
    twin = nn.ModuleDict({name: nn.Linear(12, 16) for name in sides}).double()
    twin.load_state_dict(sides.state_dict())
    left = nn.ModuleDict({"sides": twin}).double()
    left.register_parameter("scale", nn.Parameter(ours["loss"].log_scale.detach().clone()))
    left.register_parameter("bias", nn.Parameter(ours["loss"].bias.detach().clone()))
    data = torch.randn(STEPS, 3, 8, 12, generator=torch.Generator().manual_seed(3)).double()

    def parts(net: nn.Module, given: Tensor) -> tuple[Tensor, Tensor]:
        out = net(given)
        return normalize(out[:, :8], dim=-1), out[:, 8:]

    def one(step: int) -> Tensor:
        images, texts, short = data[step]
        i, t = (Gaussian(*parts(sides[n], x)) for n, x in (("image", images), ("text", texts)))
        masked = Gaussian(*parts(sides["text"], short[:2]))
        hidden = Gaussian(*parts(sides["image"], short[:2]))
        scores = similarity("prolip").matrix(i, t)
        (plain,) = ours["loss"](scores, scores, ~torch.eye(8, dtype=torch.bool)).values()
        vib = sum(losses.bottleneck(g, as_published=True) for g in (i, t)) / i.mean.numel()
        within = losses.inclusion_as_published
        occluded = within(t[:2], masked) + within(i[:2], hidden)
        return plain + 1e-2 * vib + 1e-2 * occluded + 1e-3 * within(i, t)

    def other(step: int) -> Tensor:
        images, texts, short = data[step]
        given = (("image", images), ("text", texts), ("image", short[:2]), ("text", short[:2]))
        i, t, hidden, masked = (
            dict(zip(("mean", "std"), parts(twin[n], x), strict=True)) for n, x in given
        )
        return rule(i, t, left.scale.exp(), left.bias, None, None, hidden, masked)

    names = {"scale": "loss.log_scale", "bias": "loss.bias"}
    names |= {f"sides.{n}": f"sides.{n}" for n, _ in twin.named_parameters()}
    same_steps(ours, left, one, other, names, rate=1e-3)
