"""Sums of chosen entries in real processes: exactly the bytes that are predicted where nothing is left to chance."""

from __future__ import annotations

from partita import api
from partita.lab.rehearsal import Rehearsal
from partita.lowering.lower import last_program
from partita.simulator.simulate import simulate
from partita.wire.algorithms import all_reduce
from partita.wire.streams import HEAD
from tests.priced import batches_of, priced
from tests.wire.sending import hops_of


def test_counted_bytes_are_those_of_the_entries() -> None:
    """CO-09: two ranks that double exchange what each has chosen; split sends no more than all numbers and its heads,
    and more than any one rank has chosen."""
    task, cluster = "digits-cnn", api.cluster_of("local:2")
    graph = api.graph_of(task)
    with Rehearsal(task, graph, cluster) as crew:
        for name in ("sparse_doubling", "sparse_split"):
            plan = api.plan_of(f"ddp(codec=topk(ratio=0.02),collective={name})", graph, cluster)
            program = last_program(graph, plan, cluster)
            predicted = simulate(program, priced(graph, cluster, batches_of(program))).wire_sent
            sent = list(crew.measure(plan, steps=3, evaluate=False).timeline.wire_sent)
            if name == "sparse_doubling":
                assert sent == list(predicted)
                continue
            heads = HEAD * len(program.buckets) * len([hop for hop in hops_of(all_reduce(name, 2)) if hop.source == 0])
            psi = sum(bucket.size for bucket in program.buckets)
            assert all(min(predicted) / 2 < own <= psi + heads for own in sent)
