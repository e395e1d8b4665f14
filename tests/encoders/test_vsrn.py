"""VSRN's image side through the contract of encoders, and what is special to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from encoders.contract import EncoderContract
from torch import Tensor, nn
from torch.nn.functional import normalize

from gaussmatch.models.encoders.probabilistic import Probabilistic
from gaussmatch.models.encoders.vsrn import Graph, GraphBlock, RegionReasoning, ZeroNorm

F, REGIONS = 10, 7


def regions(n: int) -> Tensor:
    return torch.rand(n, REGIONS, F, generator=torch.Generator().manual_seed(3))


def awake(encoder: nn.Module) -> nn.Module:
    """As after some training: the blocks start as the identity, which lets no gradient pass."""
    for layer in encoder.modules():
        if isinstance(layer, nn.BatchNorm1d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
            assert layer.running_mean is not None
            assert layer.running_var is not None
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
    return encoder


class TestPoint(EncoderContract):
    dim = 6
    options: dict[str, Any] = {}  # noqa: RUF012 - read only

    def make(self) -> nn.Module:
        return awake(RegionReasoning(F, self.dim, **self.options))

    def batch(self, n: int) -> Any:
        return regions(n)

    def test_means_have_unit_length(self) -> None:
        mean = self.encode(self.made(), self.batch(4)).mean
        torch.testing.assert_close(mean.norm(dim=-1), torch.ones(4))


class TestHighCapacity(TestPoint):
    dim = 12


class TestPublished(TestPoint):
    options = {"over": "regions"}  # noqa: RUF012


class TestFlickr30K(TestPoint):
    options = {"over": "regions", "batch_norm": True}  # noqa: RUF012


class TestProbabilistic(TestPoint):
    def make(self) -> nn.Module:
        point = RegionReasoning(F, self.dim, **self.options)
        return awake(Probabilistic(point, point.part))


class TestProbabilisticPublished(TestProbabilistic):
    options = {"over": "regions"}  # noqa: RUF012


class TestProbabilisticFlickr30K(TestProbabilistic):
    options = {"batch_norm": True}  # noqa: RUF012


class TestProbabilisticAll(TestProbabilistic):
    options = {"duplicate": "all"}  # noqa: RUF012


def block_by_hand(block: GraphBlock, v: Tensor) -> Tensor:
    """One image at a time, one pair of regions at a time, as the paper of VSRN writes it."""
    out = []
    for image in v:
        n = len(image)
        messages = []
        for i in range(n):
            gathered = torch.zeros_like(image[0])
            for j in range(n):
                gathered = gathered + (block.theta(image[i]) @ block.phi(image[j])) / n * block.g(
                    image[j]
                )
            messages.append(block.w(gathered))
        out.append(torch.stack(messages))
    message = torch.stack(out)
    norm = block.norm
    message = (message - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    return v + message * norm.weight + norm.bias


def test_a_block_is_the_formula() -> None:
    block = awake(GraphBlock(5)).double().eval()
    v = torch.randn(3, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(block(v), block_by_hand(block, v))  # type: ignore[arg-type]


def test_blocks_start_as_the_identity_and_learn_from_the_first_step() -> None:
    block, v = GraphBlock(5), torch.randn(3, 4, 5)
    assert torch.equal(block(v), v)
    (block(v) * torch.randn(3, 4, 5)).sum().backward()
    assert block.norm.weight.grad is not None
    assert block.norm.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("over", "axis"), [("features", 2), ("regions", 1)])
def test_what_the_norm_runs_over(over: Any, axis: int) -> None:
    lengths = Graph(F, 6, over=over)(regions(3)).norm(dim=axis)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert not torch.allclose(
        Graph(F, 6, over=over)(regions(3)).norm(dim=3 - axis), torch.tensor(1.0)
    )


def test_the_flickr30k_variant_skips_the_first_norm_only() -> None:
    """At the start the blocks are the identity, so what is left is the norms."""
    plain, variant = Graph(F, 6, over="regions"), Graph(F, 6, over="regions", norm_first=False)
    seen: list[Tensor] = []
    for graph in (plain, variant):
        graph.blocks.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        graph(regions(3))
    assert torch.allclose(seen[0].norm(dim=1), torch.tensor(1.0))
    assert torch.equal(seen[1], variant.project(regions(3)))
    assert RegionReasoning(F, 6, batch_norm=True).norm is not None
    assert not RegionReasoning(F, 6, batch_norm=True).reasoning.get_submodule("graph").norm_first


def test_the_gru_reads_to_the_last_region() -> None:
    encoder = RegionReasoning(F, 6).eval()
    graph, embed = encoder.reasoning
    states, _ = embed.rnn(graph(regions(3)))
    torch.testing.assert_close(encoder(regions(3)), normalize(states[:, -1], dim=-1))


def test_the_paper_doubles_the_gru_and_shares_the_graph() -> None:
    point = RegionReasoning(F, 6, batch_norm=True)
    twin = Probabilistic(point, point.part).eval()
    assert {name.split(".")[0] for name, _ in twin.variance.named_parameters()} == {"rnn"}
    g, read = twin(regions(3)), point.reasoning.get_submodule("graph")(regions(3))
    assert torch.equal(g.log_var, twin.variance(read))  # no BatchNorm, no L2-norm


def test_doubling_all_starts_fresh_with_silent_blocks() -> None:
    point = awake(RegionReasoning(F, 6, duplicate="all"))
    twin = Probabilistic(point, point.part)  # type: ignore[arg-type]
    norms = [layer for layer in twin.variance.modules() if isinstance(layer, ZeroNorm)]
    assert len(norms) == 4
    for norm in norms:
        assert not norm.weight.any()
        assert not norm.running_mean.any()
    project = twin.variance.get_submodule("graph.project")
    assert not torch.equal(project.weight, point.reasoning.get_submodule("graph.project").weight)


def test_bad_input_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"got \(2, 10\); set data\.features to regions"):
        RegionReasoning(F, 6)(torch.rand(2, F))
    with pytest.raises(ValueError, match="choose features or regions"):
        Graph(F, 6, over="images")  # type: ignore[arg-type]
