"""Bytes that operators take on a card beyond what they make, as its caching allocator counts them.

before |inputs|   during |inputs|results|workspace|   after |inputs|results|        an operator's second call
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partita.graph.graph import Graph
from partita.lab.bench import Bench
from partita.lab.operator_timing import OperatorCase, make_case
from partita.runtime.device import clear_workspaces
from partita.units import Bytes


def workspace_bytes(examples: Sequence[tuple[str, Graph, int]], device: str) -> tuple[dict[str, Bytes], Bytes]:
    """(those of each (name, graph, index), and those that are still taken when all operators have ended)."""
    clear_workspaces()
    begun, bench = torch.cuda.memory_allocated(device), Bench(device, ring=0)
    found = {example[0]: _beyond(make_case(*example, bench), device) for example in examples}
    return {name: size for name, size in found.items() if size}, torch.cuda.memory_allocated(device) - begun


def _beyond(case: OperatorCase, device: str) -> Bytes:
    highest = results = 0
    for _ in range(2):  # the first call may load a library, and choose an algorithm
        environment = dict(case.sets[0])
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        case.code(environment, case.leaves)
        results = torch.cuda.memory_allocated(device) - before
        highest = torch.cuda.max_memory_allocated(device) - before
    return max(highest - max(results, 0), 0)
