"""A sample that a data set draws at random goes by (seed, epoch, sample): whoever reads it has the same draw."""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from partita.oracles.check import TOLERANCE, checked
from partita.recipes.catalogue import call
from partita.runtime import feed
from partita.runtime.feed import Feed
from tests.small import Numbers, cluster_of, perceptron

Sample = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of types draw from Python's generator which element they look at."""
    monkeypatch.setattr(feed, "read_batch", inspect.unwrap(feed.read_batch))


class Augmented(Numbers):
    """Noise of torch, a sign of Python and a label of NumPy."""

    def __getitem__(self, index: int) -> Sample:
        x, _ = super().__getitem__(index)
        return x * random.choice((-1, 1)) + torch.randn(x.shape), torch.tensor(np.random.randint(3))


class AtOnce(Augmented):
    """The same, asked for many."""

    def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
        return [self[i] for i in indices]


def of(data: Any, collate: Any = None) -> Feed:
    return Feed(replace(perceptron(), data=data, collate=collate), 3)


@pytest.mark.parametrize("data", [Augmented(), AtOnce()])
def test_a_sample_is_the_same_whoever_reads_it_with_whichever_others(data: Augmented) -> None:
    one, other = of(data), of(data)
    places = one.positions(0, 0, 4)
    other.positions(0, 0, 4)
    torch.manual_seed(5)
    whole = one.leaves(places, "cpu")
    random.seed(6)
    parts = [other.leaves(some, "cpu") for some in (places[2:], places[:2])]
    for k in range(2):
        assert torch.equal(whole[k], torch.cat([parts[1][k], parts[0][k]]))


def test_another_epoch_and_another_seed_draw_otherwise() -> None:
    drawn, data = of(Augmented()), Augmented()
    drawn.positions(0, 0, 1)
    first = drawn.leaves([7], "cpu")[0]
    drawn.positions(len(data) // drawn.task.batch_size, 0, 1)
    assert drawn.epoch == 1
    assert not torch.equal(first, drawn.leaves([7], "cpu")[0])
    other = Feed(drawn.task, 4)
    other.positions(0, 0, 1)
    assert not torch.equal(first, other.leaves([7], "cpu")[0])


def test_the_generators_are_left_as_they_were() -> None:
    drawn = of(Augmented())
    places = drawn.positions(0, 0, 4)
    before = torch.get_rng_state(), repr(np.random.get_state())
    drawn.leaves(places, "cpu")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert repr(np.random.get_state()) == before[1]


def test_only_a_data_set_that_draws_is_read_one_by_one() -> None:
    class Many(Numbers):
        asked = 0

        def __getitems__(self, indices: Sequence[int]) -> list[Sample]:
            self.asked = len(indices)
            return [self[i] for i in indices]

    for data, draws in ((Augmented(), True), (AtOnce(), True), (Many(), False)):
        read = of(data)
        read.leaves(read.positions(0, 0, 6), "cpu")
        assert read.draws is draws
    assert data.asked == 6


def test_what_a_collate_draws_goes_by_the_samples_of_the_batch() -> None:
    """Masks of a language model: the inputs of a first stage belong to the labels of the last."""

    def masked(samples: Sequence[Sample]) -> Sample:
        x = torch.stack([x for x, _ in samples])
        return x * (torch.rand(x.shape) < 0.5), torch.tensor([y for _, y in samples])

    one, other = of(Numbers(), masked), of(Numbers(), masked)
    places = one.positions(0, 0, 4)
    other.positions(0, 0, 4)
    assert torch.equal(one.leaves(places, "cpu")[0], other.leaves(places, "cpu")[0])


@pytest.mark.parametrize("plan", ["ddp", "gpipe(stages=2,microbatches=2)", "zero3", "ps_sync"])
def test_a_plan_on_drawn_samples_equals_one_process(plan: str) -> None:
    machines = cluster_of(2)
    task = replace(perceptron(), name="augmented", data=Augmented())
    found = checked(task, lambda graph: call(plan, graph, machines), machines, steps=5)
    assert found["max_difference"] <= TOLERANCE


def test_nothing_is_read_but_what_is_asked_for() -> None:
    """Samples of unequal length, one a minibatch, cannot be collated with others."""

    class Ragged(Numbers):
        read: list[int]

        def __getitem__(self, index: int) -> Sample:
            self.read.append(index)
            return self.x[index, : 1 + index % 5], self.y[index]

    data = Ragged()
    data.read = []
    one = of(data)
    assert [len(one.leaves([place], "cpu")[0][0]) for place in (3, 4)] == [4, 5]
    assert data.read == [3, 4]
