from __future__ import annotations

import pytest

from gaussmatch.core.similarities import SIMILARITIES, similarity


@pytest.mark.parametrize("name", SIMILARITIES)
def test_a_similarity_is_found_by_its_name(name):
    assert type(similarity(name)) is SIMILARITIES[name]
    assert SIMILARITIES[name].name == name


@pytest.mark.parametrize("name", [n for n, s in SIMILARITIES.items() if s.no_lift is None])
def test_search_lifts_numpy_arrays(name):
    assert SIMILARITIES[name].on_arrays


def test_an_unknown_name_is_answered_with_all_names():
    with pytest.raises(ValueError, match="unknown similarity 'euclid'") as error:
        similarity("euclid")
    assert all(name in str(error.value) for name in SIMILARITIES)
