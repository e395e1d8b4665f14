"""Texts without torch: how a text is read, and the text side of a model in onnxruntime.

A search in words needs no more of a model than this; to import torch would take longer than all the
rest of it. ``published.keep_texts`` puts the text side of a model into the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from tokenizers import Tokenizer as Cutter

from gaussmatch import __version__
from gaussmatch.checks import extra
from gaussmatch.core.gaussian import ArrayGaussian
from gaussmatch.core.similarities import Similarity, similarity
from gaussmatch.device import on_cpu
from gaussmatch.files import cache_root, damage


class Reading(NamedTuple):
    """A text as an encoder reads it.

    Args:
        text: as written.
        row: what the encoder was given of it, see ``TextEncoder.prepare``.
        unknown: its words that the encoder does not know, as written; none for sub-word encoders.
        known: whether the encoder knows anything of it.
        cut: its words that a sub-word encoder has no token for and reads in parts.
        truncated: whether it is longer than the encoder reads.
    """

    text: str
    row: Any
    unknown: list[str]
    known: bool
    cut: Sequence[str] = ()
    truncated: bool = False


class Tokenizer(Protocol):
    """Texts → token ids."""

    def __len__(self) -> int:
        """How many tokens there are."""

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, with start and end."""

    def read(self, texts: Iterable[str]) -> list[Reading]:
        """Token ids and unknown words of each text."""

    @property
    def example(self) -> str:
        """A text that is known, such as a word."""


class UnknownWordsError(ValueError):
    """Captions without any word that the model knows; ``rows`` are their positions in the batch."""

    def __init__(self, captions: Sequence[str], rows: Sequence[int]) -> None:
        self.rows = rows
        super().__init__(
            f"caption {rows[0]} {captions[rows[0]]!r} has no word that this model knows"
        )


def padded(rows: Sequence[list[int]], padding: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lists of token ids as one array, padded on the right, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    longest = lengths.max()
    full = [row + [padding] * (longest - len(row)) for row in rows]
    return np.array(full, dtype=np.int64), lengths


PROBES = (
    "a photo",
    "Two dogs, one cat; isn't it 3.5 km away?",
    "Ein Hund l\u00e4uft:\n\u201cschnell\u201d, the dog\u2019s  snow_ball!",
    "word " * 2000,
)
"""Texts on which an exported tokenizer must agree with that of the library."""


class Subwords:
    """A tokenizer that comes with its encoder. It cuts words into known parts, so that no word is
    unknown, and is not saved in a run.

    Args:
        definition: the JSON of `tokenizers` that does the same.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], list[list[int]]],
        size: int,
        definition: str | None = None,
    ) -> None:
        self._encode, self._size, self.definition = encode, size, definition

    @staticmethod
    def of(definition: str) -> Subwords:
        """A tokenizer of `tokenizers`, from its JSON."""
        cutter = Cutter.from_str(definition)
        return Subwords(
            lambda texts: [e.ids for e in cutter.encode_batch_fast(texts)],
            cutter.get_vocab_size(),
            definition,
        )

    def portable(self) -> str:
        """The JSON of `tokenizers`, for programs without the library of this encoder."""
        if self.definition is None:
            raise ValueError("its tokenizer is code of its library, not a file of tokenizers")
        if self.of(self.definition).rows(PROBES) != self.rows(PROBES):
            raise ValueError("as a file of tokenizers its tokenizer would cut texts differently")
        return self.definition

    def __len__(self) -> int:
        return self._size

    def rows(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(list(texts)) if texts else []

    def read(self, texts: Iterable[str]) -> list[Reading]:
        texts = list(texts)
        words = [[w for w in re.findall(r"\w+", t) if not w.isdigit()] for t in texts]
        cut = self._cut({word for some in words for word in some})
        longer = self.rows([f"{t} a" for t in texts])  # a word more changes nothing?
        return [
            Reading(t, row, [], bool(t.strip()), [w for w in some if w in cut], row == more)
            for t, row, more, some in zip(texts, self.rows(texts), longer, words, strict=True)
        ]

    def _cut(self, words: set[str]) -> set[str]:
        """Those that have no token of their own, or only that of a sign, as "犬" has."""
        each = sorted(words)
        whole = len(self.rows(["a"])[0])
        rows = zip(each, self.rows(each), strict=True)
        return {w for w, row in rows if len(row) > whole or (len(w) == 1 and not w.isascii())}

    @property
    def example(self) -> str:
        return "a photo"


NOTES = "gaussmatch"
"""The field of an ONNX file's metadata that holds what its user must know, as JSON."""
SWITCH = "GAUSSMATCH_ONNX"
"""Environment variable; 0: everything runs in torch, though onnxruntime is there."""
NETWORK = "network.onnx"
BATCH = 512


def onnx_wanted() -> bool:
    """Whether onnxruntime is there and not switched off."""
    return find_spec("onnxruntime") is not None and os.environ.get(SWITCH) != "0"


def onnx_cache(name: str) -> Path:
    """The folder of the cache for a network of ours."""
    return cache_root() / "onnx" / name


_ELSEWHERE = "session.model_external_initializers_file_folder_path"
"""What onnxruntime calls the folder of weights that are not in the file itself."""


class OnnxSession:
    """A network in onnxruntime: arrays in, arrays out. ``notes`` is what was written with it.

    Args:
        threads: 0 for as many as onnxruntime chooses.
        ours: a file that we wrote and sealed. Any other one might name further files to read its
            weights from, and so only its bytes are given away, which takes twice as long; such
            files are then looked for in the working directory, unless another place is named.
    """

    def __init__(self, file: Path, threads: int = 0, *, ours: bool = False) -> None:
        with extra("onnx", str(file)):
            import onnxruntime
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such ONNX file")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        if not ours:
            options.add_session_config_entry(_ELSEWHERE, os.devnull)  # nothing is in there
        try:
            self._session = onnxruntime.InferenceSession(
                file if ours else file.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
            self.notes: dict[str, Any] = json.loads(
                self._session.get_modelmeta().custom_metadata_map.get(NOTES, "{}")
            )
        except Exception as error:  # onnxruntime has exceptions of its own
            raise ValueError(f"{file}: onnxruntime cannot read it ({error})") from error
        self._inputs = [one.name for one in self._session.get_inputs()]

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        found: list[np.ndarray] = self._session.run(
            None, dict(zip(self._inputs, inputs, strict=True))
        )
        return found


class TextSide:
    """The text side of a model in onnxruntime: as ``Model`` reads texts and encodes them.

    It is two networks of the cache: the published encoder, tokens → embedding, and what the model
    has learned, embedding → mean and log-variance. The latter names the former in its notes, and
    holds the tokenizer and the similarity.
    """

    def __init__(self, folder: Path) -> None:
        self._head = OnnxSession(folder / NETWORK, threads(), ours=True)
        self._notes = self._head.notes

    @staticmethod
    def folder(run: Mapping[str, str]) -> Path:
        """Where that of a model is kept: by its files, name → SHA-256, and our version."""
        known = json.dumps([__version__, sorted(run.items())])
        return onnx_cache(f"texts-{hashlib.sha256(known.encode()).hexdigest()[:24]}")

    @staticmethod
    def of(run: Mapping[str, str]) -> TextSide | None:
        """That of a model, if it is kept and whole and this process may use onnxruntime."""
        folder = TextSide.folder(run)
        if not (onnx_wanted() and on_cpu()) or damage(folder) is not None:
            return None
        found = TextSide(folder)
        return found if damage(found.encoder) is None else None

    @property
    def encoder(self) -> Path:
        """Where the published encoder is kept."""
        return onnx_cache(self._notes["encoder"])

    @cached_property
    def _tower(self) -> OnnxSession:
        return OnnxSession(self.encoder / NETWORK, threads(), ours=True)

    @cached_property
    def _tokenizer(self) -> Subwords:
        return Subwords.of(self._notes["tokenizer"])

    @cached_property
    def similarity(self) -> Similarity:
        """That of the model."""
        return similarity(**self._notes["similarity"])

    def read(self, texts: Sequence[str]) -> list[Reading]:
        return self._tokenizer.read(texts)

    def featurize_texts(self, read: Sequence[Reading]) -> np.ndarray:
        """(n, W), embeddings of the published encoder."""
        some = (read[start : start + BATCH] for start in range(0, len(read), BATCH))
        return np.concatenate([self._tower(*padded([r.row for r in part]))[0] for part in some])

    def encode_rows(self, rows: np.ndarray) -> ArrayGaussian:
        return ArrayGaussian(*self._head(rows))


def threads() -> int:
    """Threads of a session as the environment has them, see ``device.use_threads``."""
    return int(os.environ.get("OMP_NUM_THREADS") or 0)
