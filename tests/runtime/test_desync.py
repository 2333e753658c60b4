"""What a rank does otherwise than its Program is found before it reaches another one, with rank, bucket and step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from partita.errors import RunError
from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.program.instruction import Collective
from partita.program.space import Kind
from partita.recipes.catalogue import call
from partita.runs.assembly import train_in_process
from partita.runtime.acts import ACTS
from partita.runtime.rank import Rank
from partita.runtime.workload import Workload
from tests.acts import Around, Do, around
from tests.captures import capture
from tests.small import cluster_of, perceptron

STEPS, WHEN = 4, 2


def skips(do: Do, rank: Rank, act: Collective, name: str, round: int) -> None:
    """As a `continue` on one rank."""


def is_short(do: Do, rank: Rank, act: Collective, name: str, round: int) -> Any:
    bucket, slot = act.bucket, rank.slot(round)
    rank.state.gradient[bucket][slot] = rank.state.gradient[bucket][slot][:-1]
    return do(rank, act, name, round)


def takes_another(do: Do, rank: Rank, act: Collective, name: str, round: int) -> Any:
    return do(rank, replace(act, kind=Kind.BROADCAST), name, round)


def wrong(fault: Around, wanted: str, culprit: int) -> Around:
    """What goes wrong on one rank in one round of one instruction."""

    def between(do: Do, rank: Rank, act: Any, name: str, round: int) -> Any:
        if (rank.rank, name, round) == (culprit, wanted, WHEN):
            return fault(do, rank, act, name, round)
        return do(rank, act, name, round)

    return between


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(perceptron())


CASES = [
    (skips, "ddp(bucket_bytes=99999)", "A0", "has left out A0, the all_reduce of bucket b0 in step 2 and comes to A0"),
    (skips, "ddp(bucket_bytes=200)", "A0", "has left out A0, the all_reduce of bucket b0 in step 2 and comes to A1"),
    (skips, "zero3(bucket_bytes=200)", "", "has left out "),
    (is_short, "ddp(bucket_bytes=99999)", "A0", r"brings \d+ numbers to A0, the all_reduce of bucket b0 in step 2"),
    (is_short, "pipe_sgd(staleness=2)", "A0", r"brings \d+ numbers to A0, the all_reduce of bucket b0 in step 2"),
    (takes_another, "ddp", "A0", "brings a broadcast of bucket b0 to A0, the all_reduce of bucket b0 in step 2"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "plan", "name", "sentence"), CASES, ids=lambda one: getattr(one, "__name__", None))
def test_a_skipped_collective_a_shape_and_an_op_that_do_not_match_are_named(
    fault: Around, plan: str, name: str, sentence: str, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAULTS 7, 8, 9: whatever order the lanes advance in."""
    machines = cluster_of(3)
    made = call(plan, graph, machines)
    if not name:
        role = last_program(graph, made, machines).role_of[1]
        name = next(
            i.name for i in role.instructions if isinstance(i.act, Collective) and i.act.kind is Kind.REDUCE_SCATTER
        )
    for kind, do in around(wrong(fault, name, 1)).items():
        monkeypatch.setitem(ACTS, kind, do)
    for order in range(3):
        with pytest.raises(RunError, match=f"rank 1 {sentence}") as found:
            train_in_process(Workload(perceptron(), graph), made, machines, STEPS, order=order)
        assert found.value.rank == 1
        assert found.value.step in (WHEN, WHEN + 1)
