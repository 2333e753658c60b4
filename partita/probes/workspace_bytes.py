"""Bytes that operators take on a card beyond what they make, as its caching allocator counts them.

before |inputs|   during |inputs|results|workspace|   after |inputs|results|        an operator's second call
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partita.probes.bench import Bench
from partita.probes.stretches import Made, Stretch, make
from partita.runtime.device import clear_workspaces
from partita.units import Bytes


def workspace_bytes(stretches: Sequence[Stretch], device: str) -> tuple[dict[str, Bytes], Bytes]:
    """(those of each operator, a stretch by itself, by its signature, and those that are still taken when all operators
    have ended)."""
    clear_workspaces()
    begun, bench = torch.cuda.memory_allocated(device), Bench(device, ring=0)
    found = {one.kinds[0]: _beyond(make(one, bench)[0], device) for one in stretches}
    return {name: size for name, size in found.items() if size}, torch.cuda.memory_allocated(device) - begun


def _beyond(made: Made, device: str) -> Bytes:
    highest = results = 0
    for _ in range(2):  # the first call may load a library, and choose an algorithm
        environment = dict(made.sets[0])
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        made.codes[0](environment, made.leaves)
        results = torch.cuda.memory_allocated(device) - before
        highest = torch.cuda.max_memory_allocated(device) - before
    return max(highest - max(results, 0), 0)
