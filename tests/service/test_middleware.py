"""What every request passes, whatever the app behind it does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import ClassVar

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gaussmatch.apps.service.logs import JsonLines, Metrics
from gaussmatch.apps.service.middleware import Middleware
from gaussmatch.apps.service.settings import RateLimit, Settings

KEY = "correct horse"


async def ok(request: Request) -> Response:
    return PlainTextResponse("ok")


async def swallow(request: Request) -> Response:
    """An app that reads the body and makes an error of its own of what goes wrong."""
    try:
        return PlainTextResponse(str(len(await request.body())))
    except Exception:
        return PlainTextResponse("something else", 400)


async def slow(request: Request) -> Response:
    await asyncio.sleep(60)
    return PlainTextResponse("too late")


async def broken(request: Request) -> Response:
    raise RuntimeError("a secret of the server")


async def waited(request: Request) -> Response:
    raise TimeoutError("of a server elsewhere")


def client(metrics: Metrics | None = None, **settings: object) -> TestClient:
    routes = [
        Route("/", ok),
        Route("/healthz", ok),
        Route("/api/ok", ok),
        Route("/metrics", ok),
        Route("/api/body", swallow, methods=["POST"]),
        Route("/api/slow", slow),
        Route("/api/broken", broken),
        Route("/api/waited", waited),
    ]
    app = Starlette(routes=routes)
    app.add_middleware(Middleware, settings=Settings(**settings), metrics=metrics or Metrics())  # type: ignore[arg-type]
    return TestClient(app)


def test_every_answer_has_the_headers_of_safety() -> None:
    for path in ("/", "/nothing", "/api/broken"):
        headers = client().get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"


def test_a_request_keeps_its_id_if_it_is_sane() -> None:
    gate = client()
    assert gate.get("/", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    for strange in ("", "a b", "x" * 65, "a\tb"):
        given = gate.get("/", headers={"X-Request-ID": strange}).headers["x-request-id"]
        assert given != strange
    first, second = (gate.get("/").headers["x-request-id"] for _ in range(2))
    assert first != second


def test_a_failure_gives_the_caller_nothing_but_its_id() -> None:
    answer = client().get("/api/broken")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["error"]["message"]


def test_a_slow_request_is_ended() -> None:
    answer = client(timeout=0.05).get("/api/slow")
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "timeout"
    other = client(timeout=60).get("/api/waited")  # not ours
    assert (other.status_code, other.json()["error"]["code"]) == (500, "failure")


class TestKey:
    def test_it_is_required_for_the_data_but_not_for_page_and_probes(self) -> None:
        gate = client(api_keys=(KEY,))
        assert gate.get("/").status_code == 200
        assert gate.get("/healthz").status_code == 200
        for path in ("/api/ok", "/metrics", "/api/nothing"):
            assert gate.get(path).status_code == 401
        assert gate.get("/api/ok").headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Authorization": f"Bearer {KEY}"}, 200),
            ({"Authorization": f"bearer {KEY}"}, 200),
            ({"X-API-Key": KEY}, 200),
            ({"Authorization": "Bearer "}, 401),
            ({"Authorization": f"Basic {KEY}"}, 401),
            ({"Authorization": f"Bearer {KEY}x"}, 401),
            ({"X-API-Key": KEY[:-1]}, 401),
        ],
    )
    def test_only_the_right_one_is_taken(self, headers: dict[str, str], status: int) -> None:
        assert client(api_keys=(KEY,)).get("/api/ok", headers=headers).status_code == status

    def test_several_are_taken_while_one_replaces_another(self) -> None:
        service = client(api_keys=("the old key", KEY))
        for key, status in (("the old key", 200), (KEY, 200), ("another key", 401)):
            headers = {"X-API-Key": key}
            assert service.get("/api/ok", headers=headers).status_code == status

    def test_it_is_not_in_the_settings_as_printed(self) -> None:
        assert KEY not in repr(Settings(api_keys=(KEY,)))


class TestOrigin:
    """Pages elsewhere could make a visitor's browser search, or send pictures, in their name."""

    HERE: ClassVar = {"Host": "localhost:8000"}

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({}, 200),
            ({"Origin": "http://localhost:8000"}, 200),
            ({"Origin": "https://LOCALHOST:8000"}, 200),  # TLS ends at a proxy
            ({"Origin": "https://evil.example"}, 403),
            ({"Origin": "http://localhost:3000"}, 403),
            ({"Origin": "http://localhost:8000.evil.example"}, 403),
            ({"Origin": "null"}, 403),
            ({"Sec-Fetch-Site": "same-origin"}, 200),
            ({"Sec-Fetch-Site": "none"}, 200),
            ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
            ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ],
    )
    def test_only_pages_from_here_may_call(self, headers: dict[str, str], status: int) -> None:
        for send in (client().get, client().post):
            path = "/api/body" if send.__name__ == "post" else "/api/ok"
            answer = send(path, headers={**self.HERE, **headers})
            assert answer.status_code == status
            assert "access-control-allow-origin" not in answer.headers
            if status == 403:
                assert answer.json()["error"]["code"] == "foreign_origin"

    def test_a_link_from_anywhere_works_and_a_form_or_frame_does_not(self) -> None:
        link = {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        }
        assert client().get("/", headers=link).status_code == 200
        assert client().post("/api/body", headers=link).status_code == 403
        assert client().get("/", headers={**link, "Sec-Fetch-Dest": "iframe"}).status_code == 403

    def test_cors_opens_it_for_one_origin_with_preflight_and_errors(self) -> None:
        friend = "https://friend.example"
        gate = client(cors=(friend,), api_keys=(KEY,))
        preflight = {"Access-Control-Request-Method": "POST", "Origin": friend}
        answer = gate.options("/api/body", headers=preflight)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == friend
        assert "X-API-Key" in answer.headers["access-control-allow-headers"]
        foreign = {"Origin": friend, "Sec-Fetch-Site": "cross-site"}
        refused = gate.post("/api/body", headers=foreign)
        assert (refused.status_code, refused.headers["vary"]) == (401, "Origin")
        assert refused.headers["access-control-allow-origin"] == friend
        assert gate.get("/", headers={**self.HERE, "Origin": "http://localhost:8000"}).is_success
        for stranger in ("https://evil.example", f"{friend}.evil.example", "null"):
            for answer in (
                gate.get("/api/ok", headers={"Origin": stranger, "X-API-Key": KEY}),
                gate.options("/api/body", headers={**preflight, "Origin": stranger}),
            ):
                assert answer.status_code == 403
                assert answer.headers["vary"] == "Origin"
                assert "access-control-allow-origin" not in answer.headers

    @pytest.mark.parametrize(
        "origin", ["*", "photos.example.org", "https://a.example/", "https://A"]
    )
    def test_an_origin_that_no_browser_would_send_is_refused(self, origin: str) -> None:
        with pytest.raises(ValueError, match="is not an origin"):
            Settings(cors=(origin,))


def test_two_host_headers_are_refused() -> None:
    two = [("Host", "localhost"), ("Host", "evil.example")]
    for headers in (two, two[::-1]):
        answer = client(hosts=("localhost",)).get("/api/ok", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


class TestRate:
    def test_wrong_keys_count_and_then_even_the_right_one_waits(self) -> None:
        """Otherwise one could try keys without end, and see which of them is not refused."""
        service = client(api_keys=(KEY,), rate=0.2)  # two at once
        statuses = [
            service.get("/api/ok", headers={"X-API-Key": key}).status_code
            for key in (KEY, "a wrong key", "another wrong key", "a third", KEY)
        ]
        assert statuses == [200, 401, 401, 429, 429]

    def test_each_key_has_its_own(self) -> None:
        service = client(api_keys=("the old key", KEY), rate=0.2)  # two at once
        statuses = [
            service.get("/api/ok", headers={"X-API-Key": key}).status_code
            for key in (KEY, KEY, KEY, "the old key")
        ]
        assert statuses == [200, 200, 429, 200]

    def test_without_keys_it_is_by_address_and_for_the_data_only(self) -> None:
        service = client(rate=0.1)
        assert service.get("/api/ok").status_code == 200
        refused = service.get("/api/ok")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_requests")
        assert 0 < int(refused.headers["retry-after"]) <= 10
        assert service.get("/").status_code == service.get("/healthz").status_code == 200

    def test_many_clients_are_forgotten(self) -> None:
        limit = RateLimit(1)
        for n in range(RateLimit.MOST + 10):
            assert limit.wait(str(n), 0.0) == 0
        assert len(limit._left) == RateLimit.MOST


def test_a_clock_that_jumps_changes_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits go by time that passes, not by the time of day."""
    service = client(rate=0.1, timeout=5)
    statuses = []
    for now in (1e9, 4e9, 0.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        statuses.append(service.get("/api/ok").status_code)
        assert service.get("/").status_code == 200
    assert statuses == [200, 429, 429]


def test_answers_are_not_cached_unless_they_say_so() -> None:
    assert client().get("/api/ok").headers["cache-control"] == "no-store"
    assert client(api_keys=(KEY,)).get("/api/ok").headers["cache-control"] == "no-store"


class TestBody:
    def test_its_length_is_checked_before_it_is_read(self) -> None:
        answer = client(max_body=10).post("/api/body", content=b"x" * 11)
        assert answer.status_code == 413
        assert "at most 10 bytes" in answer.json()["error"]["message"]
        assert client(max_body=10).post("/api/body", content=b"x" * 10).text == "10"

    def test_it_is_counted_while_it_comes_in(self) -> None:
        """A sender that gives no length is stopped at the limit, not at the end."""
        sent = 0

        def chunks() -> Iterator[bytes]:
            nonlocal sent
            for _ in range(1000):
                sent += 8
                yield b"x" * 8

        answer = client(max_body=20).post("/api/body", content=chunks())
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"

    @pytest.mark.parametrize("length", ["-1", "1e3", "99999999999999999999", "x"])
    def test_a_strange_length_is_refused(self, length: str) -> None:
        answer = client(max_body=20).post("/api/body", headers={"Content-Length": length})
        assert answer.status_code == 413


def test_other_names_of_the_machine_are_not_served() -> None:
    """A page elsewhere whose name is made to point here (DNS rebinding) gets nothing."""
    gate = client(hosts=("localhost", "127.0.0.1", "::1"))
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
        assert gate.get("/api/ok", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "localhost.evil.example", ""):
        answer = gate.get("/api/ok", headers={"Host": host})
        assert answer.status_code == 421
        assert "--allow-host" in answer.json()["error"]["message"]


def test_requests_are_counted_by_route_not_by_path() -> None:
    metrics = Metrics()
    gate = client(metrics)
    gate.get("/api/ok")
    gate.get("/../../etc/passwd")
    gate.get("/whatever")
    text = metrics.text().decode()
    assert 'gaussmatch_requests_total{route="unmatched",status="404"} 2.0' in text
    assert "passwd" not in text
    assert "gaussmatch_requests_in_flight 0.0" in text


def test_each_request_is_one_line_of_json_without_the_question(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "gaussmatch.apps.service"):
        client().get("/api/ok?text=private", headers={"X-Request-ID": "abc"})
    (record,) = (r for r in caplog.records if r.name == "gaussmatch.apps.service")
    line = json.loads(JsonLines().format(record))
    assert "private" not in str(line)
    assert line["event"] == "request"
    assert (line["id"], line["method"], line["path"], line["status"]) == (
        "abc",
        "GET",
        "/api/ok",
        200,
    )
    assert line["ms"] >= 0


def test_a_failure_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    client().get("/api/broken")
    (record,) = (r for r in caplog.records if r.levelname == "ERROR")
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "a secret of the server" in json.loads(line)["traceback"]
