"""What the README shows runs as it stands; the examples too."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from gaussmatch.apps.cli import main

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)


def test_python_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--data.size=tiny", "--training.epochs=1", "--out", "runs/demo/probabilistic"]
    assert main(["train", "scenes/vsepp-kl", *quick]) == 0
    assert len(BLOCKS) == 2
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), {})
    assert "tensor" in capsys.readouterr().out


def test_a_fresh_checkout_needs_two_commands_shown_in_one_block_near_the_top() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"```sh\n(.*?)```", text, re.S)
    assert first is not None
    assert first.start() < 2_000
    assert [line.split("#")[0].strip() for line in first[1].splitlines()] == [
        "make demo",
        "make test",
    ]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert {"demo", "test"} <= set(targets)


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
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
