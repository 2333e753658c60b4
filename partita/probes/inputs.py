"""Made-up inputs for operators: right shapes, strides and dtypes, plausible content."""

from __future__ import annotations

from typing import Final

import torch

from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref
from partita.graph.repeats import DROPPING_BACKWARD
from partita.graph.tensor import dim_at
from partita.runtime.device import CPU

STATE: Final = 7  # argument of an attention's backward pass: where a generator stood
BAG: Final = "aten._embedding_bag."


UNIT: Final = ("aten.binary_cross_entropy.", "aten.bernoulli", "aten.normal", "aten.log", "aten.sqrt", "aten.rsqrt")


def made(ref: Ref, operator: Operator, graph: Graph, device: str = "cpu", *, tame: bool = False) -> torch.Tensor:
    """A value that an operator reads, with plausible content: normal floats (of 0 to 1 where others make no sense),
    indices within range, half of the bools true. `tame`, what hardly any operator refuses: floats of 0 to 1, else 0."""
    tensor = graph.tensor(ref)
    shape = tensor.shape_at()
    dtype = getattr(torch, tensor.dtype)
    if operator.target == DROPPING_BACKWARD and ref == operator.arguments[STATE]:
        device = CPU  # waiting for a copy from the card would be timed
    if dtype.is_floating_point and (tame or operator.target.startswith(UNIT)):
        value = torch.rand(shape, device=device).to(dtype)
    elif dtype.is_floating_point or dtype.is_complex:
        value = torch.randn(shape, device=device).to(dtype)
    elif tame:
        value = torch.zeros(shape, dtype=dtype, device=device)
    elif dtype is torch.bool:
        value = torch.rand(shape, device=device) < 0.5
    elif "grouped_mm" in operator.target:  # where the rows of each expert end
        rows = graph.tensor(operator.arguments[0]).shape[0]  # type: ignore[arg-type]
        value = torch.arange(1, shape[0] + 1, device=device).mul(dim_at(rows, 1)).div(shape[0]).to(dtype)
    elif operator.target.startswith(BAG) and operator.arguments[2] == ref:  # where each bag begins
        indices = graph.tensor(operator.arguments[1]).shape[0]  # type: ignore[arg-type]
        value = torch.arange(shape[0], device=device).mul(dim_at(indices, 1)).div(max(shape[0], 1)).to(dtype)
    else:
        value = torch.randint(0, max(_range(operator, graph), 1), shape, device=device).to(dtype)
    if not tensor.strides:
        return value
    strides = tensor.strides_at()
    laid = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return (
        laid.copy_(value)
        if 0 not in strides or not shape
        else value[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)].expand(shape)
    )


def _range(operator: Operator, graph: Graph) -> int:
    """How many values the indices of an operator may take: two are enough, unless a dimension of its first tensor is
    shorter."""
    if operator.target.startswith("aten.embedding_dense_backward"):
        return int(operator.arguments[2])  # type: ignore[arg-type]
    if operator.target.startswith(("aten.embedding", BAG)):
        first = operator.arguments[0]
        return int(graph.tensor(first).shape[0]) if isinstance(first, Ref) else 1  # type: ignore[arg-type]
    first = next(operator.reads(), None)
    return min([2, *graph.tensor(first).shape_at()]) if first else 2
