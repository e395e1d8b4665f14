"""A global batch over several processes, or part by part: loss and gradients of one process."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Rows, toy_data, toy_words
from training.test_loop import LEARNED, RECIPE, run, weights

from gaussmatch.learn.training import gather, loop
from gaussmatch.learn.training.batches import Batches
from gaussmatch.learn.training.loop import read_log, seed_everything
from gaussmatch.learn.training.start import initial_model, resolved
from gaussmatch.learn.training.step import Gradients, Objective, Precision
from gaussmatch.models.model import build
from gaussmatch.models.recipe import LossRecipe, ModelRecipe, PVSERecipe, Recipe, TrainingRecipe
from gaussmatch.models.run import is_finished

CPU = torch.device("cpu")
PVSE = replace(
    RECIPE,
    model=ModelRecipe(
        system="pvse", dim=16, word_dim=12, similarity="mil", pvse=PVSERecipe(dropout=0.0)
    ),
    loss=LossRecipe(diversity=0.1, mmd=0.1),
)
PCME = replace(
    RECIPE,
    model=ModelRecipe(system="pcme", dim=16, word_dim=12, similarity="match_prob"),
    loss=LossRecipe(name="soft-contrastive", vib=0.01, mmd=0.1),
)
SIGMOID = replace(
    RECIPE, loss=LossRecipe(name="sigmoid", scale=2.0, bias=-1.0, pseudo_positives=0.1)
)
ADDED = replace(
    LEARNED,
    model=replace(LEARNED.model, probabilistic=True, similarity="query_kl"),
    loss=replace(LEARNED.loss, fitting=0.5, inclusion=0.5),
    training=replace(LEARNED.training, shorten=0.3, shorten_as="add"),
)
RECIPES = {
    "hinge": RECIPE,
    "learned": LEARNED,
    "sigmoid": SIGMOID,
    "pvse": PVSE,
    "pcme": PCME,
    "added": ADDED,
    "queries": replace(ADDED, training=replace(ADDED.training, shorten_as="query")),
    "compared": replace(ADDED, training=replace(ADDED.training, shorten_as="compare")),
    "replaced": replace(
        ADDED,
        loss=replace(ADDED.loss, inclusion=0.0),
        training=replace(ADDED.training, shorten_as="replace"),
    ),
}


def in_processes(ranks: int, work: Callable[[], Any]) -> list[Any]:
    """What each of several processes returns, or its error as text; none for one that died."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ends: list[Connection] = []
    processes = []
    for rank in range(ranks):
        here, there = context.Pipe(duplex=False)
        place = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        process = context.Process(target=_child, args=(place, work, there))
        process.start()
        there.close()
        ends.append(here)
        processes.append(process)
    found = []
    for end, process in zip(ends, processes, strict=True):
        try:
            found.append(end.recv() if end.poll(120) else "still running")
        except EOFError:
            found.append(None)
        process.kill() if found[-1] == "still running" else process.join()
    return found


def _child(place: dict[str, object], work: Callable[[], Any], result: Connection) -> None:
    os.environ.update({name: str(value) for name, value in place.items()})
    try:
        with gather.joined(CPU):
            result.send(work())
    except BaseException as error:
        result.send(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    os._exit(0)


def gradients_of(
    recipe: Recipe, micro: int | None = None, pairs: int = 7, frozen_means: bool = False
) -> Any:
    """Terms, pairs and gradients of a batch: of its share in each process."""
    train = toy_data().train
    if recipe.model.system in ("pvse", "pcme"):  # local features
        train = replace(train, images=Rows(train.images.array.reshape(-1, 4, 4)))
    recipe = resolved(recipe, train)
    seed_everything(1)
    matcher = initial_model(recipe, train, None).matcher
    for name, parameter in matcher.named_parameters():
        parameter.requires_grad_(not frozen_means or ".variance." in name)
    share = (gather.rank(), gather.ranks())
    settings = replace(recipe.training, batch_size=pairs, seed=3)
    fits = bool(recipe.loss.fitting)
    batches = Batches(train, matcher.text_encoder, settings, share, fits=fits)
    objective = replace(
        Objective.of_epoch(recipe.loss, 2, matcher.heads),
        shortened_as=settings.shorten_as,
    )
    gradients = Gradients(matcher, Precision("float32", CPU), micro)
    torch.manual_seed(5)
    terms, seen = gradients(objective, next(batches.epoch(1)))
    found = {n: p.grad.numpy() for n, p in matcher.named_parameters() if p.grad is not None}
    return {name: float(value.detach()) for name, value in terms.items()}, seen, found


def assert_same(found: Any, expected: Any) -> None:
    assert not isinstance(found, str), found
    assert found[1] == expected[1]
    assert found[0] == pytest.approx(expected[0], rel=1e-5, abs=1e-5)
    for name, gradient in expected[2].items():
        torch.testing.assert_close(
            torch.from_numpy(found[2][name]), torch.from_numpy(gradient), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_several_processes_are_one_with_the_same_global_batch(name: str, ranks: int) -> None:
    """Seven pairs: no two or three processes have equal shares."""
    expected = gradients_of(RECIPES[name])
    assert expected[1] == 7
    for found in in_processes(ranks, lambda: gradients_of(RECIPES[name])):
        assert_same(found, expected)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("micro", [1, 3, 7])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(name: str, micro: int) -> None:
    assert_same(gradients_of(RECIPES[name], micro), gradients_of(RECIPES[name]))


def test_parts_within_processes() -> None:
    expected = gradients_of(RECIPE, pairs=9)
    for found in in_processes(2, lambda: gradients_of(RECIPE, micro=2, pairs=9)):
        assert_same(found, expected)


def test_parts_of_uneven_shares_of_frozen_means() -> None:
    """One process has two parts and the other has one: both must take the same way."""
    recipe = replace(RECIPE, model=replace(RECIPE.model, probabilistic=True, similarity="kl"))
    expected = gradients_of(recipe, pairs=5, frozen_means=True)
    assert expected[2]
    work = lambda: gradients_of(recipe, micro=2, pairs=5, frozen_means=True)  # noqa: E731
    for found in in_processes(2, work):
        assert_same(found, expected)


def test_every_process_needs_a_pair() -> None:
    train = toy_data().train
    encoder = initial_model(resolved(RECIPE, train), train, None).matcher.text_encoder
    with pytest.raises(ValueError, match=r"batch_size is 2, but each of 3 processes needs a pair"):
        Batches(train, encoder, TrainingRecipe(batch_size=2), (0, 3))


def test_parts_draw_the_same_random_numbers_twice() -> None:
    """With dropout the two passes over a part must drop the same: else no gradient is right."""
    recipe = replace(PVSE, model=replace(PVSE.model, pvse=PVSERecipe(dropout=0.5)))
    one, two = gradients_of(recipe, 3), gradients_of(recipe, 3)
    assert_same(one, two)
    drawn = torch.rand(1)
    gradients_of(recipe, 3)
    assert torch.equal(torch.rand(1), drawn)


def test_shares_do_not_overlap_and_leave_nothing_out() -> None:
    data = toy_data()
    encoder = initial_model(resolved(RECIPE, data.train), data.train, None).matcher.text_encoder
    settings = TrainingRecipe(batch_size=16)
    whole = Batches(data.train, encoder, settings)
    shares = [Batches(data.train, encoder, settings, (r, 3)) for r in range(3)]
    assert len({len(whole), *(len(share) for share in shares)}) == 1
    for batch, *parts in zip(whole.epoch(1), *(s.epoch(1) for s in shares), strict=True):
        assert torch.equal(torch.cat([p.image_ids for p in parts]), batch.image_ids)
        assert torch.equal(torch.cat([p.images for p in parts]), batch.images)


def test_training_in_processes_goes_on_in_another_number_of_them(tmp_path: Path) -> None:
    short = replace(RECIPE, training=replace(RECIPE.training, epochs=1))
    longer = replace(RECIPE, training=replace(RECIPE.training, epochs=2))
    run(tmp_path / "one", longer)

    def train(recipe: Recipe, resume: bool) -> str:
        return run(tmp_path / "many", recipe, resume=resume).recipe.title

    assert in_processes(2, lambda: train(short, False)) == ["toy", "toy"]
    assert in_processes(3, lambda: train(longer, True)) == ["toy"] * 3
    one, many = (
        [r["loss"] for r in read_log(tmp_path / name) if r["event"] == "epoch"]
        for name in ("one", "many")
    )
    assert many == pytest.approx(one, rel=1e-3)
    a, b = weights(tmp_path / "one"), weights(tmp_path / "many")
    assert max(float((a[k] - b[k]).abs().max()) for k in a) < 1e-2


def test_a_process_that_dies_ends_the_others_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = loop.Steps.step

    def dying(self: loop.Steps, *args: object) -> object:
        if gather.rank() == 1 and self.progress.step == 11:
            os._exit(1)
        return step(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(loop.Steps, "step", dying)
        main, other = in_processes(2, lambda: run(tmp_path / "run").recipe.title)
    assert other is None
    assert main.startswith("RankLostError: another process of this training has ended")
    run(tmp_path / "run", resume=True)
    assert is_finished(tmp_path / "run")


@pytest.mark.parametrize("name", ["micro_batch", "processes"])
def test_statistics_of_a_whole_batch_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    matcher = build(
        ModelRecipe(system="vsrn", dim=8, word_dim=4, feature_dim=6), toy_words(count=9)
    )
    Gradients(matcher, Precision("float32", CPU))
    monkeypatch.setattr(gather, "ranks", lambda: 2 if name == "processes" else 1)
    with pytest.raises(ValueError, match="normalizes by the statistics of a whole batch"):
        Gradients(matcher, Precision("float32", CPU), 4 if name == "micro_batch" else None)
