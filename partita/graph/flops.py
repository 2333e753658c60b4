"""What an operator computes and what it moves, from its pattern."""

from __future__ import annotations

from typing import Final

from partita.graph.batch import substitute
from partita.graph.formula import Call, kind_of
from partita.graph.fusing import Part
from partita.graph.graph import Graph
from partita.graph.operator import Operator
from partita.graph.patterns import CONTRACTIONS, pattern_of, shares_memory

OPAQUE: Final = "partita.opaque"  # a whole model, counted when it was captured
ROWS: Final = frozenset({  # read only what they are asked for
    "aten.embedding", "aten.index", "aten.gather", "aten.index_select", "aten._embedding_bag",
})  # fmt: skip
WRITES_ONLY: Final = frozenset({"aten.zeros_like", "aten.empty_like", "aten.full_like", "aten.ones_like"})


def flops(operator: Operator, graph: Graph, batch: int) -> float:
    """Floating-point operations on `batch` samples, a multiply-add being two.

    Matrix products, convolutions and attention count as torch.utils.flop_counter counts them (grouped convolutions
    without its overcount of their weight's gradient), others one to a few for each element. An operator without a
    pattern counts one for each element it makes.
    """
    if operator.target.startswith(OPAQUE):
        return float(str(dict(operator.keywords)["flops"])) * batch
    pattern = pattern_of(operator, graph)
    if pattern is None and graph.symbolic and is_contraction(operator):  # of as many groups as there are samples
        concrete = graph.once(("concrete", batch), lambda: substitute(graph, batch))
        pattern = pattern_of(concrete.operators[concrete.index[operator.name]], concrete)
    if pattern is not None:
        return pattern.flops(batch)
    return float(sum(tensor.elements(batch) for tensor in operator.outputs if tensor is not None))


def calls(operator: Operator) -> int:
    """How many operators run for it: one, but of a whole model as many as it called when it was captured."""
    return int(str(dict(operator.keywords).get("calls", 1))) if operator.target.startswith(OPAQUE) else 1


def is_contraction(operator: Operator) -> bool:
    """Whether it is a matrix product, convolution, attention or recurrence: what model FLOPs count."""
    return kind_of(operator.target) in CONTRACTIONS


def bytes_moved(operator: Operator, graph: Graph, batch: int, part: Part | None = None) -> int:
    """Bytes read from and written to memory on `batch` samples if every tensor is touched once; views touch none. Of a
    `part` of a kernel, what it reads and writes there.

    A dimension of stride 0 (an expanded one) is read once.
    """
    if shares_memory(operator, graph):
        return 0
    call = Call(operator, graph)
    made = [tensor.size(batch) for tensor in operator.outputs if tensor is not None]
    written, read = sum(made), 0
    moved = written if part is None else sum(size for size, goes in zip(made, part.written, strict=True) if goes)
    if call.kind in WRITES_ONLY:
        return moved
    for place, tensor in enumerate(graph.tensor(ref) for _, ref in call.reads()):
        if part is not None and not part.read[place]:
            continue
        once = tensor.size(batch)
        for size, stride in zip(tensor.shape_at(batch), tensor.strides, strict=False):
            once //= max(size, 1) if stride == 0 else 1
        read += min(once, written) if place == 0 and call.kind in ROWS else once
    return read + moved
