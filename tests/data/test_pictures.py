"""Pictures: allowed formats only, upright, large ones at reduced scale, memory that is bounded."""

from __future__ import annotations

import io
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from data.files import photo
from PIL import Image, ImageDraw

from gaussmatch.data import decoder
from gaussmatch.data.pictures import (
    Bounds,
    Decoders,
    TooLargeError,
    open_picture,
    picture_size,
    read_picture,
)

POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


def saved(path: Path, format: str, size: tuple[int, int] = (6, 4), **options: object) -> Path:
    Image.new("RGB", size, (200, 10, 10)).save(path, format, **options)
    return path


@pytest.mark.parametrize("format", decoder.FORMATS)
def test_each_allowed_format_is_read_as_rgb(tmp_path: Path, format: str) -> None:
    if format == "HEIF":
        pytest.importorskip("pillow_heif")
    found = open_picture(saved(tmp_path / "a.jpg", format, (64, 48)))  # the name says nothing
    assert (found.mode, found.size) == ("RGB", (64, 48))
    red, green, _ = found.getpixel((30, 20))  # type: ignore[misc]
    assert red > 150 > green


def test_postscript_never_reaches_ghostscript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("started"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    path = tmp_path / "a.jpg"
    path.write_bytes(POSTSCRIPT)
    with pytest.raises(ValueError, match=r"a\.jpg: .*its content is not JPEG, PNG"):
        open_picture(path)
    with pytest.raises(ValueError, match=r"a\.jpg"):
        picture_size(path)


@pytest.mark.parametrize("format", ["DDS", "PPM", "TGA", "ICO", "PCX"])
def test_other_formats_are_refused_whatever_they_are_called(tmp_path: Path, format: str) -> None:
    with pytest.raises(ValueError, match="its content is not"):
        open_picture(saved(tmp_path / "a.jpg", format, (16, 16)))


def test_an_empty_file_and_heic_without_its_extra_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.init()
    monkeypatch.setattr(Image, "OPEN", {k: v for k, v in Image.OPEN.items() if k != "HEIF"})
    path = tmp_path / "a.jpg"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="the file is empty"):
        open_picture(path)
    path.write_bytes(b"\0\0\0\x18ftypheic" + bytes(99))
    with pytest.raises(ValueError, match=r"HEIC needs pip install 'gaussmatch\[heic\]'"):
        open_picture(path)
    path.write_bytes(b"\0\0\0\x18ftypisom" + bytes(99))  # a film
    with pytest.raises(ValueError, match="its content is not JPEG"):
        open_picture(path)


def test_a_jpeg_cut_short(tmp_path: Path) -> None:
    path = photo(tmp_path / "cut.jpg")
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(ValueError, match=r"cut\.jpg: cannot be decoded"):
        open_picture(path)


def test_what_a_decoder_says_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(file: object) -> None:
        raise OSError("invalid box:\n  size exceeds limit")  # as libheif says it

    monkeypatch.setattr(decoder, "_open", broken)
    with tempfile.TemporaryFile() as file:
        told, picture = decoder._read(file, True, 1, 1)
    assert picture is None
    assert told == {"error": "cannot be decoded as an image (invalid box: size exceeds limit)"}


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_upright(tmp_path: Path, format: str, orientation: int) -> None:
    """However it was stored, the red corner is on the upper left."""
    upright = Image.new("RGB", (40, 20), "blue")
    ImageDraw.Draw(upright).rectangle((0, 0, 9, 9), "red")
    stored = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }.get(orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "a.jpg"
    (upright if stored is None else upright.transpose(stored)).save(path, format, exif=exif)
    found = open_picture(path)
    assert found.size == picture_size(path) == (40, 20)
    red, _, blue = found.getpixel((3, 3))  # type: ignore[misc]
    assert red > 200 > blue
    red, _, blue = found.getpixel((36, 16))  # type: ignore[misc]
    assert red < 50 < blue


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF"])
def test_a_large_picture_is_reduced(tmp_path: Path, format: str) -> None:
    """Its content stays where it was, and an orientation counts."""
    large = Image.new("RGB", (3000, 2001), "blue")
    ImageDraw.Draw(large).rectangle((0, 0, 1499, 999), "red")
    exif = Image.Exif()
    exif[0x0112] = 3
    large.rotate(180).save(tmp_path / "a", format, **({} if format == "GIF" else {"exif": exif}))
    found = open_picture(tmp_path / "a")
    assert found.size in ((1500, 1000), (1500, 1001))
    if format == "GIF":
        found = found.rotate(180)
    for (x, y), colour in {(740, 490): "red", (760, 490): "blue", (740, 510): "blue"}.items():
        red, _, blue = found.getpixel((x, y))  # type: ignore[misc]
        assert (red > blue) == (colour == "red"), (x, y)


def test_an_ordinary_picture_is_not_changed(tmp_path: Path) -> None:
    path = photo(tmp_path / "a.jpg")
    with Image.open(path) as image:
        assert open_picture(path).tobytes() == image.convert("RGB").tobytes()


def one_colour_png(width: int, height: int, depth: int, colour_type: int) -> bytes:
    """A PNG of any size in little time and space."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        whole = kind + data
        return struct.pack(">I", len(data)) + whole + struct.pack(">I", zlib.crc32(whole))

    channels = {0: 1, 2: 3, 3: 1}[colour_type]
    row = bytes(1 + (width * depth * channels + 7) // 8)
    squeeze = zlib.compressobj(1)
    data = b"".join(squeeze.compress(row) for _ in range(height)) + squeeze.flush()
    head = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    palette = chunk(b"PLTE", bytes(6)) if colour_type == 3 else b""
    chunks = chunk(b"IHDR", head), palette, chunk(b"IDAT", data), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_a_picture_that_needs_too_much_memory_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "bomb.png"
    head = one_colour_png(1, 1, 8, 2)
    bomb.write_bytes(head[:16] + struct.pack(">II", 60_000, 60_000) + head[24:])
    data = bytearray(bomb.read_bytes())
    data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    bomb.write_bytes(data)
    with pytest.raises(TooLargeError, match=r"bomb\.png: 60000 × 60000 pixels as PNG need .* JPEG"):
        open_picture(bomb)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
    monkeypatch.setattr(Image.Image, "crop", lambda *_: pytest.fail("decoded"))
    with bomb.open("rb") as file, pytest.raises(TooLargeError), decoder.opened(file) as image:
        decoder.check(image, 2**29)


MEASURE = """
import importlib.util, re, sys
spec = importlib.util.spec_from_file_location("decoder", sys.argv[1])  # without torch
decoder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(decoder)

def decoded(path):
    with open(path, "rb") as file, decoder.opened(file) as image:
        return decoder.decode(image)

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

decoded(sys.argv[2])  # the codec is loaded
with open(sys.argv[3], "rb") as file, decoder.opened(file) as image:
    bound = decoder.memory(image)
before = peak()
picture = decoded(sys.argv[3])
print(peak() - before, bound, *picture.size)
"""
SLACK = 8 * 2**20  # of the allocator


def measured(small: Path, large: Path) -> tuple[int, int, int, int]:
    """Bytes at the peak of decoding, the bound that was known before, and the size of the result;
    in a process of its own."""
    command = [sys.executable, "-c", MEASURE, str(decoder.__file__), str(small), str(large)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak, bound, width, height = map(int, printed.split())
    return peak, bound, width, height


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")


@linux
@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True, "subsampling": 0}),
        ("PNG", {}),
        ("WEBP", {}),
        ("GIF", {}),
        ("BMP", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_decoding_takes_no_more_memory_than_was_said(
    tmp_path: Path, format: str, options: dict[str, object]
) -> None:
    small = saved(tmp_path / "small", format, (8, 8), **options)
    large = saved(tmp_path / "large", format, (4000, 4000), **options)
    peak, bound, _, _ = measured(small, large)
    assert peak <= bound + SLACK


@linux
def test_a_jpeg_of_108_megapixels_takes_little_memory(tmp_path: Path) -> None:
    small = saved(tmp_path / "small", "JPEG", (8, 8))
    large = tmp_path / "large"
    Image.new("L", (12_000, 9_000), 128).save(large, "JPEG", quality=30)
    peak, _, width, height = measured(small, large)
    assert (width, height) == (1500, 1125)
    assert peak < 60 * 2**20


@linux
def test_a_one_bit_png_of_100_megapixels_takes_a_byte_a_pixel(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(one_colour_png(8, 8, 1, 0))
    large.write_bytes(one_colour_png(10_000, 10_000, 1, 0))
    assert large.stat().st_size < 100_000
    peak, _, width, height = measured(small, large)
    assert (width, height) == (1250, 1250)
    assert peak < 160 * 2**20  # as RGB it would be 400 MB


def encoded(format: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 48), (200, 10, 10)).save(file, format, **options)
    return file.getvalue()


def test_bytes_are_decoded_as_files_are() -> None:
    with closing(Decoders()) as decoders:
        assert decoders.read(encoded("PNG")).picture.size == (64, 48)


@pytest.mark.parametrize("size", [(1, 2**30), (2**30, 2), (4097, 4095)])
def test_thin_pictures_are_reduced_too(size: tuple[int, int]) -> None:
    image = Image.Image()
    image._size = size
    factor = decoder.reduction(image)
    assert -(-size[0] // factor) * -(-size[1] // factor) < 4 * decoder.ENOUGH


# ---- files that take more than their head says ----


def text_chunks() -> bytes:
    """A PNG with 63 texts of a megabyte each, in 70 KB."""
    whole, text = encoded("PNG"), zlib.compress(bytes(10**6), 9)
    chunks = [b"iTXt%d\0\1\0\0\0" % k + text for k in range(63)]
    sized = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in chunks]
    return whole[:33] + b"".join(sized) + whole[33:]


def large_tile() -> bytes:
    """A TIFF of 16 × 16 pixels with one tile of 32768 × 6144."""
    squeeze = zlib.compressobj(9)
    tile = b"".join(squeeze.compress(bytes(2**20)) for _ in range(192)) + squeeze.flush()
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: 32768, 323: 6144}
    tags |= {324: 8, 325: len(tile)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, n) for tag, n in sorted(tags.items()))
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8 + len(tile)) + tile + directory


def many_scans(scans: int = 40_000) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    file = io.BytesIO()
    noise = Image.effect_noise((2000, 2000), 60)
    noise.save(file, "JPEG", progressive=True, quality=20)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    head = data[last : last + 2 + struct.unpack(">H", data[last + 2 : last + 4])[0]]
    return data[:-2] + head * scans + data[-2:]


@linux
@pytest.mark.parametrize("make", [text_chunks, large_tile])
def test_no_picture_takes_more_than_its_memory(make: Callable[[], bytes]) -> None:
    """Both are estimated at 0 MiB by their heads."""
    with closing(Decoders(Bounds(memory=48 * 2**20))) as decoders:
        with pytest.raises(TooLargeError, match="takes more than 48 MiB"):
            decoders.read(make())
        assert decoders.read(encoded("PNG")).size == (64, 48)  # by the next child


@linux
def test_a_limit_of_the_machine_is_kept() -> None:
    """Raising it (``ulimit -v``) is an error for all but root, whom it would escape."""
    with closing(Decoders()) as decoders:
        decoders.read(encoded("PNG"))
        (child,) = decoders._idle
        limit = (2**30, 2**30)
        resource.prlimit(child.process.pid, resource.RLIMIT_AS, limit)
        decoders.read(encoded("PNG"))
        assert decoders._idle == [child]
        soft, hard = resource.prlimit(child.process.pid, resource.RLIMIT_AS)
        assert soft < hard == limit[1]
        decoders.bounds = Bounds(memory=2**40)
        decoders.read(encoded("PNG"))
        assert resource.prlimit(child.process.pid, resource.RLIMIT_AS) == limit


def test_no_picture_takes_more_than_its_time() -> None:
    with closing(Decoders(Bounds(seconds=0.5))) as decoders:
        with pytest.raises(TooLargeError, match=r"takes longer than 0\.5 s; save it again"):
            decoders.read(many_scans())
        decoders.bounds = Bounds()
        assert decoders.read(encoded("JPEG")).size == (64, 48)


def test_decoders_stop_at_once_even_if_busy() -> None:
    decoders = Decoders(Bounds(seconds=600))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(decoders.read, many_scans())
        while not decoders._busy:
            time.sleep(0.001)
        (child,) = decoders._busy
        decoders.close()
        with pytest.raises(ValueError, match="its decoder was stopped"):
            reading.result(timeout=60)
    assert child.process.returncode == -signal.SIGKILL
    with pytest.raises(ValueError, match="being stopped"):
        decoders.read(encoded("PNG"))


def test_a_crash_ends_one_child_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash, lines = tmp_path / "crash.py", ["import os, socket", "socket.socket(fileno=0).recv(9)"]
    crash.write_text("\n".join([*lines, "os.kill(os.getpid(), 11)"]))
    with closing(Decoders()) as decoders:
        with monkeypatch.context() as patched:
            patched.setattr(decoder, "__file__", str(crash))
            with pytest.raises(ValueError, match="the decoder died: Segmentation fault"):
                decoders.read(encoded("PNG"))
            crash.write_text("raise SystemExit(3)")
            with pytest.raises(RuntimeError, match=r"exit code 3.*crash\.py"):
                decoders.read(encoded("PNG"))
        assert decoders.read(encoded("PNG")).size == (64, 48)


def test_children_are_used_again_and_not_shared_after_a_fork(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.png", "PNG")
    with closing(Decoders()) as decoders:
        decoders.open(path)
        (first,) = decoders._idle
        assert decoders.open(path, pixels=False).size == (6, 4)
        assert decoders._idle == [first]
        decoders._forget()
        assert decoders.open(path).size == (6, 4)
        assert decoders._idle != [first]
        first.process.wait()  # its link is closed


def test_metadata_comes_with_the_picture(tmp_path: Path) -> None:
    picture, size, said = read_picture(photo(tmp_path / "a.jpg", 1, (64, 48)))
    assert (picture.size, size) == ((64, 48), (64, 48))
    assert said == {}
