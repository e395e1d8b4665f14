"""What ``import gaussmatch as gm`` offers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

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
