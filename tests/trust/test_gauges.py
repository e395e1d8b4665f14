"""Gauges of images: learned from captions alone, they know what log det Σ does not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.metrics import spearman
from gaussmatch.core.similarities import similarity
from gaussmatch.search.trust import Calibration
from gaussmatch.search.trust.gauges import Gauge, disagreement, learn_gauges
from gaussmatch.search.trust.probe import read_crowd_images, read_specificity, verdict

N, D, CAPTIONS = 600, 12, 4


def world(seed: int) -> tuple[Gaussian, Gaussian, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images whose third coordinate says how far their captions disagree, and whose second how many
    others are alike; their variances say neither."""
    chance = torch.Generator().manual_seed(seed)
    apart = torch.rand(N, generator=chance)
    common = torch.rand(N, generator=chance)
    mean = 0.1 * torch.randn(N, D, generator=chance)
    mean[:, 1], mean[:, 2] = common, apart
    images = Gaussian(mean, 0.1 * torch.randn(N, D, generator=chance), "images")
    image_of = torch.arange(N).repeat_interleave(CAPTIONS)
    topic = torch.eye(D)[0] + (1.5 - 1.5 * common[:, None]) * torch.randn(N, D, generator=chance)
    wide = 1.5 * apart[image_of, None] * torch.randn(N * CAPTIONS, D, generator=chance)
    said = topic[image_of] + wide
    captions = Gaussian(
        said / said.norm(dim=1, keepdim=True), torch.zeros(len(said), D), "captions"
    )
    return images, captions, image_of, apart, common


def test_each_gauge_finds_what_captions_say_and_the_variance_does_not():
    images, captions, image_of, *_ = world(0)
    found = learn_gauges(similarity("query_kl"), images, captions, image_of, captions.mean)
    assert set(found) == {"fits_many", "many_ways"}
    held_out, *_, apart, common = world(1)
    ways, fits = found["many_ways"], found["fits_many"]
    assert spearman(torch.from_numpy(ways(held_out)), apart.double()) > 0.25
    assert spearman(torch.from_numpy(fits(held_out)), common.double()) > 0.3
    assert abs(spearman(held_out.uncertainty().double(), apart.double())) < 0.15
    share = ways.percentile(ways(held_out))
    assert 40 < np.median(share) < 60
    assert np.isnan(ways(Gaussian(held_out.mean))).all()  # points have another form


def test_too_few_captions_teach_nothing():
    images, captions, image_of, *_ = world(0)
    some = image_of < 50
    few = learn_gauges(
        similarity("query_kl"), images[:50], captions[some], image_of[some], captions.mean[some]
    )
    assert few == {}
    one = torch.arange(0, N * CAPTIONS, CAPTIONS)
    alone = learn_gauges(
        similarity("query_kl"), images, captions[one], image_of[one], captions.mean[one]
    )
    assert set(alone) == {"fits_many"}  # one caption cannot disagree


def test_a_gauge_is_kept_with_the_calibration_and_shown_if_it_passed(tmp_path: Path):
    gauge = Gauge(np.array([1.0, 0.0, 0.0, 2.0]), np.linspace(0, 10, 101))
    Calibration(image_gauges={"many_ways": gauge, "fits_many": gauge}).save(tmp_path / "c.json")
    kept = Calibration.load(tmp_path / "c.json")
    g = Gaussian(torch.tensor([[5.0, 7.0]]), torch.tensor([[9.0, 1.0]]))
    assert kept.ambiguity(g) == [{}]
    passed = Calibration(image_gauges=kept.image_gauges, gauges={"many_ways": True})
    assert passed.ambiguity(g) == [{"many_ways": pytest.approx(70)}]


@pytest.mark.parametrize(
    ("found", "name", "passed"),
    [
        ({"crowd_images": {"fits_many": 0.5}}, "fits_many", True),
        (
            {"crowd_images": {"fits_many": 0.5}, "own_captions": {"fits_many": 0.0}},
            "fits_many",
            False,
        ),
        ({"agreement": {"many_ways": 0.4}, "specificity": {"many_ways": 0.05}}, "many_ways", False),
        ({"own_captions": {"many_ways": 0.3, "fits_many": None}}, "many_ways", True),
    ],
)
def test_each_gauge_has_a_verdict_of_its_own(found, name, passed):
    judged = verdict(found)
    assert set(judged) == {name}
    assert judged[name]["passed"] == passed


def test_people_s_files_are_read_and_faults_named(tmp_path: Path):
    rows = [{"image": "a.jpg", "specificity": 0.7}, {"image": "b.jpg", "sentences": ["a", "b"]}]
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    class Words:
        def featurize_texts(self, texts, allow_unknown):
            return np.eye(4, dtype=np.float32)[: len(texts)]

        def encode_rows(self, rows):
            return None

    found = read_specificity(path, Words())
    assert found["specificity"][0] == [tmp_path / "a.jpg"]
    assert found["specificity"][1].tolist() == pytest.approx([-0.7])
    assert found["agreement"][1].tolist() == pytest.approx([1.0])  # nothing in common
    assert disagreement(torch.ones(3, 2)) == pytest.approx(0)
    path.write_text('{"image": "a.jpg"}\n')
    with pytest.raises(ValueError, match=r"s\.jsonl, line 1"):
        read_specificity(path, Words())
    crowd = tmp_path / "crowd.txt"
    crowd.write_text("a.jpg\tb.jpg#0\t0.5\t1\t1\na.jpg\ta.jpg#0\t1\t3\t0\n")
    assert read_crowd_images(crowd) is None  # the photos are not there
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").touch()
    files, share = read_crowd_images(crowd)
    assert (files, share.tolist()) == ([tmp_path / "images" / "a.jpg"], [0.5])
