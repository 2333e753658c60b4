"""Temporary tensors: of an optimizer's update, and of operators beyond their results."""

from __future__ import annotations

from typing import Final

from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref
from partita.graph.tensor import ITEMSIZE, Tensor
from partita.program.program import Bucket, Piece
from partita.program.update_units import units_of
from partita.units import Bytes

# Temporary tensors of the size of what is updated (torch 2.13, torch/optim): Adam's denominator twice, ...
SCRATCH: Final = {"SGD": 0, "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2}
BACKWARD: Final = "aten.convolution_backward"
CONVOLUTIONS: Final = ("aten.convolution.", BACKWARD)


def scratch_bytes(graph: Graph, bucket: Bucket, foreach: bool, joined: bool = True) -> Bytes:
    """Bytes of the temporary tensors of an update of a bucket.

    They are SCRATCH times the largest of the tensors that are updated at once: an update unit if pieces may be
    `joined`, otherwise a piece, or all pieces if torch updates them all at once (`foreach`, its default on CUDA). In
    half precision all gradients are converted to the master's dtype first.
    """
    rule, item = graph.optimizer, ITEMSIZE[bucket.master or bucket.dtype]
    times = 0 if rule.fused else SCRATCH.get(rule.name, 1)
    most = bucket.owned * item
    widened = most if bucket.master else 0
    if foreach or not bucket.pieces:
        return times * most + widened
    shapes = {p.name: p.tensor.at(1) for p in graph.parameters}
    sizes = [_rows(shapes[piece.parameter], piece) for piece in bucket.pieces]
    if joined and rule.joins:
        sizes = [sum(sizes[start:stop]) for start, stop in units_of(sizes)]
    return times * min(max(sizes), most) + widened


def working_bytes(graph: Graph, operator: Operator, batch: int) -> Bytes:
    """Bytes that an operator takes on a processor beyond what it makes, for `batch` samples.

    oneDNN's convolutions (torch 2.13, fp32, x86; kernels of one element excepted) read and make copies in a blocked
    layout. Forward has those of input and weight, and later that of the output, beside the output; backward those of
    the input and of the output's gradient beside the input's gradient, and later that of the weight's gradient.
    """
    if not operator.target.startswith(CONVOLUTIONS):
        return 0
    backward = operator.target.startswith(BACKWARD)
    read = [graph.tensor(ref) for ref in operator.arguments[: 2 + backward] if isinstance(ref, Ref)]
    weight, sizes = read[-1], [tensor.size(batch) for tensor in read]
    if weight.dtype != "float32" or all(extent == 1 for extent in weight.shape[2:]):
        return 0
    later = sizes[-1] if backward else max(tensor.size(batch) for tensor in operator.outputs if tensor is not None)
    return max(sizes[0] + sizes[1], later)


def _rows(tensor: Tensor, piece: Piece) -> Bytes:
    whole, shape = tensor.size(), tensor.shape
    return whole if piece.stop < 0 else whole * (piece.stop - piece.start) // int(shape[0])  # type: ignore[arg-type]
