"""Plans of several phases: what one leaves is what the next one begins with, or they are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from partita.errors import LoweringError
from partita.graph.graph import Graph
from partita.lowering.lower import check_lowered, last_program, lower
from partita.oracles.check import checked
from partita.plan.plan import Phase, Plan
from partita.recipes.catalogue import call
from partita.task import Task
from tests.small import cluster_of, layers

FOUR = cluster_of(4)


def of(first: str, second: str, graph: Graph, steps: int = 2) -> Plan:
    """The plan of `steps` steps by one recipe before another one."""
    return replace(call(second, graph, FOUR), before=(Phase(steps, call(first, graph, FOUR)),))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ddp", "ps_sync"),
        ("local_sgd(period=3)", "easgd"),
        ("diloco(period=2)", "diloco(period=2)"),
        ("diloco(period=2)", "local_sgd"),
        ("local_sgd(period=2)", "local_sgd(period=1)"),  # a mean at every step, of workers with momenta of their own
        ("gossip(direction=push)", "gossip(direction=push)"),
        ("zero1", "zero1"),
        ("zero3", "zero3"),
        ("one_f_one_b(stages=2,data=2,shard=optimizer)", "gpipe(stages=2,data=2,shard=optimizer)"),
    ],
)
def test_a_phase_begins_with_what_the_one_before_leaves(first: str, second: str, task: Task) -> None:
    assert checked(task, partial(of, first, second), FOUR, steps=5)["equal"]


@pytest.mark.parametrize("norm", [nn.Identity, partial(nn.BatchNorm1d, 16)])
def test_workers_step_alone_again_from_what_all_came_to(task: Task, norm: Callable[[], nn.Module]) -> None:
    """Local steps, then alike, then local ones: each worker goes on with what all came to, and buffers of its own."""
    mine = replace(
        task,
        model=lambda: nn.Sequential(nn.Linear(6, 16), norm(), nn.ReLU(), nn.Linear(16, 3)),
        optimizer=partial(torch.optim.SGD, lr=0.1),
    )

    def again(graph: Graph) -> Plan:
        alone, alike = of("local_sgd(period=2)", "ddp(first_bucket_bytes=26214400)", graph), "local_sgd(period=3)"
        return replace(call(alike, graph, FOUR), before=(*alone.before, Phase(2, replace(alone, before=()))))

    assert checked(mine, again, FOUR, steps=7)["equal"]


@pytest.mark.parametrize(("first", "second", "semantics"), [
    ("local_sgd(period=2)", "local_sgd(period=1)", "consensus"),
    ("diloco(period=2)", "diloco(period=1,rate=1,momentum=0)", "consensus"),
    ("ddp(codec=q8(where=end))", "ddp", "lossy"),
    ("pipe_sgd", "ddp(first_bucket_bytes=1073741824,bucket_bytes=1073741824)", "delayed"),
    ("ddp", "pipe_sgd(bucket_bytes=26214400)", "delayed"),
    ("ddp", "ddp", "exact"),
])  # fmt: skip
def test_a_run_is_of_the_loosest_class_of_its_phases(first: str, second: str, semantics: str, graph: Graph) -> None:
    assert last_program(graph, of(first, second, graph), FOUR).semantics == semantics


def test_a_ramp_goes_on_where_state_is_divided(task: Task) -> None:
    """Each phase's owners step with its own gradients."""
    text = "ddp(codec=topk(ratio=0.1),ramp=1,shard=optimizer)"
    assert checked(task, lambda graph: call(text, graph, FOUR), FOUR, steps=4)["equal"]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ("single", "ddp", r"begins on the ranks \[0, 1, 2, 3\], and the weights are on \[0\]"),
        ("ps_sync", "single", "on ranks without the optimizer's state"),
        ("ps_sync(own=false)", "ddp", "on ranks without the optimizer's state"),
        ("local_sgd", "ddp", "an optimizer's state of its own"),
        ("ps_async", "ps_sync", "go ahead of each other in one of them"),
        ("ddp", "ad_psgd", "go ahead of each other in one of them"),
        ("ddp(bucket_bytes=100)", "ddp", "cuts the parameters differently"),
        ("zero1", "ddp", "cuts the parameters differently"),
    ],
)  # fmt: skip
def test_a_phase_that_does_not_find_what_it_begins_with_is_refused(
    first: str, second: str, why: str, graph: Graph
) -> None:
    plan = of(first, second, graph)
    for carried_out in (lower, check_lowered):
        with pytest.raises(LoweringError, match=f"from the phase .* to .*{why}.*; .*take phases"):
            carried_out(graph, plan, FOUR)


def test_workers_without_an_optimizers_state_may_step_alike_again() -> None:
    graph = layers(2)
    assert not graph.optimizer.state
    assert len(lower(graph, of("local_sgd", "ddp", graph), FOUR)) == 2
