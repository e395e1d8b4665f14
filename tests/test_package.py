"""Wheel and sdist hold what they must and run; the version has one home; typed from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import gaussmatch as gm

ROOT = Path(__file__).resolve().parent.parent


def run(*words: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist of the project, and a wheel that is built from the sdist, as 'python -m build'."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    run("-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    with tarfile.open(out / f"gaussmatch-{gm.__version__}.tar.gz") as archive:
        archive.extractall(out, filter="data")
    source = out / f"gaussmatch-{gm.__version__}"
    run("-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=source)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    assert path.name.startswith(f"gaussmatch-{gm.__version__}-py3-none-any")
    return zipfile.ZipFile(path)


def test_an_installed_wheel_runs_and_searches(built: Path, tmp_path: Path) -> None:
    """Installed by itself: its dependencies are those of this environment."""
    (wheel,) = built.glob("*.whl")
    target = tmp_path / "site"
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "--target", target, wheel, cwd=tmp_path)
    there = {"PYTHONPATH": str(target)}
    assert run("-m", "gaussmatch", "--version", cwd=tmp_path, **there) == f"{gm.__version__}\n"
    code = """
import torch, gaussmatch as gm
print(gm.__file__)
index = gm.Index.create("i", similarity="kl")
g = gm.Gaussian(torch.eye(3), torch.zeros(3, 3))
index.add(g, [gm.Record(name) for name in "abc"])
print(index.search(g[1:2], 1)[0].ids)
print(gm.load_recipe("scenes/vsepp-kl").title, gm.load("photos").recipe.model.system)
"""
    said = run("-c", code, cwd=tmp_path, **there).splitlines()
    assert Path(said[0]).is_relative_to(target)
    assert said[1:] == ["['b']", "VSE++ KL adapter"]


def test_the_sdist_holds_what_a_build_and_its_tests_need(built: Path) -> None:
    with tarfile.open(built / f"gaussmatch-{gm.__version__}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = ("tests/conftest.py", "docs/index.md", "Makefile", "Dockerfile", "CITATION.cff")
    assert {*wanted, "pyproject.toml", "constraints.txt", "PKG-INFO"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".venv")]


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


USER = """\
import torch
import gaussmatch as gm

g: gm.Gaussian = gm.Gaussian(torch.zeros(2, 4), torch.zeros(2, 4))
scores: torch.Tensor = gm.similarity("kl").matrix(g, g)
index: gm.Index = gm.Index.create("i", similarity="kl")
index.add(g, [gm.Record("a"), gm.Record("b", {"year": 2024})])
hits: gm.Hits = index.search(g, k=2, where={"year": 2024})[0]
best: str = hits[0].id
probability: float | None = hits[0].probability
reveal_type(gm.load)
reveal_type(gm.Probabilistic)
reveal_type(gm.export)
index.search("two dogs")
gm.similarity(3)
"""


def test_the_public_api_is_typed_from_outside(tmp_path: Path) -> None:
    """mypy --strict of a user's file: it sees the types, and the user's mistakes."""
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    words = ["-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", tmp_path / "cache"]
    done = subprocess.run(
        [sys.executable, *map(str, words), "user.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    said = [
        line.partition("user.py:")[2] for line in done.stdout.splitlines() if "user.py:" in line
    ]
    errors = [line for line in said if "error:" in line]
    assert len(errors) == 2, done.stdout + done.stderr
    assert errors[0].startswith("14: ")
    assert 'expected "Gaussian | Query | Sequence[Query]"' in errors[0]
    assert errors[1].startswith("15: ")
    assert 'expected "str"' in errors[1]
    notes = [line for line in said if "note: Revealed" in line]
    assert len(notes) == 3
    assert not any('type is "Any"' in note for note in notes)
