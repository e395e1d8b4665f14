"""A query as a person types it: what to look for, what must not be there, and when it was taken.

Page, command line and Python read a query here and nowhere else.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from gaussmatch.checks import SCHEMA
from gaussmatch.data.language import GENERAL, STOP_WORDS, base

TAKEN = "taken"
"""The field of a photo's metadata that holds its date, see ``pictures.Read``."""
FIRST_YEAR, LAST_YEAR = 1900, 2099


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a query that is not searched for as words.

    Args:
        said: as it was typed.
        means: how it was read: a word, or the first day and the day after the last.
    """

    __pydantic_config__ = SCHEMA

    said: str
    means: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A query, read.

    Args:
        text: as it was typed.
        words: what to look for; empty if the query says only what must not be there, or when.
        without: what must not be there, each in the singular.
        dates: when it was taken, ``means`` is ``2023-05-01/2023-06-01``: from, and before.
        emoji: emoji with the names that they are searched by.
        notes: what was not understood, to be shown.

    >>> asked = read_query("a dog without a leash, may 2023")
    >>> asked.words, [part.means for part in asked.without], asked.where
    ('a dog', ['leash'], {'taken': {'gte': '2023-05-01', 'lt': '2023-06-01'}})
    """

    __pydantic_config__ = SCHEMA

    text: str
    words: str
    without: list[Part] = field(default_factory=list)
    dates: list[Part] = field(default_factory=list)
    emoji: list[Part] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def where(self) -> dict[str, Any]:
        """The dates as a condition: from the first to the last."""
        spans = [part.means.split("/") for part in self.dates]
        first = max((start for start, _ in spans if start), default="")
        last = min((end for _, end in spans if end), default="")
        if first and last and first >= last:  # "2018 2020": from one to the other
            first = min(start for start, _ in spans if start)
            last = max(end for _, end in spans if end)
        bounds = {"gte": first, "lt": last}
        return {TAKEN: {name: day for name, day in bounds.items() if day}} if spans else {}

    @property
    def plain(self) -> bool:
        """Whether it is words and nothing else."""
        return bool(self.words) and not self.without and not self.dates


def read_query(text: str, today: date | None = None) -> Asked:
    """Read a query.

    >>> read_query("🐶 on the beach").words
    'dog on the beach'
    >>> read_query("no people").without, read_query("no people").words
    ([Part(said='no people', means='person')], '')
    >>> read_query("dog -person").without[0].means, read_query("a no parking sign").without
    ('person', [])
    >>> read_query("2019 holiday").where["taken"]
    {'gte': '2019-01-01', 'lt': '2020-01-01'}
    >>> read_query("собака").notes
    ['I only read English: “собака” is not understood']
    """
    rest, emoji, notes = _emoji(text)
    rest, dates = _dates(rest, today or date.today())
    rest, without = _negations(rest)
    words = _tidy(rest) if without or dates else rest.strip() or text.strip()
    notes += _misread(words)
    return Asked(text, words, without, dates, emoji, notes)


def _tidy(text: str) -> str:
    """Without what the parts that were taken out have left behind."""
    text = re.sub(r"\s+([,;.!?])", r"\1", " ".join(text.split()))
    text = re.sub(r"([,;])(?:\s*[,;])+", r"\1", text)
    left = rf"(?:\s*[,;]|\s+\b(?:{'|'.join(_LEFT)}))+\s*$"
    text = re.sub(left, "", f" {text}", flags=re.IGNORECASE)
    return re.sub(r"^(?:[\s,;]+|(?:and|or|but)\s+)+", "", text, flags=re.IGNORECASE).strip()


_LEFT = ("and", "or", "but", "with", "from", "in", "on", "of", "at", "taken", "the", "a", "an")
"""Words that a query never ends with."""


# ---- emoji ----

_INVISIBLE = {0x200D, 0xFE0E, 0xFE0F, 0x20E3}
_SKIN, _FLAG = range(0x1F3FB, 0x1F400), range(0x1F1E6, 0x1F200)
_FILLED = ("heavy", "black", "white")
"""What the names of old symbols say of their shape, and not of what they show."""


def _emoji(text: str) -> tuple[str, list[Part], list[str]]:
    """The text with names for emoji; those, and what was left out."""
    out, found, notes = [], [], []
    for sign in text:
        code = ord(sign)
        if code in _INVISIBLE or code in _SKIN:
            continue
        if code in _FLAG:
            notes.append("flags are not understood: one was left out")
            continue
        name = emoji_name(sign)
        if name is None:
            out.append(sign)
        else:
            out.append(f" {name} ")
            found.append(Part(sign, name))
    spaced = "".join(out)
    return (" ".join(spaced.split()) if found or notes else text), found, [*dict.fromkeys(notes)]


def emoji_name(sign: str) -> str | None:
    """What an emoji shows, in words; ``None`` for any other sign.

    >>> [emoji_name(sign) for sign in ("🐶", "🚗", "☀", "❤", "⭐", "😀", "x", "©")]
    ['dog', 'automobile', 'sun with rays', 'heart', 'medium star', 'grinning face', None, None]
    """
    if unicodedata.category(sign) != "So" or ord(sign) < 0x2190:
        return None
    words = unicodedata.name(sign, "").lower().split()
    if ord(sign) < 0x2C00:
        while len(words) > 1 and words[0] in _FILLED:
            words = words[1:]
    if len(words) == 2 and words[1] == "face" and words[0] in GENERAL:
        words = words[:1]
    return " ".join(words) or None


# ---- dates ----

_ALL_MONTHS = (
    "january february march april may june july august september october november december"
)
_MONTHS = _ALL_MONTHS.split()
_MONTH = "|".join(f"{month}|{month[:3]}" for month in _MONTHS) + "|sept"
_YEAR = r"(?:19|20)\d\d"
_BEFORE = r"(?:\b(?P<order>since|after|before|until|from|in|of|on)\s+)?"
_DATES = (
    rf"{_BEFORE}\b(?P<first>{_YEAR})\s?(?:-|–|to|and|until)\s?(?P<last>{_YEAR})\b",
    rf"{_BEFORE}\b(?P<year>{_YEAR})-(?P<number>0[1-9]|1[0-2])(?:-(?P<day>[0-3]\d))?\b",
    rf"{_BEFORE}(?:\b(?P<day>[0-3]?\d)(?:st|nd|rd|th)?\s+(?:of\s+)?)?\b(?P<month>{_MONTH})\b\.?,?\s+"
    rf"(?P<year>{_YEAR})\b",
    rf"{_BEFORE}\b(?P<month>{_MONTH})\.?\s+(?P<day>[0-3]?\d)(?:st|nd|rd|th)?,?\s+(?P<year>{_YEAR})\b",
    rf"{_BEFORE}\b(?P<year>{_YEAR})\b(?!\s*(?:x|×|px|pixels|mm|m|km)\b)",
    r"\b(?P<near>today|yesterday|(?:this|last)\s+(?:week|month|year))\b",
)
_DATE = [re.compile(pattern, re.IGNORECASE) for pattern in _DATES]


def _dates(text: str, today: date) -> tuple[str, list[Part]]:
    """The text without its dates; those, in the order of the patterns."""
    found: list[Part] = []
    for pattern in _DATE:

        def taken_out(match: re.Match[str]) -> str:
            try:
                first, last = _span(match.groupdict(), today)
            except ValueError:  # 31 february
                return match.group()
            order = (match.groupdict().get("order") or "").lower()
            start = "" if order in ("before", "until") else first.isoformat()
            end = "" if order in ("since", "after") else last.isoformat()
            if order == "after":
                start = last.isoformat()
            elif order == "before":
                end = first.isoformat()
            found.append(Part(match.group().strip(), f"{start}/{end}"))
            return " "

        text = pattern.sub(taken_out, text)
    return text, found


def _span(found: Mapping[str, str | None], today: date) -> tuple[date, date]:
    """The first day, and the day after the last."""
    if near := found.get("near"):
        return _near(" ".join(near.lower().split()), today)
    if found.get("first"):
        first, last = sorted((int(found["first"] or 0), int(found["last"] or 0)))
        return date(first, 1, 1), date(last + 1, 1, 1)
    year = int(found["year"] or 0)
    number = int(found.get("number") or 0)
    if found.get("month"):
        number = next(
            n for n, m in enumerate(_MONTHS, 1) if m[:3] == str(found["month"]).lower()[:3]
        )
    if not number:
        return date(year, 1, 1), date(year + 1, 1, 1)
    if found.get("day"):
        day = date(year, number, int(found["day"] or 0))
        return day, day + timedelta(1)
    return _month(year, number)


def _month(year: int, number: int) -> tuple[date, date]:
    return date(year, number, 1), date(year + number // 12, number % 12 + 1, 1)


def _near(words: str, today: date) -> tuple[date, date]:
    """
    >>> _near("last month", date(2024, 1, 15))
    (datetime.date(2023, 12, 1), datetime.date(2024, 1, 1))
    """
    monday = today - timedelta(today.weekday())
    before = today.replace(day=1) - timedelta(1)
    return {
        "today": (today, today + timedelta(1)),
        "yesterday": (today - timedelta(1), today),
        "this week": (monday, monday + timedelta(7)),
        "last week": (monday - timedelta(7), monday),
        "this month": _month(today.year, today.month),
        "last month": _month(before.year, before.month),
        "this year": (date(today.year, 1, 1), date(today.year + 1, 1, 1)),
        "last year": (date(today.year - 1, 1, 1), date(today.year, 1, 1)),
    }[words]


# ---- negation ----

_SIGNS = "parking smoking entry entrance trespassing stopping swimming fishing diving exit u-turn"
_TRIGGER = re.compile(
    r"(?P<sign>(?:^|(?<=\s))[-−](?=[^\W\d]))|"
    r"(?:\b(?:with|but|and|has|have|having|there\s+(?:is|are))\s+)?"
    r"\b(?P<word>without|no|not|except(?:\s+for)?|excluding|minus|nobody|no\s+one)\b",
    re.IGNORECASE,
)
_OPENING = re.compile(r"\s*(?:(?:any|a|an|the|with)\b\s*)*", re.IGNORECASE)
_THING = re.compile(r"[^\W\d_][\w'-]*")
_TAIL = re.compile(
    r"\s*\b(?:in|on)\s+(?:it|them|there|the\s+(?:photo|picture|image|background|foreground))\b|"
    r"\s*\b(?:visible|anywhere|at\s+all)\b",
    re.IGNORECASE,
)
_PEOPLE = "people persons anyone anybody somebody humans human nobody one"
_NOT_READ = re.compile(r"\b(?:never|neither|nor|none|nothing|\w+n['’]t|not)\b", re.IGNORECASE)


def _negations(text: str) -> tuple[str, list[Part]]:
    """The text without what must not be there; that, each in the singular."""
    found: list[Part] = []
    start = 0
    while match := _TRIGGER.search(text, start):
        end, things = match.end(), list[str]()
        word = " ".join((match["word"] or "").lower().split())
        if word in ("nobody", "no one"):
            things = ["person"]
        elif match["sign"]:
            thing = _THING.match(text, end)
            if thing is not None:
                things, end = [_one(thing.group())], thing.end()
        else:
            things, end = _things(text, end)
        if not things or (word == "no" and things[0].split()[0] in _SIGNS.split()):
            start = match.end()
            continue
        if tail := _TAIL.match(text, end):
            end = tail.end()
        said = text[match.start() : end].strip()
        found += [Part(said, thing) for thing in things]
        text, start = f"{text[: match.start()]} {text[end:]}", match.start()
    return text, found


def _things(text: str, at: int) -> tuple[list[str], int]:
    """What a negation is about: words up to one that names nothing; more after "or" and "and",
    unless an article follows, as in "no people and a dog"."""
    things: list[str] = []
    while True:
        opening = _OPENING.match(text, at)
        place = opening.end() if opening else at
        words: list[str] = []
        end = at
        while (word := _THING.match(text, place)) and word.group().lower() not in STOP_WORDS:
            words.append(word.group())
            end = word.end()
            place = end + len(text[end:]) - len(text[end:].lstrip())
            if place == end:
                break
        if not words:
            return things, at
        things.append(_one(" ".join(words)))
        at = end
        more = re.match(
            r"\s*(?:,\s*)?(?:or|and)\s+(?:any\s+)?(?!an?\b|the\b)", text[at:], re.IGNORECASE
        )
        if more is None:
            return things, at
        at += more.end()


def _one(thing: str) -> str:
    """One of it, as "no dogs" is not even one dog.

    >>> _one("people"), _one("Red cars"), _one("child")
    ('person', 'red car', 'child')
    """
    *before, last = thing.lower().split()
    return " ".join([*before, "person" if last in _PEOPLE.split() else base(last)])


# ---- what is not understood ----

_FOREIGN = {
    "German": "der das und mit ein eine einem einen auf im ohne zwei von",
    "French": "le les des avec une dans sur et du sans deux",
    "Spanish": "el los las con una del sin dos unos",
    "Italian": "il gli con una nel nella di senza due",
    "Portuguese": "os uma com na dos sem dois",
    "Dutch": "het een met op van zonder twee",
}
"""Small words that English has not, by language."""


NOT_ENGLISH = "this looks like {}; I only read English"


def _misread(words: str) -> Iterator[str]:
    """Sentences about what cannot be read."""
    strange = [w for w in re.findall(r"[^\W\d_]+", words) if not _latin(w)]
    if strange:
        yield f"I only read English: “{' '.join(strange)}” is not understood"
    plain = words.lower().split()
    hits = {name: len({*plain} & {*some.split()}) for name, some in _FOREIGN.items()}
    name = max(hits, key=lambda each: hits[each])
    if len(plain) > 1 and hits[name] > len({*plain} & STOP_WORDS):
        yield NOT_ENGLISH.format(name)
    for match in _NOT_READ.finditer(words):
        yield f"“{match.group()}” is not understood: it is read as if it were not there"


def _latin(word: str) -> bool:
    return all(unicodedata.name(letter, "LATIN").startswith("LATIN") for letter in word)
