"""Seconds to predict one training step of a GPT on 1,024 devices: lowering, laying out and moving the clock."""

from __future__ import annotations

import time
from dataclasses import replace

from partita.api import costs_of, graph_of
from partita.cluster.cluster import Cluster, Group
from partita.lowering.lower import last_program
from partita.recipes.catalogue import call
from partita.simulator.simulate import simulate


def machines(nodes: int, straggler: bool) -> Cluster:
    """DGX H100 nodes at one switch; the first device of the first is half as fast if `straggler`."""
    root = Cluster.load("h100-dgx").root
    node = root.members[0]
    assert isinstance(node, Group)
    late = replace(node, members=(replace(node.members[0], speed=0.5), *node.members[1:]))  # type: ignore[arg-type]
    return Cluster("nodes", Group("root", (late if straggler else node,) + (node,) * (nodes - 1), root.ports * nodes))


def main() -> None:
    graph = replace(graph_of("gpt2-small"), global_batch=1024)
    for straggler in (False, True):
        cluster = machines(128, straggler)
        plan = call("ddp", graph, cluster)
        costs = costs_of(graph, cluster, [plan])
        for turn in ("first", "again"):
            begin = time.perf_counter()
            program = last_program(graph, plan, cluster)
            lowered = time.perf_counter()
            found = simulate(program, costs)
            done = time.perf_counter()
            print(
                f"{len(program.buckets)} buckets, {'a straggler' if straggler else 'all equal':11} {turn}: lower "
                f"{lowered - begin:.3f} s, simulate {done - lowered:.3f} s (a step lasts {found.step_seconds:.3f} s)"
            )


if __name__ == "__main__":
    main()
