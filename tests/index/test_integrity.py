"""Damage is noticed, a backup is of one moment, an older format is read, writers wait."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from index.contract import clustered, records

from gaussmatch.apps.cli import main
from gaussmatch.files import locked as lock_file
from gaussmatch.search import Index, IndexSettings, Record, backup, merge
from gaussmatch.search.backends.folder.folder import Folder
from gaussmatch.search.trust import Calibration


def made(path: Path) -> Index:
    settings = IndexSettings(structure="hnsw", flat_below=20)
    index = Index.create(path, similarity="kl", settings=settings)
    index.add(clustered(30), records(0, 30))
    index.add(clustered(5), records(30, 35))
    index.delete(["i3"])
    index.set_calibration(Calibration(about={"a": 1}))
    return index


def files(path: Path) -> list[Path]:
    empty = (".lock", ".gaussmatch-index")
    return sorted(p for p in path.rglob("*") if p.is_file() and p.name not in empty)


def test_a_flipped_bit_in_any_file_is_named(tmp_path: Path, capsys):
    made(tmp_path / "i")
    assert len(files(tmp_path / "i")) > 15
    for path in files(tmp_path / "i"):
        whole = path.read_bytes()
        content = bytearray(whole)
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name):
            Index.open(tmp_path / "i", verify=True)
        path.write_bytes(whole)
    assert main(["index", "verify", str(tmp_path / "i")]) == 0
    assert "intact: " in capsys.readouterr().out
    path = next(p for p in files(tmp_path / "i") if p.name == "mean.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert main(["index", "verify", str(tmp_path / "i")]) == 2
    assert "mean.npy" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["compact", "merge", "backup"])
def test_what_is_read_to_be_written_again_is_verified(tmp_path: Path, change: str):
    index = made(tmp_path / "i")
    path = next(p for p in files(tmp_path / "i") if p.name == "log_var.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    changes = {
        "compact": index.compact,
        "merge": lambda: merge(tmp_path / "j", [index.place], progress=False),
        "backup": lambda: backup(tmp_path / "j", index.place),
    }
    with pytest.raises(ValueError, match=r"log_var\.npy"):
        changes[change]()
    assert not (tmp_path / "j").exists()


def test_backup_and_restore(tmp_path: Path, capsys):
    index = made(tmp_path / "i")
    queries = clustered(3, seed=1)
    before = index.search(queries, 40)
    assert main(["index", "backup", index.place, str(tmp_path / "b")]) == 0
    names = {p.relative_to(tmp_path / "i") for p in files(tmp_path / "i")}
    assert {p.relative_to(tmp_path / "b") for p in files(tmp_path / "b")} == names
    index.delete(["i0"])
    assert main(["index", "restore", str(tmp_path / "b"), index.place]) == 2  # it is there
    index.drop()
    assert main(["index", "restore", str(tmp_path / "b"), index.place]) == 0
    capsys.readouterr()
    again = Index.open(index.place, verify=True)
    assert again.search(queries, 40) == before
    again.add(clustered(1), [Record("new")])
    assert Index.open(tmp_path / "b").size() == 34


def test_a_backup_while_segments_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    index, reader = made(tmp_path / "i"), Index.open(tmp_path / "i")
    copy_to, times = Folder._copy_to, []

    def slow(self: Folder, target: Path) -> None:
        times.append(1)
        if len(times) == 1:
            copy_to(self, target)
            index.compact()  # its segments are gone now
            raise FileNotFoundError
        copy_to(self, target)

    monkeypatch.setattr(Folder, "_copy_to", slow)
    assert reader.backend.copy(str(tmp_path / "b"))
    copy = Index.open(tmp_path / "b", verify=True)
    assert (len(times), copy.size()) == (2, 34)
    assert len(list((tmp_path / "b" / "segments").iterdir())) == 1


def test_an_index_of_the_format_before_is_read_and_converted(tmp_path: Path):
    index = made(tmp_path / "i")
    queries = clustered(3, seed=1)
    before = index.search(queries, 40)
    manifest = tmp_path / "i" / "manifest.json"
    old = json.loads(manifest.read_text())
    del old["sha256"], old["files"]
    for parts in old["galleries"].values():
        for part in parts:
            part["files"] = {name: mark["size"] for name, mark in part["files"].items()}
            del part["deleted_mark"]
    manifest.write_text(json.dumps({**old, "format": 2}))
    (tmp_path / "i" / ".gaussmatch-index").unlink()
    index = Index.open(tmp_path / "i", verify=True)
    assert index.search(queries, 40) == before
    assert index.calibration.about == {"a": 1}
    index.compact()
    assert json.loads(manifest.read_text())["format"] == 5
    part = index.manifest.galleries["images"][0]
    assert all(mark.sha256 for mark in part.files.values())


def test_a_second_writer_waits_for_the_first(tmp_path: Path):
    index = made(tmp_path / "i")
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_file(tmp_path / "i" / ".lock", "busy"):
            held.set()
            release.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    index.backend.wait = 0
    with pytest.raises(OSError, match="another process is writing"):
        index.delete(["i0"])
    index.backend.wait = 60
    timer = threading.Timer(0.1, release.set)
    timer.start()
    index.delete(["i0"])
    other.join()
    timer.join()
    assert index.size() == 33
