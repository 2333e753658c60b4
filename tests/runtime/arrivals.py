"""A server that takes whichever worker's bucket comes first: one rank of it in this process, for tests.

`python -m tests.runtime.arrivals WORLD STORE OUT` runs it over torch.distributed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

from partita.graph.graph import Graph
from partita.lowering.lower import lower_phase
from partita.program.instruction import Instruction, Receive
from partita.program.program import Lane, Policy, Program, Role
from partita.program.verify import verify
from partita.recipes.catalogue import call
from partita.runs.assembly import initial, make_rank
from partita.runtime.leg import Interval
from partita.runtime.state import make_state
from partita.runtime.worker import drive
from partita.runtime.workload import Workload
from partita.tracing.capture import capture
from partita.transport.processes import Processes
from tests.ranks import forked
from tests.small import cluster_of, perceptron

ROUNDS: Final = 4


def arriving(graph: Graph, workers: int) -> Program:
    """ps_sync whose server receives from all in one lane, as they come."""
    machines = cluster_of(workers + 1)
    program = lower_phase(graph, call("ps_sync(bucket_bytes=400)", graph, machines), machines)
    return verify(replace(program, roles=tuple(_one_lane(role) for role in program.roles)))


def _one_lane(role: Role) -> Role:
    if role.keeps != "server":
        return role
    moved = tuple(_moved(i) for i in role.instructions)
    kept = tuple(lane for lane in role.lanes if not lane.name.startswith("from"))
    return replace(role, instructions=moved, lanes=(*kept, Lane("from", Policy.ARRIVAL)))


def _moved(i: Instruction) -> Instruction:
    return replace(i, lane="from") if isinstance(i.act, Receive) else i


def main(rank: int, world: int, store: str, out: str) -> None:
    """Writes the weights of the first worker, and the order of the server's receives."""
    torch.set_num_threads(1)
    patience = timedelta(seconds=60)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=patience)
    task = perceptron()
    graph = capture(task)
    program = arriving(graph, world - 1)
    values = initial(task, 0)[1]
    state = make_state(graph, program, program.role_of[rank], task, values, "cpu", rank)
    made = make_rank(Workload(task, graph), program, rank, state, Processes(rank))
    drive(made, Interval(ROUNDS), lambda _: True, 60.0)
    dist.barrier()
    if rank == 0:
        torch.save({name: state.leaves[name] for name in values}, f"{out}.weights")
    if rank == world - 1:
        order = [(s.name, s.round) for s in made.spans if s.kind == "Receive"]
        Path(f"{out}.order").write_text(json.dumps(order), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    world, store, out = int(sys.argv[1]), *sys.argv[2:]
    forked(lambda rank: main(rank, world, store, out), world)
