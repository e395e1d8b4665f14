"""Faults that were planted are found, and named as what they are."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from gaussmatch.apps.cli import main
from gaussmatch.data.clean import Decision
from gaussmatch.data.pairs import Pairs
from gaussmatch.data.stored import StoredFeatures
from gaussmatch.search.trust import duplicates
from gaussmatch.search.trust import worth as worth_module
from gaussmatch.search.trust.audit import audit, cross_fitted, exchanged
from gaussmatch.search.trust.audit_report import (
    FIELDS,
    Known,
    Row,
    _by_position,
    audit_data,
    read_table,
    word_vectors,
)
from gaussmatch.search.trust.worth import Captioned, worth

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
    assert 0.5 * share < fit.misfit.mean() < 1.3 * share  # it says how many there are
    sure = fit.misfit > 0.5
    assert wrong[sure].double().mean() >= 0.9
    assert sure.sum() > 0.6 * wrong.sum()


def test_nothing_is_proposed_to_go_from_clean_captions():
    images, captions, given, _ = planted(0.0)
    fit = cross_fitted(images, captions, given)
    assert (fit.misfit > 0.5).sum() <= 2  # of 900
    unsure = [f for f in audit(images, captions, given) if f.issue == "misfit"]
    assert all(f.proposal in ("drop", "swap") or f.severity < 0.5 for f in unsure)


def test_every_kind_of_fault_is_named():
    images, captions, given, wrong = planted(0.05)
    images[7] = images[8] + 1e-4  # a twin
    images[9] = 40 * torch.randn(D)  # far away
    splits = ["test" if i == 7 else "train" for i in range(N)]
    found = audit(images, captions, given)
    issues = {f.issue for f in found}
    assert {"misfit", "missing positive", "vague", "near-duplicate"} <= issues
    twins = [(f.image, f.other) for f in found if f.issue == "near-duplicate"]
    assert (8, 7) in twins
    first = audit(images, captions, given, splits=splits)[0]
    assert (first.issue, first.image, first.other, first.proposal) == ("leakage", 8, 7, "drop")
    named = [f.caption for f in found if f.issue == "misfit"]
    assert wrong[torch.tensor(named[:20])].double().mean() > 0.8
    with pytest.raises(ValueError, match="at least 10 images"):
        audit(images[:5], captions[:5], torch.arange(5))


def test_two_captions_that_were_exchanged_are_named_together():
    images, captions, given, _ = planted(0.0)
    chosen = torch.randperm(len(given), generator=torch.Generator().manual_seed(3))[:40]
    a, b = chosen[:20], chosen[20:]
    given[a], given[b] = given[b], given[a].clone()
    mate = dict(zip([*a.tolist(), *b.tolist()], [*b.tolist(), *a.tolist()], strict=True))
    fit = cross_fitted(images, captions, given)
    found = exchanged(images, captions, given, fit.suspect)
    right = sum(mate.get(c) == other for c, other in found.items())
    assert right >= 20
    assert right >= 0.8 * len(found)
    swaps = [f for f in audit(images, captions, given) if f.proposal == "swap"]
    assert {f.caption: f.other_caption for f in swaps}.items() <= found.items()


def test_a_single_swap_is_proposed_also_across_splits():
    """With two suspects there is nothing to compare them with but the other photos."""
    for seed in range(4):
        images, captions, given, _ = planted(0.0)
        a, b = torch.randperm(len(given), generator=torch.Generator().manual_seed(seed))[:2]
        given[a], given[b] = given[b].clone(), given[a].clone()
        splits = ["train"] * N
        splits[int(given[a])] = "dev"
        swaps = [f for f in audit(images, captions, given, splits=splits) if f.proposal == "swap"]
        named = {(f.caption, f.other_caption): f for f in swaps}
        assert named.keys() == {(int(a), int(b)), (int(b), int(a))}
        assert named[int(a), int(b)].other == int(given[b])


def test_mutual_missing_positives_are_a_swap():
    """Two captions that are not called misfits, but each fits the photo of the other."""
    images, captions, given, _ = planted(0.0)
    a, b = 30, 600
    given[a], given[b] = given[b].clone(), given[a].clone()
    fit = cross_fitted(images, captions, given)
    fit.misfit[[a, b]] = 0.01
    fit.margin[[a, b]], fit.better[[a, b]] = 3.0, 5
    swaps = [f for f in audit(images, captions, given, fit=fit) if f.proposal == "swap"]
    assert {(f.issue, f.caption, f.other_caption) for f in swaps} == {
        ("missing positive", a, b),
        ("missing positive", b, a),
    }
    assert {f.other for f in swaps} == {int(given[a]), int(given[b])}
    first = next(f for f in audit(images, captions, given, fit=fit) if f.issue == swaps[0].issue)
    assert first.proposal == "swap"  # before those for which nothing is proposed


def test_captions_passed_round_are_seldom_called_a_swap():
    """One of two fits the photo of the other, but not the other way round."""
    images, captions, given, _ = planted(0.0)
    chosen = torch.randperm(len(given), generator=torch.Generator().manual_seed(1))[:36]
    for moved in chosen.view(12, 3):
        given[moved] = given[moved.roll(1)]
    found = exchanged(images, captions, given, cross_fitted(images, captions, given).suspect)
    assert len(found) <= 8  # of 36


def test_a_bad_caption_does_not_drag_its_siblings_down():
    """Of two captions one is exchanged; the other is unlike it and fits."""
    images, captions, given, wrong = planted(0.2, captions_each=2)
    fit = cross_fitted(images, captions, given)
    photos = given[wrong].unique()
    beside = torch.isin(given, photos) & ~wrong
    apart = ~torch.isin(given, photos) & ~wrong
    assert beside.sum() > 50
    assert (fit.misfit[beside] >= 0.5).sum() <= 1
    assert fit.misfit[beside].mean() < fit.misfit[apart].mean() + 0.05


def picture(seed: int) -> Image.Image:
    """Something with shapes of all sizes."""
    chance = np.random.default_rng(seed)
    small = Image.fromarray(chance.integers(0, 255, (12, 16, 3), dtype=np.uint8))
    return small.resize((160, 120), Image.Resampling.BICUBIC)


def changed(one: Image.Image) -> dict[str, Image.Image]:
    w, h = one.size
    return {
        "resized": one.resize((w // 2, h // 2)),
        "cropped": one.crop((w // 10, h // 5, w // 10 + int(0.8 * w), h // 5 + int(0.8 * h))),
        "mirrored": ImageOps.mirror(one),
        "rotated": one.rotate(5),
        "bordered": ImageOps.expand(one, 12, "white"),
    }


def test_copies_are_told_from_other_photos():
    one, other = picture(0), picture(1)
    copies = list(changed(one).values())
    a = torch.stack([duplicates.small(one)] * len(copies))
    b = torch.stack([duplicates.small(copy) for copy in copies])
    assert (duplicates.overlaid(a, b) >= duplicates.COPY).all()
    assert (duplicates.overlaid(b, a) >= duplicates.COPY).all()
    others = torch.stack([duplicates.small(copy) for copy in changed(other).values()])
    assert (duplicates.overlaid(a, others) < duplicates.COPY).all()


def test_of_copies_the_largest_is_kept():
    pictures = [picture(0), picture(1), picture(0).resize((80, 60)), picture(2), picture(3)]
    vectors = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    vectors[2] = vectors[0] + 0.01
    found = duplicates.copies_of(
        vectors, lambda i: (duplicates.small(pictures[i]), pictures[i].width)
    )
    assert [group.members for group in found] == [(0, 2)]
    assert duplicates.copies_of(vectors, lambda i: None) == []


def test_what_was_decided_is_not_shown_again():
    values = dict.fromkeys(FIELDS, "") | {"picture": None, "other_picture": None}

    def row(**more: object) -> Row:
        return Row(**(values | {"severity": 1.0, "caption": "c"} | more))

    known = Known(
        [
            Decision("a.jpg", "accept", issue="vague", text="a dog"),
            Decision("b.jpg", "accept", text="a cat"),  # written by a person
            Decision("c.jpg", "accept", issue="near-duplicate", other="d.jpg"),
        ]
    )
    assert row(issue="vague", image="a.jpg", text="a dog") in known
    assert row(issue="misfit", image="a.jpg", text="a dog") not in known
    assert row(issue="vague", image="a.jpg", text="a cow") not in known
    assert row(issue="misfit", image="b.jpg", text="a cat") in known
    assert row(issue="near-duplicate", image="d.jpg", other="c.jpg", caption="") in known


def test_heads_learn_more_from_clean_captions(monkeypatch):
    monkeypatch.setattr(worth_module, "STEPS", 60)
    images, captions, given, wrong = planted(0.5)
    train = torch.arange(600)
    test = Captioned(torch.arange(600, 900), torch.arange(N).repeat_interleave(3)[600:])
    kept = train[~wrong[:600]]
    found = worth(
        images,
        captions,
        Captioned(train, given[:600]),
        test,
        Captioned(kept, given[kept]),
        torch.rand(600),
        seeds=1,
    )
    assert set(found) == {"as it is", "cleaned", "dropped at random", "dropped by score"}
    assert found["cleaned"].mean() > found["dropped at random"].mean() + 1


@pytest.mark.parametrize("alike", ["captions", "images"])
def test_what_is_all_alike_is_audited_too(alike):
    images, captions, given, _ = planted(0.0)
    images, captions, given = images[:30], captions[:90], given[:90]
    (captions if alike == "captions" else images)[:] = 1.0
    fit = cross_fitted(images, captions, given)
    assert fit.misfit.isfinite().all()
    assert fit.margin.isfinite().all()
    assert isinstance(audit(images, captions, given), list)


def test_a_caption_that_says_nothing_is_one_finding_and_not_asked_whether_it_fits():
    chance = np.random.default_rng(0)
    said = [f"{animal} number {i}" for i, animal in enumerate(["dog", "cat", "bird"] * 20)]
    said[7] = said[20] = "n/a"
    features = StoredFeatures(chance.random((60, 8), dtype=np.float32), range(60))
    data = _by_position([("train", Pairs("toy", features, said, torch.arange(60)))])
    found = audit_data(data)
    about = [f for f in found.faults if {7, 20} & {f.caption, f.other_caption}]
    assert [(f.issue, f.caption, f.proposal) for f in about] == [
        ("says nothing", 7, "drop"),
        ("says nothing", 20, "drop"),
    ]
    assert found.misfit[[7, 20]].tolist() == [1.0, 1.0]


def test_words_stand_in_for_a_model():
    vectors = word_vectors(["a dog", "a cat", "a dog barks"])
    assert vectors.shape == (3, 4)
    assert vectors[0] @ vectors[2] > vectors[0] @ vectors[1]


@pytest.mark.parametrize("with_run", [True, False])
def test_the_command_writes_a_table_and_a_page(tiny_run: Path, tmp_path: Path, capsys, with_run):
    words = ["audit", "scenes", "--split", "dev", "--most", "5", "--out", str(tmp_path)]
    assert main([*words, *(["--run", str(tiny_run)] if with_run else [])]) == 0
    printed = capsys.readouterr().out
    assert "misfit" in printed
    assert f"judged by {tiny_run.name if with_run else 'features and words'}" in printed
    rows = read_table(tmp_path)
    assert all(row.reason and row.image.startswith("dev/") for row in rows)
    named = [row for row in rows if row.caption]
    assert all(row.place.startswith("dev, caption") and row.text for row in named)
    page = (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "data:image/jpeg;base64," in page
    assert rows[0].image in page
    assert "http" not in page
    with (tmp_path / "next.csv").open(encoding="utf-8") as file:
        following = [float(row["misfit"]) for row in csv.DictReader(file)]
    assert [abs(p - 0.5) for p in following] == sorted(abs(p - 0.5) for p in following)


def test_all_splits_are_audited_with_what_cannot_be_encoded(tmp_path: Path, capsys):
    """Names as in the user's table, a photo that is missing, an empty caption, and gain."""
    names = [f"{i}.jpg" for i in range(120)]
    for i, name in enumerate(names):
        picture(i).save(tmp_path / name)
    rows = [f"{n},picture {i % 7} of {k} things,{('train', 'test')[i % 2]}" for i, n in
            enumerate(names) for k in range(2)]  # fmt: skip
    rows[4] = "2.jpg, ,train"
    rows.append("gone.jpg,a dog,train")
    (tmp_path / "captions.csv").write_text("image,caption,split\n" + "\n".join(rows))
    features = np.random.default_rng(0).random((121, 8), dtype=np.float32)
    np.save(tmp_path / "net.npy", features.astype(np.float16))
    (tmp_path / "net_files.txt").write_text("".join(f"{n}\n" for n in [*names, "gone.jpg"]))
    words = ["audit", str(tmp_path), "--extracted", "net.npy", "--out", str(tmp_path / "out")]
    (tmp_path / "gone.jpg").write_bytes(b"")
    assert main([*words, "--worth", "1"]) == 0
    printed = capsys.readouterr().out
    assert "121 images (61 train, 60 test), 240 captions" in printed
    assert "dropped by score" in printed
    found = read_table(tmp_path / "out")
    (empty,) = [row for row in found if row.reason == "empty"]
    assert (empty.image, empty.place, empty.proposal) == ("2.jpg", "captions.csv, line 6", "drop")
    same = next(row for row in found if row.issue == "same caption")
    assert same.file == str(tmp_path / same.image)
    assert {row.split for row in found} == {"train", "test"}
