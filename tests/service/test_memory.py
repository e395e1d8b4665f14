"""Memory under attack: the attacks of benchmarks/service_attacks.py, on a service of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from service_attacks import Service, answers, huge_pictures, large_upload

from gaussmatch.apps.cli import main


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory from /proc")
def test_uploads_and_huge_pictures_take_at_most_half_as_much_again(
    tiny_run: Path, tmp_path: Path
) -> None:
    """Held together, forty uploads are 760 MiB, and a single WebP takes 780 MB to decode."""
    assert main(["index", str(tiny_run), "--out", str(tmp_path / "i")]) == 0
    service = Service(tmp_path / "i")
    try:
        sent = answers(service, [large_upload()] * 40, at_once=40)
        assert set(sent) <= {415, 503}
        assert sent[415]
        assert answers(service, huge_pictures(), at_once=24) == {413: 48}
        assert service.ratio() <= 1.5
    finally:
        service.close()
