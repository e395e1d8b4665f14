"""One verdict on a search, in one place."""

from __future__ import annotations

from typing import Any

import pytest

from gaussmatch.search.hits import Hit, Hits
from gaussmatch.search.trust.verdict import FitCount


def verdict(probability: float | None = 0.8, results: int = 3, **fields: Any) -> Any:
    hits = [Hit(f"{i}.jpg", 0.5, probability, None, None) for i in range(results)]
    total = results if "guarantee" in fields else 1173
    return Hits(hits, "images", "captions", total=total, **fields).verdict


NUMBER = {"count": FitCount(230, 250, 270), "absent": 0.01}


@pytest.mark.parametrize(
    ("fields", "kind", "sentence"),
    [
        (NUMBER, "specific", "About 230–270 of 1,173 pictures fit"),
        ({**NUMBER, "percentile": 90.0}, "vague", "About 230–270 of 1,173 pictures fit"),
        ({**NUMBER, "absent": 0.5, "probability": 0.3}, "specific", "Best first"),
        ({**NUMBER, "absent": 0.6, "probability": 0.7}, "specific", "Best first"),
        (
            {**NUMBER, "absent": 0.6, "probability": 0.9},
            "specific",
            "About 230–270 of 1,173 pictures fit",
        ),
        (
            {**NUMBER, "absent": 0.3, "probability": 0.4},
            "specific",
            "About 230–270 of 1,173 pictures fit",
        ),
        ({**NUMBER, "count": FitCount(1, 9, 80)}, "specific", "Best first"),
        ({**NUMBER, "nothing": True, "probability": 0.3}, "absent", "Nothing here seems to fit"),
        ({**NUMBER, "nothing": True}, "specific", "About 230–270 of 1,173 pictures fit"),
        ({"results": 0}, "unjudged", "No pictures are left"),
        ({"probability": None}, "unjudged", "Best first"),
        ({"familiar": 0.001, "text": "floor plan"}, "unfamiliar", "I don’t know “floor plan”"),
        ({**NUMBER, "familiar": 0.03}, "specific", "Best first"),
        ({"guarantee": 0.9}, "specific", "At least 90 % of what fits is among these 3"),
        (
            {"guarantee": 0.9, "promise": "one"},
            "specific",
            "The one you mean is among these 3: 90 % sure",
        ),
        ({"guarantee": 0.9, "results": 0}, "absent", "Nothing here seems to fit"),
    ],
)
def test_what_is_said(fields: dict[str, Any], kind: str, sentence: str) -> None:
    found = verdict(**fields)
    assert (found.kind, found.sentence) == (kind, sentence)


@pytest.mark.parametrize(("best", "fits"), [(0.1, "Perhaps nothing here fits."), (0.3, "I can’t")])
def test_no_number_is_said_above_a_first_result_that_is_unlikely(best: float, fits: str) -> None:
    """Whatever the gallery as a whole looks like: labels and sentence say the same."""
    count = FitCount(1, 1, 3) if best < 0.2 else FitCount(1, 9, 80)
    found = verdict(probability=best, absent=0.01, count=count)
    assert found.sentence == "Best first"
    assert found.reason.startswith(fits)


def test_a_guarantee_does_not_hide_that_perhaps_nothing_fits() -> None:
    sure = verdict(guarantee=0.9, probability=0.9, absent=0.01)
    doubted = verdict(guarantee=0.9, probability=0.1, absent=0.01)
    assert sure.sentence == doubted.sentence
    assert "Perhaps nothing here fits." not in sure.reason
    assert doubted.reason.startswith("Perhaps nothing here fits. This holds on average")


def test_words_that_are_not_known_are_named_and_nothing_is_claimed() -> None:
    hits = Hits([Hit("a", 0.5, 0.9, None, None)], "images", "captions", count=FitCount(5, 6, 7))
    found = hits.for_text("qwer zxcv", ["qwer", "zxcv"], {})
    assert found.verdict.sentence == "I don’t know “qwer” and “zxcv”"
    assert found.verdict.count is found.hits[0].probability is found.hits[0].fit is None
    german = hits.for_text("ein Hund und die Katze", ["Hund", "Katze"], {"Hund": "hound"})
    assert german.remarks[-1] == "this looks like German; I only read English"
    assert german.meant is None  # "ein hound" is not what anybody means
    one_of_two = hits.for_text("a red zebra", ["zebra"], {})
    assert one_of_two.verdict.kind == "specific"
    assert one_of_two.unknown == ["zebra"]
