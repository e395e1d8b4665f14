"""Queries as text: their canonical form, edits whose effect on uncertainty is known, and queries
from other domains. English; the word lists are small on purpose, so that every pair is safe."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

from gaussmatch.data.queries import FUNCTION_WORDS, with_articles

_WORD = re.compile(r"[\w'-]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _queries(name: str) -> tuple[str, ...]:
    path = Path(__file__).parent / "queries" / f"{name}.txt"
    return tuple(path.read_text(encoding="utf-8").splitlines())


STOP_WORDS = FUNCTION_WORDS | _words(
    "any without but under am had did me where when really then than too"
)
"""Words that name nothing one could see."""

_FRAMES = (
    r"(?:please )?(?:show|find|give|get) me",
    r"(?:i am|i'm|we are) looking for",
    r"i (?:want|would like|need) (?:to see )?",
    r"(?:an?|the|this|some) (?:nice |good |close[- ]up )?"
    r"(?:photo|picture|image|photograph|pic|snapshot)s? (?:of|showing|that shows|with)",
    r"(?:photo|picture|image|photograph|pic)s? of",
    r"(?:this|the) (?:photo|picture|image) shows",
    r"there (?:is|are)",
    r"here (?:is|are)",
)
_TAILS = (
    r"(?:in|on) (?:the|this|a) (?:photo|picture|image|photograph)",
    r"(?:is|are) (?:shown|seen|visible|depicted)",
    r"please",
    r"thank you",
    r"thanks",
)
_FRAME = re.compile(rf"^\W*(?:{'|'.join(_FRAMES)})\W+(?=\w)", re.IGNORECASE)
_TAIL = re.compile(rf"(?<=\w)\W+(?:{'|'.join(_TAILS)})\W*$", re.IGNORECASE)
_INTENSIFIER = re.compile(
    r"\b(?:very|really|basically|actually|simply|quite|kind of|sort of)\s+(?=\w)", re.IGNORECASE
)


def words_of(text: str) -> list[str]:
    """The words of a text, lower-cased.

    >>> words_of("A man's T-shirt, red.")
    ['a', "man's", 't-shirt', 'red']
    """
    return [word.lower() for word in _WORD.findall(text)]


def content_words(text: str) -> list[str]:
    """Words that name something, each once.

    >>> content_words("A dog and a dog on the beach"), content_words("of the and a")
    (['dog', 'beach'], [])
    """
    return list(dict.fromkeys(word for word in words_of(text) if word not in STOP_WORDS))


def known_share(text: str, unknown: Sequence[str]) -> float:
    """The share of a query's content words that are not among the unknown ones; 0 where it has
    none.

    >>> known_share("a red dog", ["dog"]), known_share("of the and a", [])
    (0.5, 0.0)
    """
    content, strange = content_words(canonical(text)), {word.lower() for word in unknown}
    return sum(word not in strange for word in content) / len(content) if content else 0.0


def mostly_known(text: str, unknown: Sequence[str]) -> bool:
    """Whether a model that does not know these words knows what a query is about.

    >>> mostly_known("a red dog", ["dog"]), mostly_known("a dog", ["dog"])
    (True, False)
    """
    return known_share(text, unknown) >= 0.5


@lru_cache(256)  # a search needs it twice: to encode the query, and to judge what is known of it
def canonical(text: str) -> str:
    """A query without what adds nothing to it: frames ("a photo of …"), intensifiers, repetitions.

    Two queries with one canonical form get one verdict. What would leave no content word behind is
    kept as it is, so that "a photo of it" stays itself.

    >>> canonical("please show me a photo of a very red circle, a red circle in this picture")
    'a red circle'
    >>> canonical("a man and a woman"), canonical("a photo"), canonical("dog dog dog")
    ('a man and a woman', 'a photo', 'dog')
    """
    before, short = None, " ".join(text.split())
    while before != short:
        before = short
        for pattern in (_FRAME, _TAIL, _INTENSIFIER):
            cut = pattern.sub("", short)
            if cut != short and content_words(cut):
                short = cut
        short = _without_repetition(short)
    return short


def _without_repetition(text: str) -> str:
    """Each run of words that is repeated at once, also after "and" or a comma, only once."""
    words = list(_WORD.finditer(text))
    plain = [m.group().lower() for m in words]
    for size in range(1, len(words) // 2 + 1):
        for start in range(len(words) - 2 * size + 1):
            again = start + size
            joined = plain[again] == "and" and again + 1 + size <= len(words)
            second = again + 1 if joined else again
            if plain[start] != plain[second]:
                continue
            if plain[start:again] == plain[second : second + size]:
                end = second + size
                rest = text[words[end].start() :] if end < len(words) else ""
                return _without_repetition(f"{text[: words[again - 1].end()]} {rest}".strip())
    return text


# ---- edits whose effect is known ----

FILLERS = (
    "a photo of {}",
    "a picture of {}",
    "an image of {}",
    "there is {}",
    "please show me {}",
    "i am looking for {}",
    "{} in this picture",
    "{}, please",
    "{} {}",
    "{}, {}, {}",
)
"""Frames and repetitions that must change nothing."""

_GENERAL = {
    "person": "man woman boy girl lady guy kid child toddler baby skier surfer skateboarder",
    "people": "men women boys girls ladies kids children skiers surfers",
    "animal": "dog cat horse cow sheep bird elephant giraffe zebra bear puppy kitten goat duck",
    "animals": "dogs cats horses cows birds elephants giraffes zebras bears puppies kittens",
    "vehicle": "car truck motorcycle bike bicycle van boat airplane plane jet scooter",
    "vehicles": "cars trucks buses trains motorcycles bikes bicycles boats airplanes planes",
    "shape": "circle square triangle diamond star cross heart moon disc crescent",
    "shapes": "circles squares triangles diamonds stars crosses hearts moons discs crescents",
}
HYPERNYMS = {word: general for general, some in _GENERAL.items() for word in some.split()}
"""Word → a more general one, of as many words."""

ADJECTIVES = _words(
    """
    red orange yellow green blue purple pink brown black white gray grey golden violet crimson
    scarlet small little tiny large big huge medium-sized young old elderly tall short long
    wooden dirty wet snowy sandy grassy rocky busy crowded empty striped dotted spotted plain
    solid hollow plaid furry fluffy colorful bright dark blond blonde
    """
)


def truncated(text: str, keep: int = 5, least: int = 8) -> str | None:
    """The first words of a caption of at least ``least`` words; ``None`` for a shorter one.

    >>> truncated("a brown dog runs through the deep white snow")
    'a brown dog runs through'
    """
    words = text.split()
    return " ".join(words[:keep]) if len(words) >= least else None


def generalised(text: str) -> str | None:
    """Every noun of ``HYPERNYMS`` replaced by its general word; ``None`` where there is none.

    >>> generalised("A man rides a bike"), generalised("an airplane"), generalised("a tree")
    ('A person rides a vehicle', 'a vehicle', None)
    """
    return _edited(text, lambda word: HYPERNYMS.get(word, word))


def without_adjectives(text: str) -> str | None:
    """``ADJECTIVES`` left out; ``None`` where there is none, or where one stands for a noun.

    >>> without_adjectives("an old red bus on a busy street"), without_adjectives("something red")
    ('a bus on a street', None)
    """
    words = words_of(text)
    followed = [*words[1:], "the"]
    for word, after in zip(words, followed, strict=True):
        if word in ADJECTIVES and after in STOP_WORDS:
            return None
    return _edited(text, lambda word: "" if word in ADJECTIVES else word)


def _edited(text: str, edit: Callable[[str], str]) -> str | None:
    before = text.split()
    after = []
    for word in before:
        bare = word.strip(".,;:!?\"'")
        new = edit(bare.lower())
        after.append(word if new == bare.lower() else word.replace(bare, new) if new else "")
    if after == before:
        return None
    return with_articles(" ".join(word for word in after if word))


# ---- other domains ----

EVERYDAY = _queries("everyday")
"""Everyday photos: out of the domain of a model of drawn shapes."""

OTHER_DOMAINS = _queries("other_domains")
"""Queries that neither everyday photos nor drawn shapes answer; for tests, nothing was chosen by
them since version 0.2."""

OTHER_DOMAINS_DEV = _queries("other_domains_dev")
"""Others of the same kind, to choose by: how familiarity is measured was decided with these."""
