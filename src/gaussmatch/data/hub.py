"""Files of the Hugging Face hub: from its cache, else downloaded if it can be reached at all."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import urlsplit

from tqdm import tqdm

from gaussmatch.checks import extra

FILES = ("*.safetensors", "*.json", "*.txt", "*.model")
"""What is taken of a repository: no pickles."""
TOKENIZERS = FILES[1:]
"""The same for a tokenizer alone."""
WAIT = 3.0
"""Seconds to wait for an answer of the hub."""


def snapshot(repository: str, files: Sequence[str] = FILES) -> Path:
    """The folder of a repository: of the cache, or downloaded."""
    with extra("hf", "a repository of the hub"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    wanted = list(files)
    try:
        return Path(snapshot_download(repository, allow_patterns=wanted, local_files_only=True))
    except LocalEntryNotFoundError:
        check_reachable(repository)
    with _downloading(repository):
        sizes, license = _about(repository)
        some = [name for name in sizes if any(fnmatch(name, pattern) for pattern in wanted)]
        _announce(repository, sum(sizes[name] for name in some), license)
        return Path(snapshot_download(repository, allow_patterns=wanted))


def weights(repository: str, *names: str) -> Path:
    """The first of these files that a repository has: of the cache, or downloaded."""
    with extra("hf", "a repository of the hub"):
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    held = (try_to_load_from_cache(repository, name) for name in names)
    for found in held:
        if isinstance(found, str):
            return Path(found)
    check_reachable(repository)
    with _downloading(repository):
        sizes, license = _about(repository)
        name = next((name for name in names if name in sizes), None)
        if name is not None:
            _announce(repository, sizes[name], license)
            return Path(hf_hub_download(repository, name))
    raise FileNotFoundError(f"{repository} holds none of {', '.join(names)}; only those are loaded")


def _about(repository: str) -> tuple[dict[str, int], str]:
    """Size of each file of a repository in bytes, and its license as its card says."""
    from huggingface_hub import model_info

    found = model_info(repository, files_metadata=True)
    license = getattr(found.card_data, "license", None) or "unknown: see its page"
    return {file.rfilename: file.size or 0 for file in found.siblings or ()}, str(license)


def _announce(repository: str, size: int, license: str) -> None:
    tqdm.write(
        f"downloading {repository} of the Hugging Face hub, {size / 1e6:,.0f} MB, license: "
        f"{license}. Once; then it is read from the hub's cache. A machine without a network takes "
        "a copy of its files as …@FOLDER",
        file=sys.stderr,
    )


@contextmanager
def _downloading(repository: str) -> Iterator[None]:
    """One clear line instead of the many types and pages of errors of the hub."""
    try:
        yield
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise OSError(
            f"{repository} could not be downloaded ({first}); what has arrived is kept: check the "
            "name and run the same command again, or give a local copy as …@FOLDER"
        ) from error


def check_reachable(repository: str) -> None:
    """A clear error at once where the hub cannot be reached, instead of its many retries."""
    endpoint = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    advice = (
        f"{repository} is not in the cache of the Hugging Face hub and cannot be downloaded "
        "({}); give a local file or folder after the name, as in …@FOLDER"
    )
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise OSError(advice.format("HF_HUB_OFFLINE is set"))
    try:
        socket.create_connection((endpoint.hostname or "", endpoint.port or 443), WAIT).close()
    except OSError as error:
        raise OSError(advice.format(error)) from error


def is_cached(repository: str, *names: str) -> bool:
    """Whether the cache of the hub holds one of these files of a repository."""
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(repository, name), str) for name in names)
