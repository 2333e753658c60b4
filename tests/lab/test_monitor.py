"""Ranks whose weights are not those of the others are found from what they say while they run."""

from __future__ import annotations

import pytest

from partita.errors import RunError
from partita.graph.graph import Graph
from partita.lab.monitor import Monitor
from partita.lowering.lower import last_program
from partita.recipes.catalogue import call
from partita.runs import assembly
from partita.runs.checksums import FIRST, ChecksumReporter
from partita.runtime.rank import Rank
from partita.runtime.workload import Workload
from tests.captures import capture
from tests.program.test_verify import program_of
from tests.small import cluster_of, perceptron

PROGRAM = program_of("ddp(bucket_bytes=40)")


def told(step: int, odd: int = 0) -> dict[str, object]:
    return {"weights": {bucket.name: 7 + odd for bucket in PROGRAM.buckets}, "after": step}


def test_replicas_that_part_are_named_while_they_run() -> None:
    """FAULTS 28: the minority, after the first step of which all have told."""
    monitor = Monitor(PROGRAM, cluster_of(3))
    assert not [*monitor.hear(0, told(8)), *monitor.hear(1, told(8)), *monitor.hear(2, told(16, odd=1))]
    assert not [*monitor.hear(2, told(8)), *monitor.hear(0, told(16))]
    with pytest.raises(RunError, match="the weights of rank 2 differ from those of 0, 1, in bucket b0") as found:
        list(monitor.hear(1, told(16)))
    assert (found.value.rank, found.value.step) == (2, 16)
    assert list(monitor.weights) == []


@pytest.fixture(scope="module")
def graph() -> Graph:
    return capture(perceptron())


@pytest.mark.parametrize(
    ("plan", "speaks"),
    [("ddp(bucket_bytes=200)", True), ("pipe_sgd(staleness=2)", True), ("ps_sync", False), ("zero3", False)],
)
def test_all_ranks_say_the_same_of_weights_that_are_whole(
    plan: str, speaks: bool, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every order in which lanes advance; of weights that come in at any time nothing is said."""
    machines, said = cluster_of(3), dict[int, list[dict[str, object]]]()
    make_rank = assembly.make_rank

    def listened(work: Workload, program: object, rank: int, *given: object, **named: object) -> Rank:
        made = make_rank(work, program, rank, *given, **named)  # type: ignore[arg-type]
        made.round_ends = ChecksumReporter(made, said.setdefault(rank, []).append)
        return made

    monkeypatch.setattr(assembly, "make_rank", listened)
    made = call(plan, graph, machines)
    for order in range(3):
        said.clear()
        assembly.train_in_process(Workload(perceptron(), graph), made, machines, 2 * FIRST, order=order)
        workers = [said[rank] for rank in last_program(graph, made, machines).role_of if said[rank]]
        assert all(any(bool(one["weights"]) for one in each) is speaks for each in workers)
        if speaks:
            assert len(workers) == 3
            assert len(workers[0][0]["weights"]) == len(last_program(graph, made, machines).trained)  # type: ignore[arg-type]
            assert workers[0][0] == workers[1][0] == workers[2][0]
