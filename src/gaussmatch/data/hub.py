"""Files of the Hugging Face hub: from its cache, else downloaded if it can be reached at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

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
    try:
        found = snapshot_download(repository, allow_patterns=list(files), local_files_only=True)
    except LocalEntryNotFoundError:
        check_reachable(repository)
        found = snapshot_download(repository, allow_patterns=list(files))
    return Path(found)


def weights(repository: str, *names: str) -> Path:
    """The first of these files that a repository has: of the cache, or downloaded."""
    with extra("hf", "a repository of the hub"):
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    held = (try_to_load_from_cache(repository, name) for name in names)
    for found in held:
        if isinstance(found, str):
            return Path(found)
    check_reachable(repository)
    for name in names:
        try:
            return Path(hf_hub_download(repository, name))
        except LocalEntryNotFoundError:  # the connection
            raise
        except EntryNotFoundError:
            continue
    raise FileNotFoundError(f"{repository} holds none of {', '.join(names)}; only those are loaded")


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
