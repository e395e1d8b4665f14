"""Faults that were planted are found, and named as what they are."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from gaussmatch.apps.cli import main
from gaussmatch.search.trust.audit import audit, cross_fitted
from gaussmatch.search.trust.audit_report import word_vectors

N, D = 300, 12


def planted(share: float, captions_each: int = 3, seed: int = 0):
    """Captions are noisy images; some of them are exchanged."""
    chance = torch.Generator().manual_seed(seed)
    images = torch.randn(N, D, generator=chance)
    image_of = torch.arange(N).repeat_interleave(captions_each)
    turn = torch.linalg.qr(torch.randn(D, D, generator=chance)).Q
    captions = (images[image_of] + 0.5 * torch.randn(len(image_of), D, generator=chance)) @ turn
    moved = torch.randperm(len(image_of), generator=chance)[: round(share * len(image_of))]
    given = image_of.clone()
    given[moved] = image_of[moved.roll(1)]
    return images, captions, given, given != image_of


@pytest.mark.parametrize("share", [0.05, 0.2])
@pytest.mark.parametrize("captions_each", [1, 3])
def test_exchanged_captions_come_first(share, captions_each):
    images, captions, given, wrong = planted(share, captions_each)
    fit = cross_fitted(images, captions, given)
    worst = fit.misfit.argsort(descending=True)[: int(wrong.sum())]
    by_score = fit.score.argsort()[: int(wrong.sum())]
    precision = wrong[worst].double().mean()
    assert precision >= wrong[by_score].double().mean() - 0.01
    assert precision >= 0.85
    assert 0.5 * share < (fit.misfit > 0.5).double().mean() < share + 0.1


def test_every_kind_of_fault_is_named():
    images, captions, given, wrong = planted(0.05)
    images[7] = images[8] + 1e-4  # a twin
    images[9] = 40 * torch.randn(D)  # far away
    found = audit(images, captions, given, most=20)
    issues = {f.issue for f in found}
    assert {"misfit", "missing positive", "vague", "near-duplicate"} <= issues
    twins = [(f.image, f.other) for f in found if f.issue == "near-duplicate"]
    assert (7, 8) in twins
    named = [f.caption for f in found if f.issue == "misfit"]
    assert wrong[torch.tensor(named)].double().mean() > 0.8
    with pytest.raises(ValueError, match="at least 10 images"):
        audit(images[:5], captions[:5], torch.arange(5))


@pytest.mark.parametrize("alike", ["captions", "images"])
def test_what_is_all_alike_is_audited_too(alike):
    images, captions, given, _ = planted(0.0)
    images, captions, given = images[:30], captions[:90], given[:90]
    (captions if alike == "captions" else images)[:] = 1.0
    fit = cross_fitted(images, captions, given)
    assert fit.misfit.isfinite().all()
    assert fit.margin.isfinite().all()
    assert isinstance(audit(images, captions, given, most=5), list)


def test_words_stand_in_for_a_model():
    vectors = word_vectors(["a dog", "a cat", "a dog barks"])
    assert vectors.shape == (3, 4)
    assert vectors[0] @ vectors[2] > vectors[0] @ vectors[1]


@pytest.mark.parametrize("with_run", [True, False])
def test_the_command_writes_a_table_and_a_page(tiny_run: Path, tmp_path: Path, capsys, with_run):
    words = ["audit", "scenes", "--split", "dev", "--most", "5", "--out", str(tmp_path)]
    assert main([*words, *(["--run", str(tiny_run)] if with_run else [])]) == 0
    assert "misfit" in capsys.readouterr().out
    with (tmp_path / "audit.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(row["reason"] for row in rows)
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "data:image/jpeg;base64," in page
    assert "http" not in page
