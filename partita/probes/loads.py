"""Loads timed on one rank: what a batch and each sample of it take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from partita.graph.graph import Graph
from partita.probes.bench import HOST, Bench
from partita.probes.timing import Run, cold_seconds, disturbance_of, few_operators
from partita.runtime.device import CPU
from partita.runtime.feed import Feed, check_shapes
from partita.task import Task
from partita.units import Seconds


def load_runs(task: Task, graph: Graph, count: int, bench: Bench) -> list[Run]:
    """What a Load does of one sample, and of `count`; on a card of starting to bring samples there."""
    feed, host = Feed(task, 0), HOST if bench.each else bench
    feed.positions(0, 0, 1)

    def load(samples: int) -> None:
        leaves = feed.leaves(feed.positions(0, 0, samples), bench.device)
        if graph.rung != "opaque":
            check_shapes(graph, leaves, samples, 0)
        torch.full((), 1.0, device=bench.device)

    return [(partial(load, samples), host) for samples in (1, count)]


def load_seconds(
    few: Seconds, many: Seconds, count: int, beside: Callable[[], Any] | None = None
) -> tuple[Seconds, Seconds]:
    """(seconds a batch, seconds a sample), from those of `load_runs`; and of what computing takes longer while a thread
    of its rank loads a batch (`beside`)."""
    each = (many - few) / (count - 1) if count > 1 else few
    longer = disturbance_of(beside, few_operators) if beside else 0.0
    return max(few - each, 0.0), max(each + longer * many / count, 1e-9)


def bringing_seconds(task: Task, count: int, bench: Bench) -> tuple[Seconds, Seconds]:
    """(seconds a batch, seconds a sample) of a card's stream while samples come."""
    feed = Feed(task, 0)

    def spent(samples: int) -> Seconds:
        leaves = feed.leaves(feed.positions(0, 0, samples), CPU)
        held = [leaf.pin_memory() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return cold_seconds(lambda: [tensor.to(bench.device, non_blocking=True) for tensor in held], bench)

    return load_seconds(spent(1), spent(count), count)
