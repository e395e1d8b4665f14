"""A tab of the browser for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def tab(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fresh page; afterwards: no request elsewhere and nothing wrong in the console."""
    options = getattr(request, "param", {})
    context = browser.new_context(
        viewport={"width": 1200, "height": 800}, reduced_motion="reduce", **options
    )
    context.set_default_timeout(60_000)
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
