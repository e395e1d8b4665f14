"""Pictures from strangers: refused before they are decoded, and bounded together."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from data.test_pictures import many_scans
from PIL import Image
from starlette.requests import Request

from gaussmatch.apps.service import requests
from gaussmatch.apps.service.app import Service
from gaussmatch.apps.service.responses import ApiError
from gaussmatch.apps.service.settings import Budget, Settings
from gaussmatch.data.pictures import Bounds, Decoders

Result = TypeVar("Result")


def encoded(format: str, size: tuple[int, int] = (6, 4), **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 10, 10)).save(file, format, **options)
    return file.getvalue()


class Uploads(Service):
    """What reading a picture needs of the service."""

    def __init__(
        self, bodies: int = 2**20, decoding: int = 2**28, each: int = 2**27, **settings: Any
    ) -> None:
        self.settings = Settings(**settings)
        self.bodies, self.decoding = Budget(bodies, 60), Budget(decoding, 60)
        bounds = Bounds(each, self.settings.decode_timeout, self.settings.max_pixels)
        self.pictures, self.decoders = Decoders(bounds), ThreadPoolExecutor(2)

    def close(self) -> None:
        self.pictures.close()
        self.decoders.shutdown()


def request(body: bytes) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    length = [(b"content-length", b"%d" % len(body))]
    return Request({"type": "http", "method": "POST", "headers": length}, receive)


def finished(work: Coroutine[Any, Any, Result]) -> Result:
    """Run in a thread of its own: a browser test may have left a loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def read(body: bytes, **options: Any) -> tuple[int, int]:
    async def run() -> tuple[int, int]:
        async with requests.picture(request(body), service) as image:
            assert image.mode == "RGB"
            return image.size

    with closing(Uploads(**options)) as service:
        try:
            return finished(run())
        finally:
            assert (service.bodies.taken, service.decoding.taken) == (0, 0)


def test_a_picture_is_read_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read(encoded("JPEG", exif=exif)) == (4, 6)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (encoded("PNG", (50, 21)), {"max_pixels": 1000}),
        (encoded("PNG", (4000, 3000)), {"each": 2**25}),
        (encoded("WEBP", (3000, 2000)), {"each": 2**26}),  # 6 Mpixel need 96 MB
        (many_scans(), {"decode_timeout": 0.3}),
    ],
    ids=["pixels", "memory", "copies", "time"],
)
def test_too_large_a_picture_is_refused(body: bytes, options: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="too large") as refused:
        read(body, bodies=2**24, **options)
    assert refused.value.status == 413


def test_what_a_decoder_takes_is_given_back_when_it_has_ended_not_before() -> None:
    """Though the request is answered with 504 before that."""
    body = many_scans()

    async def run() -> None:
        upload = asyncio.create_task(hold())
        while not service.pictures._busy:
            await asyncio.sleep(0.001)
        upload.cancel()
        while service.pictures._busy:
            assert service.decoding.taken == 2**27
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await upload

    async def hold() -> None:
        async with requests.picture(request(body), service):
            pytest.fail("decoded")

    with closing(Uploads(bodies=2**24, decode_timeout=0.5)) as service:
        finished(run())
        assert not service.pictures._busy
        assert service.decoding.taken == 0


def test_a_stop_ends_busy_decoders() -> None:
    async def run() -> None:
        upload = asyncio.create_task(service.decode(service.pictures.read, many_scans()))
        while not service.pictures._busy:
            await asyncio.sleep(0.001)
        service.close()
        with pytest.raises(ValueError, match="stopped"):
            await upload

    with closing(Uploads(decode_timeout=600.0)) as service:
        finished(run())


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        encoded("PNG")[:40],
        encoded("JPEG")[:200],
        encoded("PPM"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    ],
)
def test_what_is_no_whole_picture_of_a_known_format_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError, match="cannot be read as a picture; send JPEG, PNG") as refused:
        read(data)
    assert refused.value.status == 415


def test_bytes_and_decoding_in_flight_are_bounded_together() -> None:
    """However many come, each waits for its turn and all are answered."""
    body = encoded("PNG", (600, 400), compress_level=0)
    one = SimpleNamespace(body=2 * len(body), decoding=600 * 400 * 16)
    service = Uploads(bodies=3 * one.body, decoding=2 * one.decoding, each=one.decoding)
    most = SimpleNamespace(bodies=0, decoding=0)

    async def upload() -> None:
        async with requests.picture(request(body), service):
            most.bodies = max(most.bodies, service.bodies.taken)
            most.decoding = max(most.decoding, service.decoding.taken)
            await asyncio.sleep(0.001)

    async def run() -> None:
        await asyncio.gather(*(upload() for _ in range(20)))

    with closing(service):
        finished(run())
    assert most.bodies <= 3 * one.body
    assert most.decoding <= 2 * one.decoding
    assert (service.bodies.taken, service.decoding.taken) == (0, 0)


def test_a_body_of_unknown_length_counts_as_the_longest() -> None:
    chunked = Request({"type": "http", "headers": [(b"transfer-encoding", b"chunked")]})
    assert requests._length(chunked, Settings(max_body=1000)) == 1000
