from __future__ import annotations

import pytest

from gaussmatch.similarities import SIMILARITIES, similarity


@pytest.mark.parametrize("name", SIMILARITIES)
def test_a_similarity_is_found_by_its_name(name):
    assert type(similarity(name)) is SIMILARITIES[name]
    assert SIMILARITIES[name].name == name


def test_an_unknown_name_is_answered_with_all_names():
    with pytest.raises(ValueError, match="unknown similarity 'euclid'") as error:
        similarity("euclid")
    assert all(name in str(error.value) for name in SIMILARITIES)
