"""Nothing is ever removed that this program did not write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from index.contract import clustered, records

from gaussmatch.apps.cli import main
from gaussmatch.files import made_once
from gaussmatch.search import Index, merge
from gaussmatch.search.backends.folder.layout import MARKER, discard


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def made(path: Path, start: int = 0) -> Index:
    index = Index.create(path, similarity="kl")
    index.add(clustered(10), records(start, start + 10))
    return index


def test_out_around_the_run_is_refused(tiny_run: Path, tmp_path: Path, capsys):
    (tmp_path / "work").mkdir()
    run = tmp_path / "work" / "run"
    run.symlink_to(tiny_run)
    before = everything(tiny_run)
    assert main(["index", str(run), "--split", "dev", "--out", str(run.parent)]) != 0
    assert "is not empty (run)" in capsys.readouterr().err
    assert main(["index", str(run), "--split", "dev", "--out", str(run)]) != 0
    assert everything(tiny_run) == before


@pytest.mark.parametrize("name", ["segments/tax.txt", "run/recipe.yaml", ".git/HEAD", ".lock"])
def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path, name: str):
    mine = tmp_path / "mine" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("x")
    with pytest.raises(FileExistsError, match="is not empty"):
        Index.create(tmp_path / "mine", similarity="kl")
    assert everything(tmp_path) == {mine: b"x"}


def test_out_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError, match="is a file"):
        Index.create(tmp_path / "file", similarity="kl")


def test_changes_leave_foreign_files_alone(tmp_path: Path):
    index = made(tmp_path / "i")
    index.add(clustered(5), records(10, 15))
    old = [tmp_path / "i" / "segments" / part.name for part in index.manifest.galleries["images"]]
    foreign = [
        tmp_path / "i" / "segments" / "tax.txt",
        tmp_path / "i" / "segments" / "2024" / "mean.npy",
        tmp_path / "i" / ".manifest.json.swp",
        tmp_path / "i" / "notes" / "manifest.json",
        old[0] / "notes.txt",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    index.delete(["i3"])
    index.compact()
    index.add(clustered(5), records(20, 25))
    assert not old[1].exists()
    assert {path.name for path in old[0].iterdir()} == {"notes.txt"}
    assert Index.open(tmp_path / "i").size() == 19
    discard(tmp_path / "i")
    assert everything(tmp_path / "i") == dict.fromkeys(sorted(foreign), b"mine")


def test_what_is_no_index_is_not_discarded(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").touch()
    discard(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")  # of a web page, say
    with pytest.raises(ValueError, match="format None"):
        discard(tmp_path)
    assert len(everything(tmp_path)) == 2


def test_a_merge_touches_only_its_own_leftovers(tmp_path: Path):
    a, b = made(tmp_path / "a"), made(tmp_path / "b", 10)
    work = tmp_path / ".c.building"
    work.mkdir()
    (work / "mine.txt").write_text("x")
    with pytest.raises(FileExistsError, match=r"mine\.txt"):
        merge(tmp_path / "c", [a.place, b.place])
    assert [path.name for path in work.iterdir()] == ["mine.txt"]
    (work / "mine.txt").unlink()
    made(work)  # of a merge that was killed
    assert merge(tmp_path / "c", [a.place, b.place]).size() == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


MERGE = """
import sys
from gaussmatch.search import merge
print("ready", flush=True)
sys.stdin.readline()
try:
    merge(sys.argv[1], sys.argv[2:], progress=False)
except OSError as error:
    sys.exit(str(error))
"""


def test_of_two_merges_into_one_folder_one_succeeds(tmp_path: Path):
    sources = [str(made(tmp_path / name, 10 * n).place) for n, name in enumerate("ab")]
    command = [sys.executable, "-c", MERGE, str(tmp_path / "c"), *sources]
    pipe = subprocess.PIPE
    both = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None
        process.stdout.readline()
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    errors = [process.communicate()[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    assert "another process" in "".join(errors) or "exists" in "".join(errors)
    assert Index.open(tmp_path / "c").size() == 20


def test_an_index_is_marked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Dead(BaseException):
        pass

    def die(*_args: object) -> None:
        raise Dead

    with monkeypatch.context() as patched:
        patched.setattr("gaussmatch.search.backends.folder.layout.save_manifest", die)
        with pytest.raises(Dead):
            Index.create(tmp_path / "i", similarity="kl")
    assert (tmp_path / "i" / MARKER).exists()
    assert made(tmp_path / "i").size() == 10


def test_a_cache_leaves_a_foreign_folder_alone(tmp_path: Path):
    (tmp_path / "scenes").mkdir()
    (tmp_path / "scenes" / "mine.txt").touch()
    with pytest.raises(FileExistsError, match="gaussmatch did not make it"):
        made_once(tmp_path / "scenes", lambda folder: None)
    assert (tmp_path / "scenes" / "mine.txt").exists()
