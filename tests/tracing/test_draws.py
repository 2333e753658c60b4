"""Draws depend on (seed, step, key, sample) and on nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from partita.errors import CaptureError
from partita.graph.operator import Operator
from partita.graph.repeats import DROPPING
from partita.graph.tensor import Affine, Dim, Tensor
from partita.oracles.check import checked
from partita.recipes.catalogue import call
from partita.tracing.calls import call_of
from partita.tracing.draws import (
    KeyedDraws,
    check_keyed,
    is_random,
    keyed_dropout,
    keyed_random,
    keyed_uniform,
    sample_dims,
    with_sample_dims,
)
from partita.tracing.fused import Fused
from tests.small import cluster_of, perceptron, two_layers


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


@pytest.mark.parametrize(
    ("shape", "along"),
    [((Affine(1), 3), 0), ((4, Affine(2)), 1), ((4, 3), -1), ((Affine(1, 1), Affine(1)), 1), ((Affine(1, 1), 4), -1)],
)
def test_a_draw_is_told_along_which_dim_its_samples_lie(shape: tuple[Dim, ...], along: int) -> None:
    """The first that holds so many of each sample, and nothing besides."""
    draw = Operator("draw", "partita.random", (0, "aten.rand.default", shape), outputs=(Tensor(shape, "float32"),))
    graph = with_sample_dims(replace(two_layers(), operators=(*two_layers().operators, draw)))
    assert dict(graph.operators[-1].keywords).get("along", 0) == along
    assert sample_dims(graph) == ({0: along} if along else {})
    assert graph.operators[:-1] == two_layers().operators


def test_no_rows_and_no_dim_are_no_sample_s() -> None:
    for shape, along in (((0, 3), 0), ((4,), 1), ((5, 3), 0)):
        assert torch.equal(keyed_uniform(shape, 1, 2, 3, (7, 8), along), keyed_uniform(shape, 1, 2, 3, ()))


X = torch.zeros(3)


@pytest.mark.parametrize(
    ("target", "arguments", "uniform", "expected"),
    [
        ("aten.uniform_.default", (X,), (0.0, 0.5, 0.75), (0.0, 0.5, 0.75)),
        ("aten.uniform_.default", (X, 0.5), (0.0, 0.5, 0.75), (0.5, 0.75, 0.875)),
        ("aten.uniform_functional.default", (X, -1.0, 3.0), (0.0, 0.5, 0.75), (-1.0, 1.0, 2.0)),
        ("aten.randint.low", (-3, 3, (3,)), (0.0, 0.1, 0.99), (-3.0, -3.0, 2.0)),
        ("aten.randint.default", (3, (3,)), (0.0, 0.5, 0.99), (0.0, 1.0, 2.0)),
        ("aten.bernoulli_.float", (X,), (0.49, 0.5, 0.6), (1.0, 0.0, 0.0)),
        ("aten.bernoulli.p", (X, 0.25), (0.0, 0.25, 0.3), (1.0, 0.0, 0.0)),
        ("aten.bernoulli.default", (torch.tensor([0.0, 1.0, 0.5]),), (0.0, 0.99, 0.5), (0.0, 1.0, 0.0)),
        ("aten.bernoulli_.Tensor", (X, torch.tensor([0.0, 1.0, 0.5])), (0.0, 0.99, 0.5), (0.0, 1.0, 0.0)),
        ("aten.randperm.default", (3,), (0.9, 0.1, 0.5), (1.0, 2.0, 0.0)),
        ("aten.exponential_.default", (X, 2.0), (0.0, 0.5, 0.75), (0.0, 0.34657359, 0.69314718)),
        ("aten.exponential_.default", (X,), (0.0, 0.5, 0.75), (0.0, 0.69314718, 1.38629436)),
        ("aten.log_normal.default", (X, 0.5, 2.0), (0.5, 0.84134475, 0.15865525), (1.6487213, 12.1824940, 0.2231302)),
        ("aten.cauchy_.default", (X, 1.0, 2.0), (0.25, 0.5, 0.75), (-1.0, 1.0, 3.0)),
        ("aten.geometric_.default", (X, 0.25), (0.0, 0.3, 0.5), (1.0, 2.0, 3.0)),
        ("aten.normal_.default", (X, 2.0), (0.5, 0.84134475, 0.15865525), (2.0, 3.0, 1.0)),
        ("aten.normal_.default", (X, 2.0, 3.0), (0.5, 0.84134475, 0.15865525), (2.0, 5.0, -1.0)),
        ("aten.multinomial.default", (torch.tensor([0.0, 1, 0, 3]), 3, True), (0.0, 0.25, 0.99), (1.0, 3.0, 3.0)),
    ],
)
def test_a_distribution_is_made_of_uniform_numbers(
    target: str, arguments: tuple[Any, ...], uniform: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    """By hand; of probability p what is below p, of an outcome's part of a line its lower end and not its upper."""
    drawn = keyed_random(target, arguments, X, torch.tensor(uniform, dtype=torch.float64))
    assert drawn.tolist() == pytest.approx(expected, abs=1e-5)


def test_the_ends_of_a_line_are_numbers() -> None:
    """Uniform ones are multiples of 2**-24, of which one in sixteen million is 0."""
    ends = torch.tensor([0.0, 1 - 2.0**-24], dtype=torch.float64)
    normal = keyed_random("aten.randn.default", ((2,),), ends, ends)
    assert (-6 < normal[0] < -5, 5 < normal[1] < 6) == (True, True)
    assert keyed_random("aten.exponential_.default", (ends,), ends, ends).isfinite().all()


def test_eager_pytorch_draws_along_the_graph_s_dims() -> None:
    """Of the second draw, whose key is 1, samples lie along the second dim."""
    with KeyedDraws(3, 4, (7, 8), {1: 1}):
        first, second = torch.rand(2, 6, dtype=torch.float64), torch.rand(2, 6, dtype=torch.float64)
    assert torch.equal(first, keyed_uniform((2, 6), 3, 4, 0, (7, 8)).double())
    assert torch.equal(second, keyed_uniform((2, 6), 3, 4, 1, (7, 8), along=1).double())


def test_backward_of_attention_takes_no_key_of_its_own() -> None:
    """What is drawn behind it is drawn as if there had been forward alone."""

    def behind(*, backward: bool) -> torch.Tensor:
        q = torch.ones(2, 1, 3, 4, requires_grad=True)
        with Fused(), KeyedDraws(3, 4, (7, 8)):
            out = torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
            if backward:
                out.sum().backward()
            return torch.rand(2, 6)

    assert torch.equal(behind(backward=True), behind(backward=False))


def test_what_makes_more_than_it_draws_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"aten\.some\.default has no keyed form"):
        check_keyed("aten.some.default", (X, X))
    check_keyed("aten.some.default", X)


def test_attention_draws_where_it_drops_only() -> None:
    assert is_random(call_of(DROPPING))
    assert is_random(torch.ops.aten.rand_like.default)
    assert not is_random(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
    assert not is_random(torch.ops.aten.mul.Tensor)


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


def test_outcomes_that_are_not_put_back_are_drawn_by_what_is_left() -> None:
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0]).expand(4000, 4)
    with KeyedDraws(5, 1, range(2)):
        drawn, flat = torch.multinomial(weights, 3), torch.multinomial(weights[0], 3)
    assert drawn.sort().values.tolist() == [[1, 2, 3]] * 4000
    assert flat.sort().values.tolist() == [1, 2, 3]
    for first, second, chance in ((3, 2, 5 / 8 * 2 / 3), (1, 3, 1 / 8 * 5 / 7), (2, 1, 2 / 8 * 1 / 6)):
        found = (drawn[:, 0] == first) & (drawn[:, 1] == second)
        assert float(found.double().mean()) == pytest.approx(chance, abs=0.02)


def test_a_distribution_without_a_keyed_form_is_told() -> None:
    with pytest.raises(CaptureError, match=r"aten.unheard.default has no keyed form"):
        keyed_random("aten.unheard.default", (X,), X, X)


EVENLY = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
LAWS = torch.distributions


@pytest.mark.parametrize(
    ("target", "arguments", "law"),
    [
        ("_standard_gamma", (0.05,), LAWS.Gamma(0.05, 1.0)),
        ("_standard_gamma", (0.7,), LAWS.Gamma(0.7, 1.0)),
        ("_standard_gamma", (250.0,), LAWS.Gamma(250.0, 1.0)),
        ("poisson", (0.0,), LAWS.Poisson(0.0)),
        ("poisson", (0.3,), LAWS.Poisson(0.3)),
        ("poisson", (700.0,), LAWS.Poisson(700.0)),
        ("binomial", (9.0, 0.2), LAWS.Binomial(9, torch.tensor(0.2))),
        ("binomial", (4.0, 1.0), LAWS.Binomial(4, torch.tensor(1.0))),
    ],
)
def test_evenly_spaced_chances_give_a_distribution_s_mean_and_variance(
    target: str, arguments: tuple[float, ...], law: Any
) -> None:
    given = tuple(torch.full_like(EVENLY, number) for number in arguments)
    drawn = keyed_random(f"aten.{target}.default", given, EVENLY, EVENLY)
    assert float(drawn.mean()) == pytest.approx(float(law.mean), rel=1e-3)
    assert float(drawn.var()) == pytest.approx(float(law.variance), rel=0.01)
    assert (drawn.diff() >= 0).all()


def test_poisson_s_numbers_are_those_that_its_chances_say() -> None:
    """exp(-2) = 0.1353, 0.4060 and 0.6767 are the chances of at most 0, 1 and 2."""
    chances = torch.tensor([0.0, 0.135, 0.136, 0.405, 0.407, 0.676, 0.677, 1 - 2.0**-24], dtype=torch.float64)
    drawn = keyed_random("aten.poisson.default", (torch.full((8,), 2.0),), torch.zeros(8), chances)
    assert drawn[:7].tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert 10 < drawn[7] < 20


def test_parts_of_a_whole_are_drawn_by_their_weights() -> None:
    weights = torch.tensor([0.2, 1.0, 3.0]).expand(4000, 3)
    with KeyedDraws(5, 1, range(4000)):
        drawn = torch._sample_dirichlet(weights)
    assert torch.allclose(drawn.sum(-1), torch.ones(4000), atol=1e-6)
    assert drawn.min() > 0
    assert torch.allclose(drawn.mean(0), weights[0] / 4.2, atol=0.02)
    for place, weight in enumerate((0.2, 1.0, 3.0)):
        share = weight / 4.2
        assert float(drawn[:, place].var()) == pytest.approx(share * (1 - share) / 5.2, rel=0.1)


def mixed(model: Any, batch: list[torch.Tensor]) -> torch.Tensor:
    """Each sample with its noise, as much as a Beta distribution says (mixup's), and a policy of one."""
    share = torch.distributions.Beta(0.2, 0.4).sample((len(batch[0]), 1)).to(batch[0])
    scores = model(share * batch[0] + (1 - share) * torch.poisson(batch[0].abs()))
    action = torch.distributions.Gamma(F.softplus(scores) + 0.1, torch.ones_like(scores)).rsample()
    return F.cross_entropy(scores, batch[1]) + (action - 1).square().mean()


def chosen(model: Any, batch: list[torch.Tensor]) -> torch.Tensor:
    """REINFORCE: what was drawn is rewarded where it is right."""
    choice = torch.distributions.Categorical(logits=model(batch[0]))
    drawn = choice.sample()
    return -(choice.log_prob(drawn) * (drawn == batch[1])).mean()


def picked(model: Any, batch: list[torch.Tensor]) -> torch.Tensor:
    """A few columns of each sample, none twice (ViLT's patches)."""
    kept = torch.multinomial(torch.ones_like(batch[0]), 3)
    return F.cross_entropy(model(batch[0] * torch.zeros_like(batch[0]).scatter(1, kept, 1.0)), batch[1])


@pytest.mark.parametrize("loss", [chosen, picked, mixed])
@pytest.mark.parametrize("plan", ["ddp(microbatches=2)", "gpipe(stages=2)"])
def test_what_chooses_at_random_is_the_same_under_every_plan(plan: str, loss: Any) -> None:
    task, machines = replace(perceptron(), loss=loss), cluster_of(2)
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert (found["equal"], found["because"]) == (True, "")
