"""Checkpoints of others: all formats of torch are read, nothing in them is run."""

from __future__ import annotations

import argparse
import io
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from official.gadgets import NAMES, gadgets
from official.layouts import legacy, save, zipped

from gaussmatch.models.official.checkpoint import read_checkpoint


@pytest.mark.parametrize("how", ["zip", "legacy", "python2"])
def test_all_formats(tmp_path: Path, how: str) -> None:
    state = OrderedDict(a=torch.randn(2, 3), b=torch.arange(4))
    opt = argparse.Namespace(margin=0.2, name="coco", none=None, flag=True, many=[1, 2])
    path = save(tmp_path / "x.pth.tar", {"model": [state, state], "opt": opt, "epoch": 3}, how)
    assert (how == "python2") == (b"U\x06margin" in path.read_bytes())
    found = read_checkpoint(path)
    assert found["opt"] == vars(opt)
    assert found["epoch"] == 3
    for part in found["model"]:
        assert torch.equal(part["a"], state["a"])
        assert torch.equal(part["b"], state["b"])


def test_weights_of_a_gpu(tmp_path: Path) -> None:
    """Storages of ``torch.cuda`` on device cuda:0 land on the CPU."""
    path = save(tmp_path / "x.pth.tar", {"a": torch.arange(3.0)}, "legacy")
    data = path.read_bytes().replace(b"ctorch\nFloatStorage", b"ctorch.cuda\nFloatStorage")
    path.write_bytes(data.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0"))
    assert read_checkpoint(path)["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("how", ["zip", "legacy"])
def test_numbers_of_numpy(tmp_path: Path, how: str) -> None:
    numbers = {
        "rsum": np.float64(431.25), "f": np.float32(0.5), "i": np.int64(-7), "b": np.bool_(True),
        "big": np.float64(3).astype(">f8"),
    }  # fmt: skip
    found = read_checkpoint(save(tmp_path / "x.pth", dict(numbers), how))
    assert found == {name: value.item() for name, value in numbers.items()}
    assert {type(value) for value in found.values()} == {float, int, bool}
    with pytest.raises(ValueError, match="not a plain number"):
        read_checkpoint(save(tmp_path / "y.pth", {"a": np.str_("text")}, how))


@pytest.mark.parametrize("wrap", [zipped, legacy])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_run(tmp_path: Path, name: str, wrap: object) -> None:
    target, path = tmp_path / "touched", tmp_path / "x.pth.tar"
    path.write_bytes(wrap(gadgets(target)[name]))  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"x\.pth\.tar: .*nothing was run"):
        read_checkpoint(path)
    assert not target.exists()


class Call:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("run",)


@pytest.mark.parametrize("how", ["zip", "legacy"])
def test_what_is_referred_to_is_named(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"model": [{}, {}], "opt": argparse.Namespace(margin=Call())}
    path = save(tmp_path / "x.pth.tar", content, how)
    with pytest.raises(ValueError, match=r"refused: it refers to print, .* nothing was run"):
        read_checkpoint(path)
    assert capsys.readouterr().out == ""


def test_options_are_named_values(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    path.write_bytes(zipped(b"\x80\x02}X\x03\0\0\0optcargparse\nNamespace\n)\x81K\x01bs."))
    with pytest.raises(ValueError, match="options that are not named values"):
        read_checkpoint(path)


def test_a_bomb(tmp_path: Path) -> None:
    path, whole = tmp_path / "x.pth", io.BytesIO()
    torch.save({"a": torch.zeros(100_000)}, whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    with pytest.raises(ValueError, match=r"refused: [\d,]+ bytes that unpack to 40\d,\d+"):
        read_checkpoint(path)


@pytest.mark.parametrize("how", ["zip", "legacy"])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
def test_a_file_cut_short(tmp_path: Path, how: str, part: float) -> None:
    path = save(tmp_path / "x.pth", {"a": torch.zeros(1000)}, how)
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    with pytest.raises(ValueError, match=r"x\.pth: "):
        read_checkpoint(path)


def test_an_archive_that_spans_disks(tmp_path: Path) -> None:
    """Which ``zipfile`` refuses as soon as it is asked whether it is one."""
    path = save(tmp_path / "x.pth.tar", {"a": torch.arange(3.0)}, "zip")
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x06\x07")
    data[at + 16 : at + 20] = (2).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"not a complete checkpoint .*multiple disks"):
        read_checkpoint(path)


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="holds a list"):
        read_checkpoint(tmp_path / "list.pth")
    import tarfile

    with tarfile.open(tmp_path / "old.pth.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("storages"))
    with pytest.raises(ValueError, match=r"torch before 0\.1\.10"):
        read_checkpoint(tmp_path / "old.pth.tar")
