"""In what order each operator allocates and frees on a card: two workspaces one after the other may need two segments.

backward of a convolution   +gradient of input  +784 MiB  -784 MiB  +gradient of weights  +792 MiB  -792 MiB
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.precision import shortened
from partita.probes.bench import Bench
from partita.probes.stretches import Stretch, make, stretches_of

Course = tuple[int, ...]  # bytes that are taken, or -1 - k where the k-th taking is given back
MANY = 100_000


def courses_of(graph: Graph, short: str, device: str = "cuda:0") -> dict[str, Course]:
    """Signature -> the course of an operator's second call, of the captured step or of the step in a short dtype."""
    step = substitute(shortened(graph, short) if short else graph, graph.batch)
    with torch.no_grad():
        return {one.kinds[0]: _course(one, device) for one in stretches_of([step], 1)}


def _course(operator: Stretch, device: str) -> Course:
    (made,) = make(operator, Bench(device, ring=0))
    (code,) = made.codes
    code(dict(made.sets[0]), made.leaves)
    record: Any = torch.cuda.memory._record_memory_history
    record(enabled="all", context=None, max_entries=MANY, device=device)
    environment = dict(made.sets[0])
    code(environment, made.leaves)
    traces: list[list[dict[str, Any]]] = torch.cuda.memory._snapshot(device)["device_traces"]
    record(enabled=None, device=device)
    return course_of(traces[torch.device(device).index or 0])


def course_of(events: Iterable[Mapping[str, Any]]) -> Course:
    """What torch recorded, as a course."""
    found, taken, places = list[int](), 0, dict[int, int]()
    for event in events:
        if event["action"] == "alloc":
            places[event["addr"]] = taken
            found.append(event["size"])
            taken += 1
        elif event["action"] == "free_requested" and event["addr"] in places:
            found.append(-1 - places.pop(event["addr"]))
    return tuple(found)
