"""Activation memory: counted right on networks whose memory is known, and nothing is disturbed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gaussmatch.learn.training.step import Precision, activation_bytes, memory_line
from gaussmatch.models.encoders.backbone import Backbone


def test_a_chain_keeps_each_layers_output_once() -> None:
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 30), nn.Sigmoid())
    assert activation_bytes(net, torch.rand(6, 10)) == 4 * (10 + 20 + 30)


def test_it_grows_with_the_picture_and_leaves_the_network_alone() -> None:
    net = Backbone("scenenet", "train").eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    numbers = torch.get_rng_state()
    small, large = (activation_bytes(net, torch.rand(4, 3, s, s)) for s in (64, 128))
    assert 3.5 < large / small < 6
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert not net.training
    torch.set_rng_state(numbers)
    net.requires_grad_(False)
    assert activation_bytes(net, torch.rand(4, 3, 64, 64)) == 0  # nothing is learned


def test_dropout_draws_no_number_of_the_run() -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout()), torch.rand(4, 4)
    before = torch.get_rng_state()
    assert activation_bytes(net, x) > 0
    assert torch.equal(before, torch.get_rng_state())


def test_half_precision_takes_about_half() -> None:
    net, x = Backbone("scenenet"), torch.rand(4, 3, 64, 64)
    whole = activation_bytes(net, x)
    with Precision("bfloat16", torch.device("cpu")).forward():
        half = activation_bytes(net, x)
    assert 0.4 < half / whole < 0.8


def test_one_image_is_not_enough() -> None:
    with pytest.raises(ValueError, match="at least two images"):
        activation_bytes(nn.Linear(2, 2), torch.rand(1, 2))


def test_the_line_for_the_user() -> None:
    assert (
        memory_line(2_000_000, 500) == "activation memory: 2.0 MB an image, 1.00 GB a batch of 500"
    )
