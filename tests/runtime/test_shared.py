"""Workers that change the same weights without locks: what holds in one process, where nothing is torn, and of each
write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from partita.cluster.cluster import Cluster, Device, Group, Link
from partita.cluster.text import load_cluster
from partita.cost.touch import Touch
from partita.errors import PlanError, RunError
from partita.graph.graph import Graph
from partita.kernels.shared import add_racing, added_plainly
from partita.lowering.lower import last_program, lower
from partita.oracles.check import ledger_of
from partita.program.instruction import Collective, Receive, Send
from partita.program.ledger import staleness_of
from partita.program.space import Space
from partita.program.timeline import Timeline
from partita.recipes.catalogue import call
from partita.runs.assembly import initial, train_in_process
from partita.runtime import serving, shared
from partita.runtime.workload import Workload
from partita.simulator.simulate import simulate
from partita.task import Task
from tests.kernels.test_levels import DRAWS, worst
from tests.oracles.promises import kept
from tests.priced import batches_of, priced
from tests.programs import program_by
from tests.small import layers

MACHINE = load_cluster("local:4")


@pytest.mark.parametrize("plan", ["hogwild(bucket_bytes=400)", "buckwild(bucket_bytes=400)", "hogwild(microbatches=2)"])
@pytest.mark.parametrize("order", [0, 1])
def test_in_one_process_a_race_equals_the_replay_of_its_ledger(plan: str, order: int) -> None:
    """DP-12: whoever adds when, on whatever version it had read, also rounded at random (1e-9)."""
    assert kept(plan, MACHINE, steps=6, order=order) == "racy"


@pytest.mark.parametrize("order", range(3))
def test_what_is_added_is_what_the_weights_become(
    task: Task, graph: Graph, order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DP-12: the sum of all changes is the weights' way, whatever the order (1e-12), with a worker far behind."""
    given: list[torch.Tensor] = []

    def counted(weights: torch.Tensor, change: torch.Tensor, key: int) -> None:
        given.append(change.clone())
        add_racing(weights, change, key)

    monkeypatch.setattr(serving, "add_racing", counted)
    plan = call("hogwild", graph, MACHINE)
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), plan, MACHINE, 8, order=order, slow={1: 0.02})
    first = initial(task, 0, "fp64")[1]
    pieces = last_program(graph, plan, MACHINE).bucket["b0"].pieces
    moved = states[0].parameter["b0"] - torch.cat([first[piece.parameter].detach().flatten() for piece in pieces])
    assert len(given) == 4 * 8
    assert float((moved - torch.stack(given).sum(0)).abs().max()) <= 1e-12
    assert float(moved.abs().max()) > 1e-2
    assert max(staleness_of(ledger_of(states), skip=0)) > 4
    assert all(torch.equal(state.parameter["b0"], states[0].parameter["b0"]) for state in states.values())


def test_nobody_waits_for_anybody(graph: Graph) -> None:
    """DP-12: no message, no meeting and no lock on the way; the only meeting is at the end of the run."""
    (stretch,) = lower(graph, call("hogwild(bucket_bytes=400)", graph, MACHINE), MACHINE)
    assert not [i for _, i in stretch.program.instructions() if isinstance(i.act, Send | Receive | Collective)]
    assert stretch.end is not None
    assert [i.name for _, i in stretch.end.instructions() if isinstance(i.act, Collective)] == ["N"]


@pytest.mark.parametrize("place", ["lab-4x1g", "lab-2x2", "h100-dgx"])
def test_memory_is_shared_within_one_machine_by_processors_only(graph: Graph, place: str) -> None:
    machines = load_cluster(place)
    with pytest.raises(PlanError, match="memory"):
        lower(graph, call("hogwild", graph, machines), machines)


def machine(*speeds: float) -> Cluster:
    devices = tuple(Device(speed=speed) for speed in speeds)
    return Cluster(f"local:{len(speeds)}", Group("local", devices, (Link(1e9),) * len(speeds)))


def simulated(*speeds: float) -> Timeline:
    graph, place = layers(6, batch=24), machine(*speeds)
    program = program_by("hogwild", graph, place)
    return simulate(program, priced(graph, place, batches_of(program), operator=1e-3, copy=Touch(1e-6, 0.0)))


def test_workers_of_a_machine_are_as_fast_as_alone() -> None:
    """DP-12: a worker's round takes what it takes alone, so p of them make p times as many; a slow one costs its own
    share. PM-11: each is as stale as there are others, where their moments drift apart."""
    alone, four, slow = simulated(1.0), simulated(1.0, 1.0, 1.0, 1.0), simulated(1.0, 1.0, 1.0, 0.2)
    assert four.step_seconds == pytest.approx(alone.step_seconds, rel=0.05)  # an operator costs as much on any batch
    assert slow.step_seconds == pytest.approx(four.step_seconds * 4 / 3.2, rel=0.03)
    found = staleness_of(simulated(1.0, 0.97, 0.94, 0.91).ledger)
    assert sum(n * share for n, share in found.items()) == pytest.approx(3, rel=0.15)
    assert not alone.ledger


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_short_weight_is_rounded_as_its_twin_is(dtype: torch.dtype) -> None:
    """DP-12, Buckwild: the compiled write and the plain one agree bit by bit; what does not change is not written."""
    draw = torch.Generator().manual_seed(5)
    weights = torch.randn(999, dtype=dtype, generator=draw).to(torch.bfloat16)
    change = torch.randn(999, dtype=dtype, generator=draw) * 1e-2
    change[::3] = 0
    plain = added_plainly(weights.to(dtype), change, 77)
    before = weights.clone()
    add_racing(weights, change, 77)
    assert torch.equal(weights.to(dtype), plain)
    assert torch.equal(weights[::3], before[::3])
    assert not torch.equal(weights, before)


def test_a_short_weight_is_right_in_the_mean() -> None:
    """DP-12, Buckwild: 6 sigma for each element; rounded to the nearest it is not."""
    weights = torch.ones(64, dtype=torch.bfloat16)
    change = torch.linspace(1e-4, 0.9 * 2.0**-7, 64, dtype=torch.float64)
    total = torch.zeros(64, dtype=torch.float64)
    for key in range(DRAWS):
        now = weights.clone()
        add_racing(now, change, key)
        total += now.double()
    values = 1 + change.float().double()
    assert worst(total, values, 2.0**-7) <= 1
    assert worst((weights.double() + change).to(torch.bfloat16).double() * DRAWS, values, 2.0**-7) > 1


def test_short_weights_are_what_the_machine_has(task: Task, graph: Graph) -> None:
    plan = call("buckwild", graph, MACHINE)
    states, _ = train_in_process(Workload(task, graph, precision="fp64"), plan, MACHINE, 4)
    shared = states[0].kept[Space.SHARED, "b0"]
    assert shared.dtype == torch.bfloat16
    assert all(state.kept[Space.SHARED, "b0"] is shared for state in states.values())
    assert torch.equal(states[3].parameter["b0"], shared.double())


def test_a_file_of_weights_is_there_in_full_or_not_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Memory that is only promised ends the process that touches it, and a file that nobody removes stays in memory."""
    monkeypatch.setattr(shared, "MEMORY", str(tmp_path))
    with pytest.raises(ZeroDivisionError), shared.memory_file(2**20) as path:
        1 / (os.stat(path).st_blocks * 512 < 2**20)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"do not fit into .* \(No space left on device\)"), shared.memory_file(64):
        pass
    assert not list(tmp_path.iterdir())
