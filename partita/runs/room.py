"""The room that the checkpoints of a run need on a disk."""

from __future__ import annotations

import resource
from pathlib import Path

from partita.checkpoints.checkpoint import SavePolicy, committed, require_space
from partita.checkpoints.holding import copies_of, keepers_of, workers_of
from partita.checkpoints.shard import HEADER
from partita.errors import OptionError
from partita.graph.graph import Graph
from partita.graph.tensor import ITEMSIZE
from partita.plan.rule import ruled
from partita.program.program import Program
from partita.runtime.alike import alike
from partita.units import Bytes, show_bytes


def require_room(keep: SavePolicy, graph: Graph, program: Program) -> None:
    """Raises OptionError, before the first step, where the disk has no room for the checkpoints that a run will write,
    beyond those that are there and that it will remove."""
    whole, largest = sizes_of(ruled(graph, program.update), program)
    more = keep.many + 1 - min(len(list(committed(keep.out))), keep.many)
    try:
        require_space(Path(keep.out), whole * more)
    except OSError as error:
        raise OptionError(f"{error}, for so many checkpoints: {more}; free some, or give another --out") from None
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < largest:
        raise OptionError(
            f"files may hold {show_bytes(limit)} here (ulimit -f), and a checkpoint needs {show_bytes(largest)} in "
            "one; raise the limit"
        )


def sizes_of(graph: Graph, program: Program) -> tuple[Bytes, Bytes]:
    """About the bytes of a checkpoint, and of the largest of its files."""
    files = {rank: HEADER for role in program.roles for rank in role.ranks}
    for i, (name, copies) in enumerate(copies_of(program).items()):
        bucket = program.bucket[name]
        weights = bucket.elements * ITEMSIZE[bucket.master or bucket.dtype]
        state = graph.optimizer.state_bytes(bucket.elements) + weights * program.drain
        chief = copies.ranks[i % len(copies.ranks)] if copies.ranks else 0
        for rank in copies.ranks:
            files[rank] += weights * (rank == chief or not copies.weights)
            files[rank] += state * (rank == chief or not copies.state)
    same = alike(program)
    for (space, name), keepers in keepers_of(program).items():
        for rank in keepers[:1] if space in same[name] else keepers:
            files[rank] += program.bucket[name].size
    for rank in workers_of(program):
        files[rank] += sum(buffer.tensor.at(1).elements() * ITEMSIZE[buffer.tensor.dtype] for buffer in graph.buffers)
    return sum(files.values()), max(files.values())
