"""A real Milvus server for the tests: the binary of the PyPI package ``milvus`` in an environment
of its own, alone in a network namespace, as it binds every interface.

Run as a program inside the namespace it starts the server and joins it with a listening socket that
it inherited from outside: a socket stays in the namespace it was made in.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import venv
from contextlib import suppress
from pathlib import Path

PACKAGE = "milvus==2.3.5"
READY = 90
"""Seconds that a start may take."""


class NoServerError(RuntimeError):
    """Why there is none."""


def environment() -> Path:
    """Python with the server: ``GAUSSMATCH_MILVUS``, or made once in the cache."""
    given = os.environ.get("GAUSSMATCH_MILVUS")
    cache = os.environ.get("GAUSSMATCH_CACHE") or Path.home() / ".cache" / "gaussmatch"
    folder = Path(given) if given else Path(cache) / PACKAGE
    python = folder / "bin" / "python"
    if given and not python.exists():
        raise NoServerError(f"GAUSSMATCH_MILVUS={given} holds no bin/python")
    done = folder / "ready"
    if not given and not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", PACKAGE]
        made = subprocess.run(pip, capture_output=True, text=True)
        if made.returncode:
            raise NoServerError(f"{PACKAGE} cannot be installed: {made.stderr.strip()[-200:]}")
        done.touch()
    return python


class RealMilvus:
    """Starts when made; ``kill`` is SIGKILL, after which ``start`` brings it back with its data.

    Args:
        config: settings of milvus.yaml, as NAME_OF_A_PART=value; the server reads them so.
    """

    def __init__(self, folder: Path, **config: str) -> None:
        if shutil.which("unshare") is None or subprocess.run(["unshare", "-n", "true"]).returncode:
            raise NoServerError("no network namespace can be made here (unshare -n)")
        self._python, self._folder, self._config = environment(), folder, config
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"milvus:http://127.0.0.1:{self._door.getsockname()[1]}"
        self.start()

    def start(self) -> None:
        door = self._door.fileno()
        words = ["unshare", "-n", self._python, __file__, self._folder, door]
        self._process = subprocess.Popen(
            list(map(str, words)),
            pass_fds=[door],
            env={**os.environ, **{name.replace(".", "_"): v for name, v in self._config.items()}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            self.kill()
            raise NoServerError(f"the server did not start; its log is in {self._folder}")

    def kill(self) -> None:
        """The server and what joins it; at once, and all that it has not written is lost."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def close(self) -> None:
        self.kill()
        self._door.close()


def main(folder: Path, door: int) -> None:
    from milvus import MilvusServer  # type: ignore[import-not-found]

    threading.Thread(target=_end_with_parent, daemon=True).start()
    _loopback_up()
    server = MilvusServer(wait_for_started=False)
    server.set_base_dir(str(folder))
    server.start()
    port = _port(server.listen_port)
    print("ready" if port else "failed", flush=True)
    listening = socket.socket(fileno=door)
    while port:
        outside, _ = listening.accept()
        inside = socket.create_connection(("127.0.0.1", port))
        for pair in ((outside, inside), (inside, outside)):
            threading.Thread(target=_pour, args=pair, daemon=True).start()


def _end_with_parent() -> None:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def _loopback_up() -> None:
    with socket.socket() as any_:
        flags = 0x1 | 0x40  # up and running
        fcntl.ioctl(any_, 0x8914, struct.pack("16sH14x", b"lo", flags))


def _port(port: int) -> int | None:
    """The port when the server listens, which is a while before it is ready: it answers then."""
    end = time.monotonic() + READY
    while time.monotonic() < end:
        with socket.socket() as door:
            if not door.connect_ex(("127.0.0.1", port)):
                return port
        time.sleep(0.1)
    return None


def _pour(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while some := source.recv(1 << 16):
            target.sendall(some)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
