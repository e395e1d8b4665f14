"""The documentation site builds strictly and loads nothing from elsewhere; its notebooks run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gaussmatch as gm

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*?\bsrc=["']?(https?:|//)"""
                    r"""|<link\b[^>]*?rel=["']?(?:stylesheet|preconnect|preload|icon)\b[^>]*?"""
                    r"""href=["']?(https?:|//)""")  # fmt: skip


def test_the_site_builds_strictly_and_stands_alone(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-d", str(site)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(NOTEBOOKS) + 10
    for page in pages:
        if not page.name.startswith("reproduce-"):  # reports, which stand alone
            assert not LOADED.search(page.read_text(encoding="utf-8")), page
    reference = (site / "reference" / "index.html").read_text(encoding="utf-8")
    for name in gm.__all__:
        if not hasattr(getattr(gm, name), "__path__"):
            assert f".{name}" in reference, f"docs/reference.md does not describe {name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    data = ROOT.parent / "shared" / "data"
    if notebook.metadata.get("needs") == "shared" and not (data / "flickr8k").is_dir():
        pytest.skip(f"{path.name} needs the photos of {data / 'flickr8k'}")
    monkeypatch.setenv("GAUSSMATCH_DATA", str(data))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert all(not cell.get("outputs") for cell in nbformat.read(path, 4).cells), "clear outputs"


def test_there_are_four_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "own-embeddings",
        "own-module",
        "train-and-compare",
        "uncertainty-on-photos",
    ]


def test_the_benchmarks_that_the_documentation_names_can_be_started() -> None:
    """They are no part of the package, so nothing else would notice a name that has moved."""
    pytest.importorskip("faiss", reason="needs the extra 'search'")
    folder = ROOT / "benchmarks"
    names = ", ".join(sorted(path.stem for path in folder.glob("*.py")))
    code = f"import {names}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
