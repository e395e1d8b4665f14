"""Pictures of the web page, made by a browser; they are not kept in git, but for one.

    python benchmarks/screenshots.py INDEX [--out docs/screenshots] [--query "a red star"]
                                           [--readme docs/search.png] [--review AUDIT]

Serves the index on a free port, opens the page in Chromium (of the system, or $CHROMIUM) and
takes it at a desk, on a phone and in the dark. Fails if the page requests anything elsewhere.
``--readme`` writes the picture of a search that README shows: only of photos that are free to show.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from chromium import chromium, served
from playwright.sync_api import Browser, Page

DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 780}


def main() -> None:
    parser = argparse.ArgumentParser(description="Take pictures of the web page.")
    parser.add_argument("index", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/screenshots"))
    parser.add_argument("--query", default="a green heart and a yellow moon")
    parser.add_argument("--readme", type=Path, help="where the picture of README goes")
    parser.add_argument("--review", type=Path, help="what 'gaussmatch audit' wrote")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    review = () if options.review is None else ("--review", str(options.review))
    with served(options.index, *review) as address, chromium() as browser:
        for scheme in ("light", "dark"):
            for name, size in (("desk", DESK), ("phone", PHONE)):
                take(browser, address, f"{name}-{scheme}", size, scheme, options)


def take(
    browser: Browser, address: str, name: str, size: dict, scheme: str, options: argparse.Namespace
) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    context.set_default_timeout(120_000)
    page = context.new_page()
    strange: list[str] = []
    page.on("request", lambda r: strange.append(r.url) if not _local(r.url, address) else None)

    def shot(what: str, path: Path | None = None) -> None:
        page.wait_for_timeout(1000)  # pictures and suggestions come by themselves
        path = path or options.out / f"{name}-{what}.png"
        page.screenshot(path=path)
        print(path)

    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    shot("start")
    search(page, options.query)
    shot("results")
    if options.readme is not None and name == "desk-light":
        shot("results", options.readme)
    page.locator(".card").first.click()
    page.wait_for_selector("#viewer[open]")
    shot("picture")
    page.click("#like")
    page.wait_for_selector("#with:not([hidden])")
    shot("like")
    search(page, "a blue circle")
    shot("like-and-words")
    page.goto(address)
    page.wait_for_selector("html[data-ready]")
    search(page, options.query)
    page.click("#asmap")
    page.wait_for_selector("#legend .key")
    shot("map")
    for what, text in (("unknown", "a dog on the beach"), ("help", "xkqj wvvz")):
        page.goto(f"{address}?q={text}")
        page.wait_for_selector("#help:not([hidden]), #results:not([aria-busy]) .card")
        shot(what)
    if options.review is not None:
        page.goto(f"{address}review")
        page.wait_for_selector("html[data-ready]")
        shot("review")
    context.close()
    if strange:
        raise SystemExit(f"the page made requests elsewhere: {strange}")


def search(page: Page, text: str) -> None:
    page.fill("#q", text)
    page.keyboard.press("Enter")
    page.wait_for_selector("#results:not([aria-busy])", state="attached")
    page.wait_for_selector(".card")


def _local(url: str, address: str) -> bool:
    return url.startswith((address, "blob:", "data:"))


if __name__ == "__main__":
    main()
