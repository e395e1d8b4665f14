"""A few kills; benchmarks/index_kills.py does twenty and more."""

from __future__ import annotations

import random

from index.kills import check, one_kill


def test_a_kill_breaks_nothing_and_loses_nothing(tmp_path):
    dice = random.Random(0)
    for _ in range(2):
        one_kill(tmp_path / "i", tmp_path / "log", dice, within=1.0)
        held, promised = check(tmp_path / "i", tmp_path / "log")
        assert held - promised in (0, 20)  # at most one addition was made and not yet promised
