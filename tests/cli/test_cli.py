"""The verbs as a user types them, on tiny data."""

from __future__ import annotations

import errno
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gaussmatch.apps.cli import main
from gaussmatch.files import read_json

QUICK = ["--data.size", "tiny", "--training.epochs", "1"]


def test_help_and_unknown_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out
    assert main(["fly"]) == 2
    assert "unknown verb 'fly'" in capsys.readouterr().err


def test_train_then_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", "scenes/vsepp-kl", "--out", str(out), *QUICK]) == 0
    assert "rsum" in capsys.readouterr().out
    assert main(["evaluate", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "ρ captions" in printed
    measures = read_json(out / "evaluation-test.json")
    assert measures["images"] == 100
    assert -1 <= measures["caption_rho"] <= 1
    assert main(["train", "scenes/vsepp-kl", "--out", str(out), *QUICK]) == 2
    assert "--resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nothing"], "unknown recipe nothing"),
        (["train", "scenes/vsepp", "--training.epoch", "2"], "training.epoch"),
        (["evaluate", "nowhere"], "not a finished run"),
    ],
)
def test_errors_are_one_clear_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_a_full_disk_is_one_line_that_says_what_to_do(
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    assert main(["index", str(tiny_run), "--out", str(tmp_path / "i")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "No space left on device; existing files are kept: free some space" in line


def test_compare_prints_mean_and_std_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "scenes/vsepp", "scenes/vsepp-kl", "--seeds", "2", "--out", str(tmp_path)]
    assert main([*words, *QUICK]) == 0
    printed = capsys.readouterr().out
    assert "VSE++ KL" in printed
    assert "±" in printed
    rows = read_json(tmp_path / "comparison.json")
    assert [len(row["runs"]) for row in rows] == [2, 2]
    changed = tmp_path / "vsepp" / "seed-0" / "checkpoint.pt"
    before = changed.stat().st_mtime_ns
    assert main([*words, *QUICK]) == 0
    assert changed.stat().st_mtime_ns == before
    capsys.readouterr()
    assert main([*words, *QUICK, "--loss.margin", "0.9"]) == 2
    assert "is another recipe than the one given (see loss.margin)" in capsys.readouterr().err


class Page(HTMLParser):
    """Collects what a page would load from elsewhere, and its ids."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.pictures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            if name == "href" and tag == "a" and value:
                self.links.add(value)
            elif name in ("src", "href") and tag != "use" and value and value[:5] != "data:":
                self.outside.append(value)
            self.pictures += tag == "img" and name == "src"


def test_demo_writes_a_self_contained_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--out", str(tmp_path), *QUICK]) == 0
    printed = capsys.readouterr().out
    rows = [line.split("  ")[0] for line in printed.splitlines()[1:4]]
    assert rows == ["VSE++", "VSE++ KL", "VSE++ KL, InfoNCE"]
    assert "report.html" in printed
    assert printed.rstrip().endswith(f"gaussmatch serve {tmp_path / 'index'}")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.outside == []
    assert {link[1:] for link in page.links} <= page.ids
    assert page.pictures >= 20
    assert text.count("<svg") == 4
    assert "Spearman" in text
