"""A model that cannot be traced trains as plain PyTorch does, under every plan that divides samples only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from partita import api
from partita.cost.datasheet import CALL, operator_seconds
from partita.errors import PartitaError, PlanError, TaskError
from partita.graph.batch import substitute
from partita.graph.flops import calls, flops
from partita.graph.signature import signature
from partita.oracles.check import TOLERANCE, checked
from partita.probes.opaque_timing import whole_seconds
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime import whole
from partita.runtime.workload import Workload
from tests.captures import capture
from tests.runtime.branching import Branching, branching, jagged, ragged
from tests.small import cluster_of, perceptron

TASKS = {"branching": branching, "ragged": ragged, "jagged": jagged}
PLANS = (
    "single", "ddp", "ddp(microbatches=2)", "zero1", "zero3", "ps_sync", "pipe_sgd", "local_sgd(period=2)",
    "ddp(codec=topk)",
)  # fmt: skip
CASES = [(name, plan) for name in ("branching", "ragged") for plan in PLANS]
CASES += [("ragged", "ps_async"), ("ragged", "easgd"), ("jagged", "ddp"), ("jagged", "zero3")]


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_a_plan_equals_its_serial_training(name: str, plan: str) -> None:
    machines = cluster_of(2)
    found = checked(TASKS[name](), lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE, found


@pytest.mark.parametrize(
    "plan", ["gpipe(stages=2)", "one_f_one_b(stages=2,microbatches=2)", "ddp(precision=bf16)", "single(precision=fp16)"]
)
def test_a_plan_that_needs_more_than_samples_says_why(plan: str) -> None:
    graph, machines = capture(branching()), cluster_of(2)
    with pytest.raises(PartitaError, match="one operator") as refused:
        checked(branching(), lambda graph: call(plan, graph, machines), machines)
    assert refused.value.exit_code == 2
    if "stages" in plan:
        with pytest.raises(PlanError, match=r"goes by a number that samples hold.*use a plan without stages"):
            call(plan, graph, machines)


def test_what_cannot_be_run_has_no_costs() -> None:
    graph, machines = capture(branching()), cluster_of(2)
    made = api.plan_of("ddp(precision=bf16)", graph, machines)
    with pytest.raises(PartitaError, match="asks for precision=bf16, and branching could not be captured"):
        api.costs_of(graph, machines, [made])


def test_samples_of_any_length_are_one_operator() -> None:
    graph = capture(ragged())
    assert graph.rung == "opaque"
    assert "tensors of other shapes; pad them" in graph.blind


def test_what_a_whole_model_computes_is_counted() -> None:
    """A linear layer of 6 x 8 and two ways of 8 x 8 and 8 x 3: 2 FLOPs a weight and sample; in backward at most as
    many for the weight and for what it reads, each."""
    forward, backward = capture(branching()).operators
    graph = capture(branching())
    assert flops(forward, graph, 10) == 10 * 2 * (6 * 8 + 8 * 8 + 8 * 3)
    assert flops(forward, graph, 10) < flops(backward, graph, 10) <= 2 * flops(forward, graph, 10)
    device = cluster_of(2).devices[0]
    for operator in (forward, backward):
        assert calls(operator) > 4
        assert operator_seconds(device, operator, graph, 1) > CALL * calls(operator)
    assert graph.operators[0].outputs[-1] is not None
    assert graph.operators[0].outputs[-1].size(4) > graph.operators[0].outputs[-1].size(2) > 0


def test_what_a_tensor_that_wraps_others_computes_is_counted() -> None:
    """A linear layer of 1 x 8 for each number that is taken, and one of 8 x 3 for each sample."""
    graph, task = capture(jagged()), jagged()
    taken = sum(1 + int((task.data[i][0] > 0).sum()) for i in range(2)) / 2
    assert graph.rung == "opaque"
    assert flops(graph.operators[0], graph, 10) == 10 * 2 * (taken * 8 + 8 * 3)


def test_a_whole_model_is_timed_on_its_samples() -> None:
    graph = capture(ragged())
    found = whole_seconds(ragged(), graph, (3, 6))
    every = [substitute(graph, batch) for batch in (3, 6)]
    assert found.keys() == {signature(operator, one) for one in every for operator in one.operators}
    assert all(seconds > 0 for seconds in found.values())


class Sometimes(nn.Module):
    """Changes a buffer, or a weight, in some batches only."""

    def __init__(self, weight: bool) -> None:
        super().__init__()
        self.last, self.weight = nn.Linear(6, 3), weight
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        if len(x) > 2 and x.sum().item() > -1e9:
            with torch.no_grad():
                (self.last.bias if self.weight else self.seen).add_(1)
        return self.last(x) + self.seen


@pytest.mark.parametrize(
    ("weight", "words"), [(False, "buffer 'seen' changes now"), (True, "changes parameter 'last.bias' in place")]
)
def test_state_that_changes_behind_the_plans_back_is_refused(weight: bool, words: str) -> None:
    task, machines = replace(perceptron(), model=lambda: Sometimes(weight)), cluster_of(2)
    graph = capture(task)
    assert graph.rung == "opaque"
    with pytest.raises(TaskError, match=words):
        train_in_process(Workload(task, graph), call("ddp", graph, machines), machines, 1)


def test_the_check_finds_a_gradient_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    right = whole.OPAQUE["partita.opaque_backward"]

    def wrong(*given: Any, **named: Any) -> Any:
        return tuple(gradient * (0.9 if i == 0 else 1.0) for i, gradient in enumerate(right(*given, **named)))

    from partita.runtime import segment

    monkeypatch.setitem(segment.WITHIN, "partita.opaque_backward", wrong)
    machines = cluster_of(2)
    found = checked(branching(), lambda graph: call("ddp", graph, machines), machines)
    assert found["max_difference"] > TOLERANCE


def test_torchs_own_numbers_are_as_a_plain_loop_draws_them() -> None:
    """Not keyed: dropout of the module itself, one process, against a loop."""
    task = replace(perceptron(), model=Branching, data=perceptron().data)
    graph, machines = capture(task), cluster_of(1)
    states, _ = train_in_process(Workload(task, graph, seed=4), call("single", graph, machines), machines, 3)
    torch.manual_seed(4)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(4))
    for step in range(3):
        samples = [task.data[int(i)] for i in order[12 * step : 12 * step + 12]]
        optimizer.zero_grad()
        task.loss(model, torch.utils.data.default_collate(samples)).backward()
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.equal(states[0].leaves[name], p), name
