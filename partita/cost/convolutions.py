"""What oneDNN's convolutions (torch 2.13, fp32, x86) take beyond what they make: copies whose channels are in blocks.

forward   |x|w| |o|            x, w and o: such copies of input, weight and output, filled up to whole blocks
                |o|output
data          |o|w| |x|        the gradient of the input from that of the output
                    |x|input
weight  |x|o|                  the gradient of the weight; or sums over unfolded samples

A transposed convolution's forward is a convolution's `data`, its backward has that one's `forward` for data.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Final

from partita.graph.graph import Graph
from partita.graph.operator import Operator, Ref
from partita.graph.tensor import ITEMSIZE, Tensor
from partita.units import Bytes

BACKWARD: Final = "aten.convolution_backward"
CONVOLUTIONS: Final = ("aten.convolution.", BACKWARD)
UNFOLDED_SUMS: Final = 4
NARROWEST: Final = 8  # channels of a block where the input has few
PLAIN: Final = 3  # channels up to which an input is read as it is
SMALL: Final = 20480  # elements of a lone sample below which torch does without oneDNN
MANY: Final = 16  # samples from which on oneDNN has products of matrices, of kernels of one element


def convolution_bytes(graph: Graph, operator: Operator, batch: int, block: int) -> Bytes:
    """Bytes that a convolution, or its backward, takes beyond what it makes on `batch` samples, on a processor whose
    vectors hold so many channels (`block`, 8 or 16)."""
    back = operator.target.startswith(BACKWARD)
    read = [graph.tensor(ref).at(batch) for ref in operator.arguments[: 2 + back] if isinstance(ref, Ref)]
    made, rest = [None if t is None else t.at(batch) for t in operator.outputs], operator.arguments[3 + back :]
    strided, dilated = (any(int(n) > 1 for n in _numbers(rest[k])) for k in (0, 2))
    turned, groups = bool(rest[3]), int(str(rest[5]))
    weight, image = read[-1], read[-2]
    out = read[0] if back else made[0]
    assert out is not None
    if weight.dtype != "float32" or not _by_onednn(image, weight, strided, dilated, groups):
        return 0
    case = _Case(*((out, image) if turned else (image, out)), weight, strided, dilated, groups, block)
    if not back:
        return case.data() if turned else case.forward()
    data = (case.forward() if turned else case.data()) if made[0] is not None else 0
    later = sum(tensor.size() for tensor in made[1:] if tensor is not None)  # is not there yet
    return max(data - later, case.weights())


def _numbers(argument: Any) -> tuple[Any, ...]:
    return tuple(argument) if isinstance(argument, tuple | list) else (argument,)


def _by_onednn(image: Tensor, weight: Tensor, strided: bool, dilated: bool, groups: int) -> bool:
    """Whether torch, in one thread, has oneDNN do it (aten/src/ATen/native/Convolution.cpp, `use_mkldnn`)."""
    samples, kernel = image.shape_at()[0], weight.shape_at()[2:]
    wide = strided or dilated or samples >= MANY or any(k != 1 for k in kernel)
    return wide and (groups > 1 or all(k > PLAIN for k in kernel) or samples > 1 or image.elements() > SMALL)


@dataclass(frozen=True)
class _Case:
    """A convolution from `value` to `out`, or what becomes of one, in blocks of so many channels."""

    value: Tensor
    out: Tensor
    weight: Tensor
    strided: bool
    dilated: bool
    groups: int
    block: int

    @property
    def channels(self) -> int:
        return self.value.shape_at()[1]

    @property
    def parted(self) -> bool:
        """Whether a group has several channels."""
        return 1 < self.groups < self.channels

    @property
    def unfolds(self) -> bool:
        """Whether the weight's gradient is made by products of matrices."""
        weight, value = self.weight.shape_at(), self.value.shape_at()
        beyond = any(kernel > extent for kernel, extent in zip(weight[2:], value[2:], strict=True))
        odd = self.parted and weight[1] % NARROWEST > 0
        narrow = self.block == NARROWEST and (beyond or self.dilated)
        return narrow or (self.groups > 1 and (self.dilated or odd))

    def copied(self, tensor: Tensor, block: int) -> Bytes:
        """Bytes of a copy with whole blocks of channels; groups of channels are not filled up. Of images of one element
        it is the same as the tensor, and none is made."""
        channels = tensor.shape_at()[1]
        if channels % block == 0 and all(extent == 1 for extent in tensor.shape[2:]):
            return 0
        return tensor.size() if self.parted else tensor.size() * -(-channels // block) * block // channels

    def forward(self) -> Bytes:
        """Of the output."""
        x = self.copied(self.value, self.block) if self.channels >= self.block else 0
        o = self.copied(self.out, self.block)
        return max(x + self.weight.size() + o - min(o, self.out.size()), o)

    def data(self) -> Bytes:
        """Of the input's gradient."""
        x, o = self.copied(self.value, self.block), self.copied(self.out, self.block)
        if self.strided and self.groups == 1:
            return max(2 * self.value.size(), o)
        return max(o + self.weight.size() + x - min(x, self.value.size()), x)

    def weights(self) -> Bytes:
        """Of the weight's gradient."""
        if self.unfolds:
            return unfolded_bytes(self.out, self.value, self.weight)
        plain = self.channels <= PLAIN and (self.block > NARROWEST or self.channels > 1)
        block = self.block if plain or self.channels >= self.block else NARROWEST
        x = 0 if plain else self.copied(self.value, block)
        return max(x + self.copied(self.out, block), self.weight.size())


def unfolded_bytes(grown: Tensor, image: Tensor, weight: Tensor) -> Bytes:
    """Bytes in which the gradient of such a `weight` is made from the output's, all of known sizes, by products of
    matrices: the columns of one sample, which are what the kernel meets at each place, and for several samples their
    sums."""
    columns = prod(grown.shape_at()[2:]) * prod(weight.shape_at()[1:]) * ITEMSIZE[weight.dtype]
    return columns + (UNFOLDED_SUMS * weight.size() if image.shape[0] != 1 else 0)
