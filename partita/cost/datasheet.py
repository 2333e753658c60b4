"""Costs where nothing was measured: from data sheets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from statistics import median
from typing import Final

from partita.cluster.cluster import Cluster, Device
from partita.cost.costs import Costs
from partita.cost.fabric import of_hosts, wired
from partita.cost.kernels import (
    CORES,
    KERNEL,
    MEMORY,
    bandwidth_of,
    exponentials,
    format_of,
    multiplying,
    peak_of,
    rate_of,
    recurring,
    streaming,
)  # fmt: skip
from partita.cost.launching import hosts_of
from partita.cost.layouts import copied
from partita.cost.sheets import by_sheets
from partita.cost.touch import Touch
from partita.cost.winograd import minimal_filtering
from partita.cost.wiring import Wiring
from partita.graph.contraction import contractions_of, scores_of
from partita.graph.flops import OPAQUE, bytes_moved, calls, flops
from partita.graph.fusing import Part, parts_of
from partita.graph.graph import Graph, Optimizer
from partita.graph.kinds import kinds_of
from partita.graph.operator import Operator
from partita.graph.patterns import shares_memory
from partita.graph.precision import TF32, multiplies_in_tf32, recurrent, shortened
from partita.graph.signature import signature
from partita.graph.tensor import ITEMSIZE
from partita.units import Seconds

LAUNCH: Final[Seconds] = 6e-6  # of a host that launches an operator from Python, kernel and bookkeeping
VIEW: Final[Seconds] = 2e-6  # where there is nothing to launch
# Of processors, assumed: sheets say nothing of these, and where a time matters it is measured.
COMPUTED: Final = 0.6  # of the peak that an operator reaches
STREAMED: Final = 0.8  # of the memory's bandwidth
CALL: Final[Seconds] = 5e-6  # of an operator, whatever it does
PASSES: Final = 6  # numbers that an optimizer's step reads or writes for a weight: SGD's momentum takes 5, Adam 7
SAMPLE: Final[Seconds] = 1e-6  # for loading one
INSTRUCTION: Final[Seconds] = 2e-6  # from the end of one to the start of the next
ROW: Final = 48 * 2**10  # bytes that threads who work together keep between them


def datasheet_costs(
    graph: Graph, cluster: Cluster, batches: tuple[int, ...], *, because: str = "", precisions: tuple[str, ...] = (),
    compiled: bool = False, measured: Costs | None = None,
) -> Costs:  # fmt: skip
    """Costs by data sheets: on accelerators of `kernels`, and beside them what launching takes; on processors of a
    roofline. Operators are priced at the sizes `batches`; `because` says why nothing was measured; steps in the short
    dtypes of `precisions`, or in TF32, are covered too, an operator at the speed of the dtype that it makes. With
    `compiled` operators are also priced as parts of kernels.

    Where some of the cluster's costs are `measured`, operators take as many times longer than their data sheet says as
    those that were measured do, and all else takes what it was measured to take."""
    cluster = measured.cluster if measured else cluster
    priced = partial(_of_device, graph, cluster, batches, because=because, precisions=precisions, compiled=compiled)
    costs = by_sheets(cluster, priced)
    if measured is None:
        return costs
    return _calibrated(costs, datasheet_costs(measured.graph, cluster, measured.sizes), measured)


def _of_device(
    graph: Graph, cluster: Cluster, batches: tuple[int, ...], device: Device, *, because: str,
    precisions: tuple[str, ...], compiled: bool,
) -> Costs:  # fmt: skip
    """Costs of a cluster all of whose devices have the sheet of this one."""
    card = device.backend == "cuda"
    table: dict[str, Seconds] = {}
    launches: dict[str, Seconds] = {}
    for batch, step in product(batches, (graph, *(shortened(graph, short) for short in precisions))):
        kinds = kinds_of(step)
        parts = zip(kinds.number, parts_of(step), strict=True) if compiled and card else ()
        told = {(kind, part.mark): part for kind, part in parts if part}
        for number, (operator, concrete) in enumerate(kinds.at(batch)):
            key = signature(operator, concrete)
            table[key] = operator_seconds(device, operator, concrete, batch, laid=compiled)
            launches[key] = VIEW if shares_memory(operator, concrete) else LAUNCH * calls(operator)
            for mark, part in [(mark, part) for (kind, mark), part in told.items() if kind == number]:
                table[key + mark] = part_seconds(device, operator, concrete, batch, part)
                launches[key + mark] = LAUNCH if part.begins else 0.0
    byte = 1 / ((MEMORY if card else STREAMED) * bandwidth_of(device))
    element = (graph.item if graph.trainable else ITEMSIZE["float32"]) * byte
    launch, passes = (KERNEL, passes_of(graph.optimizer)) if card else (CALL, PASSES)
    costs = Costs(
        graph, cluster, table, copy=Touch(launch, 2 * element), add=Touch(launch, 3 * element),
        update=Touch(launch, passes * element), load=Touch(0.0, SAMPLE), sizes=batches, instruction=INSTRUCTION,
        wiring=wired(cluster) if all(each.backend == "cuda" for each in cluster.devices) else Wiring(),
        source="datasheet", because=because,
    )  # fmt: skip
    if not card:
        return costs
    touch, hosts, wiring = Touch(LAUNCH, 0.0), hosts_of(cluster), of_hosts(costs.wiring)
    host = replace(
        costs, cluster=hosts, operators=launches, copy=touch, add=touch, update=touch, wiring=wiring, _sums={}
    )
    return replace(costs, launching=host, _sums={})


def _calibrated(sheet: Costs, known: Costs, measured: Costs) -> Costs:
    """Costs by data sheets with what was measured on the same cluster, but for the differences of its devices, which
    are of a moment; `known` are data sheets of the batch sizes that were measured."""
    stop = len(sheet.graph.operators)
    off = median(measured.segment(0, stop, size) / known.segment(0, stop, size) for size in measured.sizes)
    host = sheet.launching
    if host and known.launching and measured.launching:
        host = _calibrated(host, known.launching, measured.launching)
    return replace(
        measured, operators={name: off * value for name, value in sheet.operators.items()}, sizes=sheet.sizes,
        source=sheet.source, because=sheet.because, slowdowns=(), launching=host, _sums={},
    )  # fmt: skip


def passes_of(rule: Optimizer) -> int:
    """How often an optimizer's step reads or writes a number for each of the weights: fused, a gradient, and a weight
    and what is kept of it both ways; otherwise each of the calls over all tensors that torch makes of it on CUDA
    (`_multi_tensor_adam` and `_multi_tensor_sgd` of torch/optim, torch 2.13; others as many for what they keep)."""
    if rule.fused:
        return 3 + 2 * len(rule.state)
    if rule.name == "SGD":
        return 3 + 5 * bool(rule.momentum) + 3 * rule.nesterov
    return {"Adam": 18, "AdamW": 20}.get(rule.name, 3 + 7 * len(rule.state))


def operator_seconds(
    device: Device, operator: Operator, graph: Graph, batch: int, *, laid: bool = False
) -> Seconds:  # fmt: skip
    """Seconds of an operator on `batch` samples; what only looks at memory takes none on an accelerator. Tensors are
    `laid` as kernels want them where a compiler chose how they lie (torch.compile's `layout_optimization`)."""
    moved, made = bytes_moved(operator, graph, batch), next((each.dtype for each in operator.outputs if each), "")
    if device.backend != "cuda":
        return roofline(device, made, flops(operator, graph, batch), moved) + CALL * (calls(operator) - 1)
    if shares_memory(operator, graph):
        return 0.0
    moved += _again(operator, graph, batch)
    products = contractions_of(operator, graph, batch)
    if operator.target.startswith(OPAQUE):
        dtype = graph.trainable[0].tensor.dtype if graph.trainable else "float32"
        work = flops(operator, graph, batch) / rate_of(device, dtype)
        return max(work, streaming(device, moved)) + KERNEL * calls(operator)
    if not products:
        return streaming(device, moved, flops(operator, graph, batch)) + KERNEL * calls(operator)
    if "convolution" in operator.target:
        tiles, copies = _convolving(device, operator, graph, batch, laid=laid)
        return max(tiles, streaming(device, moved)) + copies + KERNEL * len(products)
    if recurrent(operator):
        tiles = sum(recurring(device, each, made, ITEMSIZE.get(made, 4)) for each in products)
        return max(tiles, streaming(device, moved)) + KERNEL * len(products)
    tf32 = multiplies_in_tf32(operator, graph)
    tiles = sum(multiplying(device, each, made, ITEMSIZE.get(made, 4), tf32=tf32) for each in products)
    tiles += exponentials(device, scores_of(operator, graph, batch))
    return max(tiles, streaming(device, moved)) + KERNEL * len(products)


def _convolving(
    device: Device, operator: Operator, graph: Graph, batch: int, *, laid: bool
) -> tuple[Seconds, Seconds]:  # fmt: skip
    """Seconds of a convolution's products, and of copying what they read and make for tensor cores. Of fp32 each is
    computed where that is faster, on tensor cores in TF32 or, as tensors lie, on lanes."""
    made = next(each.dtype for each in operator.outputs if each)
    item, cores = ITEMSIZE.get(made, 4), format_of(device, made, tf32=True) in CORES
    lanes = replace(device, flops=tuple(pair for pair in device.flops if pair[0] != TF32))
    filtered = minimal_filtering(lanes, operator, graph, batch)
    total = copying = 0.0
    for each, sizes in zip(contractions_of(operator, graph, batch), copied(operator, graph, batch), strict=True):
        fast = multiplying(device, each, made, item, convolution=True)
        copies = sum(streaming(device, 2 * size) + KERNEL for size in sizes) if cores and not laid else 0.0
        slow = min(filtered, multiplying(lanes, each, made, item, convolution=True))
        if made == "float32" and slow < max(fast, copies) + copies:
            fast, copies = slow, 0.0
        total, copying = total + fast, copying + copies
    return total, copying


def part_seconds(device: Device, operator: Operator, graph: Graph, batch: int, part: Part) -> Seconds:
    """Seconds that an operator adds to the kernel of a compiler that it is a part of."""
    moved = bytes_moved(operator, graph, batch, part) + (any(part.read[:1]) and _again(operator, graph, batch))
    return streaming(device, moved, flops(operator, graph, batch)) + KERNEL * part.begins


def _again(operator: Operator, graph: Graph, batch: int) -> int:
    """Bytes read a second time: statistics over samples are known when all of a tensor was read (BatchNorm, both ways);
    a row of a layer norm or a softmax stays on the chip, but one that is longer than ROW: a softmax reads that for its
    largest, its sum and its result, and its backward pass for a sum and its result (torch's SoftMax.cu)."""
    made, tensors = operator.outputs[0], [graph.tensor(ref) for ref in operator.reads()]
    if made is None:
        return 0
    if "batch_norm" in operator.target:
        return sum(tensor.size(batch) for tensor in tensors if tensor.shape == made.shape)
    if "softmax" not in operator.target or not tensors[0].shape:
        return 0
    backward = "backward" in operator.target
    along = operator.arguments[2 if backward else 1]
    length = tensors[0].shape_at(batch)[along if isinstance(along, int) else -1]
    if length * ITEMSIZE[tensors[0].dtype] <= ROW:
        return 0
    if not backward:
        return 2 * tensors[0].size(batch)
    return sum(tensor.size(batch) for tensor in tensors[: 1 if "log" in operator.target else 2])


def roofline(device: Device, dtype: str, work: float, moved: float) -> Seconds:
    """Seconds of an operator of `work` FLOPs that moves `moved` bytes: the slower of its FLOPs at COMPUTED of the peak
    and its bytes at STREAMED of the memory's bandwidth, and a CALL (PM-01's form with fixed efficiencies)."""
    moving = moved / (STREAMED * bandwidth_of(device))
    return max(work / (COMPUTED * peak_of(device, dtype)), moving) + CALL
