"""Servers that go ahead on the devices of workers: their weights stand beside those that the rank's worker reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from partita.checkpoints.checkpoint import SavePolicy
from partita.checkpoints.restore import open_checkpoint
from partita.cost.memory import resident
from partita.errors import RunError
from partita.oracles.check import TOLERANCE, checked, difference
from partita.program.absence import expendable
from partita.program.instruction import Apply, Decode, Mix, Receive, Snapshot
from partita.program.ledger import staleness_of
from partita.program.space import Space
from partita.program.timeline import PURPOSES
from partita.recipes.catalogue import call
from partita.runs.assembly import initial, make_state, train_in_process
from partita.runtime.workload import Workload
from partita.task import Task
from tests.captures import capture
from tests.oracles.test_replay import Run, apart, observed, sgd
from tests.programs import program_by
from tests.runtime.padded import padded
from tests.small import cluster_of, perceptron

PLANS = (
    "ps_async(own=false,servers=3,bucket_bytes=400)",
    "ps_async(own=false,microbatches=2)",
    "downpour(own=false,servers=2,push=2,fetch=2,bucket_bytes=200)",
    "ssp(own=false,servers=2,staleness=1,bucket_bytes=400)",
    "softsync(own=false,servers=2,bucket_bytes=400)",
    "dynsgd(own=false,servers=2,bucket_bytes=400)",
    "dc_asgd(own=false,servers=2,strength=0.5,decay=0.9,bucket_bytes=400)",
    "backup_workers(own=false,bucket_bytes=400)",
    "backup_workers(own=false,servers=3,bucket_bytes=200)",
)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("order", [0, 1])
def test_a_run_equals_the_replay_of_its_ledger(plan: str, order: int) -> None:
    """DP-09, DP-10, DP-11, DP-14, DP-16, DP-17, DP-18 where nobody serves alone, with a slow worker that serves."""
    run = Run(plan, 3, order, slow={order: 0.05} if order else None)
    assert run.replayed(run.ledger) <= TOLERANCE
    brought = {merge.worker for merge in run.ledger}
    assert brought == {0, 1, 2} or run.program.drops


@pytest.mark.parametrize("plan", [PLANS[3], PLANS[-1]])
def test_sums_with_a_weight(plan: str) -> None:
    machines = cluster_of(3)
    found = checked(padded(), lambda graph: call(plan, graph, machines), machines, order=1)
    assert found["max_difference"] <= TOLERANCE


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_no_read_is_staler_than_its_bound(staleness: int) -> None:
    """DP-14: also where a worker's own device has what it reads; the bound is reached."""
    plan = f"ssp(own=false,servers=2,staleness={staleness},bucket_bytes=400)"
    runs = (Run(plan, 3, order, steps=6, slow={order % 3: 0.01}) for order in range(3))
    assert max(observed(run, staleness) for run in runs) == staleness


def test_a_step_takes_the_first_gradients_of_its_version() -> None:
    """DP-11: exactly N a step; whoever is slow is left out, also if it serves."""
    for order in (0, 3):
        run = Run("backup_workers(own=false,servers=2,bucket_bytes=400)", 4, order, steps=8, slow={order % 4: 0.02})
        for bucket in run.program.trained:
            merges = [merge for merge in run.ledger if merge.bucket == bucket.name]
            assert [merge.turn for merge in merges] == [step for step in range(8) for _ in range(3)]
        assert all(merge.read == merge.applied == merge.turn for merge in run.ledger)
        brought = [sum(merge.worker == w for merge in run.ledger) for w in range(4)]
        assert brought[order % 4] < min(n for w, n in enumerate(brought) if w != order % 4)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
@pytest.mark.parametrize("plan", [PLANS[3], PLANS[7], PLANS[8]])
def test_three_thousand_schedules(plan: str, first: int) -> None:
    """No bound exceeded, no versions mixed, every run the replay of its ledger."""
    for order in range(first, first + 100):
        run = Run(plan, 3, order, steps=5, slow={order % 3: (0.02, 0.1, 0.3, 0.5)[order // 3 % 4]})
        assert run.program.drops or observed(run, 1) <= 1
        assert run.replayed(run.ledger) <= TOLERANCE


def test_a_bound_of_0_is_lockstep() -> None:
    """DP-14, DP-17: whoever serves, and wherever."""
    lockstep = Run("ps_sync(own=false,bucket_bytes=400)", 3, 0, sgd())
    for name in ("ssp", "dynsgd"):
        late = Run(f"{name}(own=false,servers=3,staleness=0,bucket_bytes=400)", 3, 2, sgd(), slow={0: 0.02})
        assert apart(late, lockstep) <= 1e-12


def test_a_worker_reads_what_it_was_given_while_its_server_goes_on() -> None:
    """The server's own worker is as stale as any other: what it computes on does not move under it."""
    run = Run("ps_async(own=false)", 3, 4, steps=12, slow={0: 0.02})
    own = [merge for merge in run.ledger if merge.worker == 0]
    assert max(merge.staleness for merge in own) > 1
    assert max(staleness_of(run.ledger)) > 0
    moved = {b.name: run.states[0].kept[Space.SERVED, b.name] for b in run.program.trained}
    assert all(torch.equal(moved[name], run.states[0].parameter[name]) for name in moved)


@pytest.mark.parametrize("plan", PLANS)
def test_what_stays_is_what_is_counted(plan: str) -> None:
    """Bytes of a rank's weights, gradients, boxes and what its servers have; optimizers have no state before a step."""
    task, machines = perceptron(), cluster_of(3)
    graph = capture(task)
    program, values = program_by(plan, graph, machines), initial(task, 0)[1]
    for role in program.roles:
        state = make_state(graph, program, role, task, values, "cpu", role.ranks[0])
        acts = [i.act for i in role.instructions]
        come = {(a.bucket, a.source[0]) for a in acts if isinstance(a, Receive) and a.space is Space.INBOX}
        own = {
            (a.bucket, role.ranks[0])
            for a in acts
            if isinstance(a, Decode | Mix | Apply | Snapshot) and a.into is Space.INBOX
        }
        for name, peer in come | own:
            state.inbox_of(name, peer)
        gradients = [flat for slots in state.gradient.values() for flat in slots]
        flats = [
            *(state.parameter[b.name] for b in program.trained),
            *gradients,
            *state.kept.values(),
            *state.outbox.values(),
        ]
        flats += [*state.inbox.values(), *state.squares.values()]
        counted = resident(program, graph, role)
        squared = sum(b.size for b in program.trained if "decay=0.9" in plan and b.name in role.serves)
        expected = int(counted.sum() - counted[PURPOSES.index("optimizer")]) - squared - 4  # the tangent
        assert sum(flat.numel() * flat.element_size() for flat in flats) == expected, role.name


@pytest.mark.parametrize("plan", [PLANS[0], PLANS[3], PLANS[8]])
def test_a_checkpoint_has_what_the_servers_have(plan: str, tmp_path: Path) -> None:
    """Any plan goes on from it, the same one too, with the weights that the run would have ended with."""
    task, machines = perceptron(), cluster_of(3)
    graph = capture(task)

    def trained(text: str, steps: int, **more: object) -> dict[str, torch.Tensor]:
        made = call(text, graph, machines)
        return train_in_process(Workload(task, graph, keyed=True), made, machines, steps, order=3, **more)[0][0].leaves  # type: ignore[arg-type]

    trained(plan, 8, keep=SavePolicy(str(tmp_path), 4))
    until = trained(plan, 4)
    saved = open_checkpoint(tmp_path / "checkpoints" / "step-4")
    for other in (plan, "single", "ps_async(own=false,bucket_bytes=300)", "ddp", "ssp"):
        assert difference(trained(other, 4, saved=saved), until) == 0.0, other
    ended = trained(plan, 8, saved=saved)
    assert difference(ended, until) > 1e-3
    assert all(weights.isfinite().all() for weights in ended.values())


def test_only_who_serves_nobody_may_die() -> None:
    graph, machines = capture(perceptron()), cluster_of(4)
    for plan in ("ps_async(own=false,servers=2)", "backup_workers(own=false,servers=2,bucket_bytes=400)"):
        program = program_by(plan, graph, machines)
        serving = [rank for rank in range(4) if program.role_of[rank].serves]
        assert [rank for rank in range(4) if not expendable(program, rank)] == serving


def test_what_is_no_number_does_not_enter_at_home_either() -> None:
    task: Task = sgd()
    machines = cluster_of(1)
    graph = capture(task)
    values = {name: value.detach() * float("nan") for name, value in initial(task, 0)[1].items()}
    with pytest.raises(RunError, match="rank 0"):
        train_in_process(
            Workload(task, graph), call("ps_async(own=false)", graph, machines), machines, 2, values=values
        )
