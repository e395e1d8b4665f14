"""The wheel holds what an installed package needs, and the version has one home."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import gaussmatch as gm

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-index", "--wheel-dir", str(out), str(ROOT)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    assert path.name.startswith(f"gaussmatch-{gm.__version__}-py3-none-any")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_code_recipes_page_and_weights(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    source = ROOT / "src"
    missing = [
        name
        for path in (source / "gaussmatch").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        if (name := path.relative_to(source).as_posix()) not in names
    ]
    assert missing == []
    for recipe in (ROOT / "recipes").rglob("*.yaml"):
        assert f"gaussmatch/{recipe.relative_to(ROOT).as_posix()}" in names
    for name in ("py.typed", "apps/service/page/index.html", "data/scenes/scenenet.safetensors"):
        assert f"gaussmatch/{name}" in names


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"gaussmatch", f"gaussmatch-{gm.__version__}.dist-info"}
    endings = {Path(name).suffix for name in wheel.namelist()}
    assert not endings & {".pyc", ".png", ".ipynb"}


def test_the_metadata_is_complete(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(f"gaussmatch-{gm.__version__}.dist-info/METADATA").decode()
    for line in (f"Version: {gm.__version__}", "Requires-Python: >=3.11", "Project-URL: Source"):
        assert line in text
    entry = wheel.read(f"gaussmatch-{gm.__version__}.dist-info/entry_points.txt").decode()
    assert "gaussmatch = gaussmatch.apps.cli:main" in entry


def test_extras_are_pinned_and_the_core_is_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    assert "version" not in project
    extras = project["optional-dependencies"]
    for wanted in (*project["dependencies"], *(one for list_ in extras.values() for one in list_)):
        name = wanted.partition(";")[0].split("[")[0].split(">")[0].strip().lower()
        if name != "gaussmatch":
            assert name.replace("_", "-") in pinned, f"{name} is not pinned in constraints.txt"
    heavy = {"ray", "pymilvus", "playwright", "transformers", "faiss-cpu", "matplotlib"}
    assert not any(name in " ".join(project["dependencies"]) for name in heavy)
    demo = " ".join(extras["demo"])
    assert not any(name in demo for name in ("ray", "milvus", "playwright", "dev"))


def test_without_file_locks_the_core_works_and_the_rest_is_refused_with_a_word() -> None:
    """As on Windows, which has no fcntl."""
    code = """
import sys
sys.modules["fcntl"] = None
import gaussmatch as gm
gm.Gaussian, gm.similarity, gm.losses, gm.metrics
for name in ("load", "train", "Index"):
    try:
        getattr(gm, name)
    except ImportError as error:
        assert "WSL" in str(error), error
    else:
        raise SystemExit(f"{name} is not refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
