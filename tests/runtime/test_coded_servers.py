"""Codecs at servers: what workers send, and what servers answer."""

from __future__ import annotations

import pytest
import torch

from partita.errors import LoweringError
from partita.lowering.lower import lower
from partita.oracles.check import TOLERANCE, checked
from partita.oracles.lossy import SERVER, Lossy
from partita.program.space import Space
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from tests.captures import capture
from tests.priced import priced, whole_cores
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.small import cluster_of, perceptron, two_layers

PLANS = (
    "ps_sync(codec=threshold(threshold=0.001))",
    "ps_sync(own=false,servers=4,bucket_bytes=300,codec=onebit(where=server))",
    "ps_sync(codec=dgc(ratio=0.1,clip=0.5)+q8(where=server),ramp=1)",
)
SLOW = (
    "ps_sync(codec=fp16)", "ps_sync(codec=q8,own=false,servers=2)", "ps_sync(codec=onebit(where=server))",
    "ps_sync(servers=2,bucket_bytes=300,codec=terngrad(where=server))", "ps_sync(codec=adacomp(where=server,bin=20))",
)  # fmt: skip


@pytest.mark.parametrize("plan", [*PLANS, *(pytest.param(plan, marks=pytest.mark.slow) for plan in SLOW)])
def test_a_plan_equals_its_replay(plan: str) -> None:
    """QU-05, QU-06, SP-01, SP-03 through servers: what each worker says is summed in their order; a coded answer has a
    memory of its own."""
    machines = cluster_of(4)
    found = checked(perceptron(), lambda graph: call(plan, graph, machines), machines, steps=4)
    assert found["semantics"] == "lossy"
    assert found["max_difference"] <= TOLERANCE


@pytest.mark.parametrize("plan", [
    "ps_sync(codec=onebit(where=server))", pytest.param("ps_sync(codec=onebit)", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_weighted_loss_equals_its_replay(plan: str) -> None:
    """All workers make means of their sums before they encode them."""
    machines = cluster_of(4)
    found = checked(padded(), lambda graph: call(plan, graph, machines), machines, steps=4)
    assert found["max_difference"] <= TOLERANCE


def test_two_levels_lose_nothing() -> None:
    """QU-05: all that was applied, what the workers hold back and what the server does are all gradients."""
    graph, machines = capture(perceptron(), precision="fp64"), cluster_of(4)
    program = program_by("ps_sync(codec=onebit(where=server))", graph, machines)
    shapes = {piece.parameter: () for bucket in program.trained for piece in bucket.pieces}
    shapes = {p.name: tuple(map(int, p.tensor.at(1).shape)) for p in graph.parameters if p.name in shapes}
    codecs, draw = Lossy(0), torch.Generator().manual_seed(3)
    applied, given = ({n: torch.zeros(s, dtype=torch.float64) for n, s in shapes.items()} for _ in range(2))
    for step in range(12):
        each = {
            worker: {n: torch.randn(s, dtype=torch.float64, generator=draw) for n, s in shapes.items()}
            for worker in range(3)
        }
        for name, whole in codecs.summed(program, step, each).items():
            applied[name] += whole
            given[name] += sum(one[name] for one in each.values())
    for bucket in program.trained:
        left = sum(codecs.residual[worker, bucket.name] for worker in (0, 1, 2, SERVER))
        flat = [torch.cat([one[p.parameter].reshape(-1) for p in bucket.pieces]) for one in (applied, given)]
        assert left.abs().max() > 0
        assert torch.allclose(flat[0] + left, flat[1], rtol=0, atol=1e-12)


def test_workers_step_alike_with_a_coded_answer() -> None:
    task, machines = perceptron(), cluster_of(4)
    graph = capture(task)
    states, _ = train_in_process(
        Workload(task, graph), call("ps_sync(codec=onebit(where=server))", graph, machines), machines, 4
    )
    assert all(torch.equal(states[r].leaves[name], leaf) for name, leaf in states[0].leaves.items() for r in (1, 2))
    assert (Space.REST, "b0") in states[3].kept
    assert (Space.RESIDUAL, "b0") in states[0].kept
    assert not torch.equal(states[0].kept[Space.RESIDUAL, "b0"], states[1].kept[Space.RESIDUAL, "b0"])


@pytest.mark.parametrize(
    ("codec", "up", "down"),
    [("onebit", 5 + 8, 36 * 4), ("onebit(where=server)", 5 + 8, 5 + 8), ("topk(ratio=0.25)+q8(where=server)", 72, 40)],
)
def test_bytes_on_the_wire(codec: str, up: int, down: int) -> None:
    """36 numbers from each of three workers, and back."""
    graph, machines = two_layers(), whole_cores(4, 1e6)
    program = program_by(f"ps_sync(codec={codec})", graph, machines)
    batches = sorted({segment.batch for segment in program.segments})
    assert simulate(program, priced(graph, machines, batches)).wire_sent == (up, up, up, 3 * down)


@pytest.mark.parametrize(
    ("plan", "words"), [("ps_sync(codec=powersgd)", "in rounds"), ("ps_sync(codec=topk+topk)", "several codecs")]
)
def test_what_servers_cannot_decode(plan: str, words: str) -> None:
    graph, machines = two_layers(), cluster_of(4)
    with pytest.raises(LoweringError, match=words):
        lower(graph, call(plan, graph, machines), machines)
