"""A query as it is typed: words, dates, what must not be there, emoji, other languages."""

from __future__ import annotations

from datetime import date

import pytest

from gaussmatch.data.asked import read_query

TODAY = date(2026, 3, 4)


@pytest.mark.parametrize(
    ("text", "words", "without"),
    [
        ("no people", "", ["person"]),
        ("dog -person", "dog", ["person"]),
        ("a dog without a leash on the beach", "a dog on the beach", ["leash"]),
        ("street with no cars or people", "street", ["car", "person"]),
        ("no people and a dog", "a dog", ["person"]),
        ("beach with nobody in it", "beach", ["person"]),
        ("dog but not a black cat", "dog", ["black cat"]),
        ("forest without any people in the background", "forest", ["person"]),
        ("a no parking sign", "a no parking sign", []),
        ("a t-shirt and an x-ray", "a t-shirt and an x-ray", []),
        ("well-known man - dog", "well-known man - dog", []),
        ("two dogs", "two dogs", []),
        ("a man with a hat on", "a man with a hat on", []),  # as it was typed
        ("the", "the", []),
    ],
)
def test_what_must_not_be_there(text: str, words: str, without: list[str]) -> None:
    asked = read_query(text, TODAY)
    assert (asked.words, [part.means for part in asked.without]) == (words, without)
    assert all(part.said in text for part in asked.without)


@pytest.mark.parametrize(
    ("text", "words", "bounds"),
    [
        ("may 2023", "", ("2023-05-01", "2023-06-01")),
        ("holiday in May 2023", "holiday", ("2023-05-01", "2023-06-01")),
        ("December 2023", "", ("2023-12-01", "2024-01-01")),
        ("2019 holiday", "holiday", ("2019-01-01", "2020-01-01")),
        ("17 may 2023 party", "party", ("2023-05-17", "2023-05-18")),
        ("May 17, 2023", "", ("2023-05-17", "2023-05-18")),
        ("2018-2020 dogs", "dogs", ("2018-01-01", "2021-01-01")),
        ("dogs 2018 2020", "dogs", ("2018-01-01", "2021-01-01")),
        ("2023-05 snow", "snow", ("2023-05-01", "2023-06-01")),
        ("since 2020 snow", "snow", ("2020-01-01", None)),
        ("before 2019", "", (None, "2019-01-01")),
        ("last month", "", ("2026-02-01", "2026-03-01")),
        ("yesterday", "", ("2026-03-03", "2026-03-04")),
    ],
)
def test_dates(text: str, words: str, bounds: tuple[str | None, str | None]) -> None:
    asked = read_query(text, TODAY)
    taken = asked.where["taken"]
    assert (asked.words, (taken.get("gte"), taken.get("lt"))) == (words, bounds)


@pytest.mark.parametrize("text", ["a may day", "march of the penguins", "1024x768", "31 february"])
def test_no_dates(text: str) -> None:
    assert read_query(text, TODAY).where == {}


def test_emoji_have_names_and_flags_are_said() -> None:
    asked = read_query("👍🏽🐕‍🦺 🇫🇷", TODAY)
    assert asked.words == "thumbs up sign dog safety vest"
    assert [part.said for part in asked.emoji] == ["👍", "🐕", "🦺"]
    assert asked.notes == ["flags are not understood: one was left out"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("犬", "I only read English: “犬” is not understood"),
        ("ein Hund am Strand mit Ball", "this looks like German; I only read English"),
        ("le chien dans la neige", "this looks like French; I only read English"),
        ("a dog that isn't black", "“isn't” is not understood"),
        ("never a dog", "“never” is not understood"),
    ],
)
def test_what_is_not_understood_is_said(text: str, note: str) -> None:
    assert any(said.startswith(note) for said in read_query(text, TODAY).notes)


@pytest.mark.parametrize("text", ["a dog on the beach", "two men in the snow", "la la land"])
def test_english_is_not_remarked_on(text: str) -> None:
    assert read_query(text, TODAY).notes == []
