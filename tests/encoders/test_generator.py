"""The caption generator: the sequential formula, packing, and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_packed_sequence

from gaussmatch.core.losses import generation_loss, teacher_forcing
from gaussmatch.models.encoders.vsrn import CaptionGenerator

V, D, H, W, REGIONS = 11, 6, 8, 5, 4
IDS = torch.tensor([[1, 5, 6, 2, 0, 0], [1, 7, 2, 0, 0, 0], [1, 8, 9, 10, 4, 2]])
LENGTHS = torch.tensor([4, 3, 6])


def made(dropout: float = 0.0) -> CaptionGenerator:
    torch.manual_seed(0)
    return CaptionGenerator(V, D, H, W, dropout)


def images(n: int = 3) -> Tensor:
    return torch.randn(n, REGIONS, D, generator=torch.Generator().manual_seed(1))


def loss(generator: CaptionGenerator, regions: Tensor, ids: Tensor, lengths: Tensor) -> Tensor:
    given, wanted = teacher_forcing(ids, lengths, generator.longest)
    return generation_loss(generator(regions, given), wanted.data, len(ids))


def by_hand(generator: CaptionGenerator, regions: Tensor, words: list[int]) -> Tensor:
    """One image, one word at a time, attention over concatenated states: logits after each."""
    states, last = generator.encoder(generator.project(regions[None]))
    state, out = last[-1, 0], []
    for word in words:
        scores = torch.stack(
            [
                generator.score(torch.tanh(generator.attention(torch.cat([e, state]))))[0]
                for e in states[0]
            ]
        )
        context = (scores.softmax(0)[:, None] * states[0]).sum(0)
        given = torch.cat([generator.words(torch.tensor(word)), context])
        state = generator.decoder(given[None], state[None])[0]
        out.append(generator.output(state))
    return torch.stack(out)


def test_the_loss_is_that_of_a_naive_loop() -> None:
    generator, regions = made().double(), images().double()
    total = torch.zeros((), dtype=torch.float64)
    for picture, ids, length in zip(regions, IDS.tolist(), LENGTHS.tolist(), strict=True):
        words = ids[:length]
        logits = by_hand(generator, picture, words)
        for row, word in zip(logits.log_softmax(-1), [*words[1:], 0], strict=True):
            total = total - row[word]
    torch.testing.assert_close(loss(generator, regions, IDS, LENGTHS), total / 3)


def test_logits_come_in_the_order_of_the_pack() -> None:
    generator, regions = made(), images()
    given, _ = teacher_forcing(IDS, LENGTHS)
    logits, steps = pad_packed_sequence(
        given._replace(data=generator(regions, given)), batch_first=True
    )
    assert steps.tolist() == [4, 3, 6]
    expected = by_hand(generator, regions[1], [1, 7, 2])
    torch.testing.assert_close(logits[1, :3], expected)


def test_padding_does_not_change_the_loss() -> None:
    generator, regions = made(), images()
    wider = torch.nn.functional.pad(IDS, (0, 9), value=3)  # whatever stands there
    assert torch.equal(
        loss(generator, regions, IDS, LENGTHS), loss(generator, regions, wider, LENGTHS)
    )


def test_the_order_of_the_batch_does_not_matter() -> None:
    generator, regions, order = made(), images(), torch.tensor([2, 0, 1])
    torch.testing.assert_close(
        loss(generator, regions[order], IDS[order], LENGTHS[order]),
        loss(generator, regions, IDS, LENGTHS),
    )


def test_gradients_reach_every_parameter_and_the_regions() -> None:
    generator, regions = made(), images().requires_grad_()
    loss(generator, regions, IDS, LENGTHS).backward()
    for name, p in [*generator.named_parameters(), ("regions", regions)]:
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().sum() > 0, name


def test_dropout_only_while_training() -> None:
    generator, regions = made(0.5), images()
    a, b = (loss(generator.train(), regions, IDS, LENGTHS) for _ in range(2))
    assert a != b
    a, b = (loss(generator.eval(), regions, IDS, LENGTHS) for _ in range(2))
    assert a == b


def test_state_dict_gives_the_same_loss() -> None:
    generator, other = made(), CaptionGenerator(V, D, H, W)
    other.load_state_dict(generator.state_dict())
    a, b = (loss(g.eval(), images(), IDS, LENGTHS) for g in (generator, other))
    assert torch.equal(a, b)


def test_bfloat16_stays_finite() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(made(), images(), IDS, LENGTHS).isfinite()


@pytest.mark.parametrize("n", [1, 2])
def test_a_generator_can_learn_captions_by_heart(n: int) -> None:
    generator, regions = made(), images(n)
    optimizer = torch.optim.Adam(generator.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(generator, regions, IDS[:n], LENGTHS[:n])
        value.backward()
        optimizer.step()
    assert value < 0.1
