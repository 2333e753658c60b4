"""Peak live bytes of tensors on a rank: state that stays, copies for the wire, and what a step keeps for backward."""

from __future__ import annotations

from partita.cost.tides import pipeline_peak
from partita.graph.cuts import peak_bytes
from partita.graph.graph import Graph
from partita.program.instruction import Combine, Compute, Pack, Receive, Space, Update
from partita.program.program import Program
from partita.units import Bytes


def peak_memory(program: Program, graph: Graph, rank: int) -> Bytes:
    """Steady-state peak of live tensor bytes on `rank`.

    Parameters + buffers + optimizer state of what it updates + gradient slots + inboxes + the activations' peak over
    the step; gradients that an update takes straight from backward are in that peak.
    """
    role = program.role_of[rank]
    acts = [i.act for i in role.instructions]
    packed = {a.bucket for a in acts if isinstance(a, Pack | Combine)}
    held = [program.graph_of(stage, graph) for stage in program.stages_of(role) or (-1,)]
    parameters = sum({p.name: p.tensor.size() for part in held for p in part.parameters}.values())
    buffers = sum(b.tensor.size() for part in held for b in part.buffers)
    buffers += sum(len(c.data) for part in held for c in part.constants)
    elements = sum(program.bucket[name].elements for name in {a.bucket for a in acts if isinstance(a, Update)})
    gradients = program.slots * sum(program.bucket[name].size for name in packed)
    inboxes = sum(program.bucket[a.bucket].size for a in acts if isinstance(a, Receive) and a.space is Space.INBOX)
    batches = {program.segment[a.segment].batch for a in acts if isinstance(a, Compute)}
    if held[0] is graph:
        activations = max((peak_bytes(graph, 0, len(graph.operators), batch)[0] for batch in batches), default=0)
    else:
        activations = pipeline_peak(program, role)
    return parameters + buffers + graph.optimizer.state_bytes(elements) + gradients + inboxes + activations
