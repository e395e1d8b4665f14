"""The findings of an audit: read, served, decided about by keyboard, exported."""

from __future__ import annotations

import csv
import io
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from service.browsing import open_page, overflow, until, violations
from service.served import CheckedClient, Served, jpeg, make_index
from starlette.testclient import TestClient

from gaussmatch.apps.service import Settings, create_app
from gaussmatch.apps.service.app import DECISIONS, create_review
from gaussmatch.apps.service.responses import ReviewResponse
from gaussmatch.apps.service.server import Server, listening
from gaussmatch.data.clean import read_decisions
from gaussmatch.files import claim_folder, write_csv, write_json
from gaussmatch.search import Index
from gaussmatch.search.trust.audit_report import FIELDS, PICTURES, SOURCE, TABLE, Row


def row(issue: str, severity: float, image: int, **more: object) -> Row:
    values = dict.fromkeys(FIELDS, "") | {"picture": image, "other_picture": None}
    values |= {"issue": issue, "severity": severity, "image": f"{image}.jpg", "split": "train"}
    return Row(**(values | more))  # type: ignore[arg-type]


ROWS = [
    row("misfit", 0.97, 3, caption="3.jpg#0", place="captions.csv, line 4", text="a red star",
        other="4.jpg", other_caption="4.jpg#1", other_text='a "blue", circle', proposal="swap"),
    row("misfit", 0.91, 4, caption="4.jpg#1", text='a "blue", circle', proposal="drop"),
    row("missing positive", 2.5, 5, caption="5.jpg#0", text="two squares", other="9.jpg",
        other_picture=9),
    row("vague", 0.99, 6, caption="6.jpg#0", text="something"),
    row("near-duplicate", 0.99, 7, other="8.jpg", other_picture=8, proposal="drop"),
]  # fmt: skip


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return make_audit(tmp_path / "audit")


def make_audit(folder: Path) -> Path:
    pictures = [f"{PICTURES}/{number}.jpg" for number in (3, 4, 5, 6, 7, 8)]
    claim_folder(folder, names=[TABLE, SOURCE, *pictures])
    write_json(folder / SOURCE, {"data": str(folder.parent / "my photos"), "format": None})
    write_csv(folder / TABLE, FIELDS, (asdict(row) for row in ROWS))
    (folder / PICTURES).mkdir()
    for name in pictures:
        (folder / name).write_bytes(jpeg())
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make_index(tmp_path_factory.mktemp("review"))


@pytest.fixture(scope="module")
def address(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    audit = make_audit(tmp_path_factory.mktemp("served") / "audit")
    with Served(index, Settings(hosts=("127.0.0.1",), review=audit)) as address:
        yield address


def test_findings_and_their_pictures(index: Index, audit: Path) -> None:
    with CheckedClient(create_app(index, Settings(review=audit))) as client:
        assert client.get("/api/about").json()["review"]
        review = client.get("/api/review").json()
        assert [finding["issue"] for finding in review["findings"]] == [r.issue for r in ROWS]
        assert review["findings"][0]["place"] == "captions.csv, line 4"
        assert review["saves"] is None
        assert review["findings"][1]["text"] == 'a "blue", circle'
        picture = client.get("/api/review/picture?image=3")
        assert picture.content == jpeg()
        mark = {"If-None-Match": picture.headers["etag"]}  # another audit may have another picture
        assert client.get("/api/review/picture?image=3", headers=mark).status_code == 304
        assert picture.headers["cache-control"] == "private, no-cache"
        for number, status in ((9, 404), (-1, 422), ("../3", 422)):
            answer = client.get(f"/api/review/picture?image={number}")
            assert answer.status_code == status
    with CheckedClient(create_app(index)) as client:
        assert not client.get("/api/about").json()["review"]
        assert client.get("/api/review").json()["error"]["code"] == "no_review"


def test_what_is_not_an_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gaussmatch audit"):
        ReviewResponse.of(tmp_path)
    table = tmp_path / TABLE
    table.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="not the table of an audit"):
        ReviewResponse.of(tmp_path)
    write_csv(table, FIELDS, [asdict(ROWS[0]), {**asdict(ROWS[1]), "issue": "strange"}])
    with pytest.raises(ValueError, match="line 3: no issue 'strange'"):
        ReviewResponse.of(table)


def test_decisions_by_keyboard_survive_a_reload_and_are_exported(tab: Any, address: str) -> None:
    open_page(tab, address)
    tab.get_by_role("link", name="Review").click()
    tab.wait_for_selector("html[data-ready]")
    until(tab, "document.querySelector('#pictures img')?.naturalWidth > 0")
    assert tab.input_value("#text") == "a red star"
    tab.keyboard.press("d")  # the next comes by itself
    until(tab, "document.getElementById('text').value.includes('blue')")
    tab.keyboard.press("f")
    selected = "(t => t.value.slice(t.selectionStart, t.selectionEnd))(document.activeElement)"
    assert tab.evaluate(selected) == 'a "blue", circle'  # typing replaces the old text
    tab.fill("#text", "=HYPERLINK(1)\ncircle, large")
    tab.keyboard.press("Enter")
    tab.get_by_role("button", name="vague (1)").click()
    tab.keyboard.press("a")
    assert tab.text_content("#progress") == "3 of 5 decided"
    tab.reload()
    tab.wait_for_selector("html[data-ready]")
    assert tab.text_content("#progress") == "3 of 5 decided"
    assert tab.get_attribute("#drop", "aria-pressed") == "true"
    with tab.expect_download() as download:
        tab.click("#export")
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text("utf-8"))))
    assert [row["decision"] for row in rows] == ["drop", "fix", "", "accept", ""]
    assert rows[1]["fixed"] == "'=HYPERLINK(1)\ncircle, large"  # no formula in a spreadsheet
    assert rows[1]["text"] == 'a "blue", circle'


@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_the_screen_and_axe_finds_nothing(tab: Any, address: str, width: int) -> None:
    tab.expected = ["404"]  # the audit could make no picture of photo 9
    tab.set_viewport_size({"width": width, "height": 800})
    open_page(tab, address, "review")
    assert violations(tab) == []
    tab.get_by_role("button", name="missing positive (1)").click()
    until(tab, "document.querySelectorAll('#pictures figure').length === 2")
    assert overflow(tab) == 0
    assert violations(tab) == []


@contextmanager
def reviewed(audit: Path) -> Iterator[str]:
    """``gaussmatch review`` in a thread of this process."""
    settings, sock = Settings(hosts=("127.0.0.1",)), listening("127.0.0.1", 0)
    up = threading.Event()
    server = Server(create_review(audit, settings), settings, 1, up.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    assert up.wait(30)
    yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def test_decisions_are_written_as_they_are_made(audit: Path) -> None:
    with TestClient(create_review(audit, Settings()), base_url="http://127.0.0.1") as client:
        assert "Review" in client.get("/").text
        picture = client.get("/api/review/picture?image=3")
        assert (picture.content, picture.headers["cache-control"]) == (jpeg(), "no-store")
        assert client.get("/api/review/picture?image=9").status_code == 404
        made = [{"finding": 1, "decision": "fix", "fixed": "a circle"},
                {"finding": 4, "decision": "drop"}]  # fmt: skip
        assert client.post("/api/review/decisions", json={"decisions": made}).status_code == 200
        found = client.get("/api/review").json()
        assert found["saves"] == str(audit / DECISIONS)
        assert [f["decision"] for f in found["findings"]] == ["", "fix", "", "", "drop"]
        for wrong in ({"finding": 9, "decision": "drop"}, {"finding": 4, "decision": "fix"}):
            answer = client.post("/api/review/decisions", json={"decisions": [wrong]})
            assert answer.status_code == 422
        elsewhere = {"origin": "http://elsewhere.example", "sec-fetch-site": "cross-site"}
        answer = client.post("/api/review/decisions", json={"decisions": []}, headers=elsewhere)
        assert answer.status_code == 403
    decisions = read_decisions(audit / DECISIONS)
    assert [(d.image, d.decision, d.fixed) for d in decisions] == [
        ("4.jpg", "fix", "a circle"),
        ("7.jpg", "drop", ""),
    ]


def test_review_without_an_index_has_undo_bulk_progress_and_a_summary(
    tab: Any, audit: Path
) -> None:
    with reviewed(audit) as address:
        open_page(tab, address)
        assert tab.text_content("#place") == "1 of 2 · 3.jpg · captions.csv, line 4"
        until(tab, "document.querySelector('#pictures a img')?.naturalWidth > 0")
        tab.keyboard.press("s")
        until(tab, "document.getElementById('text').value.includes('blue')")
        assert not tab.is_visible("#swap")
        tab.keyboard.press("s")
        assert tab.text_content("#hint") == "The audit knows no caption to swap this one with."
        tab.keyboard.press("u")
        assert tab.text_content("#progress") == "0 of 5 decided"
        assert tab.input_value("#text") == "a red star"
        tab.get_by_role("button", name="As proposed: 2 findings").click()
        assert tab.text_content("#progress") == "2 of 5 decided"
        tab.get_by_role("button", name="missing positive (1)").click()
        tab.expected = ["404"]  # the audit could make no picture of photo 9
        tab.keyboard.press("o")
        assert tab.get_attribute("#own", "aria-pressed") == "true"
        tab.get_by_role("button", name="near-duplicate (1)").click()
        assert not tab.is_visible("#own")
        tab.keyboard.press("d")
        assert tab.locator("#summary").is_hidden()
        tab.get_by_role("button", name="vague (1)").click()
        tab.get_by_role("button", name="Accept the remaining 1").click()
        said = tab.text_content("#summary")
        assert "All findings are decided" in said
        assert "1 caption swapped with another" in said
        assert "1 fits only its own photo" in said
        assert "2 captions or photos dropped" in said
        command = shlex.split(tab.text_content("#summary code"))
        data = str(audit.parent / "my photos")
        assert command[:3] == ["gaussmatch", "audit", "apply"]
        assert command[3:] == [data, str(audit / DECISIONS), "--out", f"{data}-clean"]
        assert violations(tab) == []
        tab.reload()
        tab.wait_for_selector("html[data-ready]")
        assert tab.text_content("#progress") == "5 of 5 decided"
    made = [d.decision for d in read_decisions(audit / DECISIONS)]
    assert made == ["swap", "drop", "own", "accept", "drop"]


def test_one_swap_decides_both_findings(tab: Any, audit: Path) -> None:
    """Captions exchanged across splits; one of the two is found as a missing positive."""
    star = {"caption": "3.jpg#0", "text": "a star", "other": "4.jpg", "other_caption": "4.jpg#0"}
    cat = {"caption": "4.jpg#0", "text": "a cat", "other": "3.jpg", "other_caption": "3.jpg#0"}
    rows = [
        row("misfit", 0.97, 3, **star, other_text="a cat", other_split="dev", proposal="swap"),
        row("missing positive", 1.5, 4, **cat, other_text="a star", split="dev", proposal="swap"),
    ]
    write_csv(audit / TABLE, FIELDS, map(asdict, rows))
    with reviewed(audit) as address:
        open_page(tab, address)
        for key, decided in (("s", 2), ("u", 0), ("s", 2)):
            with tab.expect_response("**/api/review/decisions"):  # saved, not only shown
                tab.keyboard.press(key)
            assert tab.text_content("#progress") == f"{decided} of 2 decided"
        until(tab, "document.getElementById('summary').textContent.includes('2 captions swapped')")
    made = [(d.caption, d.decision) for d in read_decisions(audit / DECISIONS)]
    assert made == [("3.jpg#0", "swap"), ("4.jpg#0", "swap")]
