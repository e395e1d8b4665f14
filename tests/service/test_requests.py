"""Parameters are read as the standard library reads them, only faster."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, quote_plus, urlencode

from hypothesis import given
from hypothesis import strategies as st

from gaussmatch.apps.service.requests import parameters

ASCII = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"))


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_sent_is_what_is_read(sent: dict[str, str]) -> None:
    sent = {name.encode("utf-8", "ignore").decode(): value for name, value in sent.items()}
    for way in (quote, quote_plus):
        query = urlencode(sent, errors="replace", quote_via=way).encode()
        assert parameters(query) == dict(parse_qsl(query.decode(), keep_blank_values=True))


@given(ASCII)
def test_anything_else_is_read_as_the_standard_library_reads_it(query: str) -> None:
    expected = dict(parse_qsl(query, keep_blank_values=True))
    assert parameters(query.encode()) == expected


def test_bytes_that_are_not_quoted_are_utf_8() -> None:
    assert parameters("text=café".encode()) == {"text": "café"}
    assert parameters(b"text=caf%E9") == {"text": "caf\N{REPLACEMENT CHARACTER}"}
