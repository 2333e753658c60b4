"""Seconds of 3 x 3 convolutions by minimal filtering, F(4 x 4, 3 x 3) of Winograd (Lavin & Gray 2016, arXiv 1509.09308,
section 4), which libraries choose in fp32 where it is faster.

    image  n i y x --- tiles of 6 x 6 ---> 36 x [tiles, i] --+
                                                             +--> 36 x [tiles, o] ---> n o y x, 4 x 4 of each tile
    weight o i 3 3 ----------------------> 36 x [i, o] ------+

36 multiplications take the place of 16 x 9, but what is between the arrows goes through memory. Backward passes are the
same products the other way around.
"""

from __future__ import annotations

from math import ceil, inf, prod
from typing import Final

from partita.cluster.cluster import Device
from partita.cost.kernels import multiplying, streaming
from partita.graph.contraction import Contraction
from partita.graph.formula import Call
from partita.graph.graph import Graph
from partita.graph.operator import Operator
from partita.graph.precision import TF32
from partita.units import Seconds

WINDOW: Final = (3, 3)
MADE: Final = 4  # rows and columns of a tile's result
POINTS: Final = 36  # numbers of a tile, each a product of its own
OVERHEAD: Final = 1.5  # of these kernels over their products and memory: fitted on convolutions of V100 and A100


def minimal_filtering(device: Device, operator: Operator, graph: Graph, batch: int) -> Seconds:
    """Seconds of one of the convolution's products, which all take alike; inf where it is another convolution, or where
    the device computes it on tensor cores."""
    call, back = Call(operator, graph), "backward" in operator.target
    made = next((tensor for tensor in operator.outputs if tensor), None)
    image, weight = call.tensor(int(back)), call.tensor(1 + back)
    if image is None or weight is None or made is None or made.dtype != "float32" or dict(device.flops).get(TF32):
        return inf
    stride, padding, dilation, transposed, _, groups = (call.integers(place + back) for place in range(3, 9))
    if weight.shape[2:] != WINDOW or {*stride, *dilation, *groups} != {1} or any(transposed):
        return inf
    samples, read, rows, columns = image.shape_at(batch)
    return filtering(
        device, samples, read, weight.shape_at(batch)[0], rows + 2 * padding[0] - 2, columns + 2 * padding[-1] - 2
    )


def filtering(device: Device, samples: int, read: int, written: int, rows: int, columns: int) -> Seconds:
    """Of images with so many `rows` and `columns` as the result has, `read` and `written` channels, in fp32."""
    tiles = samples * ceil(rows / MADE) * ceil(columns / MADE)
    moved = samples * rows * columns * (read + written) + read * written * prod(WINDOW)
    moved += POINTS * (tiles * (read + written) + read * written)
    products = multiplying(device, Contraction(1.0, POINTS, tiles, written, read), "float32", 4)
    return OVERHEAD * (products + streaming(device, 4 * moved))
