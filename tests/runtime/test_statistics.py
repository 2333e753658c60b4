"""DP-36: batch statistics of all microbatches enter the running ones once, as torchgpipe's do and a whole batch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from partita.errors import LoweringError, PlanError
from partita.graph.cuts import legal_cuts
from partita.graph.statistics import sample_free
from partita.lowering.lower import last_program, lower
from partita.oracles.check import TOLERANCE, checked, gathered
from partita.recipes.catalogue import call
from partita.runs.assembly import initial, train_in_process
from partita.runtime.workload import Workload
from partita.searches.space import space_of
from partita.task import Task
from tests.captures import capture
from tests.small import cluster_of, perceptron

STEPS, SEED, PARTS = 3, 5, 4


def normalised() -> Task:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.BatchNorm1d(8, momentum=0.3),
            nn.ReLU(), nn.Linear(8, 3),
        )  # fmt: skip

    return replace(perceptron(), name="normalised", model=model)


class Deferred(nn.Module):
    """torchgpipe's rule in plain PyTorch: sums over microbatches, entered after the last one with the unbiased
    variance; each microbatch is normalised by its own statistics."""

    def __init__(self, norm: nn.BatchNorm1d) -> None:
        super().__init__()
        self.norm, self.seen = norm, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.detach())
        return nn.functional.batch_norm(x, None, None, self.norm.weight, self.norm.bias, True, 0.0, self.norm.eps)

    def commit(self) -> None:
        whole = torch.cat(self.seen)
        nn.functional.batch_norm(
            whole, self.norm.running_mean, self.norm.running_var, training=True, momentum=self.norm.momentum
        )
        self.norm.num_batches_tracked += 1
        self.seen = []


def plainly(wrap: Callable[[nn.BatchNorm1d], Deferred]) -> dict[str, torch.Tensor]:
    task = normalised()
    model, _ = initial(task, SEED, "fp64")
    for place in (1, 4):
        model[place] = wrap(model[place])
    optimizer = task.optimizer(model.parameters())
    order = torch.randperm(len(task.data), generator=torch.Generator().manual_seed(SEED))
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in order[step * 12 : (step + 1) * 12].chunk(PARTS):
            loss = nn.functional.cross_entropy(model(task.data.x[part].double()), task.data.y[part])
            (loss / PARTS).backward()
        for place in (1, 4):
            model[place].commit()
        optimizer.step()
    return {name.replace(".norm.", "."): value for name, value in model.state_dict().items()}


PLANS = (
    "single",
    "torchgpipe(stages=3)",
    "one_f_one_b(stages=2)",
    "interleaved(stages=2,chunks=2)",
    "zero_bubble(stages=2)",
)


@pytest.mark.parametrize("plan", PLANS)
def test_statistics_are_torchgpipes(plan: str) -> None:
    task, machines = normalised(), cluster_of(3)
    graph = capture(task, precision="fp64")
    text = f"{plan.removesuffix(')')}{',' if '(' in plan else '('}microbatches={PARTS},batch_norm=deferred)"
    made = call(text, graph, machines)
    states, _ = train_in_process(Workload(task, graph, seed=SEED, precision="fp64"), made, machines, STEPS)
    ours, theirs = gathered(last_program(graph, made, machines), states), plainly(Deferred)
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, rtol=TOLERANCE, atol=TOLERANCE), name
    local = call(text.replace("deferred", "local"), graph, machines)
    states, _ = train_in_process(Workload(task, graph, seed=SEED, precision="fp64"), local, machines, 1)
    counted = gathered(last_program(graph, local, machines), states)["1.num_batches_tracked"]
    assert (int(counted), int(ours["1.num_batches_tracked"])) == (PARTS, STEPS)


def test_the_first_layers_statistics_are_a_whole_batchs() -> None:
    """1e-6 and better: what comes before is the same for microbatches and for the whole."""
    task, machines = normalised(), cluster_of(1)
    graph = capture(task, precision="fp64")
    found = []
    for text in ("single(microbatches=4,batch_norm=deferred)", "single"):
        states, _ = train_in_process(Workload(task, graph, precision="fp64"), call(text, graph, machines), machines, 1)
        found.append(states[0].leaves)
    for name in ("1.running_mean", "1.running_var"):
        assert torch.allclose(found[0][name], found[1][name], rtol=1e-9, atol=1e-12)
    assert not torch.allclose(found[0]["4.running_var"], found[1]["4.running_var"], rtol=1e-6)


def test_weights_do_not_follow_running_statistics() -> None:
    machines = cluster_of(3)
    text = "torchgpipe(stages=3,microbatches=4,batch_norm=deferred)"
    assert checked(normalised(), lambda graph: call(text, graph, machines), machines)["max_difference"] <= TOLERANCE


def test_statistics_that_nothing_can_defer_are_refused() -> None:
    """A momentum of None asks for a count, so that the step is one operator, in which they cannot be told apart."""
    counting = replace(
        normalised(), name="counting", model=lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None))
    )
    graph, machines = capture(counting), cluster_of(1)
    assert graph.rung == "opaque"
    with pytest.raises(LoweringError, match="deferred batch statistics of a step that was captured as one operator"):
        lower(graph, call("single(microbatches=4,batch_norm=deferred)", graph, machines), machines)
    for text in ("single(microbatches=4)", "single"):
        assert lower(graph, call(text, graph, machines), machines)


class Stepping(nn.Module):
    """What it computes depends on a buffer that each forward pass moves: by itself, or by what it saw."""

    def __init__(self, seen: bool) -> None:
        super().__init__()
        self.first, self.last, self.seen = nn.Linear(6, 6), nn.Linear(6, 3), seen
        self.register_buffer("centre", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).tanh()
        with torch.no_grad():
            self.centre.mul_(0.9).add_(0.1 * (x.mean(0) if self.seen else self.centre.cos()))
        return self.last(x - self.centre)


@pytest.mark.parametrize(
    "plan", ["ddp", "ddp(microbatches=2)", "zero3", "ps_sync", "pipe_sgd", "local_sgd(period=2)", "gpipe(stages=2)"]
)
@pytest.mark.parametrize("seen", [True, False])
def test_each_worker_has_buffers_of_its_own(seen: bool, plan: str) -> None:
    """Power iterations and moving codebooks, as replicas without broadcast buffers have them."""
    task, machines = replace(perceptron(), name=f"stepping-{seen}", model=lambda: Stepping(seen)), cluster_of(2)
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE
    assert found["against"].endswith(("buffers of its own", "steps"))


class Scaling(nn.Module):
    """Divides by a moving average of what came before, and then moves it, by a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        found = self.last(x / self.scale)
        self.scale = (0.5 * self.scale + x.abs().mean(0)).detach()
        return found


@pytest.mark.parametrize("plan", ["single", "ddp(microbatches=2)", "zero3", "gpipe(stages=2)", "ddp(recompute=full)"])
def test_the_backward_pass_reads_a_buffer_as_it_was(plan: str) -> None:
    task, machines = replace(perceptron(), name="scaling", model=Scaling), cluster_of(2)
    found = checked(task, lambda graph: call(plan, graph, machines), machines)
    assert found["max_difference"] <= TOLERANCE


def test_no_cut_parts_who_reads_a_buffer_from_who_changes_it() -> None:
    graph = capture(replace(perceptron(), name="scaling", model=Scaling))
    new = graph.index[dict(graph.mutations)["scale"].name]
    first = min(i for i, o in enumerate(graph.operators) if any(ref.name == "scale" for ref in o.reads()))
    assert first < new
    assert not [cut for cut in legal_cuts(graph) if first < cut.position <= new]
    assert [cut for cut in legal_cuts(graph) if cut.position <= first]


class Annealing(nn.Module):
    """Counts its steps in a buffer, and bounds a weight's norm by a power iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.last(self.first(x).tanh()) * (self.steps / 20).clamp(max=1)


@pytest.mark.parametrize(
    "plan",
    [
        "single(microbatches=4)", "ddp(microbatches=2)", "zero3(microbatches=2)", "gpipe(stages=2)",
        "one_f_one_b(stages=2,recompute=full)", "zero_bubble(stages=2)",
    ],
)  # fmt: skip
def test_what_follows_from_no_sample_moves_once_a_minibatch(plan: str) -> None:
    task, machines = replace(perceptron(), name="annealing", model=Annealing), cluster_of(2)
    graph = capture(task, precision="fp64")
    found = []
    for text in (plan, "single"):
        made = call(text, graph, machines)
        states, _ = train_in_process(Workload(task, graph, seed=SEED, precision="fp64"), made, machines, STEPS)
        found.append(gathered(last_program(graph, made, machines), states))
    ours, theirs = found
    assert int(ours["steps"]) == STEPS
    for name in Annealing().state_dict():
        assert torch.allclose(ours[name], theirs[name], rtol=TOLERANCE, atol=1e-12), name
    assert checked(task, lambda graph: call(plan, graph, machines), machines)["max_difference"] <= TOLERANCE


def test_what_follows_from_samples_moves_with_each_microbatch() -> None:
    seen, unseen = (capture(replace(perceptron(), name=f"stepping-{s}", model=lambda s=s: Stepping(s))) for s in (1, 0))
    assert (sample_free(seen), sample_free(unseen)) == ((), ("centre",))
    assert not sample_free(capture(normalised()))


@pytest.mark.parametrize("plan", ["ddp(microbatches=3)", "gpipe(stages=2,data=2,microbatches=4)"])
def test_parts_of_one_sample_are_refused_where_it_has_one_value_of_each_channel(plan: str) -> None:
    """PyTorch refuses them; the variance of one value is none, and running ones became nan."""
    graph, machines = capture(normalised()), cluster_of(4)
    with pytest.raises(PlanError, match="parts of 1 sample, and the batch normalisation of normalised needs 2"):
        last_program(graph, call(plan, graph, machines), machines)
    space = space_of(graph, machines, 2, 1000)
    assert (12 // space.column("data") // space.column("microbatches")).min() == 2
    plain = capture(perceptron())
    assert last_program(plain, call(plan, plain, machines), machines)
