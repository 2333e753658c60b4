"""Workers that die and come back under servers that wait for nobody, in drawn orders."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from partita.errors import RunHung
from partita.oracles.check import TOLERANCE, difference
from partita.oracles.reference import fresh
from partita.oracles.replay import replayed
from partita.program.absence import expendable
from partita.program.ledger import LOST
from partita.task import Task
from tests.captures import capture
from tests.programs import program_by
from tests.runtime.dying import Death, Dying
from tests.small import cluster_of, perceptron

STEPS = 8
PLANS = (
    "ps_async", "ssp(staleness=1)", "backup_workers(backup=2)", "downpour(push=2,fetch=2)", "softsync",
    "dynsgd(staleness=2)", "dc_asgd(strength=0.5,decay=0.9)",
)  # fmt: skip
EACH = [PLANS[1], *(pytest.param(plan, marks=pytest.mark.slow) for plan in PLANS if plan != PLANS[1])]


def sgd() -> Task:
    return replace(perceptron(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))


def turns(run: Dying, worker: int) -> list[int]:
    came = (merge for merge in run.ledger if merge.worker == worker and merge.applied != LOST)
    return [merge.turn for merge in came if merge.bucket == "b0"]


def apart(run: Dying) -> float:
    """How far the weights that all workers end with are from the replay of the ledger."""
    found = replayed(fresh(run.task, seed=0, precision="fp64"), run.legs, run.ledger)
    workers = [r for r in run.states if run.program.role_of[r].keeps == "model"]
    return max(difference({n: run.states[r].leaves[n] for n in found}, found) for r in workers)


@pytest.mark.slow
@pytest.mark.parametrize("text", PLANS)
def test_the_others_go_on(text: str) -> None:
    """FAULTS 16: a worker dies at each kind of instruction; the others bring all that they would have brought, and the
    weights are the replay of the ledger."""
    tag = ".0" if "downpour" in text else ""
    for order, name in enumerate(("F", f"P0{tag}", f"S0{tag}", "R0")):
        run = Dying(text, 5, STEPS, [Death(1, name, 1)], task=sgd(), order=order)
        assert not run.left
        assert max(turns(run, 1), default=0) <= 4
        if "backup" not in text:
            assert turns(run, 0) == turns(run, 2) == turns(run, 3) == list(range(STEPS // (2 if tag else 1)))
        assert apart(run) <= TOLERANCE


@pytest.mark.parametrize("text", EACH)
def test_who_comes_back_enters_where_the_others_are(text: str) -> None:
    """Issue 4: it reads the weights of now, and brings what it would have from then on; the rounds that it was away
    for are left out."""
    tag, back = (".0", 3) if "downpour" in text else ("", 5)
    for order, name in enumerate((f"P0{tag}", f"S0{tag}", "R0")):
        pushes = 2 if tag else 1
        run = Dying(text, 5, 2 * pushes * STEPS, [Death(1, name, 1, back)], task=sgd(), order=order)
        (at,), rounds = run.entries, run.legs[0].rounds
        assert back <= at < rounds
        mine = turns(run, 1)
        late = [turn for turn in mine if turn >= at * pushes]
        assert not [turn for turn in mine if 2 * pushes <= turn < at * pushes]
        if "backup" in text:
            assert late
        else:
            assert late == list(range(at * pushes, rounds * pushes))
        entry = next(m for m in run.ledger if (m.worker, m.turn) == (1, late[0]) and m.applied != LOST)
        assert entry.read > 0
        assert apart(run) <= TOLERANCE


@pytest.mark.slow
def test_several_servers_and_buckets_and_deaths() -> None:
    """Two workers die, one of them twice, under two servers that hold a part each; staleness stays bounded."""
    deaths = [Death(1, "S0", 1, 5), Death(2, "P0", 2, 8), Death(1, "F", 9)]
    for order in range(12):
        run = Dying("ssp(staleness=2,servers=2,bucket_bytes=200)", 6, 16, deaths, task=sgd(), order=order,
                    slow={order % 4: 0.05})  # fmt: skip
        assert len(run.entries) == 2 - len([d for d in run.left if d.back >= 0])
        assert 0 in run.states
        assert turns(run, 0) == turns(run, 3) == list(range(16))
        for merge in run.ledger:
            assert merge.staleness <= 2 * 2 * 4


@pytest.mark.parametrize("name", ["R0", pytest.param("R1", marks=pytest.mark.slow)])
def test_a_gradient_of_which_a_part_came(name: str) -> None:
    """Servers note which version of the other buckets a worker had read, so that the part can be replayed. Who has had
    the first answers has brought the first buckets, and not the last ones."""
    for order in range(2):
        run = Dying("ps_async(servers=2,bucket_bytes=200)", 5, STEPS, [Death(1, name, 1, 4)], task=sgd(), order=order)
        assert not run.left
        lost = {(merge.worker, merge.turn) for merge in run.ledger if merge.applied == LOST}
        assert {worker for worker, _ in lost} == {1}
        assert {(merge.worker, merge.turn) for merge in run.ledger if merge.applied != LOST} & lost
        assert apart(run) <= TOLERANCE


def test_who_can_be_spared() -> None:
    """Workers of servers that wait for nobody, and servers of which others have all; nobody whose gradients are summed,
    no other server, no stage."""
    graph, machines = capture(perceptron()), cluster_of(5)

    def spared(text: str) -> list[int]:
        program = program_by(text, graph, machines)
        return [rank for rank in range(program.size) if expendable(program, rank)]

    assert all(spared(text) == [0, 1, 2, 3] for text in (*PLANS, "easgd(servers=1)"))
    assert not any(spared(text) for text in ("ddp", "ps_sync", "ps_hierarchical(fan=2)", "zero1", "single"))
    assert not spared("one_f_one_b(stages=2)")
    assert not spared("ps_async(servers=2,bucket_bytes=200)")[3:]
    assert spared("ps_replicated") == spared("ps_replicated(servers=1,replicas=2,bucket_bytes=400)") == [3, 4]
    assert not spared("ps_sync(servers=2,bucket_bytes=200)")


def test_a_bound_that_counts_the_dead_would_stand_still() -> None:
    """The control: with nobody told of the death, the others wait for it."""
    with pytest.raises(RunHung):
        Dying("ssp(staleness=1)", 5, STEPS, [Death(1, "P0", 1)], task=sgd(), told=False)
