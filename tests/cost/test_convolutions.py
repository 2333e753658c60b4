"""What convolutions take for themselves is what torch's allocator says, whatever their channels, strides and groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from partita.cost.scratch import Processor, working_bytes
from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref
from partita.graph.tensor import Tensor
from partita.lab.processor import processor_here
from tests.cost.allocated import taken_by

# samples, channels in and out, extent, kernel, stride, padding, dilation, groups
PLAIN = [
    (16, 16, 10, 32, 3, 1, 1, 1, 1), (16, 10, 16, 32, 3, 1, 0, 1, 1), (16, 24, 40, 32, 3, 1, 1, 1, 1),
    (16, 3, 32, 32, 3, 1, 1, 1, 1), (16, 4, 8, 32, 3, 1, 1, 1, 1), (16, 6, 16, 32, 5, 1, 0, 1, 1),
    (16, 64, 64, 28, 3, 1, 1, 1, 1), (4, 256, 256, 7, 3, 1, 1, 1, 1),
]  # fmt: skip
STRIDED = [
    (16, 16, 10, 64, 3, 2, 0, 1, 1), (16, 24, 48, 32, 3, 2, 1, 1, 1), (16, 64, 128, 28, 1, 2, 0, 1, 1),
    (16, 30, 30, 32, 4, 2, 1, 1, 1),
]  # fmt: skip
GROUPED = [
    (16, 32, 32, 32, 3, 1, 1, 1, 4), (16, 32, 32, 32, 3, 2, 1, 1, 32), (16, 24, 24, 32, 3, 1, 1, 1, 6),
    (16, 32, 32, 32, 3, 1, 2, 2, 4), (16, 32, 32, 32, 3, 1, 2, 2, 1), (16, 32, 32, 32, 3, 1, 2, 2, 32),
]  # fmt: skip
ONES = [(16, 64, 128, 28, 1, 1, 0, 1, 1), (8, 128, 128, 28, 1, 1, 0, 1, 1), (1, 64, 64, 28, 3, 1, 1, 1, 1)]
Shape = tuple[int, int, int, int, int, int, int, int, int]


def cases(shape: Shape, turned: bool) -> Iterator[tuple[str, list[torch.Tensor], list[torch.Tensor | None], list[Any]]]:
    """(operator, the tensors that it reads, those that it makes, what else it is told) of the convolution, of its
    backward, and of its backward without the input's gradient."""
    samples, channels, made, extent, kernel, stride, padding, dilation, groups = shape
    image = torch.randn(samples, channels, extent, extent)
    weight = torch.randn(*((channels, made) if turned else (made, channels // groups)), kernel, kernel)
    how: list[Any] = [[stride] * 2, [padding] * 2, [dilation] * 2, turned, [0, 0], groups]
    out = torch.ops.aten.convolution(image, weight, None, *how)
    back = "convolution_backward", [torch.randn_like(out), image, weight]
    yield "convolution", [image, weight], [out], [None, *how]
    yield *back, [image, weight], [[made], *how, [True, True, False]]
    yield *back, [None, weight], [[made], *how, [False, True, False]]


def alone(name: str, read: list[torch.Tensor], made: list[torch.Tensor | None], told: list[Any]) -> Graph:
    """A graph of one operator."""
    target, inputs = f"aten.{name}.default", [(f"input.{k}", _spec(tensor)) for k, tensor in enumerate(read)]
    outputs = tuple(None if tensor is None else _spec(tensor) for tensor in made)
    operator = Operator(name, target, (*(Ref(each) for each, _ in inputs), *told), outputs=outputs)
    return Graph("alone", 1, (operator,), (), (), (), tuple(inputs), Ref(name), None, ())


def _spec(tensor: torch.Tensor) -> Tensor:
    return Tensor(tuple(tensor.shape), "float32")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("turned", [False, True], ids=["plain", "transposed"])
@pytest.mark.parametrize("shape", [*PLAIN, *STRIDED, *GROUPED, *ONES])
def test_copies_in_blocks_of_channels(shape: Shape, turned: bool) -> None:
    if turned and shape not in (*PLAIN, *STRIDED):
        return
    for name, read, made, told in cases(shape, turned):
        graph = alone(name, read, made, told)
        said = working_bytes(graph, graph.operators[0], 1, processor_here())
        taken = taken_by(getattr(torch.ops.aten, name).default, [*read, *told])
        assert said == pytest.approx(taken, rel=0.12, abs=2**17), (name, made[0] is None)


def test_a_card_takes_no_copies() -> None:
    graph = alone(*next(cases(PLAIN[0], False)))
    assert working_bytes(graph, graph.operators[0], 1, Processor.CARD) == 0
