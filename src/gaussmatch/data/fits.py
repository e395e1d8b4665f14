"""Which photos *fit* which query: the one source of graded relevance.

A benchmark asks for the one photo that a whole caption was written for. A person types one to four
words and asks which photos fit them. Everything that is said after a search (a probability, a
number of matches, "nothing here", a guarantee) is learned from and judged by this relation:

* **people**: captions with the photos that people say they fit (``fitting_photos.jsonl``), and the
  further judgments that a data set brings (``Pairs.relevance``: Crisscrossed Captions, Flickr8k's
  crowd). Truth of whole captions.
* **boxes** (derived): a class name fits every photo with a box of the class. Complete.
* **words** (derived): a short query fits a photo if the photo's captions together hold all its
  content words, in any form, or a kind of it ("animal": dog). Captions do not name everything they
  could: only photos with at least ``ENOUGH`` captions take part,  and only words that are named
  ``SAID`` times in a photo that has them ("dog" is, "grass" is not). If each of five people names
  a thing with chance p, they name it 5p / (1 − (1 − p)⁵) times where one does, and miss it in
  (1 − p)⁵ of the photos: 2.2 times stand for 8 % that are missed.
* **pairs**: a caption fits the photo that it was written for. Of the other photos nothing is
  known, and they count as not fitting: the probability is too low by as much.

A truth counts only among the photos it is known for (``Fits.photos``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from gaussmatch.core.metrics.ranking import Relevance
from gaussmatch.data.coco import one_of
from gaussmatch.data.language import (
    GENERAL,
    STOP_WORDS,
    Length,
    canonical,
    length_of,
    with_articles,
)
from gaussmatch.data.pairs import Pairs
from gaussmatch.data.stored import read_lines

Truth = Literal["people", "boxes", "words", "pairs"]
LENGTHS: tuple[Length, ...] = get_args(Length)
SHARES: dict[Length, float] = {"1": 0.25, "2": 0.30, "3-5": 0.30, "whole": 0.15}
"""How often people type queries of each length: what the weights of a calibration are."""
ENOUGH = 4
"""Captions of a photo from which on what they do not name counts as not there."""
FEWEST = 3
SHARE = 0.001
"""Photos, and their share of all, that a short query must fit to be asked for."""
SAID = 2.2
"""Captions of a photo that must name a thing, in the mean over photos where one does."""

EACH = 1500
"""Short queries of each length, at most: all results of one query are right or wrong together, and
a hundred queries leave ±0.1 in the calibration error of an honest probability."""
TURNS = 5
"""How often each caption may give a query of each length."""

_WORD = re.compile(r"[a-z][a-z'-]*")
_ARTICLES = ("a", "an", "the", "two", "three", "some")
_IRREGULAR = {
    "men": "man", "women": "woman", "people": "person", "children": "child", "feet": "foot",
    "mice": "mouse", "geese": "goose", "knives": "knife", "shelves": "shelf", "leaves": "leaf",
    "ran": "run", "sat": "sit", "stood": "stand", "held": "hold", "rode": "ride", "ate": "eat",
    "skis": "ski", "skiing": "ski", "lying": "lie", "laying": "lie",
}  # fmt: skip
_SAME = (
    "man guy gentleman", "woman lady", "child kid", "bike bicycle", "couch sofa",
    "tv television", "phone cellphone telephone", "motorcycle motorbike", "plane airplane jet",
    "street road", "ocean sea", "fridge refrigerator", "photo picture image", "grey gray",
    "large big huge", "small little tiny", "car automobile", "boat ship", "bathroom restroom",
    "donut doughnut", "tree trees", "rock boulder", "bag purse handbag", "hot-dog hotdog",
    "teddy-bear teddy", "soccer football", "grass lawn", "forest wood", "t-shirt tshirt",
)  # fmt: skip
_KINDS = {
    "child": "boy girl toddler baby infant kid",
    "dog": "puppy",
    "cat": "kitten",
    "cow": "cattle bull calf",
    "sheep": "lamb",
    "bird": "duck goose seagull parrot owl pigeon",
    "fruit": "banana apple orange strawberry pineapple lemon grape pear",
    "vegetable": "broccoli carrot tomato lettuce potato onion",
    "flower": "rose tulip daisy",
    "ball": "football baseball basketball",
}


def stem(word: str) -> str:
    """A word without its form.

    >>> [stem(w) for w in "dogs riding rides ran buses people standing dress ties".split()]
    ['dog', 'rid', 'rid', 'run', 'bus', 'person', 'stand', 'dress', 'tie']
    """
    word = _IRREGULAR.get(word, word)
    for ending, rest in (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", "")):
        base = word.removesuffix(ending) + rest
        if word.endswith(ending) and not word.endswith("ss") and _stands(base):
            word = base
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sle":
        word = word[:-1]  # running: runn
    return word.removesuffix("e") if len(word) > 3 else word


def _stands(base: str) -> bool:
    return len(base) >= 3 and any(letter in "aeiouy" for letter in base)


def stems(text: str) -> frozenset[str]:
    """The content words of a text, without their forms."""
    return frozenset(stem(w) for w in _WORD.findall(text.lower()) if w not in STOP_WORDS)


def _kinds() -> dict[str, frozenset[str]]:
    """Stem → the stems of what is one."""
    found: dict[str, set[str]] = {}
    for word, terms in GENERAL.items():
        for term in terms:
            if " " not in term:
                found.setdefault(stem(term), set()).add(stem(word))
    for general, words in _KINDS.items():
        found.setdefault(stem(general), set()).update(map(stem, words.split()))
    for words in _SAME:
        same = {stem(word) for word in words.split()}
        for one in same:
            found.setdefault(one, set()).update(same - {one})
    return {general: frozenset(some) for general, some in found.items()}


KINDS = _kinds()
GENERALS: dict[str, tuple[str, ...]] = {}
for _general, _some in KINDS.items():
    for _one in _some:
        GENERALS[_one] = (*GENERALS.get(_one, ()), _general)


@dataclass(frozen=True, eq=False)
class Fits:
    """Queries of one kind, and which photos fit each.

    Args:
        truth: who says so.
        texts: m queries.
        photos: (p), the photos that the truth is known for, by their numbers in the data set.
        relevance: m × p.
        own: (m), the place among ``photos`` of the one that each was written for, −1 where there
            is none.
    """

    truth: Truth
    texts: Sequence[str]
    photos: Tensor
    relevance: Relevance
    own: Tensor

    def __post_init__(self) -> None:
        sizes = {len(self.texts), self.relevance.queries, len(self.own)}
        if len(sizes) > 1 or self.relevance.gallery != len(self.photos):
            raise ValueError(f"{self.truth}: queries, photos and relevance do not fit")

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def lengths(self) -> list[Length]:
        return [length_of(canonical(text)) for text in self.texts]

    def some(self, queries: Tensor) -> Fits:
        """Some of the queries."""
        texts = [self.texts[q] for q in queries.tolist()]
        rows = self.relevance.subset(queries, torch.arange(len(self.photos)))
        return Fits(self.truth, texts, self.photos, rows, self.own[queries])


# ---- people ----


def by_people(path: Path, photos: Mapping[str, int]) -> Fits:
    """Captions with the photos that people say they fit: JSON lines with ``caption``, ``image`` and
    ``photos``, numbers as in the names of COCO's files. All captions count, also those that fit no
    photo here.

    Args:
        photos: number (as text) → place of a photo in the data set.
    """
    texts, own, query, item = [], [], [], []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            row = json.loads(line)
            texts.append(str(row["caption"]))
            own.append(photos.get(str(row["image"]), -1))
            here = [photos[str(p)] for p in row["photos"] if str(p) in photos]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: not JSON with 'caption', 'image' and 'photos' ({error})"
            ) from error
        query += [number - 1] * len(here)
        item += here
    truth = Relevance.from_pairs(query, item, queries=len(texts), gallery=len(photos))
    return Fits("people", texts, torch.arange(len(photos)), truth, torch.tensor(own))


def by_pairs(pairs: Pairs) -> Fits:
    """Whole captions: with every photo that they are known to be true of (people's judgments, or
    all of them), or with their own photo only."""
    known = pairs.relevance
    return Fits(
        "pairs" if known is None else "people",
        pairs.captions,
        torch.arange(len(pairs.images)),
        pairs.pairs() if known is None else known,
        pairs.image_of,
    )


# ---- derived ----


def by_boxes(classes: Tensor, names: Sequence[str]) -> Fits:
    """Class names alone, with an article and as a plural, each with the photos that have a box of
    the class.

    Args:
        classes: (photos, classes), which classes have a box in each photo.
    """
    texts: list[str] = []
    rows: list[Tensor] = []
    for at, name in enumerate(names):
        forms = [name, one_of(name), plural(name)]
        texts += dict.fromkeys(forms)
        rows += [classes[:, at]] * len(dict.fromkeys(forms))
    kept = [k for k, row in enumerate(rows) if bool(row.any())]
    truth = Relevance.from_sets(
        (rows[k].nonzero()[:, 0].tolist() for k in kept), gallery=len(classes)
    )
    none = torch.full((len(kept),), -1)
    return Fits("boxes", [texts[k] for k in kept], torch.arange(len(classes)), truth, none)


def plural(name: str) -> str:
    """Several of a class.

    >>> [plural(n) for n in ("dog", "bus", "person", "skis", "knife", "cherry")]
    ['dogs', 'buses', 'people', 'skis', 'knives', 'cherries']
    """
    irregular = {one: many for many, one in _IRREGULAR.items() if many not in ("skis",)}
    last = name.split()[-1]
    if name in ("person", "knife", "mouse"):
        return irregular[name]
    if one_of(name) == name or last in ("sheep", "broccoli"):
        return name
    if last.endswith("y") and last[-2] not in "aeiou":
        return name[:-1] + "ies"
    return name + ("es" if last.endswith(("s", "ch", "sh", "x")) else "s")


def by_words(
    captions: Sequence[str], image_of: Tensor, images: int, each: int = EACH, seed: int = 0
) -> Fits | None:
    """Short queries out of captions, with the photos whose captions hold their words; ``None``
    where too few photos have ``ENOUGH`` captions.

    Args:
        each: queries of each length, at most.
    """
    count = torch.bincount(image_of, minlength=images)
    photos = (count >= ENOUGH).nonzero()[:, 0]
    if len(photos) < 2 * FEWEST:
        return None
    place = torch.full((images,), -1).scatter_(0, photos, torch.arange(len(photos)))
    inside = [
        (text, p) for text, p in zip(captions, place[image_of].tolist(), strict=True) if p >= 0
    ]
    said: dict[str, Counter[int]] = {}
    for text, photo in inside:
        for word in _meant(stems(text)):
            said.setdefault(word, Counter())[photo] += 1
    fewest = max(FEWEST, round(SHARE * len(photos)))
    holding = {
        word: frozenset(times)
        for word, times in said.items()
        if len(times) >= fewest and times.total() >= SAID * len(times)
    }
    dice = np.random.default_rng(seed)
    found: dict[str, frozenset[int]] = {}
    wanted = dict.fromkeys(LENGTHS[:-1], each)
    turns = [dice.permutation(len(inside)) for _ in range(TURNS)]
    for at in np.concatenate(turns).tolist():
        for query in spans(inside[at][0], dice):
            query = canonical(query)  # as it is read: "a dog" is one word
            length, words = length_of(query), stems(query)
            if query in found or not wanted.get(length) or not words <= holding.keys():
                continue
            fitting = frozenset.intersection(*(holding[word] for word in words))
            if len(fitting) >= fewest:
                found[query] = fitting
                wanted[length] -= 1
        if not any(wanted.values()):
            break
    if not found:
        return None
    truth = Relevance.from_sets(found.values(), gallery=len(photos))
    return Fits("words", list(found), photos, truth, torch.full((len(found),), -1))


def _meant(words: Iterable[str]) -> frozenset[str]:
    """Words, and what they are a kind of."""
    return frozenset(general for word in words for general in (word, *GENERALS.get(word, ())))


def spans(caption: str, dice: np.random.Generator) -> Iterator[str]:
    """What people might have typed for a caption: one word, two, and three to five of it, which
    begin with an article or a content word and end with a content word.

    >>> list(spans("A brown dog runs through deep snow", np.random.default_rng(0)))
    ['snow', 'dog runs', 'a brown dog runs']
    """
    words = _WORD.findall(caption.lower())
    named = [word not in STOP_WORDS for word in words]
    starts = [named[at] or word in _ARTICLES for at, word in enumerate(words)]
    for sizes in ((1,), (2,), (3, 4, 5)):
        size = int(dice.choice(sizes))
        fit = [at for at in range(len(words) - size + 1) if starts[at] and named[at + size - 1]]
        if fit:
            start = int(dice.choice(fit))
            yield with_articles(" ".join(words[start : start + size]))


def of_pairs(pairs: Pairs, names: Sequence[str] = ()) -> list[Fits]:
    """All that a split knows of itself: whole captions, class names where there are boxes, and
    short queries where photos have enough captions."""
    found = [by_pairs(pairs)]
    if pairs.classes is not None and names:
        found.append(by_boxes(pairs.classes, names))
    if pairs.texts is None:
        short = by_words(pairs.captions, pairs.image_of, len(pairs.images))
        found += [] if short is None else [short]
    return found
