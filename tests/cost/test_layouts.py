"""Laws of what copying between layouts adds to convolutions on tensor cores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.cluster.cluster import Device
from partita.cluster.text import shipped_device
from partita.cost.datasheet import operator_seconds
from partita.cost.kernels import KERNEL, MEMORY
from partita.cost.layouts import channels_last, copied
from partita.graph.graph import Graph, Parameter
from partita.graph.operator import Operator, Ref
from partita.graph.tensor import Tensor
from tests.small import two_layers

IMAGE, WEIGHT, MADE = (32, 64, 56, 56), (128, 64, 3, 3), (32, 128, 56, 56)
A100, LANES = shipped_device("a100-sxm"), shipped_device("p100-sxm2")
ONE = (1, 1), (1, 1), (1, 1), False, (0, 0)


def tensor(shape: tuple[int, ...], dtype: str, last: bool) -> Tensor:
    _, channels, rows, columns = shape
    strides = (channels * rows * columns, 1, channels * columns, channels)
    return Tensor(shape, dtype, strides if last else ())


def convolved(dtype: str, *, last: bool, back: bool = False, groups: int = 1) -> Graph:
    """A convolution, or its backward, as a graph of that operator alone."""
    weight = (WEIGHT[0], WEIGHT[1] // groups, *WEIGHT[2:])
    image, kernel, made = (tensor(shape, dtype, last) for shape in (IMAGE, weight, MADE))
    x, w, grown = Ref("input.0"), Ref("p"), Ref("input.1")
    forward = Operator("conv", "aten.convolution.default", (x, w, None, *ONE, groups), outputs=(made,))
    arguments = (grown, x, w, None, *ONE, groups, (True, True, False))
    backward = Operator("back", "aten.convolution_backward.default", arguments, outputs=(image, kernel, None))
    return replace(
        two_layers(), inputs=(("input.0", image), ("input.1", made)), parameters=(Parameter("p", kernel),),
        operators=(backward if back else forward,),
    )  # fmt: skip


def seconds(device: Device, graph: Graph, *, laid: bool = False) -> float:
    return operator_seconds(device, graph.operators[0], graph, 1, laid=laid)


@pytest.mark.parametrize(("back", "copies"), [(False, "xwo"), (True, "owxxow")])
def test_tensor_cores_want_channels_last(back: bool, copies: str) -> None:
    """What each product reads and makes is read and written once more, by a kernel each. An RTX 3090 took so much
    longer for ResNet-18, -34 and -50 as they lie (timm's tables of both layouts, 512 images in half precision)."""
    plain, last = convolved("float16", last=False, back=back), convolved("float16", last=True, back=back)
    sizes = {
        name: tensor(shape, "float16", False).size() for name, shape in zip("xwo", (IMAGE, WEIGHT, MADE), strict=True)
    }
    moved = 2 * sum(sizes[name] for name in copies)
    more = seconds(A100, plain) - seconds(A100, last)
    assert more == pytest.approx(moved / (MEMORY * A100.memory_bandwidth) + len(copies) * KERNEL)
    assert seconds(A100, plain, laid=True) == seconds(A100, last)


def test_lanes_take_either_layout() -> None:
    """Where there are no tensor cores, or each channel has a filter of its own."""
    assert seconds(LANES, convolved("float32", last=False)) == seconds(LANES, convolved("float32", last=True))
    alone = convolved("float16", last=False, groups=64)
    assert copied(alone.operators[0], alone, 1) == ((),)
    some = convolved("float16", last=False, groups=32)
    assert len(copied(some.operators[0], some, 1)[0]) == 3


def test_in_fp32_the_faster_of_cores_and_lanes_is_taken() -> None:
    """Cores of an A100 are eight times as fast as its lanes and worth the copies; those of an RTX 3090 are not."""
    plain, last = convolved("float32", last=False), convolved("float32", last=True)
    card = shipped_device("rtx3090")
    lanes = replace(card, flops=tuple(pair for pair in card.flops if pair[0] != "tf32"))
    assert seconds(A100, last) < seconds(A100, plain) < seconds(replace(A100, flops=(("fp32", 19.5e12),)), plain)
    assert seconds(card, plain) == seconds(lanes, plain)


@pytest.mark.parametrize(
    ("one", "last"),
    [
        (Tensor((8, 4, 3, 3), "float16"), False),
        (Tensor((8, 4, 3, 3), "float16", (36, 1, 12, 4)), True),
        (Tensor((8, 1, 3, 3), "float16"), True),
        (Tensor((8, 4, 1, 1), "float16"), True),
        (Tensor((8, 4, 3), "float16"), False),
        (Tensor((8, 4), "float16"), True),
    ],
)
def test_channels_lie_last_by_their_stride_or_where_there_is_no_other_way(one: Tensor, last: bool) -> None:
    assert channels_last(one, 1) == last
