"""The report in a real browser: every section, no error, no request, sortable, phone and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gaussmatch.learn.studies.paper import PAPER, Column
from gaussmatch.learn.studies.results import heads


@pytest.fixture(scope="module")
def report(whole: Path) -> Path:
    return whole / "report.html"


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (390, "light"), (1280, "dark")], ids=str
)
def test_every_section_shows_without_error_or_request(
    browser: Any, report: Path, width: int, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    requested: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith("data:") else requested.append(r.url))
    page.goto(report.as_uri())
    for name in ("top", *PAPER, "again"):
        section = page.locator(f"#{name}")
        assert section.is_visible()
        assert section.locator("h1, h2").first.inner_text().strip()
        assert page.locator(f'nav a[href="#{name}"]').count() == 1
    assert page.locator("#area figure svg").count() == 4
    assert page.locator("#galleries img").count() > 20
    assert page.locator("img").evaluate_all("all => all.every(i => i.naturalWidth > 0)")
    assert said == []
    assert requested == [report.as_uri()]
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width  # tables scroll by themselves
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = sum(map(int, background.strip("rgb()").split(","))) < 200
    assert dark == (scheme == "dark")
    page.close()


def test_a_click_sorts_and_a_third_puts_back(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    table = page.locator("#selection table.sortable").first
    head = table.locator("thead tr:last-child th").nth(2)

    def column(n: int) -> list[str]:
        return [
            text.split()[0] for text in table.locator(f"tbody td:nth-child({n})").all_inner_texts()
        ]

    before = table.locator("tbody td:first-child").all_inner_texts()
    head.locator("button").click()
    values = [float(v.replace("−", "-")) for v in column(3)]
    assert values == sorted(values, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    values = [float(v.replace("−", "-")) for v in column(3)]
    assert values == sorted(values)
    head.locator("button").click()
    assert table.locator("tbody td:first-child").all_inner_texts() == before
    assert head.get_attribute("aria-sort") is None
    page.close()


def test_headings_stand_over_their_columns() -> None:
    columns = [Column("a", "A", ("x", "u")), Column("b", "B", ("x", "v")),
               Column("c", "C", ("y", "v")), Column("d", "D")]  # fmt: skip
    assert heads(columns) == [
        [("x", 2), ("y", 1), ("", 1)],
        [("u", 1), ("v", 1), ("v", 1), ("", 1)],
    ]
