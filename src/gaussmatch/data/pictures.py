"""Pictures from files or bytes: of an allowed format, upright, at a bounded size, or refused; and
what a photo says of itself.

Every picture is opened by a child process (``decoder``) within ``Bounds`` of memory and time that
the kernel enforces, so that no file can take more, hang, or crash more than its own child. Children
are kept for the next picture, and threads decode in parallel. A large picture is decoded at reduced
scale."""

from __future__ import annotations

import atexit
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any, NamedTuple

from PIL import Image

from gaussmatch.data import decoder
from gaussmatch.data.decoder import ANSWER, ENOUGH, FORMATS, MIB, REQUEST, TooLargeError, sniffed

SUFFIXES = tuple(suffix for suffixes in FORMATS.values() for suffix in suffixes)

SHOWN = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "AVIF": "image/avif",
}
"""Formats that every browser shows, and what they are called on the web."""


@dataclass(frozen=True)
class Bounds:
    """What opening one picture may take: bytes of memory, seconds, and pixels (0: any number)."""

    memory: int = 512 * MIB
    seconds: float = 20.0
    pixels: int = 0


class Read(NamedTuple):
    """A picture, the size that its file has when upright, and what the file says of itself, as
    far as it is there and makes sense:

    =====================  =====================================================================
    ``taken``              EXIF date, ISO 8601: ``2023-05-17T10:22:31``
    ``latitude``           EXIF position in degrees, south and west negative; and ``longitude``
    ``place``              both as text: ``48.85840, 2.29450``
    ``caption``            of IPTC, XMP or EXIF
    =====================  =====================================================================
    """

    picture: Image.Image
    size: tuple[int, int]
    said: dict[str, Any]


def open_picture(path: str | os.PathLike[str]) -> Image.Image:
    """An upright RGB picture from a file. An unreadable file is an error that names it."""
    return read_picture(path).picture


def picture_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Width and height of an upright picture, from the head of its file."""
    return read_picture(path, pixels=False).size


def read_picture(path: str | os.PathLike[str], *, pixels: bool = True) -> Read:
    """A file and all that it says; without ``pixels``, an empty picture and no time for them."""
    return _DECODERS.open(path, pixels=pixels)


def jpeg(
    picture: Image.Image, side: int | None = None, quality: int = 85, comment: bytes = b""
) -> bytes:
    """A picture as JPEG; made smaller if its longer side has more than ``side`` pixels."""
    small, out = picture.convert("RGB"), io.BytesIO()
    if side is not None:
        small.thumbnail((side, side))
    small.save(out, "JPEG", quality=quality, comment=comment)
    return out.getvalue()


class Decoders:
    """Children that open pictures, one for each thread that calls at the same time.

    Each call returns or raises within ``bounds.seconds`` and what it takes to start a child.
    """

    KEPT = 4  #: children that wait for the next picture

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._closed = False
        _ALL.add(self)

    def open(self, path: str | os.PathLike[str], *, pixels: bool = True) -> Read:
        """A file; whatever is wrong with it is an error that names it."""
        try:
            with open(path, "rb") as file:
                return self.read(file, pixels=pixels)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{path}: no such image") from error
        except (OSError, ValueError) as error:
            error_type = TooLargeError if isinstance(error, TooLargeError) else ValueError
            raise error_type(f"{path}: {error}") from error

    def read(self, source: bytes | IO[bytes], *, pixels: bool = True) -> Read:
        """Bytes, or an open file from its start on."""
        if isinstance(source, bytes):
            sniffed(source[:16])  # only a picture starts a child
            with _file(source) as file:
                return self.read(file, pixels=pixels)
        source.seek(0)
        sniffed(os.pread(source.fileno(), 16, 0))
        child = self._take()
        try:
            return child.read(source.fileno(), self.bounds, pixels)
        finally:
            self._give(child)

    def start(self, count: int) -> None:
        """Have children ready."""
        for child in [self._take() for _ in range(count)]:
            self._give(child)

    def close(self) -> None:
        """End all children, whatever they are doing; who waits for one gets an error."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.process.kill()
        for child in idle:
            child.end()

    def _take(self) -> _Child:
        with self._lock:
            if self._closed:
                raise ValueError("not opened: the decoders are being stopped")
            child = self._idle.pop() if self._idle else _Child()
            self._busy.add(child)
            return child

    def _give(self, child: _Child) -> None:
        with self._lock:
            self._busy.discard(child)
            keep = child.stays and not self._closed and len(self._idle) < self.KEPT
            if keep:
                self._idle.append(child)
        if not keep:
            child.end()

    def _forget(self) -> None:
        """After a fork: the children are the parent's."""
        for child in (*self._idle, *self._busy):
            child.link.close()
            child.process.returncode = 0
        self._lock, self._idle, self._busy = threading.Lock(), [], set()


class _Child:
    """One process and the socket to it."""

    def __init__(self) -> None:
        self.stays = True
        self.link, theirs = socket.socketpair()
        path = os.pathsep.join(folder for folder in sys.path if folder)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", decoder.__file__],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # big blocks go back to the kernel at once, and no thread reserves an arena
                env={
                    **os.environ,
                    "PYTHONPATH": path,
                    "MALLOC_ARENA_MAX": "1",
                    "MALLOC_MMAP_THRESHOLD_": "131072",
                },
            )

    def read(self, descriptor: int, bounds: Bounds, pixels: bool) -> Read:
        """Send a file, receive its picture."""
        self.stays, finished = False, False
        try:
            request = REQUEST.pack(pixels, bounds.memory, bounds.pixels, bounds.seconds)
            socket.send_fds(self.link, [request], [descriptor])
            length, width, height = ANSWER.unpack(self._receive(ANSWER.size))
            if length > MIB or width * height > 4 * ENOUGH:
                raise ValueError("its decoder gave no sensible answer")
            told = json.loads(self._receive(length))
            content = self._receive(3 * width * height)
            self.stays, finished = bool(self._receive(1)[0]), True
        except (EOFError, ConnectionError):
            raise self._death(bounds) from None
        finally:
            if not finished:
                self.process.kill()
        if "too_large" in told:
            raise TooLargeError(told["too_large"])
        if "error" in told:
            raise ValueError(told["error"])
        picture = Image.frombytes("RGB", (width, height), content)
        return Read(picture, tuple(told["size"]), told["said"])

    def _receive(self, size: int) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            count = self.link.recv_into(rest)
            if not count:
                raise EOFError
            rest = rest[count:]
        return content

    def _death(self, bounds: Bounds) -> Exception:
        """Why there was no answer."""
        code = self.process.wait()
        if code == -signal.SIGALRM:
            return TooLargeError(
                f"decoding it takes longer than {bounds.seconds:g} s; save it again as JPEG or PNG"
            )
        if code == -signal.SIGKILL:
            return ValueError("not decoded: its decoder was stopped")
        if code >= 0:
            return RuntimeError(
                f"a decoder could not run (exit code {code}); to see why: "
                f"{sys.executable} -P {decoder.__file__}"
            )
        return ValueError(
            f"cannot be decoded as an image (the decoder died: {signal.strsignal(-code)}); save it "
            "again as JPEG or PNG"
        )

    def end(self) -> None:
        self.link.close()
        self.process.kill()
        self.process.wait()


def _file(content: bytes) -> IO[bytes]:
    """A file without a name, in memory where the system has such."""
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("picture"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(content)
    file.flush()
    return file


_ALL: weakref.WeakSet[Decoders] = weakref.WeakSet()
_DECODERS = Decoders()


def _forget_all() -> None:
    for decoders in list(_ALL):
        decoders._forget()


@atexit.register
def close_all() -> None:
    """End all children of this process."""
    for decoders in list(_ALL):
        with suppress(OSError):
            decoders.close()


os.register_at_fork(after_in_child=_forget_all)


_NOT_WORDS = (
    "img image images photo photos pic pict picture pano mvimg burst screenshot screen shot scan "
    "whatsapp signal telegram fullsizerender thumb thumbnail copy edited edit final untitled "
    "unnamed download jpg jpeg png foto bild the and"
)
"""Parts of file names that programs write, and words that say nothing alone."""


def named(path: PurePath, said: dict[str, Any]) -> dict[str, Any]:
    """With the words of the file's name where the file says none."""
    words = words_of_name(path)
    return {"caption": words, **said} if words else said


def words_of_name(path: PurePath) -> str:
    """The words in a file's name; nothing where a camera or a program made it.

    >>> words_of_name(PurePath("two-dogs_in the snow (2).jpg"))
    'two dogs in the snow'
    >>> words_of_name(PurePath("IMG_20230517.jpg")), words_of_name(PurePath("a9f3-cbd7.jpg"))
    ('', '')
    """
    parts = [part for part in re.split(r"[\W_]+", path.stem) if part.isalpha()]
    informative = [
        p for p in parts if len(p) > 2 and p.lower() not in _NOT_WORDS.split() and _has_vowel(p)
    ]
    return " ".join(parts) if informative else ""


def _has_vowel(word: str) -> bool:
    """Whether it may be a word; letters beyond ASCII are taken for some."""
    return not word.isascii() or any(letter in "aeiouy" for letter in word.lower())
