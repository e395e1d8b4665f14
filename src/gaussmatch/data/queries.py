"""Captions as people would type them, and how many photos such a query fits.

Captions are ten words long, a query is one to four; a model that has only seen captions cannot
know that "dog" is vague. How many photos a text fits is counted softly among the training captions:
a caption that many other photos' captions resemble fits many photos, and so does a query whose
words stand in many captions. Nobody labels this: it is read off the captions themselves, and
teaches a variance what *vague* means (``loss.fitting``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaussmatch.data.language import GENERAL, content_words, with_articles, words_of
from gaussmatch.data.listing import fields_of
from gaussmatch.data.stored import read_lines
from gaussmatch.files import read_csv, read_json

SHARPNESS = 24.0
"""κ of the word count: a caption that lacks a tenth of a text's words, by weight, counts e^−2.4."""
MEANING_SHARPNESS = 30.0
"""κ of the cosine of sentence embeddings."""
CENTERED_SHARPNESS = 20.0
"""The same of embeddings whose mean was subtracted, as those of CLIP, which all point one way."""
FEWEST = 1000
"""Captions from which on it is learned from them how many photos a text fits."""
FLOOR = 1e-5
"""Added to a count before its logarithm."""
_BLOCK = 1024
_WORD = re.compile(r"[\w'-]+")

LONGEST = 5
"""Words of most shortened captions, at most: as many as people type."""
NEARLY_WHOLE = 0.3
"""The share of shortened captions that may keep all words but one."""


def as_query(
    caption: str, dice: np.random.Generator, generalize: float = 0.0, frame: float = 0.0
) -> str:
    """A caption as a query: shortened, or with probability ``generalize`` in more general words:
    the whole caption, a shortened one, or the category of one thing in it. With probability
    ``frame`` empty words are put around it."""
    query = _reworded(caption, dice, generalize)
    return framed(query, dice) if frame and dice.random() < frame else query


def _reworded(caption: str, dice: np.random.Generator, generalize: float) -> str:
    if dice.random() < generalize:
        choice = dice.random()
        if choice < 0.3:
            query = category(caption, dice)
        else:
            query = generalized(caption if choice < 0.7 else shortened(caption, dice), dice)
        if query != caption:
            return query
    return shortened(caption, dice)


def shortened(caption: str, dice: np.random.Generator) -> str:
    """Some words of a caption, mostly one to five: a span of it, or some of its content words in
    their order. A caption of one word stays as it is.

    >>> dice = np.random.default_rng(0)
    >>> [shortened("a brown dog runs through deep snow", dice) for _ in range(3)]
    ['brown snow', 'dog deep snow', 'brown dog snow']
    """
    words = caption.split()
    if len(words) < 2:
        return caption
    span = dice.random() < 0.5
    if not span:
        words = [word for word in words if content_words(word)] or words
    longest = len(words) if dice.random() < NEARLY_WHOLE else LONGEST
    count = int(dice.integers(1, max(1, min(longest, len(words) - 1)), endpoint=True))
    if span:
        start = int(dice.integers(0, len(words) - count, endpoint=True))
        return " ".join(words[start : start + count])
    kept = np.sort(dice.choice(len(words), count, replace=False))
    return " ".join(words[k] for k in kept)


def framed(text: str, dice: np.random.Generator) -> str:
    """A text with words around it that say nothing.

    >>> framed("a red star", np.random.default_rng(0))
    'I can see a picture of a red star, clearly'
    """
    head = _choose(("", "there is ", "look at ", "I can see "), dice)
    return head + _choose(("", "a picture of "), dice) + text + _choose(("", ", clearly"), dice)


def generalized(text: str, dice: np.random.Generator, share: float = 0.7) -> str:
    """A text with some words replaced by more general ones; as it was if none is replaced.

    >>> generalized("a man rides a bike on the beach", np.random.default_rng(0), share=1.0)
    'a human rides a vehicle on the place'
    """

    def general(match: re.Match[str]) -> str:
        terms = GENERAL.get(match.group(), ())
        return _choose(_in_text(terms), dice) if terms and dice.random() < share else match.group()

    words = text.lower()
    joined = _WORD.sub(general, words)
    return text if joined == words else with_articles(joined)


def category(text: str, dice: np.random.Generator) -> str:
    """A more general term for one thing in a text; the text if there is none.

    >>> category("a man rides a bike on the beach", np.random.default_rng(3))
    'place'
    """
    known = [word for word in words_of(text) if word in GENERAL]
    return _choose(GENERAL[_choose(known, dice)], dice) if known else text


def _in_text(terms: Sequence[str]) -> list[str]:
    """The terms of one word, of which the first, the most common, twice."""
    return [terms[0], *(term for term in terms if " " not in term)]


def _choose(terms: Sequence[str], dice: np.random.Generator) -> str:
    return terms[int(dice.integers(len(terms)))]


def read_corpus(path: Path) -> tuple[list[str], np.ndarray]:
    """The captions of a file, and the number of the photo that each was written for: COCO's
    ``captions_*.json``, a ``.csv`` with the columns image and caption, Flickr's lines
    ``photo.jpg#0<tab>caption``, or a caption on each line, of a photo of its own."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file of captions (.json of COCO, .csv, .txt)")
    rows: list[tuple[Any, ...]]
    if path.suffix == ".json":
        said = read_json(path, dict).get("annotations", ())
        where = (f"{path}, annotation {i}" for i in range(len(said)))
        rows = [fields_of(a, at, "image_id", "caption") for a, at in zip(said, where, strict=True)]
    elif path.suffix == ".csv":
        rows = [(row["image"], row["caption"]) for row in read_csv(path, ("image", "caption"))]
    else:
        lines = (line.rpartition("\t") for line in read_lines(path))
        rows = [(key.partition("#")[0] or at, text) for at, (key, _, text) in enumerate(lines)]
    kept = [(str(photo), plain) for photo, text in rows if (plain := " ".join(str(text).split()))]
    if len(kept) < FEWEST:
        raise ValueError(f"{path}: {len(kept)} captions; to count by them, {FEWEST:,} are needed")
    _, image_of = np.unique([photo for photo, _ in kept], return_inverse=True)
    return [text for _, text in kept], image_of


class FittingCounts:
    """ln n(t): softly, how many training captions say what a text says.

    * ``by_words``: n(t) = Σ_j exp(κ (c(t, j) − 1)), where c(t, j) is the share of t's content
      words, weighted by ln(N / how many captions have the word), that stand in caption j. A general
      term ("vehicle") stands wherever one of its kind ("bus") does. For queries.
    * ``by_meaning``: n(t) = Σ_j exp(κ′ (cos(t, j) − 1)) over sentence embeddings. For whole
      captions, which say the same in other words.

    Captions of a text's own image are left out.

    Args:
        captions: the training captions.
        image_of: (N) the image of each.

    >>> counts = FittingCounts(["a red bus", "a red car", "a dog"], np.arange(3))
    >>> counts.by_words(["a vehicle", "a red vehicle", "a red bus", "a dog in snow"]).round(1)
    array([  0.7,   0.7,   0. , -11. ], dtype=float32)
    """

    def __init__(self, captions: Sequence[str], image_of: np.ndarray) -> None:
        self.image_of = np.asarray(image_of)
        found: dict[str, list[int]] = {}
        for row, caption in enumerate(captions):
            for word in {*content_words(caption), *_general_words(caption)}:
                found.setdefault(word, []).append(row)
        self._rows = {word: np.array(rows) for word, rows in found.items()}
        total = len(captions) + 1
        self._weight = {word: float(np.log(total / len(rows))) for word, rows in found.items()}
        self._unseen = float(np.log(total))

    def by_words(self, texts: Sequence[str], own_image: np.ndarray | None = None) -> np.ndarray:
        """ln n of each text (n) by its words; ``own_image`` (n) is the image it belongs to."""
        own = [None] * len(texts) if own_image is None else own_image.tolist()
        known: dict[tuple[frozenset[str], int | None], float] = {}
        counts = []
        for text, image in zip(texts, own, strict=True):
            key = frozenset(content_words(text)), image
            if key not in known:
                known[key] = self._count(*key)
            counts.append(known[key])
        return np.log(np.array(counts) + FLOOR).astype(np.float32)

    def _count(self, words: frozenset[str], own: int | None) -> float:
        if not words:
            return float(len(self.image_of))
        total = sum(self._weight.get(word, self._unseen) for word in words)
        shared = np.zeros(len(self.image_of))
        for word in words & self._rows.keys():
            shared[self._rows[word]] += self._weight[word]
        rows = shared.nonzero()[0]
        if own is not None:
            rows = rows[self.image_of[rows] != own]
        return float(np.exp(SHARPNESS * (shared[rows] / max(total, 1e-9) - 1)).sum())

    def by_meaning(
        self,
        embeddings: np.ndarray,
        captions: np.ndarray,
        own_image: np.ndarray,
        sharpness: float = MEANING_SHARPNESS,
    ) -> np.ndarray:
        """ln n of texts with unit ``embeddings`` (n, E) among those of the ``captions`` (N, E)."""
        near = torch.from_numpy(np.ascontiguousarray(captions, np.float32))
        images, own = torch.from_numpy(self.image_of), torch.from_numpy(own_image)
        counts = []
        for start in range(0, len(embeddings), _BLOCK):
            block = np.ascontiguousarray(embeddings[start : start + _BLOCK], np.float32)
            like = (sharpness * (torch.from_numpy(block) @ near.T - 1)).exp()
            mine = own[start : start + _BLOCK, None] == images[None]
            counts.append(like.masked_fill(mine, 0).sum(1))
        return np.log(torch.cat(counts).numpy() + FLOOR).astype(np.float32)


def _general_words(text: str) -> frozenset[str]:
    terms = (term for word in words_of(text) for term in GENERAL.get(word, ()))
    return frozenset(content_words(" ".join(terms)))
