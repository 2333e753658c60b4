"""Temporary tensors: of an optimizer's update, and of operators beyond their results."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from math import prod
from typing import Final

from partita.cost.convolutions import CONVOLUTIONS, convolution_bytes
from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref
from partita.graph.precision import ACCUMULATED
from partita.graph.repeats import DROPPING, DROPPING_BACKWARD
from partita.graph.tensor import ITEMSIZE, Tensor
from partita.program.layout import Bucket, Piece
from partita.program.update_units import units_of
from partita.units import Bytes

# Temporary tensors of the size of what is updated (torch 2.13, torch/optim): Adam's denominator twice, ...
SCRATCH: Final = {"SGD": 0, "Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2}
LSTM: Final = "partita.lstm_layer"
GRU: Final = "partita.gru_layer"
ROOM: Final = 2**17  # scores of a block of an attention that drops weights
SCORES: Final = {DROPPING: 2, DROPPING_BACKWARD: 4}  # tensors like a block's scores that are there at once
# Tensors like the rows that norms of short ones have in fp32.
WIDENED: Final = {"aten.native_layer_norm.default": 2, "aten.native_layer_norm_backward.default": 3}
MASKING: Final = 2.25  # more of them where some are hidden
# Tensors like its output that cuDNN (9.x) keeps of a layer for backward, and bytes besides.
KEPT: Final = {"partita.lstm_layer.default": 5, "partita.gru_layer.default": 6}
KEPT_BESIDES: Final[Bytes] = 256
LINE: Final = 16  # fp32 elements of a line of the cache
CONFLICT: Final = 256  # elements; rows that are a multiple of these fall into the same sets of the cache


class Processor(StrEnum):
    """What temporary tensors depend on: an accelerator, or a processor with vectors of 512 bits or of fewer."""

    CARD = "card"
    WIDE = "wide"
    NARROW = "narrow"


BLOCK: Final = {Processor.WIDE: 16, Processor.NARROW: 8}  # channels of a convolution's blocks


def scratch_bytes(graph: Graph, bucket: Bucket, on: Processor, joined: bool = True) -> Bytes:
    """Bytes of the temporary tensors of an update of a bucket.

    They are SCRATCH times the largest of the tensors that are updated at once: an update unit if pieces may be
    `joined`, otherwise a piece, or all pieces on a card, where torch updates them all at once by default (foreach). In
    half precision all gradients are converted to the master's dtype first.
    """
    rule, item = graph.optimizer, ITEMSIZE[bucket.master or bucket.dtype]
    once = rule.fused or (rule.one_pass and on is not Processor.CARD)
    times = 0 if once else SCRATCH.get(rule.name, 1)
    most = bucket.owned * item
    widened = most if bucket.master else 0
    if on is Processor.CARD or not bucket.pieces:
        return times * most + widened
    shapes = {p.name: p.tensor.at(1) for p in graph.parameters}
    sizes = [_rows(shapes[piece.parameter], piece) for piece in bucket.pieces]
    if joined and rule.joins:
        sizes = [sum(sizes[start:stop]) for start, stop in units_of(sizes)]
    return times * min(max(sizes), most) + widened


def working_bytes(graph: Graph, operator: Operator, batch: int, on: Processor = Processor.WIDE) -> Bytes:
    """Bytes that an operator takes on a processor beyond what it makes, for `batch` samples; none on a card.

    Convolutions: `convolution_bytes`. Recurrent layers: `layer_bytes`.
    Attention that drops weights: `blockwise_bytes`. Norms of short rows: these, and what is made of them, in fp32.
    """
    if on is Processor.CARD:
        return 0
    if operator.target in SCORES:
        return blockwise_bytes(graph, operator, batch)
    if operator.target.startswith((LSTM, GRU)):
        return layer_bytes(graph, operator, batch, on)
    if operator.target in WIDENED:
        return widened_bytes(graph, operator, batch)
    if operator.target.startswith(CONVOLUTIONS):
        return convolution_bytes(graph, operator, batch, BLOCK[on])
    return 0


def layer_bytes(graph: Graph, operator: Operator, batch: int, on: Processor) -> Bytes:
    """oneDNN's LSTM layer: `recurrent_bytes`; a GRU's: `stepwise_bytes`. Of a short dtype that no kernel takes, all
    that it reads and makes in fp32, of which the latter is rounded when these are free again."""
    value, _, w_hidden = (graph.tensor(ref).at(batch) for ref in operator.arguments[:3] if isinstance(ref, Ref))
    lstm, backward, wide = operator.target.startswith(LSTM), "_backward" in operator.target, ITEMSIZE[ACCUMULATED]
    found, item = recurrent_bytes if lstm else stepwise_bytes, ITEMSIZE[value.dtype]
    if item >= wide or (lstm and value.dtype == "bfloat16" and on is Processor.WIDE):
        return found(value, w_hidden, backward=backward)
    inside = found(replace(value, dtype=ACCUMULATED), w_hidden, backward=backward)
    read = sum(tensor.elements(batch) for tensor in map(graph.tensor, operator.reads()) if tensor.dtype == value.dtype)
    made = sum(each.elements(batch) for each in operator.outputs if each and each.dtype == value.dtype)
    return wide * (read + made) + max(inside - item * made, 0)


def recurrent_bytes(value: Tensor, w_hidden: Tensor, *, backward: bool) -> Bytes:
    """Bytes that oneDNN's LSTM layer (torch 2.13, fp32 and bf16, x86) takes on `value` (T, B, I), beside what it makes:
    both weights the other way round, the gates of all steps, and in backward the gradients of those weights whose rows
    it widens. In bf16 gates are in the workspace, and backward makes all gradients in fp32 before they are rounded."""
    item, wide = ITEMSIZE[value.dtype], ITEMSIZE[ACCUMULATED]
    if item > wide:
        return 0
    (steps, samples, inputs), (gates, hidden) = value.shape_at(), w_hidden.shape_at()
    widened = sum(gates * row_stride(columns) for columns in (inputs, hidden) if row_stride(columns) != columns)
    if item == wide:
        return wide * ((inputs + hidden + steps * samples) * row_stride(gates) + (widened if backward else 0))
    made = steps * samples * inputs + gates * (inputs + hidden + 2) + 2 * samples * hidden
    return wide * (made + widened) if backward else item * (inputs + hidden) * row_stride(gates)


def stepwise_bytes(value: Tensor, w_hidden: Tensor, *, backward: bool) -> Bytes:
    """Bytes that a GRU step by step takes on `value` (T, B, I), beside what it makes: the gates of all steps, and in
    backward the gradients of both of their sums, and the states before."""
    (steps, samples, _), (gates, hidden) = value.shape_at(), w_hidden.shape_at()
    return ITEMSIZE[value.dtype] * steps * samples * (2 * gates + hidden if backward else gates)


def blockwise_bytes(graph: Graph, operator: Operator, batch: int) -> Bytes:
    """Bytes of the blocks of attention that drops weights; and of its gradients, which are summed up in fp32."""
    backward = operator.target == DROPPING_BACKWARD
    q, k, v = (graph.tensor(ref).at(batch) for ref in operator.arguments[backward : 3 + backward])  # type: ignore[arg-type]
    (samples, heads, queries), keys = q.shape_at()[:3], k.shape_at()[2]
    item, short = max(ITEMSIZE[q.dtype], ITEMSIZE[ACCUMULATED]), ITEMSIZE[q.dtype] < ITEMSIZE[ACCUMULATED]
    block = prod(block_extents(samples, heads, queries, keys, ROOM)) * keys * item
    causal = any(argument is True for argument in operator.arguments)
    hides = operator.arguments[3 + backward] is not None or (causal and queries * keys > ROOM)
    sums = sum(t.elements() for t in (q, k, v)) * item if backward and short else 0
    return int(block * (SCORES[operator.target] + MASKING * hides)) + sums


def widened_bytes(graph: Graph, operator: Operator, batch: int) -> Bytes:
    """Bytes of a norm's rows, and of what is like them, in fp32, before its result is; 0 where rows come in fp32."""
    rows = graph.tensor(next(operator.reads()))
    item, wide = ITEMSIZE[rows.dtype], ITEMSIZE[ACCUMULATED]
    return (WIDENED[operator.target] * wide - item) * rows.elements(batch) if item < wide else 0


def block_extents(samples: int, heads: int, queries: int, keys: int, room: int) -> tuple[int, int, int]:
    """Samples, heads and queries of a block: as many queries as have room for scores, then heads, then samples."""
    places = min(queries, max(1, room // max(keys, 1)))
    several = min(heads, max(1, room // max(keys * queries, 1)))
    return min(samples, max(1, room // max(keys * queries * heads, 1))), several, places


def card_size(graph: Graph, ref: Ref, batch: int, size: Bytes) -> Bytes:
    """The bytes of a value on a card that has `size` where it was captured: what recurrent layers keep for backward."""
    at = graph.index.get(ref.name)
    operator = None if at is None else graph.operators[at]
    if operator is None or operator.target not in KEPT or ref.index != len(operator.outputs) - 1:
        return size
    out = operator.outputs[0]
    return KEPT[operator.target] * out.size(batch) + KEPT_BESIDES if out else size


def row_stride(extent: int) -> int:
    """The elements from one row of `extent` fp32 elements to the next in oneDNN's matrices: whole lines of a cache, and
    one more where rows would fall into the same sets of it."""
    lines = -(-extent // LINE) * LINE
    return lines + LINE if lines % CONFLICT == 0 else lines


def _rows(tensor: Tensor, piece: Piece) -> Bytes:
    whole = tensor.size()
    return whole if piece.stop < 0 else whole * (piece.stop - piece.start) // tensor.shape_at()[0]
