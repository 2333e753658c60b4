"""Costs where nothing was measured: roofline over data-sheet numbers."""

from __future__ import annotations

from itertools import product

from partita.cluster.cluster import Cluster, Device
from partita.cost.costs import Costs, Touch
from partita.cost.fabric import wired
from partita.cost.wiring import Wiring
from partita.graph.flops import bytes_moved, flops
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.graph.precision import shortened
from partita.graph.signature import signature
from partita.graph.tensor import ITEMSIZE
from partita.units import Seconds

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
SHORT = {"bfloat16": "bf16", "float16": "fp16"}


def datasheet_costs(
    graph: Graph, cluster: Cluster, batches: tuple[int, ...], *, dtype: str = "fp32", because: str = "",
    precisions: tuple[str, ...] = (),
) -> Costs:  # fmt: skip
    """Roofline costs: an operator lasts as long as the slower of its FLOPs at 60 % of peak and its bytes at 80 % of the
    memory bandwidth, and a launch (PM-01's form with fixed efficiencies). `because` says why nothing was measured;
    steps in the short dtypes of `precisions` are covered too, an operator at the speed of the dtype that it makes."""
    device = cluster.devices[0]
    table: dict[str, Seconds] = {}
    for batch, step in product(batches, (graph, *(shortened(graph, short) for short in precisions))):
        for operator, concrete in kinds_of(step).at(batch):
            work, moved = flops(operator, concrete, batch), bytes_moved(operator, concrete, batch)
            made = next((tensor.dtype for tensor in operator.outputs if tensor), "")
            table[signature(operator, concrete)] = roofline(device, SHORT.get(made, dtype), work, moved)
    byte = 1 / (0.8 * (device.memory_bandwidth or 10e9))
    element = ITEMSIZE[DTYPES[dtype]] * byte
    launch = 5e-6
    return Costs(
        graph, cluster, table, copy=Touch(launch, 2 * element), add=Touch(launch, 3 * element),
        update=Touch(launch, 6 * element), load=Touch(0.0, 1e-6), sizes=batches, instruction=2e-6,
        wiring=wired(cluster) if device.backend == "cuda" else Wiring(),
        source="datasheet", because=because,
    )  # fmt: skip


def roofline(device: Device, dtype: str, work: float, moved: float) -> Seconds:
    """Seconds of an operator of `work` FLOPs that moves `moved` bytes."""
    peak = dict(device.flops).get(dtype) or max((speed for _, speed in device.flops), default=50e9)
    return max(work / (0.6 * peak), moved / (0.8 * (device.memory_bandwidth or 10e9))) + 5e-6
