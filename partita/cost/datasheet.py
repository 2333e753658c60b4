"""Costs where nothing was measured: from data sheets."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from partita.cluster.cluster import Cluster, Device
from partita.cost.costs import Costs, Touch
from partita.cost.fabric import wired
from partita.cost.kernels import KERNEL, MEMORY, multiplying, streaming
from partita.cost.wiring import Wiring
from partita.graph.contraction import contractions_of
from partita.graph.flops import bytes_moved, flops
from partita.graph.graph import Graph
from partita.graph.kinds import kinds_of
from partita.graph.operator import Operator
from partita.graph.patterns import shares_memory
from partita.graph.precision import shortened
from partita.graph.signature import signature
from partita.graph.tensor import ITEMSIZE
from partita.units import Seconds

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
SHORT = {"bfloat16": "bf16", "float16": "fp16"}
LAUNCH: Final[Seconds] = 6e-6  # of a host that launches an operator from Python, kernel and bookkeeping
VIEW: Final[Seconds] = 2e-6  # where there is nothing to launch


def datasheet_costs(
    graph: Graph, cluster: Cluster, batches: tuple[int, ...], *, dtype: str = "fp32", because: str = "",
    precisions: tuple[str, ...] = (),
) -> Costs:  # fmt: skip
    """Costs by data sheets: on accelerators of `kernels`, and beside them what launching takes; on processors of a
    roofline. `because` says why nothing was measured; steps in the short dtypes of `precisions` are covered too, an
    operator at the speed of the dtype that it makes."""
    device = cluster.devices[0]
    table: dict[str, Seconds] = {}
    launches: dict[str, Seconds] = {}
    for batch, step in product(batches, (graph, *(shortened(graph, short) for short in precisions))):
        for operator, concrete in kinds_of(step).at(batch):
            key = signature(operator, concrete)
            table[key] = operator_seconds(device, operator, concrete, batch, dtype)
            launches[key] = VIEW if shares_memory(operator, concrete) else LAUNCH
    card = device.backend == "cuda"
    byte = 1 / ((MEMORY if card else 0.8) * (device.memory_bandwidth or 10e9))
    element = ITEMSIZE[DTYPES[dtype]] * byte
    launch = KERNEL if card else 5e-6
    costs = Costs(
        graph, cluster, table, copy=Touch(launch, 2 * element), add=Touch(launch, 3 * element),
        update=Touch(launch, 6 * element), load=Touch(0.0, 1e-6), sizes=batches, instruction=2e-6,
        wiring=wired(cluster) if device.backend == "cuda" else Wiring(),
        source="datasheet", because=because,
    )  # fmt: skip
    touch = Touch(LAUNCH, 0.0)
    host = replace(costs, operators=launches, copy=touch, add=touch, update=touch, _sums={}) if card else None
    return replace(costs, launching=host, _sums={}) if host else costs


def operator_seconds(device: Device, operator: Operator, graph: Graph, batch: int, dtype: str = "fp32") -> Seconds:
    """Seconds of an operator on `batch` samples; what only looks at memory takes none on an accelerator."""
    moved, made = bytes_moved(operator, graph, batch), next((each.dtype for each in operator.outputs if each), "")
    if device.backend != "cuda":
        return roofline(device, SHORT.get(made, dtype), flops(operator, graph, batch), moved)
    if shares_memory(operator, graph):
        return 0.0
    made, moved = DTYPES[dtype] if made == "float32" else made, moved + _again(operator, graph, batch)
    products = contractions_of(operator, graph, batch)
    if not products:
        return streaming(device, moved, flops(operator, graph, batch)) + KERNEL
    item, windows = ITEMSIZE.get(made, 4), "convolution" in operator.target
    tiles = sum(multiplying(device, each, made, item, convolution=windows) for each in products)
    return max(tiles, streaming(device, moved)) + KERNEL * len(products)


def _again(operator: Operator, graph: Graph, batch: int) -> int:
    """Bytes read a second time: statistics over samples are known when all of a tensor was read (BatchNorm, both ways);
    a row of a layer norm or a softmax stays on the chip."""
    made = operator.outputs[0]
    if "batch_norm" not in operator.target or made is None:
        return 0
    tensors = [graph.tensor(ref) for ref in operator.reads()]
    return sum(tensor.size(batch) for tensor in tensors if tensor.shape == made.shape)


def roofline(device: Device, dtype: str, work: float, moved: float) -> Seconds:
    """Seconds of an operator of `work` FLOPs that moves `moved` bytes, as long as the slower of its FLOPs at 60 % of
    peak and its bytes at 80 % of the memory's bandwidth, and a launch (PM-01's form with fixed efficiencies)."""
    peak = dict(device.flops).get(dtype) or max((speed for _, speed in device.flops), default=50e9)
    return max(work / (0.6 * peak), moved / (0.8 * (device.memory_bandwidth or 10e9))) + 5e-6
