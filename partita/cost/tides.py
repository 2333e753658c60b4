"""Live bytes of a pipeline's rank: what each microbatch in flight keeps of each stage, over the compute lane's order.

    F0#0       F0#1       B0#0       F0#2       B0#1
____/####\\___/########\\____####____/######\\___          a pass's own peak over what the others left
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from partita.graph.graph import Graph
from partita.graph.operator import Ref
from partita.graph.patterns import shares_memory
from partita.program.instruction import Compute, Pack
from partita.program.program import Program, Role
from partita.units import Bytes

Course = NDArray[np.int64]


def pipeline_peak(program: Program, role: Role) -> Bytes:
    """The most bytes of activations, received values and gradients alive at once on a rank of the role."""
    tides = cache(lambda stage, batch: tide(program.stages[stage], batch))
    held: dict[tuple[int, str], int] = {}
    peak = 0
    for act in (i.act for i in role.instructions):
        if isinstance(act, Compute):
            segment = program.segment[act.segment]
            place = segment.stage, act.part
            during, across = tides(segment.stage, segment.batch)
            others = sum(held.values()) - held.get(place, 0)
            peak = max(peak, others + int(during[segment.start : segment.stop].max(initial=0)))
            held[place] = int(across[segment.stop])
        elif isinstance(act, Pack):
            gradients = dict(program.stages[act.stage].gradients)
            for piece in program.bucket[act.bucket].pieces:
                if piece.last and piece.parameter in gradients:
                    held[act.stage, act.part] -= program.stages[act.stage].tensor(gradients[piece.parameter]).size()
    return peak


def tide(stage: Graph, batch: int) -> tuple[Course, Course]:
    """(bytes alive during each operator, across each position) of a stage for `batch` samples.

    Views share their root's memory. What comes from outside counts from its first reader on, gradients to the end.
    """
    inputs, count = {name for name, _ in stage.inputs}, len(stage.operators)
    root: dict[Ref, Ref] = {}
    made: dict[Ref, int] = {}
    last: dict[Ref, int] = {}
    for i, operator in enumerate(stage.operators):
        reads = list(operator.reads())
        for ref in reads:
            if ref.name in inputs and ref not in root:
                root[ref], made[ref] = ref, i
            if ref in root:
                last[root[ref]] = i
        shares = bool(reads) and shares_memory(operator, stage)
        for index, tensor in enumerate(operator.outputs):
            ref = Ref(operator.name, index if operator.several else -1)
            if tensor is not None and not shares:
                root[ref], made[ref], last[ref] = ref, i, i
            elif tensor is not None and reads[0] in root:
                root[ref] = root[reads[0]]
    for _, ref in stage.gradients:
        if ref in root:
            last[root[ref]] = count
    size = {ref: stage.tensor(ref).size(batch) for ref in made}
    rises, falls = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    for ref, at in made.items():
        rises[at] += size[ref]
        falls[last[ref] + 1] += size[ref]
    during = np.cumsum(rises - falls)[: count + 1]
    across = during - rises[: count + 1]
    return during[:count], across
