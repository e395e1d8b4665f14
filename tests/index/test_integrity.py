"""Damage is noticed, a backup is of one moment, an older format is read, writers wait."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from index.contract import clustered, records

from gaussmatch.apps.cli import main
from gaussmatch.files import locked as lock_file
from gaussmatch.models import run
from gaussmatch.search import Index, IndexSettings, Record, backup, merge
from gaussmatch.search.backends.folder import folder
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


CUT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from index.contract import clustered
from gaussmatch.search import Index
from gaussmatch.search.backends.folder.segment import Segment

index, queries = Index.open(sys.argv[1]), clustered(9, seed=1)
before = [hits.ids for hits in index.search(queries, 5)]
for path in sorted(Path(sys.argv[1]).glob("segments/*/*")):
    whole = path.read_bytes()
    path.open("r+b").truncate(0)
    for read in (lambda: index.search(queries, 5), lambda: index.get("i1"), lambda: index.some(5)):
        try:
            read()
        except ValueError as error:
            assert path.name in str(error), error
        else:
            raise AssertionError(path)
    path.write_bytes(whole)
assert [hits.ids for hits in index.search(queries, 5)] == before
Segment.check = lambda segment: None  # now it is cut after the check, within a search
for path in sorted(Path(sys.argv[1]).glob("segments/*/*")):
    whole = path.read_bytes()
    path.open("r+b").truncate(0)
    try:
        index.search(queries, 5)
    except ValueError as error:
        assert path.name in ("items.sqlite", "records.jsonl"), error
    path.write_bytes(whole)
print("alive")
"""


def test_a_file_that_is_cut_while_it_is_open_does_not_end_the_process(tmp_path: Path):
    """To read beyond the end of a memory map would (SIGBUS), hence a process of its own."""
    made(tmp_path / "i")
    words = [sys.executable, "-c", CUT, str(tmp_path / "i"), str(Path(__file__).parent.parent)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr


def test_a_calibration_that_is_gone_is_named_and_an_open_one_stays(tmp_path: Path):
    index = made(tmp_path / "i")
    assert index.calibration.about == {"a": 1}
    (tmp_path / "i" / "calibration.json").unlink()
    with pytest.raises(ValueError, match=r"calibration\.json: No such file.*restore"):
        Index.open(tmp_path / "i").search(clustered(1), 1)
    other = Index.open(tmp_path / "i")
    other.delete(["i5"])
    assert index.reload()
    assert index.calibration.about == {"a": 1}
    assert index.search(clustered(1), 1)


@pytest.mark.parametrize("fails", ["_join", "sweep"])
def test_what_fails_after_a_change_counts_is_told_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
):
    """The items are in the index, so ``add`` has not failed."""
    index = Index.create(tmp_path / "i", similarity="kl")
    for n in range(16):
        index.add(clustered(1), records(n, n + 1))

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        if fails == "_join":
            patch.setattr(Folder, "_join", full)
        else:
            sweeps = iter([folder.sweep])  # before the change; then the disk is broken
            patch.setattr(folder, "sweep", lambda *given: next(sweeps, full)(*given))
        with pytest.warns(UserWarning, match="the change is made, but .* No space left"):
            index.add(clustered(1), records(16, 17))
    assert "i16" in index
    assert len(Index.open(tmp_path / "i")) == 17
    index.add(clustered(1), records(17, 18))
    assert len(Index.open(tmp_path / "i")) == 18


def test_a_damaged_run_is_refused_before_anything_is_made(tmp_path: Path, tiny_run: Path, capsys):
    """Also what is read last, after all items were encoded."""
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "run" / "calibration.json").write_text("{}")
    run.seal(tmp_path / "run", "calibration.json")
    (tmp_path / "run" / "calibration.json").write_text("{ }")
    assert main(["index", str(tmp_path / "run"), "--out", str(tmp_path / "i")]) == 2
    assert "calibration.json" in capsys.readouterr().err
    assert not (tmp_path / "i").exists()
