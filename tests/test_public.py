"""What ``import gaussmatch as gm`` offers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import gaussmatch as gm


def typed_names() -> dict[str, str]:
    """What type checkers see: name → module."""
    tree = ast.parse(Path(gm.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def test_names_are_the_same_for_type_checkers_and_at_run_time() -> None:
    assert typed_names() == gm._HOME
    for name in gm.__all__:
        assert getattr(gm, name) is not None
        assert name in dir(gm)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        gm.nothing  # noqa: B018


def test_reprs_are_one_short_line(tiny_run: Path) -> None:
    data, model = gm.scenes.load("tiny"), gm.load(tiny_run)
    captions = model.encode_texts(["a red star"])
    shown = {
        repr(data): "DataSet('scenes', images: train 300, dev 100, test 100)",
        repr(data.test): "Pairs('",
        repr(model): "Model('VSE++ KL', vse++ on scenes, kl, dim=",
        repr(captions): "Gaussian(ellipsoidal captions, shape=(1,), dim=",
    }
    for text, start in shown.items():
        assert text.startswith(start)
        assert len(text) < 120
    assert data._repr_html_().count("<tr>") == 4


def test_a_gaussian_keeps_its_side_and_a_swap_is_refused(tiny_run: Path) -> None:
    model, test = gm.load(tiny_run), gm.scenes.load("tiny").test
    images, captions = model.encode_pairs(test)
    assert model.similarity(images, captions[:4]).shape == (100, 4)
    swapped = [
        (captions, images),
        (captions[3:5], images.to(torch.float64)),
        (gm.Gaussian.cat([captions[:2], captions[5:6]]), images.expand().detach()),
        (model.encode_texts(["a star"]), model.encode_images([test.images.picture(0)])),
    ]
    for first, second in swapped:
        with pytest.raises(ValueError, match="swapped"):
            model.similarity(first, second)
    assert gm.Gaussian.cat([captions[:2], images[:2]]).side is None


def test_plots_draw_on_given_axes() -> None:
    pyplot = pytest.importorskip("matplotlib.figure")
    axes = pyplot.Figure().subplots(1, 2)
    g = gm.Gaussian(torch.randn(4, 3), torch.zeros(4, 1))
    assert gm.plot.ellipses({"a": g, "points": gm.Gaussian(g.mean)}, axes=axes[0]) is axes[0]
    assert len(axes[0].patches) == 4
    curve = gm.plot.risk_coverage([1, 0, 1], [0.1, 0.9, 0.2], axes=axes[1])
    assert curve.lines[0].get_label() == "uncertainty, gain 1.00"
