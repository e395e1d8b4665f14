"""A tab of the browser for all tests of the page; logging as it was, after each test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

LOGGERS = ("gaussmatch.apps.service", "uvicorn", "uvicorn.error", "uvicorn.access")


@pytest.fixture(autouse=True)
def _logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a service sets up in this process must not hide the records of the next test."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        for name in ("handlers", "level", "propagate"):
            monkeypatch.setattr(logger, name, getattr(logger, name))
    yield
    monkeypatch.undo()
    for logger in loggers:
        logger.manager._clear_cache()  # type: ignore[attr-defined]


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
