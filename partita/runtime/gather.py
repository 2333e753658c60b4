"""The whole model after a run, on rank 0, if stages or owners have parts of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from partita.graph.graph import Graph
from partita.program.layout import Bucket, Shares
from partita.program.program import Program
from partita.program.space import Space
from partita.runtime.owned import allocate
from partita.runtime.segment import Leaves
from partita.runtime.state import State, rows
from partita.transport.processes import receive_tensor, send_tensor


def holders_of(program: Program, graph: Graph) -> dict[str, tuple[int, ...]]:
    """Parameter or buffer -> the workers that hold it, as `make_state` has it: of one of a stage its replicas."""
    found: dict[str, set[int]] = {}
    for role in (role for role in program.roles if role.keeps == "model"):
        for stage in program.stages_of(role) or (-1,):
            held = program.graph_of(stage, graph)
            for name in [p.name for p in held.parameters] + [b.name for b in held.buffers]:
                found.setdefault(name, set()).update(role.ranks)
    return {name: tuple(sorted(ranks)) for name, ranks in sorted(found.items())}


def owners_of(program: Program, graph: Graph) -> dict[str, int]:
    """Parameter or buffer -> the first worker that holds it."""
    return {name: ranks[0] for name, ranks in holders_of(program, graph).items()}


def parted(program: Program) -> Iterator[tuple[Bucket, Shares]]:
    """The buckets of which each rank keeps only its own part."""
    for bucket in program.trained:
        if bucket.shares and not bucket.keeps(Space.PARAMETER) and not bucket.master:
            yield bucket, bucket.shares


def from_masters(program: Program, masters: Mapping[str, torch.Tensor], leaves: Mapping[str, torch.Tensor]) -> Leaves:
    """Whole weights in the precision in which they are updated, from the whole masters of buckets."""
    found: Leaves = {}
    for bucket in program.trained:
        at, flat = 0, masters.get(bucket.name)
        if flat is None:
            continue
        for piece in bucket.pieces:
            shape = leaves[piece.parameter].shape
            whole = found.setdefault(piece.parameter, torch.empty(shape, dtype=flat.dtype, device=flat.device))
            into = rows(whole, piece)
            into.copy_(flat[at : at + into.numel()].view(into.shape))
            at += into.numel()
    return found


def reunited(program: Program, states: Mapping[int, State]) -> None:
    """Makes the weights of every bucket whole again on all ranks of this process."""
    for bucket, shares in parted(program):
        for group in shares.groups:
            for rank in group:
                whole = allocate(states[rank].parameter[bucket.name])
                for other in group:
                    own = states[other].owned[bucket.name]
                    whole[own.start : own.stop] = own.parameter
    for rank, state in states.items():
        whole_of = {name: _together(program.bucket[name], rank, states) for name in state.master}
        state.leaves.update(from_masters(program, whole_of, state.leaves))


def _together(bucket: Bucket, rank: int, states: Mapping[int, State]) -> torch.Tensor:
    shares = bucket.shares
    if not shares:
        return states[rank].master[bucket.name]
    return torch.cat([states[other].master[bucket.name] for other in shares.group_of(rank)])


def _masters(program: Program, rank: int, state: State) -> Leaves:
    """Whole masters on the first rank of each group, gathered over torch.distributed; a rank's own if every rank has
    all."""
    found: Leaves = {}
    for bucket in program.trained:
        if bucket.name not in state.master:
            continue
        own, shares = state.master[bucket.name], bucket.shares
        group = shares.group_of(rank) if shares else ()
        if not shares or not group:
            found[bucket.name] = own
        elif rank != group[0]:
            send_tensor(own, group[0])
        else:
            whole = own.new_empty(bucket.elements)
            for other in group:
                start, stop = shares.of(other)
                if other == rank:
                    whole[start:stop] = own
                else:
                    receive_tensor(whole[start:stop], other)
            found[bucket.name] = whole
    return found


def _reunited_on_first(program: Program, rank: int, state: State) -> None:
    """Makes the weights whole on the first rank of each group, over torch.distributed."""
    for bucket, shares in parted(program):
        group = shares.group_of(rank)
        if not group:
            continue
        own = state.owned[bucket.name]
        if rank != group[0]:
            send_tensor(own.parameter, group[0])
            continue
        whole = allocate(state.parameter[bucket.name])
        whole[own.start : own.stop] = own.parameter
        for other in group[1:]:
            start, stop = shares.of(other)
            receive_tensor(whole[start:stop], other)


def gathered_leaves(program: Program, graph: Graph, rank: int, state: State) -> dict[str, torch.Tensor]:
    """The parameters and buffers of the model: on rank 0 all of them, on others only their own. All ranks must call
    it."""
    _reunited_on_first(program, rank, state)
    leaves = state.leaves | from_masters(program, _masters(program, rank, state), state.leaves)
    found = dict(leaves)
    specs = {p.name: p.tensor for p in graph.parameters} | {b.name: b.tensor for b in graph.buffers}
    for name, owner in owners_of(program, graph).items():
        if owner and rank == owner:
            send_tensor(leaves[name].contiguous(), 0)
        elif owner and rank == 0:
            found[name] = torch.empty(specs[name].shape_at(), dtype=getattr(torch, specs[name].dtype))
            receive_tensor(found[name], owner)
    return found
