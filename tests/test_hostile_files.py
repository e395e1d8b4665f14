"""Files that somebody else made: nothing is written outside, nothing of anybody's is changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_files import pointing
from index.contract import clustered, records
from index.test_ownership import everything
from PIL import Image

from gaussmatch.apps.cli import main
from gaussmatch.files import claim_folder, made_once, plain_name, sha256
from gaussmatch.models.encoders.onnx import Network
from gaussmatch.models.run import MANIFEST, load
from gaussmatch.search import Index, backup, merge, update
from gaussmatch.search.manifest import _digest

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = ["../../.bashrc", "/etc/passwd", "..", ".lock", "a/b", "a\\b", "a\0b", "", 3, "x" * 300]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_name_that_leaves_its_folder_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match=r"manifest\.json: .* is not a plain file name"):
        plain_name(name, "manifest.json")


def rename_in_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as somebody would who computes its digest again."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    content["sha256"] = _digest(content)
    path.write_text(json.dumps(content))


def moved(content: dict[str, Any], old: str, new: str) -> None:
    content[new] = content.pop(old)


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "run": lambda m: m["run"].update({"../../.bashrc": "0" * 64}),
    "files": lambda m: m["files"].update({"../calibration.json": {"size": 1, "sha256": "0" * 64}}),
    "segment": lambda m: m["galleries"]["images"][0].update(name="../segments"),
    "file of a segment": lambda m: moved(
        m["galleries"]["images"][0]["files"], "mean.npy", "/mean.npy"
    ),
    "deleted": lambda m: m["galleries"]["images"][0].update(deleted="../../x.npy"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_backup_with_such_a_name_is_not_restored(tmp_path: Path, change: str, capsys) -> None:
    index = Index.create(tmp_path / "b", similarity="kl")
    index.add(clustered(10), records(0, 10))
    index.delete(["i3"])
    rename_in_manifest(tmp_path / "b", CHANGES[change])
    (tmp_path / ".bashrc").write_text("mine")
    before = everything(tmp_path)
    assert main(["index", "restore", str(tmp_path / "b"), str(tmp_path / "deep" / "i")]) == 2
    assert "is not a plain file name" in capsys.readouterr().err
    assert main(["index", "verify", str(tmp_path / "b")]) == 2
    assert everything(tmp_path) == before


def test_a_run_and_a_cache_with_such_a_name_are_refused(tmp_path: Path, tiny_run: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for path in tiny_run.iterdir():
        if path.is_file():
            (run / path.name).write_bytes(path.read_bytes())
    content = json.loads((run / MANIFEST).read_text())
    content["files"]["../model.safetensors"] = ["0" * 64]
    (run / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"run\.json: .* is not a plain file name"):
        load(run)
    made_once(tmp_path / "cache", lambda folder: None)
    (tmp_path / "secret").write_bytes(b"")
    listed = {"../secret": [0, sha256(tmp_path / "secret")]}  # as it is, but elsewhere
    (tmp_path / "cache" / "files.json").write_text(json.dumps(listed))
    again = made_once(tmp_path / "cache", lambda folder: (folder / "whole").touch())
    assert (again / "whole").exists()  # made again, instead of believed


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("dog", "cat"):
        Image.new("RGB", (20, 20), "red").save(folder / f"{name}.jpg")
    return folder


def test_only_an_index_made_here_is_believed_about_its_folder(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    index = Index.create(tmp_path / "i", similarity="kl")
    index.add(clustered(10), records(0, 10))
    index.note_source({"folder": str(photos)}, here=True)
    assert index.own_folder == photos
    copies = [
        backup(tmp_path / "b", index.place),
        merge(tmp_path / "m", [index.place], progress=False),
    ]
    assert [copy.manifest.source for copy in copies] == [index.manifest.source] * 2
    assert [copy.own_folder for copy in copies] == [None, None]
    with pytest.raises(SystemExit):
        main(["index", "update", copies[0].place])
    assert "names the folder" in capsys.readouterr().err
    rename_in_manifest(tmp_path / "i", lambda m: m["source"].update(folder="/"))
    assert Index.open(index.place).own_folder is None
    index.drop()
    assert backup(tmp_path / "i", copies[0].place).own_folder == photos  # where it was made


def test_an_index_knows_its_folder_before_its_first_item(
    tmp_path: Path, photos: Path, tiny_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))

    def killed(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    index = Index.create(tmp_path / "i", tiny_run)
    with monkeypatch.context() as patched:
        patched.setattr("gaussmatch.search.sources._fill", killed)
        with pytest.raises(KeyboardInterrupt):
            update(index, photos)
    assert main(["index", "update", index.place]) == 0  # without naming it again
    assert Index.open(index.place).size() == 2
    with monkeypatch.context() as patched:
        patched.setattr("gaussmatch.apps.cli.index.update", killed)  # before it has begun
        assert main(["index", str(tiny_run), str(photos), "--out", str(tmp_path / "j")]) == 130
    assert Index.open(tmp_path / "j").own_folder == photos


def test_shards_from_elsewhere_are_not_believed_either(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gaussmatch.search.embedding import EmbeddingManifest, index_embeddings

    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    none = {"items": 0, "ids": ""}
    galleries = {"images": none, "captions": none}
    EmbeddingManifest({}, {"folder": str(photos)}, 256, galleries).claim(tmp_path / "s")
    (tmp_path / "s").rename(tmp_path / "moved")
    for name, own in (("moved", None), ("s", photos)):
        index = Index.create(tmp_path / f"of-{name}", similarity="kl")
        index_embeddings(index, tmp_path / name, progress=False)
        assert (index.manifest.source, index.own_folder) == ({"folder": str(photos)}, own)
        (tmp_path / "moved").rename(tmp_path / "s") if name == "moved" else None


def test_audit_does_not_overwrite_the_photos_it_looks_at(tmp_path: Path, capsys) -> None:
    """Photos that are called as the audit calls its own copies."""
    pictures = tmp_path / "aud" / "pictures"
    pictures.mkdir(parents=True)
    for n in range(12):
        Image.new("RGB", (600, 600), (20 * n, 0, 0)).save(pictures / f"{n}.jpg")
    lines = [f"pictures/{n}.jpg,a photo of number {n}\n" for n in range(12)]
    (tmp_path / "aud" / "captions.csv").write_text("image,caption\n" + "".join(lines))
    before = everything(tmp_path)
    assert main(["audit", str(tmp_path / "aud"), "--out", str(tmp_path / "aud")]) == 2
    assert "is not empty (captions.csv)" in capsys.readouterr().err
    assert everything(tmp_path) == before


VERBS = {
    "audit": ["audit", "scenes", "--out", "OUT"],
    "evaluate": ["evaluate", "RUN", "--out", "ABOVE"],
    "export": ["export", "RUN", "--onnx", "OUT"],
    "embed": ["embed", "RUN", "test", "--out", "OUT"],
    "extract": ["extract", "OUT", "--out", "OUT"],
    "reproduce": ["reproduce", "coco", "--data", "scenes", "--fast", "--out", "OUT"],
    "adapt": ["adapt", "--images", "i", "--texts", "t", "--pairs", "p", "--out", "OUT"],
    "train": ["train", "scenes/vsepp-kl", "--out", "OUT"],
    "import": ["import", "model.pth", "--out", "OUT"],
    "compare": ["compare", "scenes/vsepp-kl", "--out", "OUT"],
    "tune": ["tune", "flickr8k", "--out", "OUT"],
    "demo": ["demo", "--out", "OUT", "--data.size", "tiny"],
    "probe": ["probe", "RUN", "--plots", "OUT"],
    "index": ["index", "RUN", "--split", "test", "--out", "OUT"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_an_out_with_anything_foreign_is_refused(
    verb: str, tmp_path: Path, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    (out / "pictures").mkdir(parents=True)
    (out / "pictures" / "1.jpg").write_bytes(b"mine")
    places = {"OUT": str(out), "ABOVE": str(tmp_path), "RUN": str(tiny_run)}
    assert main([places.get(word, word) for word in VERBS[verb]]) == 2
    assert f"{out} is not empty (pictures)" in capsys.readouterr().err
    assert everything(tmp_path) == {out / "pictures" / "1.jpg": b"mine"}


def test_what_somebody_put_beside_our_files_is_not_overwritten(tmp_path: Path) -> None:
    claim_folder(tmp_path, names=["audit.csv"])
    claim_folder(tmp_path, names=["audit.csv", "pictures/1.jpg"])  # again, with more
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "2.jpg").touch()
    claim_folder(tmp_path, names=["audit.csv"])
    with pytest.raises(FileExistsError, match=r"2\.jpg was not written by gaussmatch"):
        claim_folder(tmp_path, names=["pictures/2.jpg"])
    with pytest.raises(FileExistsError, match="is a file"):
        claim_folder(tmp_path / "pictures" / "2.jpg")


def test_two_runs_of_one_name_do_not_share_a_folder(tmp_path: Path, tiny_run: Path, capsys) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / tiny_run.name).symlink_to(tiny_run)
    runs = [str(tiny_run), str(tmp_path / "other" / tiny_run.name)]
    with pytest.raises(SystemExit):
        main(["evaluate", *runs, "--out", str(tmp_path / "out")])
    assert "two runs have the same name" in capsys.readouterr().err


def test_the_attacks_of_the_benchmark_do_no_harm() -> None:
    """A few tries of those that cost little; benchmarks/hostile_files.py makes hundreds of all."""
    pytest.importorskip("faiss", reason="needs the extra 'search'")
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    cheap = ["names in an index", "source folder", "lying tensors", "wrong json", "formulas"]
    cheap += ["onnx elsewhere", "bad checkpoint", "read only"]
    command = [sys.executable, "benchmarks/hostile_files.py", "--tries", "6", "--only", *cheap]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("location", ["in.bin", "../secret.bin", "{}/secret.bin"])
def test_an_onnx_file_reads_no_other_file(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    (tmp_path / "m").mkdir()
    for name in ("m/in.bin", "secret.bin"):
        np.eye(4, dtype=np.float32).tofile(tmp_path / name)
    pointing(tmp_path / "m" / "a.onnx", location.format(tmp_path))
    monkeypatch.chdir(tmp_path / "m")  # where onnxruntime looks for them
    with pytest.raises(
        ValueError, match=r"a\.onnx: onnxruntime cannot read it .*External data path"
    ):
        Network(tmp_path / "m" / "a.onnx")


@pytest.mark.parametrize(
    "words",
    [
        ["probe", "RUN", "--json", "FILE"],
        ["calibrate", "RUN", "--out", "FILE"],
        ["data", "check", "PHOTOS", "--sheet", "FILE"],
        ["scenes", "pretrain", "--out", "FILE"],
    ],
)
def test_no_verb_replaces_a_file_of_the_user(tmp_path: Path, tiny_run: Path, words, capsys) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 30)).save(tmp_path / "photos" / "a.jpg")
    (tmp_path / "photos" / "captions.csv").write_text("image,caption\na.jpg,a dog\n")
    given = {"RUN": str(tiny_run), "FILE": str(mine), "PHOTOS": str(tmp_path / "photos")}
    assert main([given.get(word, word) for word in words]) == 2
    assert "mine.txt was not written by gaussmatch" in capsys.readouterr().err
    assert mine.read_text() == "mine"
