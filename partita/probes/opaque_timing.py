"""Timing of a model that was captured as one operator each way, on samples of its task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Final

import torch

from partita.graph.batch import substitute
from partita.graph.graph import TANGENT, Graph
from partita.graph.signature import signature
from partita.runtime.device import CPU
from partita.runtime.draws import DRAWS
from partita.runtime.feed import Feed, floats_of
from partita.runtime.segment import compile_segment
from partita.runtime.whole import Whole
from partita.runtime.workload import Workload
from partita.task import Task
from partita.units import Seconds

TOTAL: Final[Seconds] = 1.0
PASSES: Final = (3, 15)


def whole_seconds(task: Task, graph: Graph, batches: Iterable[int], device: str = CPU) -> dict[str, Seconds]:
    """Signature -> core-seconds (on a card seconds) of forward and of backward, for each of `batches`: medians over
    minibatches."""
    whole, feed, found = Whole.of(Workload(task, graph)), Feed(task, 0), {}
    module = whole.module.to(device)
    leaves = {name: leaf.detach() for name, leaf in (*module.named_parameters(), *module.named_buffers())}
    for batch in batches:
        concrete = substitute(graph, batch)
        both = [compile_segment(concrete, i, i + 1, device) for i in range(2)]
        spent: list[list[Seconds]] = []
        while len(spent) < PASSES[0] or (len(spent) < PASSES[1] and sum(map(sum, spent)) < TOTAL):
            read, rest = feed.read(feed.positions(len(spent), 0, batch), device, floats_of(task))
            env = whole.given(read, rest) | {DRAWS: None}
            env |= {name: torch.empty(0) for name, _ in concrete.inputs}
            env[TANGENT] = torch.ones((), device=device)
            spent.append([_timed(partial(way, env, leaves), device) for way in both])
        for operator, taken in zip(concrete.operators, zip(*spent[1:], strict=True), strict=True):
            found[signature(operator, concrete)] = median(taken)
    return found


def _timed(run: Callable[[], None], device: str) -> Seconds:
    clock = time.thread_time if device == CPU else time.perf_counter
    before = clock()
    run()
    if device != CPU:
        torch.cuda.synchronize(device)
    return clock() - before
