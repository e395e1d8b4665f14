"""A small index for the tests of the service: random weights, real pictures and captions."""

from __future__ import annotations

import asyncio
import io
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from PIL import Image
from starlette.testclient import TestClient

from gaussmatch.apps.service import Settings, create_app
from gaussmatch.apps.service.server import Server, listening
from gaussmatch.data import scenes
from gaussmatch.learn.training.loop import train
from gaussmatch.models.recipe import load_recipe
from gaussmatch.search import Index
from gaussmatch.search.sources import index_pairs
from gaussmatch.search.trust import calibrate


def make_index(folder: Path, recipe: str = "scenes/vsepp-kl") -> Index:
    """Train for one epoch on the tiny scenes and index their test split."""
    fields = {"data.size": "tiny", "training.epochs": 1}
    settings = load_recipe(recipe, fields)
    data = scenes.load("tiny", features=settings.data.features, progress=False)
    train(settings, folder / "run", data=data)
    from gaussmatch.models.run import load

    passed = {"captions": True, "images": True}  # whatever a model of one epoch deserves
    calibration = replace(calibrate(load(folder / "run"), data), gauges=passed)
    index = Index.create(folder / "index", folder / "run", calibration=calibration)
    index_pairs(index, data.test, "test", progress=False)
    return index


class CheckedClient(TestClient):
    """A client that validates every answer against the service's own OpenAPI description."""

    def request(self, method: str, url: Any, **options: Any) -> httpx.Response:
        response = super().request(method, url, **options)
        check(self.app.openapi(), method, response)  # type: ignore[attr-defined]
        return response


def check(description: dict[str, Any], method: str, response: httpx.Response) -> None:
    """An answer of a described route has a described status, type and body; any other answer below
    /api is an error."""
    path, components = response.request.url.path, description["components"]
    described = description["paths"].get(path, {}).get(method.lower())
    if described is None:
        if path.startswith("/api"):
            assert response.status_code in (401, 404, 405, 421), response.status_code
            valid({"$ref": "#/components/schemas/ErrorResponse"}, components, response)
        return
    status = described["responses"].get(str(response.status_code))
    assert status is not None, f"{method} {path}: status {response.status_code} is not described"
    if response.status_code == 304:
        assert not response.content
        return
    kind = response.headers["content-type"].partition(";")[0]
    assert kind in status["content"], f"{method} {path}: {kind} is not described"
    if kind == "application/json":
        valid(status["content"][kind]["schema"], components, response)


def valid(schema: dict[str, Any], components: dict[str, Any], response: httpx.Response) -> None:
    Draft202012Validator({**schema, "components": components}).validate(response.json())


class Served:
    """A service in a thread of this process."""

    def __init__(self, index: Index, settings: Settings) -> None:
        self.socket = listening("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}/"
        self.server = Server(create_app(index, settings), settings, grace=5)
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self.server.serve(sockets=[self.socket]))
        )

    def __enter__(self) -> str:
        self.thread.start()
        return self.address

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(60)
        self.socket.close()


def jpeg(size: tuple[int, int] = (64, 64), colour: tuple[int, int, int] = (220, 30, 30)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "JPEG")
    return file.getvalue()
