"""Bulk embedding: any number of processes make the same shards, and the same index."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from gaussmatch.apps.cli import main
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import Relevance
from gaussmatch.core.similarities import similarity
from gaussmatch.search import GALLERIES, Hits, Index, Record, index_pairs, update
from gaussmatch.search.embedding import (
    EmbeddingManifest,
    ShardContent,
    Share,
    Work,
    check_reachable,
    embed,
    embed_with_ray,
    index_embeddings,
)
from gaussmatch.search.merge import join
from gaussmatch.search.sources import SplitSource
from gaussmatch.search.trust import calibrate_gaussians
from gaussmatch.search.where import UnknownFieldError

SHARD = 256


@pytest.fixture(scope="module")
def whole(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All shards of the test split, by one process."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert embedded(tiny_run, "test", out)
    return out


def embedded(run: Path, source: str, out: Path, part: Share | None = None) -> bool:
    work = Work(run, source)
    model, items = work()
    return embed(model, items, work.embedding(items, SHARD), out, part, progress=False)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same_items(a: Index, b: Index, tolerance: float = 0) -> None:
    """Same order, same bits (or nearly), same records."""
    for gallery in GALLERIES:
        (x,), (y,) = a.backend.segments(gallery), b.backend.segments(gallery)
        assert x.part.items == y.part.items
        for mine, other in ((x.mean, y.mean), (x.log_var, y.log_var)):
            np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)
        assert list(x.live_records(thumbnails=True)) == list(y.live_records(thumbnails=True))


def test_an_index_from_shards_is_the_index_of_one_process(
    tiny_run: Path, whole: Path, tmp_path: Path
) -> None:
    direct = Index.create(tmp_path / "direct", tiny_run)
    pairs = Work(tiny_run, "test")()[1]
    assert isinstance(pairs, SplitSource)
    index_pairs(direct, pairs.pairs, "test", progress=False)
    index = Index.create(tmp_path / "shards", tiny_run)
    index_embeddings(index, whole, progress=False)
    same_items(index, direct)
    index_embeddings(index, whole, progress=False)  # nothing to do
    same_items(index, direct)


def test_two_processes_of_torchrun_make_the_same_files(
    tiny_run: Path, whole: Path, tmp_path: Path
) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    given = ["gaussmatch", "embed", str(tiny_run), "test", "--out", str(tmp_path / "two")]
    done = subprocess.run(
        [sys.executable, *words, *given, "--shard", str(SHARD), "--device", "cpu"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "100 images, 500 captions in 3 shards" in done.stdout
    assert files(tmp_path / "two") == files(whole)


def test_each_part_does_its_own_and_nothing_twice(
    tiny_run: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    save = ShardContent.save

    def noted(self: ShardContent, path: Path) -> None:
        made.append(path.name)
        save(self, path)

    monkeypatch.setattr(ShardContent, "save", noted)
    out = tmp_path / "out"
    assert not embedded(tiny_run, "test", out, Share(1, 2))
    assert made == ["captions-000000.safetensors"]
    with pytest.raises(ValueError, match="2 of 3 shards are missing"):
        index_embeddings(Index.create(tmp_path / "index", tiny_run), out, progress=False)
    assert embedded(tiny_run, "test", out, Share(0, 2))
    assert len(made) == 3
    assert embedded(tiny_run, "test", out)
    assert len(made) == 3
    assert files(out) == files(whole)
    (out / made[0]).unlink()
    assert embedded(tiny_run, "test", out)
    assert made[3:] == made[:1]


def test_a_killed_shard_leaves_nothing(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("safetensors.torch.save", killed)
    with pytest.raises(KeyboardInterrupt):
        embedded(tiny_run, "test", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["embedding.json"]


@pytest.mark.parametrize(
    ("source", "shard", "message"),
    [("dev", SHARD, "items that have changed"), ("test", 512, "shards of 256 items")],
)
def test_a_folder_of_something_else_is_refused(
    tiny_run: Path, whole: Path, source: str, shard: int, message: str
) -> None:
    work = Work(tiny_run, source)
    with pytest.raises(ValueError, match=message):
        work.embedding(work()[1], shard).claim(whole)


def test_bad_folders_shards_and_parts(tiny_run: Path, whole: Path, tmp_path: Path) -> None:
    work = Work(tiny_run, "test")
    source = work()[1]
    with pytest.raises(ValueError, match="multiple of 256"):
        work.embedding(source, 100)
    (tmp_path / "strange.txt").write_text("x")
    with pytest.raises(FileExistsError, match="is not empty"):
        work.embedding(source, SHARD).claim(tmp_path)
    with pytest.raises(ValueError, match="0 to 1"):
        Share(2, 2)
    with pytest.raises(FileNotFoundError, match="neither a folder of photos nor a split"):
        Work(tiny_run, "nowhere")()
    bare = Index.create(tmp_path / "bare", similarity="kl")
    with pytest.raises(ValueError, match="another model"):
        index_embeddings(bare, whole, progress=False)
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes((whole / "images-000000.safetensors").read_bytes()[:-10])
    with pytest.raises(ValueError, match="not a complete shard"):
        ShardContent.load(torn)
    with pytest.raises(FileNotFoundError, match="is missing; run"):
        ShardContent.load(tmp_path / "none.safetensors")


@pytest.mark.parametrize("points", [True, False])
def test_a_shard_comes_back_as_it_was(tmp_path: Path, points: bool) -> None:
    g = Gaussian(torch.randn(3, 4), None if points else torch.randn(3, 1))
    records = [
        Record("a", {"é": [1, None]}, b"jpeg", "mark"),
        Record("b", {}, None),
        Record("c", {}, b""),
    ]
    ShardContent(g, records, ["lost"]).save(tmp_path / "x")
    back = ShardContent.load(tmp_path / "x")
    assert back.records == records
    assert back.skipped == ["lost"]
    assert back.gaussians is not None
    assert torch.equal(back.gaussians.mean, g.mean)
    ShardContent(None, [], ["all"]).save(tmp_path / "y")
    assert ShardContent.load(tmp_path / "y") == ShardContent(None, [], ["all"])


def test_photos_of_a_folder_with_a_broken_one(tiny_run: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for n in range(20):
        Image.new("RGB", (40, 40), (10 * n, 99, 0)).save(photos / f"{n:02}.png")
    (photos / "05.png").write_bytes(b"broken")
    (photos / "captions.csv").write_text("image,caption\n04.png,a red star\n05.png,a blue circle\n")
    work = Work(tiny_run, str(photos))
    model, source = work()
    out = tmp_path / "out"
    assert embed(model, source, work.embedding(source, SHARD), out, progress=False)
    index = Index.create(tmp_path / "shards", tiny_run)
    index_embeddings(index, out, progress=False)
    direct = Index.create(tmp_path / "direct", tiny_run)
    update(direct, photos, progress=False)
    same_items(index, direct, 1e-6)  # captions of broken photos were in the batch
    assert (index.size(), index.size("captions")) == (19, 1)
    assert index.manifest.source == direct.manifest.source


def test_a_caption_that_changed_is_not_taken_from_an_older_shard(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    Image.new("RGB", (40, 40), "red").save(photos / "a.png")
    (photos / "captions.csv").write_text("image,caption\na.png,a red star\n")
    words = ["embed", str(tiny_run), str(photos), "--out", str(tmp_path / "shards")]
    assert main(words) == main(words) == 0
    made = ["index", str(tiny_run), str(tmp_path / "shards"), "--out", str(tmp_path / "i")]
    assert main(made) == main(made) == 0  # goes on
    (photos / "captions.csv").write_text("image,caption\na.png,a blue circle\n")
    assert main(words) == 2
    assert "holds items that have changed" in capsys.readouterr().err


class FakeRay(SimpleNamespace):
    """Ray Data in this process, as far as we use it."""

    def __init__(self) -> None:
        super().__init__(is_initialized=lambda: False, started=0, stopped=0)
        self.data = SimpleNamespace(
            DataContext=SimpleNamespace(get_current=SimpleNamespace),
            ActorPoolStrategy=lambda size: size,
            from_items=lambda rows, override_num_blocks: FakeData(rows),
        )

    def init(self, **options: Any) -> None:
        self.started += 1

    def shutdown(self) -> None:
        self.stopped += 1


class FakeData:
    def __init__(self, rows: list[dict[str, int]]) -> None:
        self.rows = rows

    def map_batches(
        self, actor: Callable[..., Any], fn_constructor_args: tuple[Any, ...], **options: Any
    ) -> FakeData:
        assert options["batch_size"] == 1
        made = actor(*fn_constructor_args)
        self.work: Iterator[Any] = (made({"shard": np.array([r["shard"]])}) for r in self.rows)
        return self

    def iter_batches(self, batch_size: int) -> Iterator[Any]:
        return self.work


def test_ray_makes_the_same_files(
    tiny_run: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRay()
    monkeypatch.setattr("gaussmatch.search.embedding._ray", lambda: fake)
    work = Work(tiny_run, "test")
    embedding = EmbeddingManifest.load(whole)
    assert embed_with_ray(work, embedding, tmp_path / "out", workers=2)
    assert files(tmp_path / "out") == files(whole)
    assert embed_with_ray(work, embedding, tmp_path / "out")  # nothing to do: not even started
    assert (fake.started, fake.stopped) == (1, 1)


@pytest.mark.skipif(
    "GAUSSMATCH_TEST_RAY" not in os.environ, reason="starting Ray takes most of a minute"
)
def test_the_real_ray_makes_the_same_files(tiny_run: Path, whole: Path, tmp_path: Path) -> None:
    words = ["embed", str(tiny_run), "test", "--out", str(tmp_path / "out"), "--shard", str(SHARD)]
    done = subprocess.run(
        [sys.executable, "-m", "gaussmatch", *words, "--engine", "ray", "--workers", "1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "out") == files(whole)


def test_a_wrong_address_of_ray_is_said_at_once() -> None:
    for none in ("auto", "local"):
        check_reachable(none)
    for wrong in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(ConnectionError, match=f"RAY_ADDRESS={wrong}: nothing answers there"):
            check_reachable(wrong)
    with socket.create_server(("127.0.0.1", 0)) as there:
        check_reachable(f"127.0.0.1:{there.getsockname()[1]}")


def test_ray_missing(monkeypatch: pytest.MonkeyPatch, tiny_run: Path, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["embed", str(tiny_run), "test", "--out", "x", "--engine", "ray"]) == 2
    assert "gaussmatch[ray]" in capsys.readouterr().err


def test_the_verbs(tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """embed, index and search as they are typed; once into a folder, once into Milvus."""
    pytest.importorskip("milvus_lite")
    out, here, there = str(tmp_path / "out"), str(tmp_path / "index"), f"milvus:{tmp_path}/x.db"
    given = ["--shard", "256", "--device", "cpu"]
    assert main(["embed", str(tiny_run), "test", "--out", out, *given]) == 0
    assert main(["index", str(tiny_run), out, "--out", here]) == 0
    assert "100 images, 500 captions" in capsys.readouterr().out
    assert main(["index", str(tiny_run), out, "--out", there]) == 0
    assert main(["index", str(tiny_run), out, "--out", there]) == 0  # there already
    capsys.readouterr()
    answers = []
    for words in ([here], [there], [here, "--also", there]):
        assert main(["search", words[0], "a small red star", "-k", "4", *words[1:]]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
    # joined, every item is there twice: a gallery of 200, of which another verdict may be true
    assert answers[0].splitlines()[1:] == answers[2].splitlines()[1:]
    assert "scenes/test/" in answers[0]
    assert main(["index", "info", there]) == 0
    assert '"similarity": "kl"' in capsys.readouterr().out
    back = str(tmp_path / "back")  # with its model
    assert main(["index", "merge", back, there, "--structure", "hnsw"]) == 0
    assert "100 images, 500 captions, hnsw, kl" in capsys.readouterr().out
    assert main(["search", back, "a small red star", "-k", "4"]) == 0
    assert capsys.readouterr().out == answers[0]
    for place in (there, back):
        with pytest.raises(SystemExit):
            main(["index", "drop", place])
        assert main(["index", "drop", place, "--yes"]) == 0
        assert main(["index", "info", place]) == 2
    none = f"milvus:{tmp_path}/none.db"
    assert main(["index", str(tiny_run), str(tmp_path / "nowhere"), "--out", none]) == 2
    assert not (tmp_path / "none.db").exists()


def same(found: list[Hits], expected: list[Hits]) -> None:
    """Up to the last digit of the scores."""
    for a, b in zip(found, expected, strict=True):
        assert [hit.score for hit in a.hits] == pytest.approx([hit.score for hit in b.hits], 1e-12)
        assert [replace(hit, score=0) for hit in a.hits] == [replace(h, score=0) for h in b.hits]
        # an item that is in two shards counts twice in the total
        assert replace(a, hits=[], total=None) == replace(b, hits=[], total=None)


def test_shards_are_judged_as_the_gallery_that_they_are(tmp_path: Path) -> None:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(300, 6, generator=chance)
    images = Gaussian(x, torch.zeros(300, 1))
    captions = Gaussian(x + 0.4 * torch.randn(300, 6, generator=chance), torch.zeros(300, 1))
    ids = torch.arange(200)
    truth = Relevance.from_pairs(ids, ids, queries=200, gallery=200)
    known = calibrate_gaussians(similarity("kl"), images[:200], captions[:200], truth)
    records = [Record(f"a{i}", {}) for i in range(100)]
    indexes = []
    for name, rows in (("all", slice(None)), ("x", slice(0, 20)), ("y", slice(20, 100))):
        indexes.append(Index.create(tmp_path / name, similarity="kl", calibration=known))
        indexes[-1].add(images[200:][rows], records[rows])
    one, joined = indexes[0], join(indexes[1:])
    queries = captions[200:220]
    for options in ({}, {"guarantee": 0.9}, {"guarantee": 0.9, "promise": "one"}):
        found = (i.search(queries, 5, **options) for i in (joined, one))
        for a, b in zip(*found, strict=True):
            assert a.ids == b.ids
            assert a.total == b.total
            assert a.absent == pytest.approx(b.absent)
            assert a.count == b.count
            assert a.verdict == b.verdict
            chances = [[hit.probability for hit in hits.hits] for hits in (a, b)]
            assert chances[0] == pytest.approx(chances[1])


def test_a_shard_without_a_calibration_and_with_other_fields(tmp_path: Path) -> None:
    chance = torch.Generator().manual_seed(0)
    x = torch.randn(120, 6, generator=chance)
    g, ids = Gaussian(x, torch.zeros(120, 1)), torch.arange(100)
    truth = Relevance.from_pairs(ids, ids, queries=100, gallery=100)
    known = calibrate_gaussians(similarity("kl"), g[:100], g[:100], truth)
    bare = Index.create(tmp_path / "bare", similarity="kl")
    bare.add(g[100:110], [Record(f"a{i}", {}) for i in range(10)])
    whole = Index.create(tmp_path / "whole", similarity="kl", calibration=known)
    whole.add(g[110:], [Record(f"b{i}", {"year": 2020}) for i in range(10)])
    answers = [join(pair).search(g[:3], 20) for pair in ([bare, whole], [whole, bare])]
    for a, b in zip(*answers, strict=True):
        mine, other = ([h.probability for h in hits.hits] for hits in (a, b))
        assert mine == pytest.approx(other)
        assert a.hits[0].probability is not None
    (found,) = join([bare, whole]).search(g[:1], 5, where={"year": 2020})
    assert len(found) == 5
    with pytest.raises(UnknownFieldError, match="did you mean 'year'"):
        join([bare, whole]).search(g[:1], 5, where={"yeer": 2020})


def test_shards_of_a_gallery_are_searched_as_one(tmp_path: Path) -> None:
    g, queries = Gaussian(torch.randn(90, 5), torch.randn(90, 5)), Gaussian(*torch.randn(2, 6, 5))
    records = [Record(f"a{i}", {"part": i % 4}) for i in range(90)]
    indexes = []
    for name, rows in (("all", slice(None)), ("x", slice(0, 20)), ("y", slice(15, 90))):
        indexes.append(Index.create(tmp_path / name, similarity="kl"))
        indexes[-1].add(g[rows], records[rows])  # five items are in both
    one, joined = indexes[0], join(indexes[1:])
    for k in (1, 7, 90, 200):
        same(joined.search(queries, k), one.search(queries, k))
    where = {"part": [1, 2]}
    same(joined.search(queries, 9, where=where), one.search(queries, 9, where=where))
    same([joined.search_id("a30", 5)], [one.search_id("a30", 5)])
    assert joined.size() == 95
    with pytest.raises(ValueError, match="no item 'b'"):
        joined.search_id("b")
    other = Index.create(tmp_path / "other", similarity="min_kl")
    with pytest.raises(ValueError, match="another model"):
        join([one, other])
