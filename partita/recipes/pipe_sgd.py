from __future__ import annotations

from dataclasses import replace

from partita.cluster.cluster import Cluster
from partita.cost.costs import Costs
from partita.graph.graph import Graph
from partita.plan.plan import Phase, Plan
from partita.plan.sync import Consistency
from partita.plan.wire import Priority
from partita.recipes.coded import coded
from partita.recipes.ddp import ddp
from partita.units import Bytes


def pipe_sgd(
    graph: Graph,
    cluster: Cluster,
    costs: Costs | None = None,
    *,
    staleness: int = 1,
    warmup: int = 0,
    bucket_bytes: Bytes = 2**30,
    microbatches: int = 1,
    collective: str = "backend",
    codec: str = "none",
    ramp: int = 0,
) -> Plan:
    """Pipe-SGD of width K = staleness + 1: the all-reduce of a step overlaps with the computation of the next
    `staleness` steps, after `warmup` synchronous steps (DP-30; Li et al., NeurIPS 2018). There is one bucket, since
    messages are hidden anyway (PM-17)."""
    first = ddp(
        graph,
        cluster,
        bucket_bytes=bucket_bytes,
        first_bucket_bytes=bucket_bytes,
        order=Priority.FIFO,
        microbatches=microbatches,
        collective=collective,
        codec=codec,
    )
    late = replace(first.sync[0], consistency=Consistency(lag=staleness))
    plan = replace(first, name="pipe_sgd", sync=(late,), before=(Phase(warmup, first),) if warmup else ())
    return coded(plan, graph, ramp)
