"""New photos: the folder of an index is looked at again and again, and the index brought up to date
by a process of its own, with low priority, one at a time. The service sees the change by itself.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from gaussmatch.apps.service.logs import LOGGER
from gaussmatch.data.pictures import SUFFIXES
from gaussmatch.search import Index

EVERY = 10.0
"""Seconds between two looks; a long look makes the pause longer."""
NICE = 10
LINES = 5
"""Of what an update that failed has said, in the log."""


def watched(index: Index) -> Path:
    """The folder to watch; an index that was not made from one on this machine has none."""
    folder = index.own_folder
    if folder is None:
        raise ValueError(
            f"--watch: {index.place} was not made from a folder here by this user; bring it up to "
            "date with 'gaussmatch index update INDEX FOLDER', and watch it then"
        )
    if index.backend.one_process:
        raise ValueError(f"--watch: {index.place} can be open in one process only; leave it out")
    return folder


def state(folder: Path) -> str:
    """Changes when a photo or a table of captions below a folder does. Reads no file."""
    mark = hashlib.sha256()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith((*SUFFIXES, ".csv", ".tsv", ".json", ".jsonl")):
                with suppress(OSError):  # it has just gone
                    stat = os.stat(os.path.join(place, name))
                    path = os.path.join(place, name).encode(errors="surrogateescape")
                    mark.update(b"%b\0%d\0%d\0" % (path, stat.st_size, stat.st_mtime_ns))
    return mark.hexdigest()


class Watcher:
    """Brings an index up to date when its folder has changed and then stayed the same for one look:
    files may still be copied. ``stop`` also ends an update that runs; what it has encoded stays.

    An update that fails (more than half of the photos are gone, another process writes) is logged
    and tried again after the next change.
    """

    def __init__(self, place: str, folder: Path, every: float = EVERY) -> None:
        self._place, self._folder, self._every = place, folder, every
        self._stop, self._running = threading.Event(), threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._watch, name="gaussmatch-watch", daemon=True)

    def start(self) -> None:
        LOGGER.info("watching", extra={"folder": str(self._folder)})
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        with self._running:
            if self._process is not None:
                self._process.terminate()
        self._thread.join(30)

    def _watch(self) -> None:
        done, before = "", state(self._folder)  # the first look updates: photos came meanwhile
        while not self._stop.wait(self._every):
            now = state(self._folder)
            if now == before and now != done and self._folder.is_dir():
                self._update()
                done = now
            before = now

    def _update(self) -> None:
        command = [sys.executable, "-m", "gaussmatch", "index", "update", self._place]
        with self._running:
            if self._stop.is_set():
                return
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
        said, _ = self._process.communicate()
        lines = said.strip().splitlines()
        if self._stop.is_set():
            return
        if self._process.returncode:
            LOGGER.warning("the index was not updated", extra={"said": lines[-LINES:]})
        else:
            LOGGER.info(
                "index updated", extra={"said": [line for line in lines if "added" in line]}
            )
