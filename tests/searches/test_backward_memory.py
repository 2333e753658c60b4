"""How near the closer bound of memory comes to the event clock's peak where a step has no stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from partita.graph.graph import Graph
from partita.searches.lower_bounds import LowerBounds
from tests.searches.accelerators import deep
from tests.searches.test_lower_bounds import clocked, machines, space_on
from tests.small import layers

NONE, GRADIENTS, PARAMETERS = 0, 2, 3
SMALL, LARGE = 128, 10000  # bytes of a bucket


def grown() -> Graph:
    """Layers that are wider and wider: what is there beside a bucket's pack decides."""
    return replace(layers(8, growth=6), global_batch=16, optimizer=deep(16).optimizer)


@pytest.mark.parametrize(
    ("graph", "shard", "microbatches", "bucket", "least"),
    [
        (grown(), NONE, 1, SMALL, 0.998), (grown(), NONE, 2, LARGE, 0.998),
        (grown(), GRADIENTS, 1, LARGE, 0.998), (grown(), GRADIENTS, 2, SMALL, 0.998),
        (grown(), PARAMETERS, 1, SMALL, 0.889), (grown(), PARAMETERS, 2, LARGE, 0.893),
        (deep(16), GRADIENTS, 2, SMALL, 0.95), (deep(16), NONE, 1, SMALL, 0.957),
        (deep(16), PARAMETERS, 1, SMALL, 0.832), (deep(16), PARAMETERS, 2, SMALL, 0.831),
        (deep(16), PARAMETERS, 1, LARGE, 0.953),
    ],
)  # fmt: skip
def test_a_bound_has_all_that_it_knows_of_a_backward_pass(
    graph: Graph, shard: int, microbatches: int, bucket: int, least: float
) -> None:
    """What is packed, what backward still reads, what is gathered and what is gathered next: without any of these it
    would be further below."""
    cluster = machines((1e8,) * 2)
    space = space_on(graph, cluster)
    wanted = {"data": 2, "pipe": 1, "shard": shard, "microbatches": microbatches, "recompute": 0}
    kinds = [space.column(name) == value for name, value in wanted.items()]
    rows = replace(space.some(np.flatnonzero(np.logical_and.reduce(kinds))[:1]), buckets=np.array([bucket]))
    peak = clocked(graph, cluster, rows.call(0))[1]
    assert least * peak <= LowerBounds(graph, cluster).peaks.memory(rows, closer=True)[0] <= peak
