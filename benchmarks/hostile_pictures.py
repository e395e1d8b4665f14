"""What does a hostile picture cost? Peak memory and time of each kind, against the stated budget.

    python benchmarks/hostile_pictures.py [--only NAME …] [--memory 128] [--seconds 3]
    python benchmarks/hostile_pictures.py --service INDEX [--parts kinds delays stops] [--runs 50]

Makes small files that take a lot, of every format that is read, and opens each through
``gaussmatch.data.pictures`` in a process of its own. A line is: the kind, the bytes of the file,
the peak over the process at rest and of it over the budget (this process and its child together,
each at its own peak; Linux only), the seconds, and what came out. Bounded: a kind takes at most
``--seconds`` and what it takes to make the file.

``--service`` does the same in three parts through what people use, with its limits as they are:

- kinds: each kind is uploaded to ``gaussmatch serve``, then asked for as a photo in full size, and
  all of them are indexed, two at a time; the peak is of the process and its children
- delays: two clients upload each kind without a pause for 8 s; what others wait, alone and then
- stops: ``--runs`` times, SIGTERM while both decoders are busy and four more uploads wait; it must
  end within its grace of 20 s. Then as often with a grace of 2 s, in which no decoder would end
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote, urlsplit

import torch
from PIL import Image
from service_attacks import Service, jpeg

from gaussmatch.apps.service.server import serve
from gaussmatch.apps.service.settings import Settings
from gaussmatch.data.decoder import MIB
from gaussmatch.data.pictures import Bounds, Decoders
from gaussmatch.search import Index
from gaussmatch.search.sources import DECODERS

KINDS: dict[str, Callable[[], bytes]] = {}


def kind(make: Callable[[], bytes]) -> Callable[[], bytes]:
    KINDS[make.__name__.replace("_", "-")] = make
    return make


warnings.filterwarnings("ignore", "Tag data larger")  # that is how it is meant


def encoded(format: str, size: tuple[int, int] = (64, 48), **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, 90).save(file, format, **options)
    return file.getvalue()


def many(format: str, frames: int, size: tuple[int, int]) -> bytes:
    """An animation."""
    file = io.BytesIO()
    few = [Image.new("RGB", size, (k % 256, k // 256, 7)) for k in range(frames)]
    few[0].save(file, format, save_all=True, append_images=few[1:])
    return file.getvalue()


def zeros(size: int) -> bytes:
    """Zeros, compressed: the same block over and over, and Adler-32 by its formula."""
    raw = zlib.compressobj(9, wbits=-15)
    block = raw.compress(bytes(MIB)) + raw.flush(zlib.Z_FULL_FLUSH)
    end = raw.compress(bytes(size % MIB)) + raw.flush()
    return b"\x78\xda" + block * (size // MIB) + end + struct.pack(">I", size % 65521 << 16 | 1)


# ---- JPEG ----


def after_start(segment: bytes, times: int) -> bytes:
    whole = encoded("JPEG")
    return whole[:2] + segment * times + whole[2:]


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def scans(times: int, size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.effect_noise(size, 60).save(file, "JPEG", progressive=True, quality=20)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    head = data[last : last + 2 + struct.unpack(">H", data[last + 2 : last + 4])[0]]
    return data[:-2] + head * times + data[-2:]


def exif(entries: int, count: int) -> bytes:
    """Tags that all hold the same bytes."""
    tags = b"".join(struct.pack("<HHII", 40000 + k, 1, count, 8) for k in range(entries))
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, entries) + tags + bytes(4)


@kind
def jpeg_empty_markers() -> bytes:
    return after_start(segment(0xE5, b""), 4_500_000)


@kind
def jpeg_comments() -> bytes:
    return after_start(segment(0xFE, b"x"), 3_000_000)


@kind
def jpeg_fill_bytes() -> bytes:
    whole = encoded("JPEG")
    return whole[:2] + b"\xff" * 18_000_000 + whole[2:]


@kind
def jpeg_large_segments() -> bytes:
    return after_start(segment(0xED, b"Photoshop 3.0\0" + bytes(65_000)), 280)


@kind
def jpeg_icc_parts() -> bytes:
    return after_start(segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(65_000)), 280)


@kind
def jpeg_quantization_tables() -> bytes:
    return after_start(segment(0xDB, b"\0" + bytes(range(1, 65))), 250_000)


@kind
def jpeg_250000_scans() -> bytes:
    return scans(250_000, (2000, 2000))


@kind
def jpeg_scans_of_50_megapixels() -> bytes:
    return scans(1000, (7000, 7000))


@kind
def jpeg_65500_square() -> bytes:
    whole = bytearray(encoded("JPEG"))
    at = whole.index(b"\xff\xc0")
    whole[at + 5 : at + 9] = struct.pack(">HH", 65_500, 65_500)
    return bytes(whole)


@kind
def jpeg_exif_overlapping_tags() -> bytes:
    return after_start(segment(0xE1, exif(5000, 60_000)[:65_000]), 1)


@kind
def jpeg_multi_picture() -> bytes:
    return many("MPO", 600, (200, 200))


# ---- PNG ----


SMALL = struct.pack(">IIBBBBB", 64, 48, 8, 2, 0, 0, 0)


def png(*chunks: tuple[bytes, bytes], head: bytes = SMALL, data: bytes = b"") -> bytes:
    body = data or zeros(48 * (1 + 64 * 3))
    parts = [(b"IHDR", head), *chunks, (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    )


@kind
def png_itxt_chunks() -> bytes:
    return png(*((b"iTXt", b"k%d\0\1\0\0\0" % k + zeros(MIB - 1)) for k in range(63)))


@kind
def png_ztxt_chunks() -> bytes:
    return png(*((b"zTXt", b"k%d\0\0" % k + zeros(MIB - 1)) for k in range(63)))


@kind
def png_icc_bomb() -> bytes:
    return png((b"iCCP", b"p\0\0" + zeros(900 * MIB)))


@kind
def png_empty_chunks() -> bytes:
    return png(*[(b"teSt", b"")] * 1_500_000)


@kind
def png_text_chunks() -> bytes:
    return png(*((b"tEXt", b"%d\0" % k) for k in range(900_000)))


@kind
def png_60000_square() -> bytes:
    return png(head=struct.pack(">IIBBBBB", 60_000, 60_000, 8, 6, 0, 0, 0))


@kind
def png_one_bit_400_megapixels() -> bytes:
    head = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    return png(head=head, data=zeros(20_000 * 2501))


@kind
def png_interlaced_100_megapixels() -> bytes:
    head = struct.pack(">IIBBBBB", 10_000, 10_000, 1, 0, 0, 0, 1)
    return png(head=head, data=zeros(14_000_000))


@kind
def png_more_data_than_pixels() -> bytes:
    return png(data=zeros(3000 * MIB))


@kind
def png_thin() -> bytes:
    head = struct.pack(">IIBBBBB", 1, 90_000_000, 1, 0, 0, 0, 0)
    return png(head=head, data=zeros(180_000_000))


@kind
def png_animated() -> bytes:
    return many("PNG", 300, (100, 100))


# ---- GIF, BMP, WebP ----


@kind
def gif_comment_blocks() -> bytes:
    whole = encoded("GIF")
    at = whole.index(b",", 13)
    return whole[:at] + (b"!\xfe" + b"\xff" + bytes(255) + b"\0") * 70_000 + whole[at:]


@kind
def gif_empty_extensions() -> bytes:
    whole = encoded("GIF")
    at = whole.index(b",", 13)
    return whole[:at] + b"!\xfe\0" * 6_000_000 + whole[at:]


@kind
def gif_frames() -> bytes:
    return many("GIF", 1000, (50, 50))


@kind
def gif_65535_square() -> bytes:
    whole = bytearray(encoded("GIF"))
    whole[6:10] = struct.pack("<HH", 65_535, 65_535)
    return bytes(whole)


@kind
def bmp_45000_square() -> bytes:
    whole = bytearray(encoded("BMP"))
    whole[18:26] = struct.pack("<ii", 45_000, 45_000)
    return bytes(whole)


@kind
def bmp_run_length() -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, 20_000, 20_000, 1, 8, 1, 4, 1, 1, 256, 0)
    start = 14 + len(head) + 1024
    return struct.pack("<2sIII", b"BM", start + 4, 0, start) + head + bytes(1024) + b"\0\1\0\1"


@kind
def webp_16383_square() -> bytes:
    return encoded("WEBP", (16_000, 16_000), lossless=True, method=0, quality=0)


@kind
def webp_frames() -> bytes:
    return many("WEBP", 100, (300, 300))


@kind
def webp_unknown_chunks() -> bytes:
    whole = encoded("WEBP", lossless=True)
    body = whole[8:] + b"JUNK\0\0\0\0" * 2_000_000
    return b"RIFF" + struct.pack("<I", len(body)) + body


# ---- TIFF ----


def tiff(tags: dict[int, int], content: bytes = b"", more: int = 0) -> bytes:
    """One directory of numbers; ``content`` begins at 8. ``more`` copies follow in a chain."""
    base = {256: 16, 257: 16, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 16, 279: 256} | tags
    entries = b"".join(struct.pack("<HHII", t, 4, 1, n) for t, n in sorted(base.items()) if n >= 0)
    count = sum(n >= 0 for n in base.values())
    content = content or bytes(256)
    size, start = 2 + len(entries) + 4, 8 + len(content)
    chain = [start + size * (k + 1) for k in range(more)] + [0]
    made = (struct.pack("<H", count) + entries + struct.pack("<I", n) for n in chain)
    return b"II*\0" + struct.pack("<I", start) + content + b"".join(made)


@kind
def tiff_large_tile() -> bytes:
    tile = zeros(32_768 * 49_152)
    no_strips = {273: -1, 278: -1, 279: -1}
    return tiff({259: 8, 322: 32_768, 323: 49_152, 324: 8, 325: len(tile)} | no_strips, tile)


@kind
def tiff_deflate_strip() -> bytes:
    strip = zeros(30_000 * 30_000)
    return tiff({256: 30_000, 257: 30_000, 259: 8, 278: 30_000, 279: len(strip)}, strip)


@kind
def tiff_long_strip() -> bytes:
    strip = zeros(1500 * MIB)
    return tiff({259: 8, 278: 2**31 - 1, 279: len(strip)}, strip)


@kind
def tiff_directories() -> bytes:
    return tiff({}, more=100_000)


@kind
def tiff_huge_tag() -> bytes:
    whole = bytearray(tiff({50_000: 0}, bytes(16 * MIB)))
    at = whole.rindex(struct.pack("<HHI", 50_000, 4, 1))
    whole[at : at + 12] = struct.pack("<HHII", 50_000, 5, 2 * MIB, 8)
    return bytes(whole)


@kind
def tiff_many_tags() -> bytes:
    tags = {40_000 + k: 0 for k in range(3000)}
    whole = bytearray(tiff(tags, bytes(MIB)))
    for tag in tags:
        at = whole.index(struct.pack("<HHI", tag, 4, 1), MIB)
        whole[at : at + 12] = struct.pack("<HHII", tag, 1, MIB, 8)
    return bytes(whole)


# ---- AVIF, HEIC ----


def claimed(data: bytes, width: int, height: int) -> bytes:
    """Another size in the box that says it."""
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", width, height) + data[at + 8 :]


@kind
def avif_50_megapixels() -> bytes:
    return encoded("AVIF", (8000, 6000), speed=10, quality=10)


@kind
def avif_claims_65000_square() -> bytes:
    return claimed(encoded("AVIF"), 65_000, 65_000)


@kind
def avif_claims_16_pixels() -> bytes:
    return claimed(encoded("AVIF", (5000, 5000), speed=10, quality=10), 16, 16)


@kind
def avif_frames() -> bytes:
    return many("AVIF", 30, (100, 100))


@kind
def avif_free_boxes() -> bytes:
    return encoded("AVIF") + b"\0\0\0\x08free" * 2_000_000


@kind
def avif_exif() -> bytes:
    return encoded("AVIF", exif=exif(5000, 60_000)[6:])


@kind
def heic_50_megapixels() -> bytes:
    return encoded("HEIF", (8000, 6000), quality=10)


@kind
def heic_claims_65000_square() -> bytes:
    return claimed(encoded("HEIF"), 65_000, 65_000)


@kind
def heic_claims_16_pixels() -> bytes:
    return claimed(encoded("HEIF", (5000, 5000), quality=10), 16, 16)


@kind
def heic_free_boxes() -> bytes:
    return encoded("HEIF") + b"\0\0\0\x08free" * 2_000_000


@kind
def heic_frames() -> bytes:
    return many("HEIF", 30, (100, 100))


@kind
def heic_exif() -> bytes:
    return encoded("HEIF", exif=exif(5000, 60_000))


# ---- measuring ----


def peak(process: int | str = "self") -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def measure(name: str, memory: int, seconds: float) -> dict[str, object]:
    """In a process of its own, that has opened an ordinary picture before."""
    content = KINDS[name]()
    Path("/proc/self/clear_refs").write_text("5")  # what making the file took does not count
    decoders = Decoders(Bounds(memory, seconds))
    decoders.read(encoded("PNG", (640, 480)))
    (child,) = decoders._idle
    rest, rest_child, of_child = peak(), peak(child.process.pid), [0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.002):
            with suppress(OSError, IndexError):  # it has ended
                of_child[0] = max(of_child[0], peak(child.process.pid))

    watching = threading.Thread(target=watch)
    watching.start()
    started = time.perf_counter()
    try:
        found = decoders.read(content)
        outcome = f"a picture of {found.picture.width} × {found.picture.height}"
    except ValueError as error:
        outcome = f"{type(error).__name__}: {error}"
    took = time.perf_counter() - started
    time.sleep(0.01)
    over.set()
    watching.join()
    decoders.close()
    more = peak() - rest + max(0, of_child[0] - rest_child)
    return {
        "kind": name,
        "bytes": len(content),
        "peak_mib": round(more / MIB, 1),
        "of_budget": round(more / memory, 2),
        "seconds": round(took, 2),
        "outcome": outcome[:160],
    }


def each(names: list[str], memory: int, seconds: float) -> bool:
    """Print a line for each kind; whether all are within budget + 10 %."""
    fine, most = True, 0.0
    for name in names:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            row = pool.submit(measure, name, memory, seconds).result(timeout=120)
        fine, most = fine and row["of_budget"] <= 1.1, max(most, row["of_budget"])
        print(json.dumps(row, ensure_ascii=False), flush=True)
    print(json.dumps({"kinds": len(names), "most_of_budget": most, "within": fine}), flush=True)
    return fine


# ---- index and service ----

SUFFIXES = {"jpeg": ".jpg", "tiff": ".tif"}
DECODER = 128 * MIB
"""What a decoder of the service may take, with its settings as they are."""
GRACES = (20, 2)
"""Seconds that the service has after SIGTERM, as it is; and less than a picture takes."""
ATTACKERS = 6
PATIENCE = 60  # seconds, after which something hangs


def decoders_of(process: int) -> list[int]:
    """Its children that decode, whichever thread started them."""
    listed = [task.read_text() for task in Path(f"/proc/{process}/task").glob("*/children")]
    found = []
    for pid in map(int, " ".join(listed).split()):
        with suppress(OSError):  # it has ended; one that has not begun has the parent's memory
            if b"decoder.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@contextmanager
def watched(process: int) -> Iterator[list[int]]:
    """The peak of a process and the highest sum of its decoders' peaks, over what they took."""
    everyone = [process, *decoders_of(process)]
    for pid in everyone:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # peaks begin anew
    rest, most, over = sum(map(peak, everyone)), [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            with suppress(OSError, IndexError):
                most[0] = max(most[0], peak(process) + sum(map(peak, decoders_of(process))) - rest)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


INDEXING = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from service_attacks import index_photos
changes = index_photos(*map(Path, sys.argv[2:]))
print(f"{changes.added} added, {len(changes.skipped)} skipped")
"""


def indexed(model: Path, folder: Path, out: Path) -> tuple[int, str]:
    """The peak of a process that indexes a folder of photos, and what it says at the end."""
    words = [sys.executable, "-c", INDEXING, Path(__file__).parent, model, folder, out]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    with watched(process.pid) as most:
        said, _ = process.communicate()
    assert process.returncode == 0
    return most[0], said.strip()


def everywhere(index: Path, kinds: list[str]) -> bool:
    """Every kind as an upload, as a photo that is asked for, and in a folder that is indexed."""
    fine, ordinary = True, jpeg((640, 480))
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name) / "photos"
        folder.mkdir()
        files = {
            kind: folder / f"{kind}{SUFFIXES.get(kind.split('-')[0], '.' + kind.split('-')[0])}"
            for kind in kinds
        }
        for file in files.values():
            file.write_bytes(ordinary)
        rest, _ = indexed(index, folder, Path(name) / "index")
        service = Service(Path(name) / "index")
        stack.callback(service.close)
        process, own = service.process.pid, Settings()
        for kind, file in files.items():
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
                content = pool.submit(KINDS[kind]).result()
            file.write_bytes(content)
            row = {"kind": kind, "bytes": len(content)}
            share = 2 * len(content) + DECODER
            for what, call in {
                "upload": lambda body=content: service.post(body),
                "picture": lambda file=file: service.get(f"/api/picture?id={file.name}"),
            }.items():
                started = time.perf_counter()
                with watched(process) as most:
                    status = call()
                took, more = time.perf_counter() - started, most[0]
                row[what] = f"{status}, {took:.1f} s, {more / MIB:.0f} MiB"
                good = more <= 1.1 * share and took < own.timeout and status != 0
                fine = fine and good and status < 500
            print(json.dumps(row), flush=True)
        alive = service.get("/api/about")
        high, said = indexed(index, folder, Path(name) / "hostile")
        row = {"index_mib": round(high / MIB), "of_ordinary_photos": round(rest / MIB)}
        fine = fine and alive == 200 and high - rest <= 1.1 * DECODERS * Bounds().memory
        print(json.dumps(row | {"said": said, "alive": alive, "within": fine}), flush=True)
    return fine


def delays(index: Path, kinds: list[str], seconds: float = 8) -> bool:
    """What others wait, first alone, then beside two clients that upload a kind without a pause."""
    photo = jpeg((640, 480))
    service = Service(index)
    calls: dict[str, Callable[[], int]] = {
        "search": lambda: service.get("/api/search?text=red&k=1"),
        "thumbnail": lambda: service.get(f"/api/thumbnail?id={some}"),
        "picture": lambda: service.get(f"/api/picture?id={some}"),
        "upload": lambda: service.post(photo),
    }
    some = quote(json.loads(service.answer("GET", "/api/browse?k=1")[1])["ids"][0])
    answered: Counter[str] = Counter()

    def measured() -> dict[str, float]:
        found, ends = dict.fromkeys(calls, 0.0), time.monotonic() + seconds
        while time.monotonic() < ends:
            for name, call in calls.items():
                started = time.perf_counter()
                answered[f"{name} {call()}"] += 1
                found[name] = max(found[name], time.perf_counter() - started)
        return {name: round(took, 2) for name, took in found.items()}

    def attacked(kind: str) -> dict[str, float]:
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            content = pool.submit(KINDS[kind]).result()
        over = threading.Event()

        def attacker() -> None:
            while not over.is_set():
                service.post(content)

        attackers = [threading.Thread(target=attacker) for _ in range(2)]
        try:
            for thread in attackers:
                thread.start()
            return measured()
        finally:
            over.set()
            for thread in attackers:
                thread.join()

    try:
        alone, most = measured(), dict.fromkeys(calls, 0.0)
        print(json.dumps({"alone": alone}), flush=True)
        for kind in kinds:
            found = attacked(kind)
            most = {name: max(most[name], took) for name, took in found.items()}
            print(json.dumps({"kind": kind} | found), flush=True)
    finally:
        service.close()
    limit = Settings().decode_timeout + 1
    late = [name for name in calls if most[name] > alone[name] + limit]
    fine = not late and all(said.endswith(" 200") for said in answered)
    row = {"kinds": len(kinds), "answered": answered, "most": most}
    print(json.dumps(row | {"limit_more": limit, "within": fine}), flush=True)
    return fine


class Forked(Service):
    """``gaussmatch serve`` in a fork of this process, which has opened the index."""

    def __init__(self, index: Index, grace: int) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.dup2(writing, 1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            serve(index, Settings(), port=0, grace=grace)
            sys.exit()  # as a command does: after its threads
        os.close(writing)
        with os.fdopen(reading) as said:
            url = urlsplit(said.readline().split()[0])
        assert url.hostname is not None
        assert url.port is not None
        self.address = url.hostname, url.port
        assert self.get("/api/about") == 200

    def stopped(self) -> float:
        """The seconds that it takes to end after SIGTERM; it is killed after ``PATIENCE``."""
        os.kill(self.pid, signal.SIGTERM)
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE and not os.waitpid(self.pid, os.WNOHANG)[0]:
            time.sleep(0.01)
        took = time.monotonic() - started
        if took >= PATIENCE:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        return took


def stops(index: Path, runs: int) -> bool:
    """SIGTERM while both decoders are busy, with each grace."""
    torch.set_num_threads(1)  # threads do not survive a fork
    opened = Index.open(index)
    assert opened.model.reads_text  # loaded once, before the forks
    good = [stopped(opened, runs, grace) for grace in GRACES]
    return good == [runs] * len(GRACES)


def stopped(index: Index, runs: int, grace: int) -> int:
    """How often it ends within its grace."""
    slow, ended = jpeg_250000_scans(), []
    for _ in range(runs):
        service = Forked(index, grace)
        attackers = [threading.Thread(target=service.post, args=(slow,)) for _ in range(ATTACKERS)]
        for thread in attackers:
            thread.start()
        time.sleep(0.7)
        ended.append(service.stopped())
        print(json.dumps({"stopped_in_seconds": round(ended[-1], 2)}), flush=True)
        for thread in attackers:
            thread.join()
    good = sum(seconds <= grace for seconds in ended)
    row = {"stops": runs, f"within_grace_of_{grace}": good, "slowest": round(max(ended), 2)}
    print(json.dumps(row), flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="NAME")
    parser.add_argument("--memory", type=int, default=128, help="MiB that a picture may take")
    parser.add_argument("--seconds", type=float, default=3.0, help="that it may take")
    parser.add_argument("--service", type=Path, metavar="INDEX", help="attack a service of it")
    parser.add_argument("--runs", type=int, default=50, help="stops under attack")
    every = ("kinds", "delays", "stops")
    parser.add_argument("--parts", nargs="+", choices=every, default=every, help="of --service")
    options = parser.parse_args()
    memory = options.memory * MIB
    if options.service:
        parts = {
            "kinds": lambda: everywhere(options.service, options.only),
            "delays": lambda: delays(options.service, options.only),
            "stops": lambda: stops(options.service, options.runs),
        }
        fine = {name: parts[name]() for name in options.parts}
        return 0 if all(fine.values()) else 1
    return 0 if each(options.only, memory, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
