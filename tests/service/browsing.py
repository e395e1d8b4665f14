"""A real browser for the tests of the page: what a person does with it."""

from __future__ import annotations

from typing import Any


def open_page(tab: Any, address: str, tail: str = "") -> None:
    tab.goto(address + tail)
    tab.wait_for_selector("html[data-ready]")


def until(tab: Any, true: str, given: Any = None) -> None:
    """Wait until an expression holds; the page's policy forbids what Playwright would do."""
    for _ in range(600):
        if tab.evaluate(true, given):
            return
        tab.wait_for_timeout(100)
    raise AssertionError(f"never came true: {true}")


def search(tab: Any, text: str) -> None:
    tab.fill("#q", text)
    tab.press("#q", "Enter")
    found(tab)


def found(tab: Any) -> None:
    """Wait for an answer with pictures."""
    tab.wait_for_selector("#results:not([aria-busy])", state="attached")
    tab.wait_for_selector(".card", state="attached")


def visit(tab: Any, address: str, tail: str) -> None:
    """Follow an address that holds a search."""
    open_page(tab, address, tail)
    found(tab)


def overflow(tab: Any) -> int:
    width: int = tab.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return width


def violations(tab: Any) -> list[str]:
    """What axe-core finds wrong for those who use a keyboard or a screen reader."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab).response["violations"]
    return [f"{rule['id']}: {node['html'][:120]}" for rule in found for node in rule["nodes"]]
