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

CORE = ("core.gaussian", "core.similarities", "core.losses", "core.metrics")
ORDER = (
    "lazy",  # what lets the core, and all others, do without torch until they need it
    *CORE,
    "checks",  # three modules that every room after the core may use
    "device",
    "files",
    "data",
    "models.texts",
    "models.encoders",
    "models.recipe",
    "models.features",
    "models.model",
    "models.run",
    "models.published",
    "models.official",
    "learn.plot",
    "learn.evaluation",
    "learn.training",
    "learn.finetune",
    "learn.studies",
    "search.trust",
    "search",
    "search.embedding",
    "apps.service",
    "gaussmatch",  # the root: its __init__ may import anything but the command line
    "apps.cli",
)
"""Six rooms (core, data, models, learn, search, apps) and what is in them: each imports only what
comes before it."""
ROOMS = ("core", "models", "learn", "apps")
"""Packages that hold others and nothing of their own."""
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


def package_of(dotted: str) -> str | None:
    """The entry of ``ORDER`` that a module or a name in it belongs to."""
    return max((p for p in ORDER if f"{dotted}.".startswith(f"{p}.")), key=len, default=None)


def modules(source: Path) -> Iterator[tuple[str, str | None, ast.Module]]:
    """(file, package, syntax tree) of every module but the empty ones of the rooms."""
    for path in sorted(source.rglob("*.py")):
        file = path.relative_to(source)
        dotted = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        if dotted not in ROOMS:
            root = {"__init__": "gaussmatch", "__main__": "apps.cli"}
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield str(file), package_of(root.get(dotted, dotted)), tree


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
    wrong = []
    for file, package, tree in modules(source):
        if package is None:
            wrong.append(f"{file} has no place in ORDER")
            continue
        for name in imports(file, tree):
            top, _, rest = name.partition(".")
            if top != "gaussmatch":
                allowed = package not in CORE or top in CORE_MAY_IMPORT
                if not (allowed or (package == "core.gaussian" and top == "safetensors")):
                    wrong.append(f"{file}: the core may not import {name}")
                continue
            target = package_of(rest) or "gaussmatch"
            same = target == package or rest == "__version__"
            if not same and ORDER.index(target) >= ORDER.index(package):
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
    assert {package for _, package, _ in modules(SOURCE)} >= set(ORDER)
    wrong = wrong_ways(SOURCE)
    assert not wrong, "\n".join(wrong)


def test_a_room_holds_nothing_of_its_own():
    """So that nobody looks for a line there."""
    for room in ROOMS:
        tree = ast.parse((SOURCE / room / "__init__.py").read_text(encoding="utf-8"))
        assert ast.get_docstring(tree)
        assert len(tree.body) == 1


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
        ("core/gaussian.py", "from gaussmatch.core.similarities import similarity"),
        ("core/gaussian.py", "import PIL"),
        ("core/similarities/base.py", "import safetensors"),
        ("core/similarities/base.py", "from ..losses import TripletLoss"),
        ("core/similarities/base.py", "from .. import metrics"),
        ("core/losses.py", "from gaussmatch.core import metrics"),
        ("core/metrics/ranking.py", "def f():\n    from gaussmatch.files import atomic"),
        ("data/pairs.py", "import gaussmatch.models.encoders"),
        ("models/encoders/text.py", "import gaussmatch.models.features.photos"),
        ("learn/training/loop.py", "from gaussmatch import GaussianModel"),
        ("learn/studies/demo.py", "from gaussmatch.search import Index"),
        ("search/trust/learn.py", "from gaussmatch.search.index import Index"),
        ("models/model.py", "import gaussmatch"),
        ("__init__.py", "from gaussmatch.apps.cli import main"),
        ("utils.py", "import os"),
    ],
)
def test_a_wrong_import_is_seen(tmp_path, file, line):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(line)
    assert len(wrong_ways(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("core/gaussian.py", "import safetensors.torch, torch, os"),
        ("core/similarities/lifted.py", "from gaussmatch.core.similarities.base import Similarity"),
        ("core/similarities/lifted.py", "from .base import Similarity\nfrom ..gaussian import G"),
        ("learn/training/loop.py", "from gaussmatch.core import losses\nimport tqdm"),
        ("learn/evaluation/evaluate.py", "from gaussmatch import __version__"),
        ("search/index.py", "from gaussmatch.search.trust.learn import calibrate"),
        ("__init__.py", "from gaussmatch.learn.studies import Recipe"),
        ("apps/cli/main.py", "import gaussmatch"),
        ("__main__.py", "from gaussmatch.apps.cli import main"),
    ],
)
def test_a_right_import_is_none_of_its_business(tmp_path, file, line):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
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
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "gaussian.py").write_text(line)
    assert len(forbidden(tmp_path)) == 1


def test_the_package_imports_without_its_extras():
    """Every public name, and the whole core."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))
from gaussmatch import *
from gaussmatch.core import gaussian, losses, metrics, similarities
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_shapes_in_signatures_are_checked():
    """The import hook of conftest.py is at work in every package of the core."""
    from gaussmatch.core.gaussian import Gaussian
    from gaussmatch.core.losses import TripletLoss
    from gaussmatch.core.metrics import first_ranks
    from gaussmatch.core.similarities import similarity

    boolean = torch.zeros(3, 4, dtype=torch.bool)
    with pytest.raises(TypeError, match="Type-check error"):
        first_ranks(torch.zeros(3, 5), boolean)
    with pytest.raises(TypeError, match="Type-check error"):
        TripletLoss()(torch.zeros(3, 4), torch.zeros(3, 4), boolean)
    with pytest.raises(TypeError, match="Type-check error"):
        similarity("cosine").matrix(torch.zeros(3, 4), torch.zeros(3, 4))
    with pytest.raises(TypeError, match="Type-check error"):
        Gaussian("mean")
