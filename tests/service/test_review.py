"""The findings of an audit: read, served, decided about by keyboard, exported."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service.browsing import open_page, overflow, until, violations
from service.served import CheckedClient, Served, jpeg, make_index

from gaussmatch.apps.service import Settings, create_app
from gaussmatch.apps.service.responses import ReviewResponse
from gaussmatch.search import Index
from gaussmatch.search.trust.audit_report import FIELDS, PICTURES, TABLE

ROWS = [
    ("misfit", 0.97, 3, 14, "", "a mismatch with probability 97 %", "a red star"),
    ("misfit", 0.91, 4, 21, "", "a mismatch with probability 91 %", 'a "blue", circle'),
    ("missing positive", 2.5, 5, 26, 9, "fits the other photo better", "two squares"),
    ("vague", 0.99, 6, 30, "", "vaguer than 99 % of the captions", "something"),
    ("near-duplicate", 0.99, 7, "", 8, "cosine 0.990 of their features", ""),
]


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([FIELDS, *ROWS])
    (folder / PICTURES).mkdir()
    for number in (3, 4, 5, 6, 7, 8):
        (folder / PICTURES / f"{number}.jpg").write_bytes(jpeg())
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make_index(tmp_path_factory.mktemp("review"))


@pytest.fixture(scope="module")
def address(index: Index, audit: Path) -> Iterator[str]:
    with Served(index, Settings(hosts=("127.0.0.1",), review=audit)) as address:
        yield address


def test_findings_and_their_pictures(index: Index, audit: Path) -> None:
    with CheckedClient(create_app(index, Settings(review=audit))) as client:
        assert client.get("/api/about").json()["review"]
        review = client.get("/api/review").json()
        assert [finding["issue"] for finding in review["findings"]] == [row[0] for row in ROWS]
        assert review["findings"][1]["text"] == 'a "blue", circle'
        assert client.get("/api/review/picture?image=3").content == jpeg()
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
    table.write_text(",".join(FIELDS) + "\nmisfit,1,3,,,why,\nstrange,1,3,,,why,\n")
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
    assert tab.evaluate("document.activeElement.id") == "text"
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
