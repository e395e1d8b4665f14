"""Imports point one way, towards the pure core; and the shapes in its signatures are checked."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

SOURCE = Path(__file__).resolve().parent.parent / "src" / "gaussmatch"

CORE = ("gaussian", "similarities", "losses", "metrics")
ORDER = (
    *CORE,
    "checks",
    "device",
    "files",
    "encoders",
    "recipe",
    "data",
    "matcher",
    "model",
    "run",
    "evaluation",
    "trust",
    "training",
    "published",
    "official",
    "index",
    "projection",
    "plot",
    "embedding",
    "service",
    "experiments",
    "gaussmatch",  # the root: its __init__ may import anything but the command line
    "cli",
)
CORE_MAY_IMPORT = {"torch", "numpy", "jaxtyping"} | sys.stdlib_module_names
EXTRAS = (
    "matplotlib",
    "jinja2",
    "tensorboard",
    "timm",
    "eccv_caption",
    "faiss",
    "pymilvus",
    "ray",
    "fastapi",
    "uvicorn",
    "open_clip",
    "transformers",
    "onnxruntime",
    "pyarrow",
    "huggingface_hub",
)


def modules(source: Path) -> Iterator[tuple[str, str, ast.Module]]:
    """(file, package, syntax tree) of every module."""
    for path in sorted(source.rglob("*.py")):
        first = path.relative_to(source).parts[0].removesuffix(".py")
        package = {"__init__": "gaussmatch", "__main__": "cli"}.get(first, first)
        yield str(path.relative_to(source)), package, ast.parse(path.read_text(encoding="utf-8"))


def imports(file: str, tree: ast.Module) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            here = ["gaussmatch", *Path(file).parts][: -node.level] if node.level else []
            stem = ".".join([*here, node.module] if node.module else here)
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def wrong_ways(source: Path) -> list[str]:
    """Every import that does not point towards the core."""
    unplaced = {package for _, package, _ in modules(source)} - set(ORDER)
    wrong = [f"{package} has no place in ORDER" for package in sorted(unplaced)]
    for file, package, tree in modules(source):
        if package in unplaced:
            continue
        for name in imports(file, tree):
            top, *rest = name.split(".")
            if top != "gaussmatch":
                allowed = package not in CORE or top in CORE_MAY_IMPORT
                if not (allowed or (package == "gaussian" and top == "safetensors")):
                    wrong.append(f"{file}: the core may not import {name}")
                continue
            if rest == ["__version__"] or (rest and rest[0] in unplaced):
                continue
            target = rest[0] if rest and rest[0] in ORDER else "gaussmatch"
            if target != package and ORDER.index(target) >= ORDER.index(package):
                wrong.append(f"{file}: {package} may not import {name}")
    return wrong


def forbidden(source: Path) -> list[str]:
    """Where the core speaks of other processes or opens a file."""
    found = []
    for file, package, tree in modules(source):
        if package not in CORE:
            continue
        if "torch.distributed" in ast.unparse(tree) or any(
            name.startswith("torch.distributed") for name in imports(file, tree)
        ):
            found.append(f"{file}: torch.distributed")
        calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
        names = {f.id if isinstance(f, ast.Name) else getattr(f, "attr", None) for f in calls}
        found += [f"{file}: {name}()" for name in ("open",) if name in names]
    return found


def test_imports_point_towards_the_core():
    assert {package for _, package, _ in modules(SOURCE)} >= {*CORE, "gaussmatch"}
    wrong = wrong_ways(SOURCE)
    assert not wrong, "\n".join(wrong)


def test_no_two_classes_have_one_name():
    classes = (
        n for _, _, tree in modules(SOURCE) for n in tree.body if isinstance(n, ast.ClassDef)
    )
    assert [name for name, times in Counter(n.name for n in classes).items() if times > 1] == []


def test_the_core_knows_no_files_and_no_other_processes():
    assert forbidden(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("gaussian.py", "from gaussmatch.similarities import similarity"),
        ("gaussian.py", "import PIL"),
        ("similarities/base.py", "import safetensors"),
        ("similarities/base.py", "from ..losses import TripletLoss"),
        ("similarities/base.py", "from .. import metrics"),
        ("losses/triplet.py", "from gaussmatch import metrics"),
        ("metrics/ranking.py", "def f():\n    from gaussmatch.files import atomic"),
        ("encoders/text.py", "import gaussmatch.data.pairs"),
        ("training/loop.py", "from gaussmatch import GaussianModel"),
        ("model.py", "import gaussmatch"),
        ("__init__.py", "from gaussmatch.cli import main"),
        ("utils.py", "import os"),
    ],
)
def test_a_wrong_import_is_seen(tmp_path, file, line):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line)
    assert len(wrong_ways(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("gaussian.py", "import safetensors.torch, torch, os"),
        ("similarities/cosine.py", "from gaussmatch.similarities.base import Similarity"),
        ("similarities/cosine.py", "from .base import Similarity\nfrom ..gaussian import Gaussian"),
        ("training/loop.py", "from gaussmatch import losses, model\nimport tqdm"),
        ("evaluation/evaluate.py", "from gaussmatch import __version__"),
        ("__init__.py", "from gaussmatch.experiments import Recipe"),
        ("cli/main.py", "import gaussmatch"),
        ("__main__.py", "from gaussmatch.cli import main"),
    ],
)
def test_a_right_import_is_none_of_its_business(tmp_path, file, line):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line)
    assert wrong_ways(tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        "import torch.distributed as dist",
        "from torch import distributed",
        "import torch\nn = torch.distributed.get_world_size()",
        "text = open('a').read()",
        "import pathlib\nfile = pathlib.Path('a').open()",
    ],
)
def test_a_forbidden_word_in_the_core_is_seen(tmp_path, line):
    (tmp_path / "gaussian.py").write_text(line)
    assert len(forbidden(tmp_path)) == 1


def test_the_package_imports_without_its_extras():
    """Every public name, and the whole core."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))
from gaussmatch import *
import gaussmatch.gaussian, gaussmatch.similarities, gaussmatch.losses, gaussmatch.metrics
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_shapes_in_signatures_are_checked():
    """The import hook of conftest.py is at work in every package of the core."""
    from gaussmatch.gaussian import Gaussian
    from gaussmatch.losses import TripletLoss
    from gaussmatch.metrics import first_ranks
    from gaussmatch.similarities import similarity

    boolean = torch.zeros(3, 4, dtype=torch.bool)
    with pytest.raises(TypeError, match="Type-check error"):
        first_ranks(torch.zeros(3, 5), boolean)
    with pytest.raises(TypeError, match="Type-check error"):
        TripletLoss()(torch.zeros(3, 4), torch.zeros(3, 4), boolean)
    with pytest.raises(TypeError, match="Type-check error"):
        similarity("cosine").matrix(torch.zeros(3, 4), torch.zeros(3, 4))
    with pytest.raises(TypeError, match="Type-check error"):
        Gaussian("mean")
