"""The API on a small index: answers, limits, and what must not be possible."""

from __future__ import annotations

import io
import os
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import orjson
import pytest
from PIL import Image
from service.served import CheckedClient, jpeg, make_index

from gaussmatch.apps.service import Settings, create_app
from gaussmatch.apps.service.engine import SearchJob
from gaussmatch.data.decoder import sniffed
from gaussmatch.models.encoders.base import Reading
from gaussmatch.search import Hit, Index, Query, Record, Where, backup
from gaussmatch.search.query import Scope

ID = "scenes/test/3"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return make_index(tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def client(index: Index) -> Iterator[CheckedClient]:
    with CheckedClient(create_app(index)) as client:
        yield client


def refused(answer: object, status: int, code: str) -> str:
    assert answer.status_code == status, answer.text  # type: ignore[attr-defined]
    error = answer.json()["error"]  # type: ignore[attr-defined]
    assert error["code"] == code
    return str(error["message"])


class TestSearch:
    def test_text_gives_what_the_library_gives(self, client: CheckedClient, index: Index) -> None:
        text = "a small red star"
        response = client.get("/api/search", params={"text": text, "k": 7}).json()["results"]
        (found,) = index.search_text([text], 7)
        assert [hit["id"] for hit in response["hits"]] == found.ids
        for hit, known in zip(response["hits"], found.hits, strict=True):
            assert hit["score"] == pytest.approx(known.score, abs=1e-4)
            assert hit["probability"] == pytest.approx(known.probability, abs=1e-4)
            assert hit["percentile"] == pytest.approx(known.percentile, abs=0.1)
            assert hit["meta"] == known.meta
        assert response["uncertainty"] == pytest.approx(found.uncertainty, abs=1e-4)
        assert (response["level"], response["phrase"]) == (found.level, found.phrase)
        assert "whole captions" in found.phrase
        assert set(response) == {field.name for field in fields(found)}

    def test_unknown_words_are_reported(self, client: CheckedClient) -> None:
        response = client.get("/api/search", params={"text": "a red zebra"}).json()
        assert response["results"]["unknown"] == ["zebra"]
        message = refused(client.get("/api/search", params={"text": "zebra"}), 422, "unknown_words")
        assert "zebra" in message

    def test_a_picture_finds_itself_as_a_body_and_as_a_form(self, client: CheckedClient) -> None:
        picture = client.get("/api/thumbnail", params={"id": ID})
        assert picture.headers["content-type"] == "image/jpeg"
        body = client.post("/api/search/image?k=5", content=picture.content).json()
        form = client.post("/api/search/image?k=5", files={"image": picture.content}).json()
        assert body == form
        assert body["results"]["side"] == "images"
        assert len(body["results"]["hits"]) == 5

    def test_more_like_this_leaves_this_out(self, client: CheckedClient) -> None:
        response = client.get("/api/similar", params={"id": ID, "k": 100}).json()
        ids = [hit["id"] for hit in response["results"]["hits"]]
        assert len(ids) == 99
        assert ID not in ids

    def test_captions_of_a_picture(self, client: CheckedClient, index: Index) -> None:
        response = client.get("/api/captions", params={"id": ID, "k": 4}).json()
        found = index.search_id(ID, 4, gallery="captions")
        assert [hit["id"] for hit in response["results"]["hits"]] == found.ids
        assert all(hit["meta"]["caption"] for hit in response["results"]["hits"])

    def test_conditions_on_metadata(self, client: CheckedClient) -> None:
        params = {"text": "a star", "where": '{"split": "train"}'}
        assert client.get("/api/search", params=params).json()["results"]["hits"] == []
        params["where"] = '{"split": ["test", "dev"]}'
        assert len(client.get("/api/search", params=params).json()["results"]["hits"]) == 20

    def test_suggestions_are_surer(self, client: CheckedClient) -> None:
        text = "something"
        vague = client.get("/api/uncertainty", params={"text": text}).json()
        response = client.get("/api/suggest", params={"text": text}).json()["suggestions"]
        assert all(s["percentile"] < vague["percentile"] for s in response)
        assert len({s["text"] for s in response}) == len(response)

    def test_places_on_the_map(self, client: CheckedClient) -> None:
        params = {"text": "a star", "map": "true", "k": 100}
        response = client.get("/api/search", params=params).json()
        whole = client.get("/api/map").json()
        places = dict(zip(whole["ids"], whole["x"], strict=True))
        assert response["map"]["query"]["a"] >= response["map"]["query"]["b"] > 0
        for hit, place in zip(response["results"]["hits"], response["map"]["hits"], strict=True):
            assert place["x"] == pytest.approx(places[hit["id"]], abs=1e-4)

    def test_pages_follow_each_other(self, client: CheckedClient, index: Index) -> None:
        whole = index.search_text(["a red star"], 30)[0]
        params = {"text": "a red star", "k": 10, "offset": 20}
        page = client.get("/api/search", params=params).json()["results"]
        assert [hit["id"] for hit in page["hits"]] == whole.ids[20:]
        assert page["total"] == 100
        params["offset"] = 95
        assert len(client.get("/api/search", params=params).json()["results"]["hits"]) == 5

    def test_what_is_excluded_is_not_found(self, client: CheckedClient) -> None:
        params = {"text": "a star", "k": 3}
        first = client.get("/api/search", params=params).json()["results"]["hits"]
        params["exclude"] = orjson.dumps([first[0]["id"]]).decode()
        left = client.get("/api/search", params=params).json()["results"]["hits"][:2]
        # P(fits) is read beside the best score of the gallery, which is another now; how far that
        # moves it says nothing here, after one epoch and with a calibration of few queries
        judged = {"probability", "fit"}
        assert [{k: v for k, v in hit.items() if k not in judged} for hit in left] == [
            {k: v for k, v in hit.items() if k not in judged} for hit in first[1:]
        ]
        assert all(0 <= hit["probability"] <= 1 for hit in left)

    @pytest.mark.parametrize("coverage", [0.5, 0.9])
    def test_the_guaranteed_set(self, client: CheckedClient, index: Index, coverage: float) -> None:
        params = {"text": "a red star", "guarantee": coverage, "k": 5}
        response = client.get("/api/search", params=params).json()["results"]
        found = index.search_text(["a red star"], guarantee=coverage)[0]
        assert (response["total"], response["guarantee"]) == (len(found), coverage)
        assert [hit["id"] for hit in response["hits"]] == found.ids[:5]
        assert response["verdict"]["sentence"] == found.verdict.sentence
        one = client.get("/api/search", params={**params, "promise": "one"}).json()["results"]
        assert one["promise"] == "one"
        assert one["total"] == len(
            index.search_text(["a red star"], guarantee=coverage, promise="one")[0]
        )

    def test_no_guarantee_among_pictures_for_a_picture(self, client: CheckedClient) -> None:
        params = {"id": ID, "guarantee": 0.9}
        message = refused(client.get("/api/similar", params=params), 422, "no_guarantee")
        assert "only across sides" in message

    def test_a_picture_and_words_are_one_query(self, client: CheckedClient, index: Index) -> None:
        picture = client.get("/api/similar", params={"id": ID, "k": 50}).json()["results"]["hits"]
        both = client.get("/api/similar", params={"id": ID, "k": 50, "text": "a red star"})
        g = index.together([index.gaussian(ID), index.model.encode_texts(["red star"])])
        expected = index.search(g, 50, side="images", exclude=[ID])[0].ids
        assert [hit["id"] for hit in both.json()["results"]["hits"]] == expected
        assert expected != [hit["id"] for hit in picture]
        posted = client.post("/api/search/image?text=a+red+star&k=5", content=jpeg())
        assert len(posted.json()["results"]["hits"]) == 5
        refused(
            client.get("/api/similar", params={"id": ID, "text": "zebra"}), 422, "unknown_words"
        )
        found = both.json()["results"]  # no calibration has seen such queries
        assert found["familiar"] is found["percentile"] is found["absent"] is None
        assert {hit["probability"] for hit in found["hits"]} == {None}
        place = "/api/search/image?text=a+red+star&gallery=captions&guarantee=0.9"
        refused(client.post(place, content=jpeg()), 422, "no_guarantee")


class TestGaussians:
    def test_embeddings_are_the_models(self, client: CheckedClient, index: Index) -> None:
        texts = ["a star", "two red things"]
        response = client.post("/api/embed/text", json={"texts": texts}).json()
        g = index.model.encode_texts(texts)
        assert g.log_var is not None
        assert response["dimension"] == g.dim
        for row, one in enumerate(response["embeddings"]):
            assert one["mean"] == pytest.approx(g.mean[row].tolist(), abs=1e-5)
            assert one["log_variance"] == pytest.approx(g.log_var[row].tolist(), abs=1e-5)
        picture = client.post("/api/embed/image", content=jpeg()).json()
        assert len(picture["embeddings"][0]["mean"]) == g.dim

    def test_words_that_are_not_known_are_not_vague(self, client: CheckedClient) -> None:
        params = {"text": "zebra qwer xxy red"}
        assert client.get("/api/uncertainty", params=params).json()["percentile"] is None
        assert client.get("/api/search", params=params).json()["results"]["percentile"] is None

    def test_uncertainty_of_a_picture(self, client: CheckedClient, index: Index) -> None:
        seen = index.get(next(iter(index.records("images"))).id).thumbnail
        response = client.post("/api/uncertainty/image", content=seen).json()
        assert 0 <= response["percentile"] <= 100
        assert "of images" in response["phrase"]
        strange = client.post("/api/uncertainty/image", content=jpeg()).json()
        assert strange["percentile"] is None  # unknown, which is not ambiguous
        assert strange["uncertainty"] is not None


class TestItems:
    def test_about_and_item(self, client: CheckedClient) -> None:
        about = client.get("/api/about").json()
        assert (about["images"], about["captions"], about["probabilistic"]) == (100, 500, True)
        assert about["examples"]
        item = client.get("/api/item", params={"id": ID}).json()
        assert item["meta"]["split"] == "test"
        caption = client.get("/api/item", params={"id": f"{ID}#0", "gallery": "captions"}).json()
        assert caption["meta"]["caption"] == item["meta"]["captions"][0]

    @pytest.mark.parametrize(
        "path", ["/api/item", "/api/thumbnail", "/api/similar", "/api/captions"]
    )
    def test_an_id_that_is_not_there(self, client: CheckedClient, index: Index, path: str) -> None:
        for id in ("nothing", "../../etc/passwd", "/etc/passwd", "scenes/test/3\0", "'; --"):
            message = refused(client.get(path, params={"id": id}), 404, "no_item")
            assert str(index.place) not in message


class TestLimits:
    @pytest.mark.parametrize(
        ("path", "code"),
        [
            ("/api/search", "invalid"),
            ("/api/search?text=", "invalid"),
            ("/api/search?text=%20", "empty"),
            ("/api/search?text=a+star&k=0", "invalid"),
            ("/api/search?text=a+star&k=201", "too_many"),
            ("/api/search?text=a+star&K=2", "invalid"),
            ("/api/search?text=a+star&gallery=files", "invalid"),
            ("/api/search?text=a+star&where=x", "bad_filter"),
            ("/api/search?text=a+star&where=[]", "bad_filter"),
            ("/api/search?text=a+star&where={%22yeer%22:1}", "bad_filter"),
            ("/api/search?text=a+star&exclude=x", "invalid"),
            ("/api/search?text=a+star&exclude={}", "invalid"),
            ("/api/search?text=a+star&guarantee=1", "invalid"),
            ("/api/search?text=a+star&offset=-1", "invalid"),
            ("/api/search?text=a+star&where={%22a%22:{%22like%22:1}}", "bad_filter"),
            ("/api/search?text=" + "a+" * 501, "text_too_long"),
            ("/api/uncertainty?text=" + "a+" * 501, "text_too_long"),
            ("/api/browse?k=1000", "too_many"),
            ("/api/browse?box=1,2", "invalid"),
            ("/api/search?text=a+star&unlike=x", "invalid"),
            ("/api/search?text=no+star&guarantee=0.9", "no_guarantee"),
        ],
    )
    def test_what_is_wrong_is_said(self, client: CheckedClient, path: str, code: str) -> None:
        assert refused(client.get(path), 422, code)

    def test_too_many_texts(self, client: CheckedClient) -> None:
        texts = {"texts": ["a star"] * 257}
        assert "at most 256" in refused(client.post("/api/embed/text", json=texts), 422, "too_many")

    def test_pictures(self, index: Index) -> None:
        settings = Settings(max_pixels=100, max_body=50_000, max_memory=2**24)
        with CheckedClient(create_app(index, settings)) as client:
            path = "/api/search/image"
            refused(client.post(path, content=jpeg((11, 10))), 413, "too_many_pixels")
            refused(client.post(path, content=b"x" * 50_001), 413, "too_large")
            refused(client.post(path, content=b"not a picture"), 415, "not_an_image")
            refused(client.post(path, content=b""), 422, "no_image")
            refused(client.post(path, files={"other": b"x"}), 422, "no_image")
            form = {"Content-Type": "multipart/form-data; boundary=x"}
            refused(client.post(path, content=b"--y", headers=form), 400, "bad_form")
            assert client.post(path, content=jpeg((10, 10))).status_code == 200

    def test_a_slow_answer_is_ended(self, index: Index) -> None:
        go = threading.Event()
        app = create_app(index, Settings(timeout=0.05))
        engine = app.state.service.engine
        run, engine.run = engine.run, lambda jobs: (go.wait(30), run(jobs))[1]
        with CheckedClient(app) as client:
            refused(client.get("/api/search?text=a+star"), 504, "timeout")
            go.set()


@pytest.mark.parametrize("path", ["/api/search?text=a+star", "/api/about", "/api/item?id=x"])
def test_a_failure_of_the_service_is_json_and_contains_nothing_but_its_id(
    index: Index, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the gate answers at once or FastAPI and its layers do."""
    app = create_app(index)

    async def broken(job: object) -> object:
        raise RuntimeError("a secret of the server")

    with CheckedClient(app) as client:
        working = app.state.service.batcher
        app.state.service.batcher = broken
        answer = client.get(path, headers={"X-Request-ID": "abc"})
        app.state.service.batcher = working
    refused(answer, 500, "failure")
    assert "(abc)" in answer.json()["error"]["message"]
    assert "secret" not in answer.text
    assert answer.headers["x-frame-options"] == "DENY"


def test_concurrent_queries_are_encoded_together_and_one_bad_one_spoils_none(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(index)
    engine = app.state.service.engine
    calls: list[int] = []
    encode = engine.model.featurize_texts
    go = threading.Event()

    def counted(texts: list[Reading]) -> object:
        calls.append(len(texts))
        return encode(texts)

    monkeypatch.setattr(engine.model, "featurize_texts", counted)
    with CheckedClient(app) as client, ThreadPoolExecutor(16) as pool:
        first = pool.submit(client.portal.call, app.state.service.batcher, lambda: go.wait(30))
        texts = ["a red star", "zebra"] + ["a blue circle"] * 10
        sent = [pool.submit(client.get, "/api/search", params={"text": t}) for t in texts]
        for _ in range(3000):
            if app.state.service.batcher.waiting == len(texts):
                break
            time.sleep(0.01)
        go.set()
        status = [future.result().status_code for future in sent]
        first.result()
        assert status == [200, 422] + [200] * 10
        assert calls == [11]  # all at once, without the one that is refused
        assert "gaussmatch_batch_size_bucket" in client.get("/metrics").text


class TestSafety:
    @pytest.mark.parametrize(
        "path",
        [
            "/../pyproject.toml",
            "/..%2f..%2fetc/passwd",
            "/%2e%2e/%2e%2e/etc/passwd",
            "/page/__init__.py",
            "/__init__.py",
            "/app.py",
            "//etc/passwd",
            "/style.css/../app.py",
            "/docs",
            "/redoc",
        ],
    )
    def test_no_other_file_has_an_address(self, client: CheckedClient, path: str) -> None:
        refused(client.get(path), 404, "not_found")

    def test_the_page_and_its_files(self, client: CheckedClient) -> None:
        page = client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        again = client.get("/", headers={"If-None-Match": page.headers["etag"]})
        assert again.status_code == 304
        for name in ("app.js", "style.css", "icon.svg"):
            assert client.get(f"/{name}").status_code == 200
        assert "http://" not in page.text
        assert "https://" not in page.text

    def test_cors_is_off_unless_an_origin_is_given(
        self, client: CheckedClient, index: Index
    ) -> None:
        origin = {"Origin": "https://photos.example.org"}
        assert "access-control-allow-origin" not in client.get("/api/about", headers=origin).headers
        with CheckedClient(create_app(index, Settings(cors=(origin["Origin"],)))) as open_client:
            answer = open_client.get("/api/search?text=zebra", headers=origin)
            assert answer.headers["access-control-allow-origin"] == origin["Origin"]
            other = open_client.get("/api/about", headers={"Origin": "https://evil.example"})
            refused(other, 403, "foreign_origin")

    def test_the_key_also_guards_the_search(self, index: Index) -> None:
        with CheckedClient(create_app(index, Settings(api_keys=("secret-key",)))) as client:
            for path in ("/api/search?text=a+star", "/api/about", "/metrics"):
                refused(client.get(path), 401, "wrong_key")
                key = {"Authorization": "Bearer secret-key"}
                assert client.get(path, headers=key).status_code == 200
            for path in ("/", "/healthz", "/readyz"):
                assert client.get(path).status_code == 200

    def test_wrong_methods(self, client: CheckedClient) -> None:
        refused(client.post("/api/search?text=a"), 405, "wrong_method")
        refused(client.delete("/api/item?id=x"), 405, "wrong_method")


def test_the_description_is_whole(client: CheckedClient) -> None:
    response = client.get("/openapi.json").json()
    search = response["paths"]["/api/search"]["get"]
    names = {"text", "k", "where", "sort", "map", "gallery", "offset", "exclude", "guarantee"}
    names |= {"promise", "like", "unlike", "groups"}
    assert {p["name"] for p in search["parameters"]} == names
    assert next(p for p in search["parameters"] if p["name"] == "text")["required"]
    for path, methods in response["paths"].items():
        for operation in methods.values():
            assert operation["description"], path
            assert "200" in operation["responses"]
            if path.startswith("/api"):
                assert "422" in operation["responses"]
    names = set(response["components"]["schemas"])
    assert {"SearchResponse", "Hits", "Hit", "Map", "EmbeddingsResponse", "ErrorResponse"} <= names
    hit = response["components"]["schemas"]["Hit"]
    assert set(hit["required"]) == set(hit["properties"]) == {f.name for f in fields(Hit)}
    assert hit["properties"]["score"]["description"]
    body = response["paths"]["/api/search/image"]["post"]["requestBody"]["content"]
    assert set(body) == {"image/*", "multipart/form-data"}


def test_thumbnails_and_the_page_may_be_kept_and_answers_may_not(client: CheckedClient) -> None:
    kept = {
        "/api/search?text=a+star": "no-store",
        "/api/item?id=nothing": "no-store",
        f"/api/thumbnail?id={ID}": "private, no-cache",
        "/": "private, no-cache",
    }
    for path, expected in kept.items():
        assert client.get(path).headers.get_list("cache-control") == [expected], path


def test_probes_and_metrics(index: Index) -> None:
    app = create_app(index)
    with CheckedClient(app) as client:
        assert client.get("/healthz").json() == {"status": "alive"}
        assert client.get("/readyz").json() == {"status": "ready"}
        client.get("/api/search?text=a+star")
        text = client.get("/metrics").text
        assert 'gaussmatch_requests_total{route="/api/search",status="200"} 1.0' in text
        assert 'gaussmatch_index_items{gallery="images"} 100.0' in text
        assert 'gaussmatch_query_uncertainty_percentile_count{type="text"} 1.0' in text
        app.state.service.ready = False
        refused(client.get("/readyz"), 503, "not_ready")
        app.state.service.ready = True


def test_a_point_model_has_no_uncertainty_and_says_so(tmp_path: Path) -> None:
    index = make_index(tmp_path, "scenes/vsepp")
    with CheckedClient(create_app(index)) as client:
        assert client.get("/api/about").json()["probabilistic"] is False
        response = client.get("/api/search?text=a+star&map=true").json()
        assert response["results"]["uncertainty"] is response["results"]["level"] is None
        assert response["map"]["query"]["a"] is None
        assert all(
            hit["uncertainty"] is hit["percentile"] is None for hit in response["results"]["hits"]
        )
        assert client.get("/api/suggest?text=a+star").json() == {"suggestions": []}
        embedded = client.post("/api/embed/text", json={"texts": ["a star"]}).json()
        assert embedded["embeddings"][0]["log_variance"] is None
        assert client.get("/api/uncertainty?text=a+star").json()["percentile"] is None


def test_pcme_is_a_probabilistic_model(tmp_path: Path) -> None:
    """Its Gaussians are its own, not the paper's adaptation of a point model."""
    with CheckedClient(create_app(make_index(tmp_path, "scenes/pcme"))) as client:
        assert client.get("/api/about").json()["probabilistic"] is True
        found = client.get("/api/search?text=a+star&k=1").json()["results"]
        assert found["uncertainty"] is not None
        assert found["hits"][0]["uncertainty"] is not None


def test_items_added_meanwhile_are_seen(tmp_path: Path) -> None:
    index = make_index(tmp_path)
    app = create_app(Index.open(index.place))
    app.state.service.engine._reload_every = 0.0
    with CheckedClient(app) as client:
        index.delete([ID])
        refused(client.get("/api/item", params={"id": ID}), 404, "no_item")
        assert client.get("/api/about").json()["images"] == 99


def test_an_index_of_captions_has_no_map(tmp_path: Path, index: Index) -> None:
    captions = Index.with_model(tmp_path / "index", index.run_folder, index.similarity)
    captions.add(index.model.encode_texts(["a red star"]), [Record("a", {})], "captions")
    with CheckedClient(create_app(captions)) as client:
        found = client.get("/api/search?text=a+star&gallery=captions&map=true").json()
        assert len(found["results"]["hits"]) == 1
        assert found["map"] is None


def test_the_first_pictures_of_an_empty_index_are_shown(tmp_path: Path, index: Index) -> None:
    empty = Index.with_model(tmp_path / "index", index.run_folder, index.similarity)
    app = create_app(Index.open(empty.place))
    app.state.service.engine._reload_every = 0.0
    with CheckedClient(app) as client:
        assert client.get("/api/search?text=a+star").json()["results"]["hits"] == []
        refused(client.get("/api/map"), 404, "empty")
        assert client.get("/api/browse").json() == {"ids": [], "taken": []}
        empty.add(index.gaussian(ID), [index.get(ID)])
        (hit,) = client.get("/api/search?text=a+star").json()["results"]["hits"]
        assert client.get("/api/thumbnail", params={"id": hit["id"]}).status_code == 200
        assert client.get("/api/about").json()["images"] == 1
        assert 'index_items{gallery="images"} 1.0' in client.get("/metrics").text


def test_an_index_that_is_damaged_meanwhile_goes_on(tmp_path: Path, index: Index) -> None:
    copy = shutil.copytree(index.place, tmp_path / "index")
    app = create_app(Index.open(copy))
    app.state.service.engine._reload_every = 0.0
    with CheckedClient(app) as client:
        (copy / "manifest.json").write_text("{")
        assert len(client.get("/api/search?text=a+star&k=3").json()["results"]["hits"]) == 3


def test_an_upload_outlasts_the_slowest_pictures_before_it(index: Index) -> None:
    """Both decoders may be busy all their time, and one of them has to start anew."""
    app, settings = create_app(index), Settings()
    with CheckedClient(app):
        for budget in (app.state.service.bodies, app.state.service.decoding):
            assert budget.patience >= settings.decode_timeout + 1
            assert budget.patience + settings.decode_timeout < settings.timeout


def test_damage_is_not_called_a_missing_item(tmp_path: Path, index: Index) -> None:
    copy = shutil.copytree(index.place, tmp_path / "index")
    with CheckedClient(create_app(Index.open(copy))) as client:
        for file in copy.glob("segments/images-*/records.jsonl"):
            os.truncate(file, file.stat().st_size // 2)
        refused(client.get("/api/item", params={"id": ID}), 500, "failure")
        refused(client.get("/api/item", params={"id": "nothing"}), 500, "failure")


ODD = ("ü/ñ", 'a"b<i>', "new\nline", "\x00", "../../etc/passwd", "x" * 3000)


@pytest.fixture(scope="module")
def odd(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CheckedClient]:
    odd = Index.with_model(
        tmp_path_factory.mktemp("odd") / "index", index.run_folder, index.similarity
    )
    deep: dict[str, object] = {}
    for _ in range(300):
        deep = {"deeper": deep}
    records = [Record(id_, {"huge": 10**30, "flag": n == 1}) for n, id_ in enumerate(ODD)]
    records += [Record("deep", {"meta": deep}), Record("one", {"flag": 1})]
    odd.add(index.some(len(records))[1], records)  # type: ignore[arg-type]
    with CheckedClient(create_app(odd)) as client:
        yield client


class TestOddItems:
    """Whatever may be in an index can be response."""

    def test_they_are_found_and_shown(self, odd: CheckedClient) -> None:
        found = odd.get("/api/search?text=a+star&k=50&map=true").json()["results"]["hits"]
        assert {hit["id"] for hit in found} == {*ODD, "deep", "one"}
        assert len(odd.get("/api/map").json()["ids"]) == len(found)
        for id_ in ODD:
            item = odd.get("/api/item", params={"id": id_}).json()
            assert (item["id"], item["meta"]["huge"]) == (id_, 10**30)
            assert len(odd.get("/api/similar", params={"id": id_}).json()["results"]["hits"]) == 7

    def test_conditions_in_one_batch_do_not_mix(self, odd: CheckedClient) -> None:
        conditions = [Where.of({"flag": 1}), Where.of({"flag": True})]
        jobs = [SearchJob(Query("a star"), Scope(5, where=where), 5) for where in conditions]
        response = odd.app.state.service.engine.run(jobs)  # type: ignore[attr-defined]
        found = [
            [hit["id"] for hit in orjson.loads(answer)["results"]["hits"]] for answer in response
        ]
        assert found == [["one"], ['a"b<i>']]

    def test_many_values(self, odd: CheckedClient) -> None:
        where = orjson.dumps({"flag": [1] * 1500}).decode()
        response = odd.get("/api/search", params={"text": "a star", "where": where}).json()
        assert [hit["id"] for hit in response["results"]["hits"]] == ["one"]

    def test_half_characters(self, odd: CheckedClient) -> None:
        json = {"Content-Type": "application/json"}
        content = rb'{"texts": ["a star \ud800"]}'
        refused(odd.post("/api/embed/text", content=content, headers=json), 422, "invalid")


@pytest.fixture(scope="module")
def album(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Photos in a folder, some of which are not what they seem."""
    root = tmp_path_factory.mktemp("album")
    folder = root / "photos"
    (folder / "trip").mkdir(parents=True)
    (root / "secret.jpg").write_bytes(jpeg())
    (folder / "trip" / "a.jpg").write_bytes(jpeg())
    Image.new("RGB", (9, 9), "red").save(folder / "b.tiff")
    (folder / "text.jpg").write_text("root:x:0:0")
    (folder / "notes.txt").write_text("not a picture")
    (folder / "link.jpg").symlink_to(root / "secret.jpg")
    names = ["trip/a.jpg", "b.tiff", "text.jpg", "notes.txt", "link.jpg", "gone.jpg"]
    names += ["../secret.jpg", str(root / "secret.jpg"), "a\0.jpg"]
    records = [
        Record(name, {"file": name, "folder": "trip" if n else ".", "taken": f"2020-01-0{n + 1}"})
        for n, name in enumerate(names)
    ]
    album = Index.with_model(root / "index", index.run_folder, index.similarity)
    album.add(index.some(len(records))[1], records)  # type: ignore[arg-type]
    album.note_source({"folder": str(folder)}, here=True)
    return album


class TestBrowsing:
    def test_timeline_folders_and_names(self, album: Index) -> None:
        with CheckedClient(create_app(album)) as client:
            whole = client.get("/api/timeline").json()
            assert (whole["months"], whole["total"]) == ([{"month": "2020-01", "count": 9}], 9)
            assert client.get("/api/timeline?folder=trip").json()["total"] == 8
            some = client.get("/api/browse?offset=7&k=5").json()
            assert some["taken"] == ["2020-01-02", "2020-01-01"]
            folders = {a["folder"]: a["count"] for a in client.get("/api/albums").json()["albums"]}
            assert folders == {"": 1, "trip": 8}
            assert client.get("/api/places").json() == {"spots": []}
            names = client.get("/api/names?text=secret").json()["results"]
            assert [hit["named"] for hit in names["hits"]] == [["file"], ["file"]]

    def test_a_download_holds_pictures_and_nothing_else(self, album: Index) -> None:
        ids = [record.id for record in album.records()]
        with CheckedClient(create_app(album)) as client:
            answer = client.post("/api/zip", json={"ids": ids})
            with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
                assert sorted(archive.namelist()) == ["a.jpg", "b.tiff"]
                assert archive.read("a.jpg") == jpeg()
            refused(client.post("/api/zip", json={"ids": ["nothing"]}), 404, "no_item")
            refused(client.post("/api/zip", json={"ids": []}), 422, "invalid")
        with CheckedClient(create_app(album, Settings(max_zip=1))) as client:
            refused(client.post("/api/zip", json={"ids": ids}), 422, "too_many")

    def test_a_download_leaves_no_folder_on_windows_either(
        self, index: Index, tmp_path: Path
    ) -> None:
        album = Index.with_model(tmp_path / "index", index.run_folder, index.similarity)
        record = Record("a", {"file": "..\\..\\evil.jpg"}, jpeg())
        album.add(index.some(1)[1], [record])  # type: ignore[arg-type]
        with CheckedClient(create_app(album)) as client:
            answer = client.post("/api/zip", json={"ids": ["a"]})
        with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
            assert archive.namelist() == ["evil.jpg"]

    def test_like_several_unlike_others_and_groups(self, client: CheckedClient) -> None:
        other, third = "scenes/test/1", "scenes/test/2"
        params = {"id": ID, "like": f'["{other}"]', "unlike": f'["{third}"]', "groups": "true"}
        answer = client.get("/api/similar", params={**params, "k": 100}).json()
        found = [hit["id"] for hit in answer["results"]["hits"]]
        assert not {ID, other, third} & set(found)
        assert len(answer["groups"]) == len(found)
        assert all(first <= at for at, first in enumerate(answer["groups"]))
        refused(client.get('/api/search?text=a+star&unlike=["x"]'), 404, "no_item")
        plain = client.get("/api/similar", params={"id": ID, "k": 100}).json()
        assert plain["groups"] is None
        assert found != [h["id"] for h in plain["results"]["hits"] if h["id"] not in (other, third)]

    def test_what_must_not_be_there(self, client: CheckedClient, index: Index) -> None:
        text = "a star without a circle"
        answer = client.get("/api/search", params={"text": text, "k": 7}).json()["results"]
        (found,) = index.search_text([text], 7)
        assert [hit["id"] for hit in answer["hits"]] == found.ids
        assert answer["remarks"] == found.remarks != []
        nothing = client.get("/api/search", params={"text": "no star", "k": 7}).json()["results"]
        assert [hit["id"] for hit in nothing["hits"]] == index.search_text(["no star"], 7)[0].ids
        unknown = client.get("/api/search", params={"text": "a star -zebra"}).json()["results"]
        assert "I don’t know “zebra”: it is not excluded" in unknown["remarks"]


class TestOriginals:
    def test_only_pictures_inside_the_folder_are_sent(self, album: Index) -> None:
        with CheckedClient(create_app(album)) as client:
            assert client.get("/api/about").json()["originals"]
            whole = client.get("/api/picture", params={"id": "trip/a.jpg"})
            assert (whole.headers["content-type"], whole.content) == ("image/jpeg", jpeg())
            converted = client.get("/api/picture", params={"id": "b.tiff"})
            assert converted.headers["content-type"] == "image/jpeg"
            assert converted.content.startswith(b"\xff\xd8")
            for record in list(album.records())[2:]:
                answer = client.get("/api/picture", params={"id": record.id})
                assert str(album.place) not in refused(answer, 404, "no_picture")
            refused(client.get("/api/picture?id=nothing"), 404, "no_item")

    def test_a_link_that_appears_after_the_check_leads_nowhere(
        self, album: Index, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name is looked up once; what was opened then is what is sent."""
        photo = Path(album.manifest.source["folder"]) / "trip" / "a.jpg"  # type: ignore[index]
        secret = photo.parent.parent.parent / "secret.jpg"
        with CheckedClient(create_app(album)) as client:

            def swap(start: bytes) -> str:
                photo.unlink()
                photo.symlink_to(secret)
                return sniffed(start)

            monkeypatch.setattr("gaussmatch.apps.service.routes.sniffed", swap)
            try:
                found = client.get("/api/picture", params={"id": "trip/a.jpg"})
                assert found.content == jpeg()
                monkeypatch.undo()
                answer = client.get("/api/picture", params={"id": "trip/a.jpg"})
                refused(answer, 404, "no_picture")
            finally:
                photo.unlink()
                photo.write_bytes(jpeg())

    @pytest.mark.parametrize("part", ["bytes=0-9", "bytes=9999999-", "bytes=5-1", "x"])
    def test_a_range_is_answered_with_the_whole(self, album: Index, part: str) -> None:
        """As HTTP allows: a part that cannot be sent is no error in plain text."""
        with CheckedClient(create_app(album)) as client:
            given = {"params": {"id": "trip/a.jpg"}, "headers": {"Range": part}}
            found = client.get("/api/picture", **given)  # type: ignore[arg-type]
            assert (found.status_code, found.content) == (200, jpeg())

    def test_they_do_not_wait_for_uploads_that_are_decoded(self, album: Index) -> None:
        app, free = create_app(album), threading.Event()
        with CheckedClient(app) as client:
            service = app.state.service
            for _ in range(service.settings.decoders):
                service.decoders.submit(free.wait)
            try:
                assert client.get("/api/picture", params={"id": "trip/a.jpg"}).is_success
            finally:
                free.set()

    def test_pictures_are_known_by_their_content(self, album: Index, index: Index) -> None:
        """Two indexes may have other pictures under one address, one after the other."""
        for served, path in (
            (album, "/api/picture?id=trip/a.jpg"),
            (index, f"/api/thumbnail?id={ID}"),
        ):
            with CheckedClient(create_app(served)) as client:
                first = client.get(path)
                assert "max-age" not in first.headers["cache-control"]
                mark = first.headers["etag"]
                for known in (mark, f'"other", W/{mark}'):
                    assert client.get(path, headers={"If-None-Match": known}).status_code == 304
                other = client.get(path, headers={"If-None-Match": '"other"'})
                assert (other.status_code, other.content) == (200, first.content)
        for served, both in (
            (album, ("/api/picture?id=trip/a.jpg", "/api/picture?id=b.tiff")),
            (index, (f"/api/thumbnail?id={ID}", f"/api/thumbnail?id={ID[:-1]}4")),
        ):
            with CheckedClient(create_app(served)) as client:
                marks = {client.get(path).headers["etag"] for path in both}
            assert len(marks) == 2

    def test_they_can_be_kept_back(self, album: Index) -> None:
        with CheckedClient(create_app(album, Settings(originals=False))) as client:
            assert not client.get("/api/about").json()["originals"]
            refused(client.get("/api/picture", params={"id": "trip/a.jpg"}), 404, "no_picture")

    def test_only_where_the_operator_or_this_machine_says_so(
        self, album: Index, tmp_path: Path
    ) -> None:
        copy = backup(tmp_path / "copy", album.place)  # its manifest names the folder too
        photos = Path(str(album.manifest.source["folder"]))  # type: ignore[index]
        with CheckedClient(create_app(copy)) as client:
            refused(client.get("/api/picture", params={"id": "trip/a.jpg"}), 404, "no_picture")
        with CheckedClient(create_app(copy, Settings(photos=photos))) as client:
            assert client.get("/api/picture", params={"id": "trip/a.jpg"}).status_code == 200

    def test_an_order_by_a_field_that_nobody_has_is_named(self, album: Index) -> None:
        with CheckedClient(create_app(album)) as client:
            found = client.get("/api/similar", params={"id": "b.tiff", "sort": "-tekan"}).json()
            notes = " ".join(found["results"]["notes"])
            assert "no item has a field 'tekan'; did you mean 'taken'?" in notes

    def test_fields_to_filter_by(self, album: Index) -> None:
        with CheckedClient(create_app(album)) as client:
            fields = client.get("/api/fields").json()["fields"]
        assert [(f["name"], f["type"]) for f in fields] == [("folder", "text"), ("taken", "date")]
        assert fields[0]["values"] == [".", "trip"]
        assert (fields[1]["least"], fields[1]["most"]) == ("2020-01-01", "2020-01-09")
