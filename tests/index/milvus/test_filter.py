"""Filters as Milvus expressions: right by Where's own word, and nothing can break out of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.search.backends.database import DECLARED, facts
from gaussmatch.search.backends.milvus.rows import expression, id_of, ids, key, quoted
from gaussmatch.search.where import Where

parser = pytest.importorskip("milvus_lite.search.filter.parser")
from milvus_lite.search.filter.eval.python_backend import _eval_row  # noqa: E402
from milvus_lite.search.filter.tokens import tokenize  # noqa: E402

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6) | st.sampled_from(
    ['"', "\\", "'", '\\"', '" or id != "', "a\nb", "1", "true", "null", "{x}", "%"]
)
NUMBERS = st.integers(-(2**40), 2**40) | st.sampled_from([0, 1, 0.5, -1.5, 2010])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
FIELDS = st.sampled_from(["a", "b", "a b", "a]", "x'y", "é"])
ORDERED = st.sampled_from(["gt", "gte", "lt", "lte"])
WANTED = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | st.fixed_dictionaries({"not": SCALARS | st.lists(SCALARS, max_size=3)})
    | st.dictionaries(ORDERED, NUMBERS | TEXT, min_size=1, max_size=2)
)
META = st.dictionaries(FIELDS, SCALARS | st.lists(SCALARS, max_size=2), max_size=4)


def holds(text: str, meta: dict[str, Any]) -> bool:
    """What milvus-lite thinks of an expression, for one item."""
    if not text:
        return True
    tree = parser.Parser(tokenize(text), text).parse()
    return _eval_row(tree, {"id": "x", "facts": facts(meta)}) is True


@given(st.dictionaries(FIELDS, WANTED, max_size=3), META)
def test_an_expression_says_what_where_says(spec: dict[str, Any], meta: dict[str, Any]) -> None:
    where = Where.of(spec)
    assert holds(expression(where), meta) == where.holds(meta), expression(where)


@given(META)
def test_each_value_of_an_item_finds_it(meta: dict[str, Any]) -> None:
    for field, value in meta.items():
        if not isinstance(value, list):
            assert holds(expression(Where.of({field: value})), meta)
            assert not holds(expression(Where.of({field: {"not": value}})), meta)


@given(TEXT)
def test_a_quoted_text_is_one_token(text: str) -> None:
    first, end = tokenize(quoted(text))
    assert first.value == text
    assert end.kind.name == "EOF"


@pytest.mark.parametrize("text", ["\x00", "a\x07", "\ud800", "\x1b[0m"])
def test_what_milvus_cannot_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a control character"):
        expression(Where.of({"a": text}))


@pytest.mark.parametrize("field", ["a\\", "a\nb", "\x00"])
def test_a_field_that_could_break_out_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match="is not a field name"):
        expression(Where.of({field: 1}))


@given(TEXT)
def test_a_key_needs_no_quoting_and_is_one_id(text: str) -> None:
    assert quoted(key(text)) == f'"{key(text)}"'
    assert "'" not in key(text)
    assert id_of(key(text)) == text


def test_whole_numbers_beyond_64_bits_can_be_compared() -> None:
    assert facts({"a": 10**30, "b": -(2**63), "c": 10**400}) == {
        "n:a": 1e30,
        "n:b": -(2.0**63),
        "o:c": True,
    }


@given(st.dictionaries(FIELDS, WANTED, max_size=3), META, st.sampled_from(["text", "number"]))
def test_a_declared_field_answers_as_any_other(
    spec: dict[str, Any], meta: dict[str, Any], wanted: str
) -> None:
    type_ = DECLARED[wanted]
    if f"{type_}:a" not in facts(meta):
        meta.pop("a", None)  # of another type, it would be refused
    where = Where.of(spec)
    text = expression(where, {"a": (type_, 0)})
    row = {"id": "x", "facts": facts(meta), "has0": "a" in meta}
    row["meta0"] = meta.get("a", {"t": "", "n": 0.0}[type_])
    tree = parser.Parser(tokenize(text), text).parse() if text else None
    assert (tree is None or _eval_row(tree, row) is True) == where.holds(meta), text


def test_ids() -> None:
    assert ids(["a", 'b"] or true or id in ["']) == 'id in ["a", "b%22] or true or id in [%22"]'
    assert re.match(r'id not in \["a"\]', ids(["a"], inside=False))


@pytest.mark.parametrize("wanted", [1, "1", True, None, [], [1, None], ["1", True]])
@pytest.mark.parametrize("meta", [{}, {"a": None}, {"a": 1}, {"a": "1"}, {"a": True}, {"a": [1]}])
def test_missing_fields_and_other_types(wanted: Any, meta: dict[str, Any]) -> None:
    """Under null, "not" is swallowed; types must not mix."""
    for spec in ({"a": wanted}, {"a": {"not": wanted}}):
        where = Where.of(spec)
        assert holds(expression(where), meta) == where.holds(meta)
