"""What an operator's time depends on: target, literals, the shapes, strides and dtypes of what it reads, and whether
its products are in TF32."""

from __future__ import annotations

from partita.graph.graph import Graph
from partita.graph.operator import Argument, Operator, Ref, Symbol
from partita.graph.precision import TF32, multiplies_in_tf32
from partita.graph.tensor import Tensor


def signature(operator: Operator, graph: Graph) -> str:
    """A text that is equal for operators that cost the same; `graph` has numbers for sizes."""
    parts = [_part(argument, graph) for argument in operator.arguments]
    parts += [f"{key}={_part(value, graph)}" for key, value in operator.keywords]
    return f"{operator.target}({', '.join(parts)})" + f" {TF32}" * multiplies_in_tf32(operator, graph)


def _part(argument: Argument, graph: Graph) -> str:
    if isinstance(argument, Ref):
        return shape_text(graph.tensor(argument))
    if isinstance(argument, Symbol):
        return argument.value or argument.kind
    if isinstance(argument, tuple):
        return "[" + ",".join(_part(part, graph) for part in argument) + "]"
    return repr(argument)


def shape_text(tensor: Tensor) -> str:
    """`float32[16x64/1x16]`: dtype, shape, and strides where they are not the dense ones."""
    shape = "x".join(str(d) for d in tensor.shape)
    strides = "/" + "x".join(str(d) for d in tensor.strides) if tensor.strides else ""
    return f"{tensor.dtype}[{shape}{strides}]"
