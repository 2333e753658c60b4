"""Draws depend on (seed, step, key, sample) and on nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from partita.errors import CaptureError
from partita.oracles.check import checked
from partita.recipes.catalogue import call
from partita.tracing.draws import KeyedDraws, keyed_dropout, keyed_uniform
from tests.small import cluster_of, perceptron


def test_rows_follow_their_samples_in_any_company() -> None:
    whole = keyed_uniform((4, 5), 1, 2, 3, (10, 11, 12, 13))
    part = keyed_uniform((2, 5), 1, 2, 3, (13, 11))
    assert torch.equal(part[0], whole[3])
    assert torch.equal(part[1], whole[1])
    several = keyed_uniform((4, 5), 1, 2, 3, (10, 11))
    assert torch.equal(several[2:], keyed_uniform((2, 5), 1, 2, 3, (11,)))


def test_samples_lie_along_any_dim() -> None:
    whole = keyed_uniform((5, 4, 3), 1, 2, 3, (10, 11, 12, 13), along=1)
    assert torch.equal(whole[:, 1:3], keyed_uniform((5, 2, 3), 1, 2, 3, (11, 12), along=1))
    assert torch.equal(whole.movedim(1, 0), keyed_uniform((4, 5, 3), 1, 2, 3, (10, 11, 12, 13)))
    assert torch.equal(keyed_uniform((4, 3), 1, 2, 3, (7, 8), along=-1), keyed_uniform((4, 3), 1, 2, 3, ()))


def test_every_part_of_the_key_matters() -> None:
    base = keyed_uniform((1, 50), 1, 2, 3, (4,))
    others = [
        keyed_uniform((1, 50), *key, (sample,))
        for *key, sample in ((0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0))
    ]
    assert not any(torch.equal(base, other) for other in others)
    assert 0 <= float(base.min()) <= float(base.max()) < 1


def test_a_tensor_without_samples_is_the_same_for_all() -> None:
    assert torch.equal(keyed_uniform((3, 2), 1, 2, 3, (7, 8)), keyed_uniform((3, 2), 1, 2, 3, ()))


def test_keyed_dropout_keeps_the_mean_and_scales() -> None:
    dropped, mask = keyed_dropout(torch.ones(100, 100), 0.25, keyed_uniform((100, 100), 0, 0, 0, ()))
    assert 0.73 < float(mask.double().mean()) < 0.77
    assert torch.equal(dropped, mask * (1 / 0.75))


def test_eager_pytorch_draws_the_same_twice_and_in_its_own_kind() -> None:
    def drawn() -> list[torch.Tensor]:
        with KeyedDraws(0, 0, range(400)):
            return [
                torch.rand(400, 8), torch.randn(400, 8), torch.randint(3, 7, (400, 8)), torch.randperm(400),
                torch.empty(400, 8).exponential_(2.0), torch.empty(400, 8).uniform_(-1, 1),
                torch.bernoulli(torch.full((400, 8), 0.2)), torch.nn.functional.dropout(torch.ones(400, 8), 0.5),
            ]  # fmt: skip

    once, again = drawn(), drawn()
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    means = [float(x.double().mean()) for x in once]
    for mean, expected in zip(means, (0.5, 0.0, 4.5, 199.5, 0.5, 0.0, 0.2, 1.0), strict=True):
        assert abs(mean - expected) < 0.1
    assert 0.9 < float(once[1].std()) < 1.1
    assert sorted(once[3].tolist()) == list(range(400))


def test_means_and_deviations_may_be_tensors() -> None:
    means, deviations = torch.arange(2000.0) % 2 * 10, torch.arange(2000.0) % 3 + 1
    with KeyedDraws(0, 0, ()):
        both, mean, deviation = torch.normal(means, deviations), torch.normal(means, 1.0), torch.normal(0.0, deviations)
    for odd in (0, 1):
        assert abs(both[odd::2].mean() - 10 * odd) < 0.3
        assert abs(mean[odd::2].mean() - 10 * odd) < 0.2
    assert [round(float(deviation[k::3].std())) for k in range(3)] == [1, 2, 3]


def test_outcomes_come_as_often_as_they_weigh() -> None:
    """Each row by its own weights; an outcome of no weight never, not even at the ends."""
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 0.0, 2.0]])
    with KeyedDraws(5, 1, range(2)):
        many = torch.multinomial(weights, 4000, replacement=True)
        one = torch.multinomial(weights.expand(2000, 2, 4).reshape(-1, 4), 1)
        flat = torch.multinomial(weights[0], 4000, replacement=True)
    for drawn in (many[0], one[::2, 0], flat):
        assert torch.bincount(drawn, minlength=4).div(len(drawn)).tolist() == pytest.approx(
            [0, 0.25, 0.75, 0], abs=0.05
        )
    assert torch.bincount(many[1], minlength=4).div(4000).tolist() == pytest.approx([0.5, 0, 0, 0.5], abs=0.05)
    with KeyedDraws(5, 1, range(2)), pytest.raises(CaptureError, match=r"multinomial.* has no keyed form"):
        torch.multinomial(weights + 1, 2)


def chosen(model: Any, batch: list[torch.Tensor]) -> torch.Tensor:
    """REINFORCE: what was drawn is rewarded where it is right."""
    choice = torch.distributions.Categorical(logits=model(batch[0]))
    drawn = choice.sample()
    return -(choice.log_prob(drawn) * (drawn == batch[1])).mean()


@pytest.mark.parametrize("plan", ["ddp(microbatches=2)", "gpipe(stages=2)"])
def test_what_chooses_at_random_is_the_same_under_every_plan(plan: str) -> None:
    task, machines = replace(perceptron(), loss=chosen), cluster_of(2)
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert (found["equal"], found["because"]) == (True, "")
