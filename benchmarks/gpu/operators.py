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
from partita.lab.bench import Bench, benches_of
from partita.lab.operator_timing import OperatorCase, make_case, seconds_in_turn
from partita.lab.probe import unique_operators


@dataclass(frozen=True)
class Taken:
    """An operator's `target` and signature, how often a step has it, and what one call takes."""

    target: str
    name: str
    count: int
    seconds: float
    launching: float
    beyond: int
    results: int


def taken_by(graph: Graph, short: str, device: str) -> list[dict[str, Any]]:
    """A row an operator of the captured step, or of the step in a short dtype."""
    step = substitute(shortened(graph, short) if short else graph, graph.batch)
    names = [signature(operator, step) for operator in step.operators]
    examples = [(name, *where) for name, where in unique_operators([step]).items()]
    card, host = benches_of(device)
    with torch.no_grad():
        seconds, launching = (seconds_in_turn(examples, lambda n: None, bench)[0] for bench in (card, host))
        rows = []
        for name, _, index in examples:
            case = make_case(name, step, index, Bench(device, card.each, 0, card.held))
            beyond, results = _bytes(case)
            target = step.operators[index].target
            rows.append(Taken(target, name, names.count(name), seconds[name], launching[name], beyond, results))
    return [asdict(row) for row in rows]


def _bytes(case: OperatorCase) -> tuple[int, int]:
    """(bytes beyond results at the highest, bytes of the results) of the second call."""
    for _ in range(2):
        environment = dict(case.sets[0])
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        case.code(environment, case.leaves)
        after = torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated() - max(after, before), after - before
