"""Copies between layouts around convolutions on tensor cores, whose kernels read and write channels last.

    n c y x ---copy---> n y x c --+
                                  +--> kernel ---> n y x o ---copy---> n o y x
    o c k k ---copy---> o k k c --+

So in cuDNN (its developer guide on tensor layouts; `nchwToNhwcKernel` in profiles). A tensor that lies so already is
not copied, and lanes take either layout: of fp32 the library takes what is faster.
"""

from __future__ import annotations

from partita.graph.contraction import PAIRS
from partita.graph.formula import Call
from partita.graph.graph import Graph
from partita.graph.operator import Operator
from partita.graph.tensor import Tensor
from partita.units import Bytes


def copied(operator: Operator, graph: Graph, batch: int) -> tuple[tuple[Bytes, ...], ...]:
    """Bytes of what is copied for each product of a convolution on `batch` samples, in the order of `contractions_of`:
    of what it reads and makes, the tensors that do not lie with channels last. None of a convolution that has a filter
    a channel, which is no product of tensor cores."""
    call, found = Call(operator, graph), []
    back = "backward" in call.kind
    for first, second, place in PAIRS[call.kind]:
        made = operator.outputs[place]
        if made is not None:
            tensors = (call.tensor(first), call.tensor(second), made)
            found.append(tuple(each.size(batch) for each in tensors if each and not channels_last(each, batch)))
    weight = call.tensor(1 + back)
    alone = weight is not None and weight.shape[1] == 1 and call.argument(8 + back, 1) != 1
    return tuple(() for _ in found) if alone else tuple(found)


def channels_last(tensor: Tensor, batch: int) -> bool:
    """Whether channels lie side by side, as they also do where there is one of them, or one place."""
    channels, *places = tensor.shape_at(batch)[1:]
    return channels == 1 or all(size == 1 for size in places) or (len(tensor.strides) > 1 and tensor.strides[1] == 1)
