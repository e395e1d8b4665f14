"""Every encoder through the same suite, and what is special to each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import pytest
import torch
from encoders.contract import EncoderContract
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from toy import toy_words

from gaussmatch.data.scenes.backbone import SceneNet
from gaussmatch.models.encoders.base import Tokens, pad
from gaussmatch.models.encoders.probabilistic import Probabilistic, Shape
from gaussmatch.models.encoders.vsepp import LastState, Projection, WordGRU


class TestProjection(EncoderContract):
    dim = 6

    def make(self) -> nn.Module:
        return Projection(10, self.dim)

    def batch(self, n: int) -> Any:
        return torch.randn(n, 10, generator=torch.Generator().manual_seed(3))

    def test_unit_length_unless_switched_off(self) -> None:
        x = self.batch(4)
        assert torch.allclose(Projection(10, 6)(x).norm(dim=-1), torch.ones(4))
        assert not torch.allclose(Projection(10, 6, normalize=False)(x).norm(dim=-1), torch.ones(4))

    def test_starts_as_vsepp(self) -> None:
        layer = Projection(10, 6).embed
        assert torch.equal(layer.bias, torch.zeros(6))
        assert layer.weight.abs().max() <= (6 / 16) ** 0.5


class TestBackbone(EncoderContract):
    dim = 6

    def make(self) -> nn.Module:
        return Projection(SceneNet.features, self.dim, backbone=SceneNet())

    def batch(self, n: int) -> Any:
        return torch.rand(n, 3, 64, 64, generator=torch.Generator().manual_seed(3))


class TextContract(EncoderContract):
    dim = 6

    def batch(self, n: int) -> Any:
        return pad([list(range(4, 6 + i % 3)) for i in range(n)])

    def take(self, inputs: Any, order: Tensor) -> Any:
        return Tokens(inputs.ids[order], inputs.lengths[order])

    def test_padding_does_not_change_a_result(self) -> None:
        encoder, tokens = self.made(), self.batch(3)
        wider = Tokens(torch.nn.functional.pad(tokens.ids, (0, 9)), tokens.lengths)
        a, b = self.encode(encoder, tokens), self.encode(encoder, wider)
        torch.testing.assert_close(a.mean, b.mean)
        if a.log_var is not None:
            torch.testing.assert_close(a.log_var, b.log_var)

    def test_alone_or_in_a_batch(self) -> None:
        encoder, tokens = self.made(), self.batch(3)
        one = Tokens(tokens.ids[1:2, : int(tokens.lengths[1])], tokens.lengths[1:2])
        torch.testing.assert_close(
            self.encode(encoder, one).mean[0], self.encode(encoder, tokens).mean[1]
        )


class TestWordGRU(TextContract):
    def make(self) -> nn.Module:
        return WordGRU(toy_words(10), self.dim, word_dim=5)


class TestProbabilisticText(TextContract):
    def make(self) -> nn.Module:
        return Probabilistic(WordGRU(toy_words(10), self.dim, word_dim=5), "embed")


class TestProbabilisticImage(TestProjection):
    def make(self) -> nn.Module:
        return Probabilistic(Projection(10, self.dim), "embed")


class TestSphericalAverage(TestProjection):
    def make(self) -> nn.Module:
        return Probabilistic(Projection(10, self.dim), "embed", shape="spherical-avgpool")


class TestSphericalOneValue(TestProjection):
    def make(self) -> nn.Module:
        return Probabilistic(Projection(10, self.dim), "embed", shape="spherical-one-value")


def test_last_state_is_that_of_the_last_real_token() -> None:
    torch.manual_seed(0)
    layer, words = LastState(5, 6), torch.randn(2, 4, 5)
    states, _ = layer.rnn(words)
    got = layer(words, torch.tensor([2, 4]))
    torch.testing.assert_close(got, torch.stack([states[0, 1], states[1, 3]]))


@pytest.mark.parametrize("lengths", [[1], [3, 3], [2, 5, 1, 5, 3]])
def test_recurrence_has_the_values_and_gradients_of_the_gru(lengths: list[int]) -> None:
    torch.manual_seed(0)
    layer = LastState(5, 6)
    words, wanted = torch.randn(len(lengths), 5, 5), torch.randn(len(lengths), 6)

    def answer(own: bool) -> list[Tensor]:
        layer.zero_grad()
        given = words.clone().requires_grad_()
        if own:
            state = layer(given, torch.tensor(lengths))
            assert "Recurrence" in str(state.grad_fn.next_functions)
        else:
            packed = pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False)
            state = layer.rnn(packed)[1][0]
        state.backward(wanted)
        return [state, given.grad, *(p.grad for p in layer.parameters())]  # type: ignore[list-item]

    for mine, oracle in zip(answer(True), answer(False), strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-5, atol=1e-6)


def test_recurrence_against_finite_differences_and_at_closed_gates() -> None:
    torch.manual_seed(0)
    layer = LastState(3, 4).double()
    words = torch.randn(3, 4, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([4, 1, 2])
    assert torch.autograd.gradcheck(lambda x: layer(x, lengths), [words])
    with torch.no_grad():
        layer.rnn.bias_ih_l0 -= 1e4  # gates at 0, so that nothing may be divided by them
    layer(words, lengths).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


# ---- the adaptation ----


class Mine(nn.Module):
    """A user's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.normalize(self.head(self.trunk(x).relu()), dim=-1)


def test_mean_is_the_point_models_output_and_runs_once() -> None:
    mine, x = Mine(), torch.randn(3, 8)
    twin = Probabilistic(mine, part="head")
    g = twin(x)
    assert mine.calls == 1
    assert torch.equal(g.mean, mine(x))


def test_variance_is_the_copy_on_the_same_inputs() -> None:
    mine, x = Mine(), torch.randn(3, 8)
    twin = Probabilistic(mine, part="head")
    expected = twin.variance(mine.trunk(x).relu())
    assert expected.abs().max() < 2.3  # inside the bound, so that it shows as it is
    assert torch.equal(twin(x).log_var, expected)


def test_nothing_is_shared_and_the_copy_is_fresh() -> None:
    mine = Mine()
    twin = Probabilistic(mine, part="head")
    assert twin.variance.weight.data_ptr() != mine.head.weight.data_ptr()
    assert not torch.equal(twin.variance.weight, mine.head.weight)
    copied = Probabilistic(mine, part="head", start="copy")
    assert torch.equal(copied.variance.weight, mine.head.weight)


def test_a_part_without_weights_is_refused() -> None:
    mine = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with pytest.raises(ValueError, match=r"part '1' \(ReLU\) has no weights.*choose among 0, 2"):
        Probabilistic(mine, part="1")


def test_five_lines_for_a_users_gru() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(5, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0][:, -1]

    g = Probabilistic(Text(), part="rnn", pool=lambda out: out[0][:, -1])(torch.randn(2, 3, 5))
    assert g.log_var is not None
    assert g.log_var.shape == (2, 6)


@pytest.mark.parametrize("shape", get_args(Shape))
def test_shapes_of_the_variance(shape: Shape) -> None:
    g = Probabilistic(Mine(), part="head", shape=shape, dim=4)(torch.randn(3, 8))
    assert g.log_var is not None
    assert g.log_var.shape == ((3, 4) if shape == "ellipsoidal" else (3, 1))


@pytest.mark.parametrize("bound", ["clamp", "smooth"])
def test_variances_stay_in_the_papers_range(bound: Any) -> None:
    g = Probabilistic(Mine(), part="head", bound=bound)(1e4 * torch.randn(50, 8))
    assert g.variance.min() >= 0.1 - 1e-6
    assert g.variance.max() <= 10 + 1e-4
    assert g.variance.max() > 9


@pytest.mark.parametrize("shape", get_args(Shape))
def test_relative_variances_are_bounded_times_the_dimension(shape: Shape) -> None:
    raw = 1e4 * torch.randn(50, 8)
    twin = Probabilistic(
        Mine(), part="head", shape=shape, dim=4, variance_range=(0.5, 3.0), relative=True
    )
    u = 4 * twin(raw).variance
    assert u.min() >= 0.5 - 1e-5
    assert u.max() <= 3 + 1e-5
    twin.relative = False
    torch.testing.assert_close(twin(raw).variance, u)


def test_smooth_bound_keeps_a_gradient_where_the_clamp_has_none() -> None:
    from gaussmatch.models.encoders.probabilistic import bounded

    grads = {}
    for bound in ("clamp", "smooth"):
        raw = torch.tensor([4.0, -4.0], requires_grad=True)
        bounded(raw, bound).sum().backward()
        grads[bound] = raw.grad
    assert torch.equal(grads["clamp"], torch.zeros(2))
    assert (grads["smooth"] > 0).all()


def test_threads_may_share_an_encoder() -> None:
    """The server's and one's own: each notes its own calls of the part."""
    made = Probabilistic(Mine(), part="head")
    inputs = [torch.randn(3, 8) for _ in range(400)]
    with torch.no_grad():
        alone = [made(x).log_var for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        both = list(pool.map(lambda x: made(x).log_var.detach(), inputs))
    torch.testing.assert_close(both, alone)


def test_errors_name_the_part_and_what_to_do() -> None:
    with pytest.raises(ValueError, match="no part 'fc'; it has trunk, head"):
        Probabilistic(Mine(), part="fc")
    with pytest.raises(ValueError, match="give pool="):
        Probabilistic(Mine(), part="trunk")(torch.randn(3, 8))
    with pytest.raises(ValueError, match="needs dim=D"):
        Probabilistic(Mine(), part="head", shape="spherical-one-value")
    with pytest.raises(ValueError, match="unknown shape 'oval'"):
        Probabilistic(Mine(), part="head", shape="oval")  # type: ignore[arg-type]

    class Odd(Mine):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.trunk(x)) + self.head(self.trunk(2 * x))

    with pytest.raises(ValueError, match="called 2 times"):
        Probabilistic(Odd(), part="head")(torch.randn(3, 8))

    class NoReset(Mine):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.MultiheadAttention(4, 2)
            self.head.extra = nn.ParameterList([nn.Parameter(torch.zeros(2))])

    with pytest.raises(ValueError, match="reset_parameters"):
        Probabilistic(NoReset(), part="head")
