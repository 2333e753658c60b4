"""What each operator of a model takes on a card: seconds of the stream, core-seconds of launching, bytes while it runs.

Bytes are those beyond its results, as the caching allocator counts them: workspaces, tensors that a composed operator
makes and frees. They, and a step's seconds, are where an error of a prediction comes from.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.precision import shortened
from partita.graph.signature import signature
from partita.probes.bench import benches_of
from partita.probes.operator_timing import seconds_in_turn
from partita.probes.stretches import stretches_of
from partita.probes.workspace_bytes import workspace_bytes


@dataclass(frozen=True)
class Taken:
    """An operator's `target` and signature, how often a step has it, and what one call takes."""

    target: str
    name: str
    count: int
    seconds: float
    launching: float
    beyond: int


def taken_by(graph: Graph, short: str, device: str) -> list[dict[str, Any]]:
    """A row an operator of the captured step, or of the step in a short dtype."""
    step = substitute(shortened(graph, short) if short else graph, graph.batch)
    names = [signature(operator, step) for operator in step.operators]
    kinds = stretches_of([step], 1)
    with torch.no_grad():
        beyond, _ = workspace_bytes(kinds, device)
        seconds, launching = (seconds_in_turn(kinds, lambda n: None, bench).operators for bench in benches_of(device))
    rows = []
    for one in kinds:
        name = one.kinds[0]
        target, count = step.operators[one.timed].target, names.count(name)
        rows.append(Taken(target, name, count, seconds[name], launching[name], beyond.get(name, 0)))
    return [asdict(row) for row in rows]
