"""The whole model on rank 0, where stages hold parts of it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from partita.graph.graph import Graph
from partita.program.program import Program


def owners_of(program: Program, graph: Graph) -> dict[str, int]:
    """Parameter or buffer -> the first worker that holds it."""
    found: dict[str, int] = {}
    for role in program.roles:
        for stage in program.stages_of(role):
            held = program.graph_of(stage, graph)
            for name in [p.name for p in held.parameters] + [b.name for b in held.buffers]:
                found[name] = min(found.get(name, role.ranks[0]), *role.ranks)
    return dict(sorted(found.items()))


def gathered_leaves(
    program: Program, graph: Graph, rank: int, leaves: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """On rank 0 `leaves` and those that only others hold, who must call it as well; on these `leaves` alone."""
    found, specs = (
        dict(leaves),
        {p.name: p.tensor for p in graph.parameters} | {b.name: b.tensor for b in graph.buffers},
    )
    for name, owner in owners_of(program, graph).items():
        if owner and rank == owner:
            dist.send(leaves[name].contiguous(), 0)
        elif owner and rank == 0:
            shape = [int(d) for d in specs[name].at(1).shape]  # type: ignore[arg-type]
            found[name] = torch.empty(shape, dtype=getattr(torch, specs[name].dtype))
            dist.recv(found[name], owner)
    return found
