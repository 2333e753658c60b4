"""What holds of every Graph, whoever wrote its file: its tensors have sizes and known types, and the step is whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from partita.graph.graph import TANGENT, Graph
from partita.graph.operator import Ref
from partita.graph.tensor import ITEMSIZE, Tensor
from partita.units import Bytes

LARGEST: Final[Bytes] = 2**60  # of a tensor at the captured batch: sums of many are to stay below 2**63


def check_graph(graph: Graph) -> None:
    """Raises ValueError for a tensor that no machine holds or of no type that is known, and where the graph is no whole
    step, in which every value is made before it is read."""
    for leaf, tensor in graph.leaves.items():
        _check_tensor(tensor, leaf, graph.batch)
    for operator in graph.operators:
        if not operator.outputs:
            raise ValueError(f"{operator.name} makes nothing")
        for output in operator.outputs:
            if output is not None:
                _check_tensor(output, operator.name, graph.batch)
    _check_whole(graph)


def _check_tensor(tensor: Tensor, name: str, batch: int) -> None:
    if tensor.dtype not in ITEMSIZE:
        raise ValueError(f"{name} is of the type {tensor.dtype!r}; allowed are {', '.join(ITEMSIZE)}")
    if tensor.strides and len(tensor.strides) != len(tensor.shape):
        raise ValueError(f"{name} has {len(tensor.shape)} dimensions and {len(tensor.strides)} strides")
    if min(tensor.shape_at(batch), default=0) < 0 or tensor.size(batch) > LARGEST:
        raise ValueError(f"{name} is of {list(tensor.shape_at(batch))} elements, which no machine holds")


def _check_whole(graph: Graph) -> None:
    made: dict[str, tuple[Tensor | None, ...]] = {name: (tensor,) for name, tensor in graph.leaves.items()}
    for operator in graph.operators:
        _check_made(operator.reads(), made, f"{operator.name} reads {{}}, which nothing makes before it")
        made[operator.name] = operator.outputs
    named = (graph.parameters, graph.buffers, graph.constants, graph.inputs, graph.operators)
    if len(made) < sum(map(len, named)):
        raise ValueError("two values have one name")
    _check_made(graph.results(), made, "nothing makes {}")
    if not graph.gradients or TANGENT not in graph.leaves:
        raise ValueError("it has no backward pass")
    if graph.batch < 1 or min(graph.global_batch, graph.samples, graph.clip_norm) < 0:
        raise ValueError(f"a batch of {graph.batch} samples, {graph.global_batch} of {graph.samples}")


def _check_made(refs: Iterable[Ref], made: dict[str, tuple[Tensor | None, ...]], words: str) -> None:
    for ref in refs:
        outputs = made.get(ref.name, ())
        if max(ref.index, 0) >= len(outputs) or outputs[max(ref.index, 0)] is None:
            raise ValueError(words.format(ref.name if ref.name not in made else ref.key))
