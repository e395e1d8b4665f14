"""What every encoder has: a text encoder owns its tokenizer, an image encoder its transform; and
words with their numbers, learned from the training captions only."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image
from tokenizers import Encoding, Regex, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Cutter
from torch import Tensor, nn

from gaussmatch.files import write_text
from gaussmatch.models.texts import Reading, Tokenizer, padded

ImageTransform = Callable[[Sequence[Image.Image]], np.ndarray]
"""Pictures → the inputs of an image encoder, (n, …) float32. An encoder that contains its network,
or names it, has its own; for features made beforehand, their folder says how."""


class Tokens(NamedTuple):
    """A batch of texts: token ids (n, T), padded on the right, and true lengths (n)."""

    ids: Int[Tensor, "n t"]
    lengths: Int[Tensor, "n"]

    def to(self, *args: object, **kwargs: object) -> Tokens:
        return Tokens(self.ids.to(*args, **kwargs), self.lengths.to(*args, **kwargs))  # type: ignore[call-overload]


def pad(rows: Sequence[list[int]], padding: int = 0) -> Tokens:
    """Lists of token ids as one padded batch.

    >>> pad([[5, 6], [7]])
    Tokens(ids=tensor([[5, 6],
            [7, 0]]), lengths=tensor([2, 1]))
    """
    return Tokens(*map(torch.from_numpy, padded(rows, padding)))


UNREAD = (
    "this model was trained on ready embeddings and its text encoder is not known: give embeddings "
    "instead of texts, or adapt again with --text-encoder NAME"
)


class TextEncoder(nn.Module):
    """Texts → points (n, D) or Gaussians, in three steps.

    ``prepare`` turns texts into rows, once for a data set; ``collate`` makes a batch of some rows;
    ``forward`` encodes the batch. ``part`` names the submodule that ``Probabilistic`` duplicates.
    """

    tokenizer: Tokenizer
    dim: int

    @property
    def reads_text(self) -> bool:
        """Whether it takes words: not if it was made for embeddings of an unknown encoder."""
        return True

    def prepare(self, texts: Sequence[str]) -> Sequence[Any]:
        """One row for each text; ``len(row)`` is its length, if texts are sorted by it."""
        return self.tokenizer.rows(texts)

    def read(self, texts: Iterable[str]) -> list[Reading]:
        """Rows of a few texts, with their unknown words."""
        return self.tokenizer.read(texts)

    @staticmethod
    def collate(rows: Any) -> Any:
        """Rows as the batch that ``forward`` takes, with ``to(device)``: token ids as ``Tokens``,
        ready embeddings as one tensor."""
        if isinstance(rows[0], list):
            return pad(rows)
        return torch.from_numpy(np.stack(rows).astype(np.float32, copy=False))


PAD, START, END, UNKNOWN = "<pad>", "<start>", "<end>", "<unk>"
SPECIALS = (PAD, START, END, UNKNOWN)
"""Numbers 0–3, as in the official codes."""
UNKNOWN_NUMBER = SPECIALS.index(UNKNOWN)

LONGEST = 256
"""Words of a caption that are read."""

Words = Literal["plain", "nltk"]

_CLITIC = r"'(?:s|m|d|ll|re|ve)(?!\w)"
_NLTK = "|".join(
    [
        r"can(?=not(?!\w))|gon(?=na(?!\w))|wan(?=na(?!\w))|got(?=ta(?!\w))",  # two words
        r"\w+?(?=n't(?!\w))|n't(?!\w)",  # does n't
        _CLITIC,  # dog 's
        r"\d+(?:[.,:]\d+)+",  # 7:30
        rf"\w(?:(?:[\w\-/.*+=~^|\\]|(?!{_CLITIC})'(?=\w))*\w)?",  # t-shirt, black/white, o'clock
        r"\.{3}|--+|``|''",
        r"[^\s\w]",  # any other mark is a word
    ]
)
"""What nltk's ``word_tokenize`` takes for a word in a lower-cased caption."""
_QUOTES = [
    normalizers.Replace(Regex(r'^"|(?<=[\s(\[{<])"'), "``"),
    normalizers.Replace('"', "''"),
]
"""nltk distinguishes opening quotes from closing ones."""


class Vocabulary:
    """Lower-cased words with at least ``min_count`` training occurrences (`tokenizers` WordLevel).

    >>> v = Vocabulary.build(["a red dog", "a dog"], min_count=2)
    >>> v.words
    ['<pad>', '<start>', '<end>', '<unk>', 'a', 'dog']
    >>> v.rows(["A dog!"])        # start, a, dog, unknown, end
    [[1, 4, 5, 3, 2]]
    """

    def __init__(self, tokenizer: Cutter) -> None:
        self._tokenizer = tokenizer

    @staticmethod
    def build(captions: Iterable[str], min_count: int = 4, words: Words = "plain") -> Vocabulary:
        """The words of ``captions``, cut ``plain`` (runs of letters, runs of marks) or ``nltk``."""
        tokenizer = _tokenizer(models.WordLevel(unk_token=UNKNOWN), words, normalizers.NFKC())
        trainer = trainers.WordLevelTrainer(
            min_frequency=min_count, special_tokens=list(SPECIALS), show_progress=False
        )
        tokenizer.train_from_iterator(captions, trainer)
        if tokenizer.get_vocab_size() == len(SPECIALS):
            raise ValueError(
                f"no word occurs {min_count} times in the training captions; "
                "lower data.min_count or give more captions"
            )
        return Vocabulary(tokenizer)

    @staticmethod
    def of(words: Sequence[str]) -> Vocabulary:
        """A published list of words: each has its place as its number, captions are cut as nltk.

        >>> Vocabulary.of([*SPECIALS, "dog", "a", "``", "''"]).rows(['A "dog"'])
        [[1, 5, 6, 4, 7, 2]]
        """
        if tuple(words[: len(SPECIALS)]) != SPECIALS or len(set(words)) != len(words):
            raise ValueError(f"a vocabulary starts with {', '.join(SPECIALS)} and repeats no word")
        numbers = {word: number for number, word in enumerate(words)}
        return Vocabulary(_tokenizer(models.WordLevel(numbers, unk_token=UNKNOWN), "nltk"))

    @property
    def words(self) -> list[str]:
        """All words, in the order of their numbers."""
        vocabulary = self._tokenizer.get_vocab()
        return sorted(vocabulary, key=vocabulary.__getitem__)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    def rows(self, captions: Sequence[str]) -> list[list[int]]:
        """Word numbers of each caption, with start and end. One of more than ``LONGEST`` words is
        cut, with a note: a batch is as long as its longest caption."""
        rows = [e.ids for e in self._tokenizer.encode_batch_fast(list(captions))]
        long = [i for i, row in enumerate(rows) if len(row) > LONGEST + 2]
        if long:
            warnings.warn(
                f"{len(long):,} of {len(rows):,} captions have more than {LONGEST} words and are "
                f"cut there, such as caption {long[0]} ({captions[long[0]][:40]!r}…)",
                stacklevel=2,
            )
        return [_cut(row) for row in rows]

    def read(self, captions: Iterable[str]) -> list[Reading]:
        """Word numbers and unknown words of each caption; for queries rather than data sets: one
        by one, while ``rows`` uses several threads.

        >>> Vocabulary.build(["a red dog", "a dog"], min_count=1).read(["A Cat"])[0][:4]
        ('A Cat', [1, 4, 3, 2], ['Cat'], True)
        """
        read = []
        for caption in captions:
            encoding = self._tokenizer.encode(caption)
            numbers = _cut(encoding.ids)
            unknown = _unknown(caption, encoding) if UNKNOWN_NUMBER in numbers else []
            known = max(numbers, default=0) >= len(SPECIALS)
            cut = len(numbers) < len(encoding.ids)
            read.append(Reading(caption, numbers, unknown, known, truncated=cut))
        return read

    def known_share(self, captions: Sequence[str]) -> float:
        """The share of the words of captions that are in the vocabulary.

        >>> Vocabulary.build(["a red dog", "a dog"], min_count=1).known_share(["a cat", "a dog"])
        0.75
        """
        rows = self.rows(captions)
        total = sum(len(row) - 2 for row in rows)  # without start and end
        return 1 - sum(row.count(UNKNOWN_NUMBER) for row in rows) / max(1, total)

    @property
    def example(self) -> str:
        """The first word that is none of the special ones."""
        return next((w for w in self.words if w.isalpha()), "")

    def save(self, path: str | os.PathLike[str]) -> None:
        write_text(path, self._tokenizer.to_str(pretty=True))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Vocabulary:
        try:
            return Vocabulary(Cutter.from_file(os.fspath(path)))
        except Exception as error:  # tokenizers raises bare Exception
            raise ValueError(f"{path}: not a vocabulary of gaussmatch ({error})") from error


def _cut(row: list[int]) -> list[int]:
    return row if len(row) <= LONGEST + 2 else [*row[: LONGEST + 1], row[-1]]


def _unknown(caption: str, encoding: Encoding) -> list[str]:
    """Words that were not found, as they were written; marks are none."""
    words = [
        caption[start:stop]
        for number, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
        if number == UNKNOWN_NUMBER
    ]
    return [word for word in dict.fromkeys(words) if any(c.isalnum() for c in word)]


def _tokenizer(model: models.WordLevel, words: Words, *first: normalizers.Normalizer) -> Cutter:
    """Lower-case captions, cut into words, between start and end."""
    tokenizer, nltk = Cutter(model), words == "nltk"
    changes = [*first, normalizers.Lowercase(), *(_QUOTES if nltk else [])]
    tokenizer.normalizer = normalizers.Sequence(changes)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Split(Regex(_NLTK), "removed", invert=True)
        if nltk
        else pre_tokenizers.Whitespace()
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}",
        special_tokens=[(word, SPECIALS.index(word)) for word in (START, END)],
    )
    return tokenizer
