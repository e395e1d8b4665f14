"""What the metadata of an index can be filtered by: for each field its type and its values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gaussmatch.apps.service.responses import FieldResponse

DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?.*)?")
CHOICES = 100
"""Different values up to which a text is something to choose from."""


def describe_fields(metas: Iterable[Mapping[str, Any]]) -> list[FieldResponse]:
    """Fields in which items differ, by name; a text with a value of its own for nearly every item
    (a file name, a caption) does not.

    >>> metas = [{"folder": "ab"[n > 2], "file": f"{n}.jpg"} for n in range(6)]
    >>> [(f.name, f.type, f.values) for f in describe_fields(metas)]
    [('folder', 'text', ['a', 'b'])]
    >>> describe_fields([{"taken": "2023-05-17T10:22:31"}, {"taken": "2024-01-02T08:00:00"}])
    [FieldResponse(name='taken', type='date', values=[], least='2023-05-17', most='2024-01-02')]
    """
    found: dict[str, Counter[str | float | bool]] = {}
    for meta in metas:
        for name, value in meta.items():
            if isinstance(value, str | int | float | bool):
                found.setdefault(name, Counter())[value] += 1
    described = (_described(name, values) for name, values in sorted(found.items()))
    return [field for field in described if field is not None]


def _described(name: str, values: Counter[Any]) -> FieldResponse | None:
    if len(values) < 2 or '"' in name or "\\" in name:
        return None
    known = list(values)
    if all(isinstance(v, bool) for v in known):
        return FieldResponse(name, "truth", [False, True], None, None)
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in known):
        return FieldResponse(name, "number", [], min(known), max(known))
    if not all(isinstance(v, str) for v in known):
        return None
    if all(DATE.fullmatch(v) for v in known):
        return FieldResponse(name, "date", [], min(known)[:10], max(known)[:10])
    if len(known) > CHOICES or len(known) > values.total() / 2 + 1:
        return None
    return FieldResponse(name, "text", sorted(known), None, None)
