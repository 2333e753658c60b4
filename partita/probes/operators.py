"""Operators timed on one rank, its share of those that a plan needs; no plan and no full step is ever timed.

Times are core-seconds of the calling thread, taken while every device of the cluster is loaded alike: on a device that
may use half a core, a core-second lasts two seconds, whoever else computes. What differs between hosts and minutes is
divided out: every operator is stored relative to a reference kernel that is timed beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any, Final

import torch

from partita.graph.batch import substitute
from partita.graph.graph import Graph
from partita.graph.precision import shortened
from partita.probes.bench import Bench, benches_of
from partita.probes.opaque_timing import whole_seconds
from partita.probes.operator_timing import Timed, seconds_in_turn
from partita.probes.stretches import comparable, share_of, stretches_of
from partita.probes.timing import cold_seconds, forget, thread_seconds
from partita.probes.touches import touched_bytes
from partita.probes.workspace_bytes import workspace_bytes
from partita.task import Task
from partita.units import Bytes, Seconds

REST: Final[Seconds] = 1e-3  # in which a rank waits for others, which use its caches


def reference_seconds(bench: Bench) -> Seconds:
    """The reference kernel that host drift is divided out by: a 192 x 192 matrix product and a pass over 1 MB.

    The least of four, for a process's first calls take up to twice as long."""
    a, b, c = (torch.randn(shape, device=bench.device) for shape in ((192, 192), (192, 192), (2**18,)))

    def kernel() -> None:
        torch.mm(a, b)
        torch.add(c, 1.0)

    return min(cold_seconds(kernel, bench) if bench.each else thread_seconds(kernel) for _ in range(4))


def rank_operators(
    task: Task, graph: Graph, rank: int, world: int, *, batches: Iterable[int], known: Collection[str],
    steps: Iterable[str], device: str, total: Seconds, tell: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:  # fmt: skip
    """Core-seconds of `operators`, this rank's share of those that are not known yet; in the `places` of some stretches
    that every rank times, known or not; and of the reference kernel. Of the captured step ("") or of those in the short
    dtypes of `steps`. Those of a model that is one operator are timed on the samples of `task`. That takes about
    `total` core-seconds."""
    torch.manual_seed(0)
    whole = [shortened(graph, short) if short else graph for short in steps]
    graphs = [substitute(step, batch) for step in whole for batch in batches]
    bench, *launching = benches_of(device)
    bench = replace(bench, between=touched_bytes(bench, graph), rest=REST * (world > 1))
    reference = reference_seconds(bench)
    found, launches = Timed(), list[dict[str, Seconds]]()
    spaces: tuple[dict[str, Bytes], Bytes] = {}, 0
    if graph.rung == "opaque":
        found.places = operators = whole_seconds(task, graph, batches, device)
    else:
        every = stretches_of(graphs, bench.stretch)
        fresh = stretches_of(graphs, bench.stretch, known) if comparable(every, known) else every
        mine = share_of(every, fresh, rank, world)
        with torch.no_grad():
            spaces = workspace_bytes(mine, device) if launching else spaces
            found = seconds_in_turn(mine, lambda n: tell({"operators": n, "of": sum(map(len, mine))}), bench, total)
            launches = [seconds_in_turn(mine, lambda n: None, each, total).operators for each in launching]
        operators = found.operators
    reference = min(reference, reference_seconds(bench))
    forget()
    return {
        "operators": operators, "places": found.places, "unevenness": found.unevenness, "reference": reference,
        "launching": launches, "workspaces": spaces,
    }  # fmt: skip
