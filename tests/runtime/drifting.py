"""Workers that begin with weights of their own and learn nothing: what an agreement alone does to them."""

from __future__ import annotations

from dataclasses import replace

import torch

from partita.graph.graph import Graph
from partita.lowering.lower import last_program
from partita.plan.plan import Plan, own_servers
from partita.program.space import Space
from partita.runs.assembly import initial, make_rank
from partita.runtime.interleaving import advance
from partita.runtime.leg import Interval
from partita.runtime.rank import Rank
from partita.runtime.state import make_state
from partita.runtime.workload import Workload
from partita.task import Task
from partita.transport.inprocess import InProcess, Rendezvous
from tests.small import cluster_of


def drifting(task: Task, graph: Graph, plan: Plan, rounds: int, own: bool = True) -> tuple[list[Rank], torch.Tensor]:
    """All ranks after `rounds` rounds of the plan with zero gradients, and the weights that each began with. What they
    keep begins as their `own` weights, or as the same for all."""
    still = replace(task, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0))
    program, rendezvous = last_program(graph, plan, cluster_of(plan.mesh.size + own_servers(plan))), Rendezvous()
    work, values = Workload(still, graph, precision="fp64"), initial(still, 0, "fp64")[1]
    ranks, draw = [], torch.Generator().manual_seed(3)
    for r in range(program.size):
        state = make_state(graph, program, program.role_of[r], still, values, "cpu", r)
        for bucket in program.trained:
            flat = state.parameter[bucket.name]
            flat.copy_(torch.randn(flat.shape, generator=draw, dtype=flat.dtype))
            if (Space.ANCHOR, bucket.name) in state.kept and own:
                state.kept[Space.ANCHOR, bucket.name].copy_(flat)
        ranks.append(make_rank(work, program, r, state, InProcess(r, rendezvous)))
    began = weights(ranks)
    if rounds:
        advance(ranks, Interval(rounds), rounds)
    return ranks, began


def weights(ranks: list[Rank], space: Space = Space.PARAMETER) -> torch.Tensor:
    """What each rank has, one row a rank."""
    rows = [[rank.state.flat(space, bucket.name, 0) for bucket in rank.program.trained] for rank in ranks]
    return torch.stack([torch.cat(row) for row in rows])
