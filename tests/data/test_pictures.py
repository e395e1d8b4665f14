"""Pictures that cannot or must not be decoded are refused with their name."""

from __future__ import annotations

from pathlib import Path

import pytest
from data.files import photo
from PIL import Image

from gaussmatch.data.pictures import open_picture


def test_a_decompression_bomb(tmp_path: Path) -> None:
    """A file of 50 kB that would fill 1.2 GB as RGB."""
    bomb = tmp_path / "bomb.png"
    Image.new("1", (20_000, 20_000)).save(bomb)
    assert bomb.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"bomb\.png: cannot be decoded"):
        open_picture(bomb)


def test_a_jpeg_cut_short(tmp_path: Path) -> None:
    path = photo(tmp_path / "cut.jpg")
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"cut\.jpg: cannot be decoded"):
        open_picture(path)
