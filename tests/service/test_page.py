"""The web page in a real browser: everything a person does with it, and nothing sent elsewhere."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from service.served import Served, jpeg, make_index

from gaussmatch.index import Index
from gaussmatch.service import Settings
from gaussmatch.service.suggest import suggest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
KEY = "a-key-for-the-tests"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make_index(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def vague(index: Index) -> str:
    """A caption that this hardly trained model finds vague, and can say better."""
    texts = [str(record.meta["caption"]) for record in index.some(500, "captions")[0]]
    g = index.model.encode_texts(texts)
    for at in g.uncertainty().argsort(descending=True).tolist():
        if suggest(index, texts[at], g[at : at + 1], 4):
            return texts[at]
    raise AssertionError("no caption is vague")


@pytest.fixture(scope="module")
def address(index: Index) -> Iterator[str]:
    with Served(index, Settings(hosts=("127.0.0.1",))) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Any, address: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fresh page; afterwards: no request elsewhere and nothing wrong in the console."""
    options = getattr(request, "param", {})
    context = browser.new_context(
        viewport={"width": 1200, "height": 800}, reduced_motion="reduce", **options
    )
    context.set_default_timeout(20_000)
    strange: list[str] = []
    said: list[str] = []

    def only_here(route: Any) -> None:
        if route.request.url.startswith("http://127.0.0.1:"):
            route.continue_()
        else:
            strange.append(route.request.url)
            route.abort()

    context.route("**/*", only_here)
    page = context.new_page()
    page.on("console", lambda m: said.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.expected = []  # what a test provokes
    yield page
    context.close()
    assert strange == []
    assert [line for line in said if not any(part in line for part in page.expected)] == []


def open_page(tab: Any, address: str, tail: str = "") -> None:
    tab.goto(address + tail)
    tab.wait_for_selector("html[data-ready]")


def until(tab: Any, true: str, given: Any = None) -> None:
    """Wait until an expression holds; the page's policy forbids what Playwright would do."""
    for _ in range(200):
        if tab.evaluate(true, given):
            return
        tab.wait_for_timeout(100)
    raise AssertionError(f"never came true: {true}")


def ask(tab: Any, text: str) -> None:
    tab.fill("#q", text)
    tab.press("#q", "Enter")
    found(tab)


def found(tab: Any) -> None:
    tab.wait_for_selector("#results:not([aria-busy]) .card", state="attached")


def overflow(tab: Any) -> int:
    width: int = tab.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return width


def test_a_query_the_model_does_not_know_is_not_called_vague(tab: Any, address: str) -> None:
    open_page(tab, address)
    ask(tab, "a dog on the beach")
    assert "Unfamiliar" in tab.text_content("#verdict")
    assert "%" not in tab.text_content("#verdict")
    assert tab.locator("#scale").is_hidden()
    assert "%" not in tab.text_content("#results .card")


def test_search_shows_cards_and_can_be_linked(tab: Any, address: str) -> None:
    open_page(tab, address)
    tab.locator("#wall .tile").first.wait_for(state="visible")
    assert "100 pictures" in tab.text_content("#about")
    ask(tab, "a red star")
    assert tab.locator(".card").count() == 24
    assert tab.text_content("#count") == "Best 24 of 100 pictures"
    assert tab.get_attribute("#count", "aria-live") == "polite"
    assert re.search(r"match \d+\s%", tab.get_attribute(".card", "aria-label"))
    assert tab.locator(".card .meter.match").count() == 24
    assert tab.locator(".card .meter.unsure").count() == 24
    until(tab, "document.querySelector('.card img').naturalWidth > 0")
    assert "?q=a+red+star" in tab.url
    ask(tab, "a blue circle")
    tab.go_back()
    until(tab, "document.getElementById('q').value === 'a red star'")
    open_page(tab, address, "?q=a+red+star")
    found(tab)
    tab.click("#more")
    until(tab, "document.querySelectorAll('.card').length === 48")


def test_a_vague_question_is_named_and_sharpened(tab: Any, address: str, vague: str) -> None:
    open_page(tab, address, f"?q={quote(vague)}")
    tab.wait_for_selector('#query[data-level="vague"]')
    assert re.match(r"Vague: more general than \d+\s% of captions", tab.text_content("#verdict"))
    suggestion = tab.wait_for_selector("#suggestions .chip")
    text = suggestion.text_content()
    suggestion.click()
    until(tab, "text => document.getElementById('q').value === text", text)
    found(tab)
    assert tab.input_value("#q") == text


def test_a_result_opens_with_its_captions_and_more_like_it(tab: Any, address: str) -> None:
    open_page(tab, address, "?q=a+red+star")
    found(tab)
    tab.locator(".card").nth(2).click()
    tab.wait_for_selector("dialog[open] .caption")
    assert tab.locator(".caption").count() == 6
    assert tab.evaluate("document.activeElement.id") == "like"
    for _ in range(12):  # focus stays inside
        tab.keyboard.press("Tab")
        assert tab.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    tab.click("#like")
    until(tab, "location.search.startsWith('?like=')")
    until(tab, "document.getElementById('asked').textContent.startsWith('More like')")
    found(tab)
    tab.locator(".card").first.click()
    caption = tab.wait_for_selector("dialog[open] .caption span")
    text = caption.text_content()
    caption.click()
    until(tab, "text => document.getElementById('q').value === text", text)


def test_a_picture_is_a_question_too(tab: Any, address: str, tmp_path: Path) -> None:
    open_page(tab, address)
    picture = {"name": "red.jpg", "mimeType": "image/jpeg", "buffer": jpeg()}
    tab.set_input_files("#file", picture)
    found(tab)
    assert tab.locator("#request img").get_attribute("src").startswith("blob:")
    assert "of images" in tab.text_content("#verdict")
    tab.evaluate(
        """async () => {
          const blob = await (await fetch(document.querySelector('.card img').src)).blob();
          const data = new DataTransfer();
          data.items.add(new File([blob], 'dropped.jpg', {type: 'image/jpeg'}));
          document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true}));
        }"""
    )
    until(tab, "document.querySelectorAll('#request img').length === 1")
    found(tab)
    tab.expected = ["415"]
    tab.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": b"no"})
    tab.wait_for_selector("#trouble:not([hidden])")
    assert "cannot be read as a picture" in tab.text_content("#trouble")


def test_the_slider_hides_what_is_not_likely_enough(tab: Any, address: str) -> None:
    open_page(tab, address, "?q=a+red+star")
    found(tab)
    shares = tab.evaluate(
        "fetch('api/search?k=24&text=a+red+star').then(r => r.json())"
        ".then(a => a.results.hits.map(h => h.probability))"
    )
    sure = 5 * round(20 * sorted(shares)[12])
    tab.evaluate(
        "value => { const s = document.getElementById('sure'); s.value = value;"
        " s.dispatchEvent(new Event('input', {bubbles: true})); }",
        sure,
    )
    kept = sum(share >= sure / 100 for share in shares)
    assert tab.locator(".card").count() == kept
    if kept < 24:
        assert f"{24 - kept} less likely hidden" in tab.text_content("#count")
    assert f"sure={sure}" in tab.url or sure == 0
    tab.focus("#sure")
    tab.keyboard.press("End")
    assert tab.text_content("#sureout") == "95 %"
    if not any(share >= 0.95 for share in shares):
        assert "Move the slider" in tab.text_content("#none")


def test_the_map_shows_pictures_and_ellipses(tab: Any, address: str) -> None:
    open_page(tab, address, "?q=a+red+star")
    found(tab)
    tab.click("#asmap")
    tab.wait_for_selector("#plane .pin.near")
    assert tab.locator("#plane .there").count() == 100
    assert tab.locator("#plane .cross").count() == 1
    tab.click("#mapellipses")
    assert tab.locator("#plane ellipse.gaussian.near").count() == 24
    assert tab.locator("#plane ellipse.gaussian.question").count() == 1
    before = tab.locator("#plane ellipse.near").first.get_attribute("rx")
    tab.click("#zoomin")
    assert float(tab.locator("#plane ellipse.near").first.get_attribute("rx")) > float(before)
    tab.locator("#plane .near").first.focus()
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog[open] .caption")
    assert "view=map" in tab.url


def test_everything_works_from_the_keyboard(tab: Any, address: str) -> None:
    open_page(tab, address)
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "q"
    tab.keyboard.type("a red star")
    tab.keyboard.press("Enter")
    found(tab)
    tab.keyboard.press("ArrowDown")
    first = tab.evaluate("document.activeElement.dataset.id")
    assert first
    tab.keyboard.press("ArrowRight")
    second = tab.evaluate("document.activeElement.dataset.id")
    assert second != first
    assert tab.locator('.card[tabindex="0"]').count() == 1
    tab.keyboard.press("Enter")
    tab.wait_for_selector("dialog[open]")
    tab.keyboard.press("Escape")
    assert tab.locator("dialog[open]").count() == 0
    assert tab.evaluate("document.activeElement.dataset.id") == second
    tab.keyboard.press("ArrowUp")
    assert tab.evaluate("document.activeElement.id") == "q"
    tab.keyboard.press("Escape")
    assert tab.input_value("#q") == ""


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_is_wider_than_the_screen(tab: Any, address: str, vague: str, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 740})
    open_page(tab, address)
    assert overflow(tab) == 0
    ask(tab, vague)
    tab.wait_for_selector("#sharpen:not([hidden])")
    assert overflow(tab) == 0
    tab.locator(".card").first.click()
    tab.wait_for_selector(".caption")
    assert tab.evaluate("document.getElementById('item').scrollWidth") <= width
    tab.keyboard.press("Escape")
    tab.click("#asmap")
    tab.wait_for_selector(".pin")
    assert overflow(tab) == 0


CONTRAST = """ids => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const behind = (node) => { for (; node; node = node.parentElement) {
    const c = rgba(getComputedStyle(node).backgroundColor); if (c[3] === 255) return c; }
    return rgba('white'); };
  return ids.flatMap(id => [...document.querySelectorAll(id)].slice(0, 3)
    .filter(n => n.checkVisibility()).map(n => {
      const [a, b] = [light(rgba(getComputedStyle(n).color)), light(behind(n))];
      return [id, (Math.max(a, b) + .05) / (Math.min(a, b) + .05)]; }));
}"""


@pytest.mark.parametrize("tab", [{"color_scheme": c} for c in ("light", "dark")], indirect=True)
def test_text_can_be_read_in_the_light_and_in_the_dark(tab: Any, address: str, vague: str) -> None:
    open_page(tab, address, f"?q={quote(vague)}")
    tab.wait_for_selector("#suggestions .chip")
    dark = tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) < 200) == dark
    told = [
        ".brand",
        ".about",
        ".hint",
        ".verdict",
        ".ends span",
        "#suggestions .chip",
        ".sharpen h2",
        "#count",
    ]
    told += [".sure label", ".views button", ".what", ".figure", ".go", "footer p", "footer a"]
    found = tab.evaluate(CONTRAST, told)
    assert {name for name, _ in found} == set(told)
    assert [(name, round(ratio, 2)) for name, ratio in found if ratio < 4.5] == []


def test_errors_and_unknown_words_are_reported(tab: Any, address: str) -> None:
    tab.expected = ["422"]
    open_page(tab, address, "?q=zebra")
    tab.wait_for_selector("#trouble:not([hidden])")
    assert "knows no word of 'zebra'" in tab.text_content("#trouble")
    ask(tab, "a red zebra")
    assert tab.locator("#trouble").is_hidden()
    assert "“zebra”" in tab.text_content("#unknown")


def test_the_page_prompts_for_the_key(tab: Any, index: Index) -> None:
    tab.expected = ["401"]
    with Served(index, Settings(api_keys=(KEY,))) as address:
        tab.goto(address)
        tab.wait_for_selector("#key[open]")
        tab.fill("#keyfield", "a wrong key")
        tab.keyboard.press("Enter")
        until(tab, "document.getElementById('keynote').textContent.includes('not accept')")
        tab.fill("#keyfield", KEY)
        tab.keyboard.press("Enter")
        tab.wait_for_selector("html[data-ready]")
        ask(tab, "a red star")
        until(tab, "document.querySelector('.card img').naturalWidth > 0")
        assert tab.locator(".card img").first.get_attribute("src").startswith("blob:")
        tab.goto("about:blank")  # before the service goes


def test_a_point_model_hides_the_bars_and_says_why(tab: Any, tmp_path: Path) -> None:
    with Served(make_index(tmp_path, "scenes/vsepp"), Settings()) as address:
        open_page(tab, address, "?q=a+red+star")
        found(tab)
        assert tab.locator(".meter.unsure").count() == 0
        assert tab.locator("#gauge").is_hidden()
        assert "point model" in tab.text_content("#pointnote")
        tab.goto("about:blank")  # before the service goes


def test_landmarks_and_labels(tab: Any, address: str) -> None:
    open_page(tab, address, "?q=a+red+star")
    found(tab)
    assert tab.get_by_role("banner").count() == 1
    assert tab.get_by_role("main").count() == 1
    assert tab.get_by_role("contentinfo").count() == 1
    assert tab.get_by_role("searchbox", name="What are you looking for?").count() == 1
    assert tab.get_by_role("slider", name="At least this likely to match").count() == 1
    assert tab.get_by_role("list", name="Results").count() == 1
    nameless = tab.evaluate(
        "[...document.querySelectorAll('button, a, input')].filter(n => n.checkVisibility())"
        ".filter(n => !(n.getAttribute('aria-label') || n.textContent.trim() || n.labels?.length))"
        ".map(n => n.outerHTML)"
    )
    assert nameless == []
