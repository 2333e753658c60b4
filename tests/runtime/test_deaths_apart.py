"""Workers that die where replicas differ: what others make of a mean, of a neighbour's weights, of a meeting."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from partita.lowering.mixing_matrices import mixing_matrices_of
from partita.oracles.check import TOLERANCE, difference
from partita.oracles.reference import fresh, replica, shares_of
from partita.oracles.replicas import ReplicaTraining
from partita.plan.sync import Gossip, Neighbours
from partita.program.absence import expendable
from tests.programs import program_by
from tests.runtime.dying import GRAPH, Death, Dying
from tests.runtime.test_deaths import apart, sgd, turns
from tests.small import cluster_of

ROUNDS = 6
SUMMED = (
    "diloco(period=2,rate=0.5,momentum=0)", "diloco(period=2)", "local_sgd(period=2)",
    "diloco(period=2,fragments=2,lag=1)",
)  # fmt: skip
SLOW = pytest.mark.slow
MIXED = ("gossip(draws=3)", "gossip(direction=pair,draws=3)", "d_psgd", "ad_psgd(draws=3)", "easgd(period=2)")


def steps_of(text: str) -> int:
    return ROUNDS * program_by(text, GRAPH, cluster_of(4)).steps


@pytest.mark.parametrize("text", [SUMMED[1], *(pytest.param(text, marks=SLOW) for text in (SUMMED[0], SUMMED[2]))])
@pytest.mark.parametrize(
    ("name", "last"), [("U0.1", 1), pytest.param("F", 1, marks=SLOW), pytest.param("A0", 2, marks=SLOW)]
)
def test_a_mean_is_then_that_of_the_others(text: str, name: str, last: int) -> None:
    """FAULTS 16, weights rescaled: a worker dies in round 1, before its changes are summed or after; each mean is of
    those that took part, by a serial training of replicas of which one is taken away."""
    for order in range(3):
        run = Dying(text, 4, 2 * ROUNDS, [Death(2, name, 1)], task=sgd(), order=order)
        assert not run.left
        found = serially(run, {2: last})
        for r in (0, 1, 3):
            assert difference({n: run.states[r].leaves[n] for n in found[r]}, found[r]) <= TOLERANCE


@SLOW
@pytest.mark.parametrize("text", SUMMED[:3])
def test_who_comes_back_has_the_weights_of_the_others(text: str) -> None:
    """Issue 4: the first of the others gives what it keeps, and the means are of all again, as in a serial training in
    which a copy of the first replica takes the place of the one that was taken away."""
    for order in range(3):
        run = Dying(text, 4, 4 * ROUNDS, [Death(2, "U0.1", 1, 5)], task=sgd(), order=order)
        (at,) = run.entries
        found = serially(run, {2: 1}, {2: at})
        for r in range(4):
            assert difference({n: run.states[r].leaves[n] for n in found[r]}, found[r]) <= TOLERANCE


@pytest.mark.parametrize("text", [MIXED[0], *(pytest.param(text, marks=SLOW) for text in MIXED[1:])])
def test_who_comes_back_ends_with_the_others(text: str) -> None:
    steps = 2 * steps_of(text)
    for order in range(2):
        run = Dying(text, 4, steps, [Death(2, "F", 1, 5)], task=sgd(), order=order)
        assert len(run.entries) == 1
        for r in range(4):
            left = {n: run.states[r].leaves[n] for n in run.values}
            assert difference(left, {n: run.states[0].leaves[n] for n in left}) <= TOLERANCE


@SLOW
@pytest.mark.parametrize(("name", "back"), [("S0", -1), ("U0.1", -1), ("R0", 5), ("X0", 5)])
def test_springs_of_who_comes_back_begin_at_the_centre(name: str, back: int) -> None:
    """DP-19 at servers: the weights are the replay of the ledger, in which who is back begins at the centre it read."""
    run = Dying("easgd(servers=1,period=2)", 5, 6 * ROUNDS, [Death(1, name, 1, back)], task=sgd(), order=back + 2)
    assert not run.left
    assert len(run.entries) == (back > 0)
    assert turns(run, 0) == turns(run, 2) == list(range(3 * ROUNDS))
    assert apart(run) <= TOLERANCE


def serially(
    run: Dying, last: dict[int, int], back: dict[int, int] | None = None
) -> dict[int, dict[str, torch.Tensor]]:
    """Replicas of which each takes part in all rounds, or in those before its `last` and, as a copy of the first one,
    from `back` on."""
    (leg,) = [one for one in run.legs if one.program.steps]
    first = replica(fresh(run.task, seed=0, precision="fp64"), run.program.update)
    replicas, agree = {w: first.copy() for w in range(run.program.size)}, ReplicaTraining(run.machines)
    for round in range(leg.rounds):
        replicas = {w: one for w, one in replicas.items() if round != last.get(w, leg.rounds)}
        replicas |= {w: replicas[0].copy() for w, at in (back or {}).items() if round == at}
        agree(replicas, replace(leg, rounds=1, step=leg.step + round * leg.program.steps))
    return {w: dict(one.own.model.named_parameters()) for w, one in replicas.items()}


@SLOW
@pytest.mark.parametrize("text", ["gossip(draws=3)", "gossip(direction=pair,draws=3)", "d_psgd"])
def test_what_a_lost_neighbour_would_have_had_stays(text: str) -> None:
    """A mixture without somebody's weights gives what these would have counted to the rank's own: by a serial training
    that mixes what is known to have come, whose mean over those left the end is."""
    for order in range(4):
        run = Dying(text, 4, steps_of(text), [Death(order % 3 + 1, "U0.0", 1 + order % 2)], task=sgd(), order=order)
        assert not run.left
        found = mixed_serially(run)
        for r in run.states:
            assert difference({n: run.states[r].leaves[n] for n in found}, found) <= TOLERANCE


def mixed_serially(run: Dying) -> dict[str, torch.Tensor]:
    """Every rank's own steps, and its mixtures of what came; the mean over those that are left."""
    leg, size = run.legs[0], run.program.size
    through = leg.plan.sync[0].through
    assert isinstance(through, Neighbours | Gossip)
    matrices, early = mixing_matrices_of(through, size, run.machines), isinstance(through, Neighbours)
    came = {(span.rank, span.name, span.round) for span in run.spans}
    first = replica(fresh(run.task, seed=0, precision="fp64"), run.program.update)
    replicas = {w: first.copy() for w in range(size)}
    for t in range(leg.rounds * run.program.steps):
        round, k = divmod(t, run.program.steps)
        mine = {s.rank: (s.start, s.count) for s in shares_of(run.program) if s.step == k}
        found = {w: one.own.gradients(t, [mine[w]], mine[w][1]) for w, one in replicas.items()}
        for w, one in replicas.items() if not early else ():
            one.apply(found[w])
        before = {w: [p.detach().clone() for p in one.parameters] for w, one in replicas.items()}
        for i, one in replicas.items():
            peers = [j for j in range(size) if j != i and matrices[k][i][j] and (i, f"R0.{j}.{k}", round) in came]
            own = 1 - sum(matrices[k][i][j] for j in peers)
            with torch.no_grad():
                for n, p in enumerate(one.parameters):
                    p.copy_(own * before[i][n] + sum(matrices[k][i][j] * before[j][n] for j in peers))
        for w, one in replicas.items() if early else ():
            one.apply(found[w])
    left = [dict(replicas[w].own.model.named_parameters()) for w in run.states]
    return {n: torch.stack([one[n].detach() for one in left]).mean(0) for n in left[0]}


@SLOW
@pytest.mark.parametrize("text", [*SUMMED[3:], *MIXED])
def test_the_others_go_on_alone(text: str) -> None:
    """FAULTS 16: a worker dies at different places; the others end, with the same weights where the end brings them
    together."""
    steps = steps_of(text)
    names = ("F", "C0.1", "G0.2") if "ad_psgd" in text else ("F", "U0.0") if text == "d_psgd" else ("F", "U0.0", "U0.1")
    for order, name in enumerate(names):
        for dead in (1, 2):
            run = Dying(text, 4, steps, [Death(dead, name, 1)], task=sgd(), order=order)
            assert not run.left
            ends = [run.states[r].leaves for r in range(4) if r != dead]
            names_of = sorted(run.values)
            for end in ends:
                assert all(end[n].isfinite().all() for n in names_of)
                assert difference({n: end[n] for n in names_of}, {n: ends[0][n] for n in names_of}) <= TOLERANCE


def test_who_can_be_spared_where_replicas_differ() -> None:
    """All but the first, who adds up for the others; nobody where sums have to be exact, or carry a mass."""
    machines = cluster_of(4)

    def spared(text: str) -> list[int]:
        program = program_by(text, GRAPH, machines)
        return [rank for rank in range(program.size) if expendable(program, rank)]

    assert all(spared(text) == [1, 2, 3] for text in ("diloco", "easgd", "local_sgd(period=4)"))
    assert all(spared(text) == [0, 1, 2, 3] for text in ("gossip", "d_psgd", "ad_psgd"))
    assert not any(spared(text) for text in ("gossip(direction=push)", "ddp", "zero2"))
