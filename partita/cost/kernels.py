"""Seconds of kernels on an accelerator, from its data sheet and what slows all of them down alike.

    rows                a product is cut into tiles, a multiprocessor makes one at a time, and all of them a wave:
    +----+----+--..     the last wave is as long as a full one, a tile at the edge as a whole one, and each begins
    |tile|    |         and ends with a wait. Where there are fewer tiles than multiprocessors, their depth is split
    +----+----+         among several and summed at the end. A tile is fed from the second-level cache.

How fast a multiprocessor multiplies is what its device says that it sustains, or a part of the peak. Constants are of
all devices together, fitted on public tables of fp32 products of V100 and A100 (NeuSight's), tested on P100's, on
convolutions and on whole steps, those of half precision on the best products that were published of seven parts
(`benchmarks/truth`); sizes in elements, speeds in bytes and FLOP a second.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import Final, TypeAlias

from partita.cluster.cluster import Device
from partita.graph.contraction import Contraction
from partita.graph.precision import TF32
from partita.graph.tensor import PRECISION_OF
from partita.units import BytesPerSecond, Seconds

ISSUE: Final = 0.86  # of the peak that the inner loop of a product reaches: clocks sag, and not only products issue
WIDE: Final = 0.7  # of that of fp32 where 128 lanes share what feeds them with integers: six parts, 0.62 to 0.77
HALF: Final = 0.845  # of a half precision's peak, at 1 TFLOP/s a watt: the best products of seven parts of NVIDIA's
SAG: Final = (
    0.107  # power by which that falls with TFLOP/s a watt: the more a part computes by a watt, the lower its clock
)
LASTING: Final = 0.87  # of that in steps of hours: of transformers of 1 to 30 billion parameters on A100, as published
SHORT: Final = ("bfloat16", "float16")
CORES: Final = (TF32, "bf16", "fp16")  # formats of tensor cores, which draw alike at a tick: their clock sags alike
TENSOR: Final = 16.0  # times as fast as in fp32 are products in half precision (A100 16, H100 15, V100 8)
MEMORY: Final = 0.75  # of the memory's bandwidth that a kernel gets who reads and writes it once (ReLU on V100: 0.74)
CACHE: Final = 3.0  # bandwidth of the second-level cache over the memory's (fits of parts of the table: 2.6 to 3.6)
RAMP: Final[Seconds] = 1.3e-6  # before a tile's first operands have come and after its last product
KERNEL: Final[Seconds] = 4e-6  # between two kernels of a stream, whatever they do
STEP: Final[Seconds] = 25e-6  # of a recurrent layer beyond its product: kernels, and the wait of each for the last
Tiles: TypeAlias = tuple[tuple[int, int], ...]
TILES: Final = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
NARROW: Final = (*TILES, (256, 32), (128, 32), (32, 256), (32, 128))  # of convolutions, whose channels may be few
DEEP: Final = 256  # least depth of a part where a product's depth is split
TRIED: Final = 8  # splits that are tried also where all multiprocessors have a tile, for the sake of the last wave
EXPONENTIALS: Final = 16  # that a multiprocessor computes at each tick, of whatever generation
LANES: Final = (64, 128)  # of fp32 that one has
CLOCK: Final = 3e9  # ticks a second, more than any has
LINE: Final = 16  # bytes of a row that a tensor core takes at once
ASSUMED: Final = 100  # multiprocessors of a device that does not say
PEAK: Final = 50e9  # FLOP/s of one that does not: assumed, a processor's core with short vectors
BANDWIDTH: Final[BytesPerSecond] = 10e9  # of the memory of a processor that does not: assumed, what such a core draws
# Bytes of memory for a FLOP of an accelerator that states one of the two: the medians of cluster/devices.toml, of half
# precision (0.0024 to 0.013 of 30 parts), or, where a sheet names none, of fp32 (0.03 to 0.08 of 6).
BALANCE: Final = 0.005
BARE: Final = 0.056
UNSTATED: Final[BytesPerSecond] = 900e9  # of the memory of one that states neither: the median of these 36 parts


def format_of(device: Device, dtype: str, *, tf32: bool) -> str:
    """The format in which a device multiplies numbers of a dtype: of fp32 in TF32 where that may be and there is that,
    and what the data sheet does not name in fp32."""
    flops, name = dict(device.flops), PRECISION_OF.get(dtype, "fp32")
    if tf32 and name == "fp32" and TF32 in flops:
        return TF32
    return name if name in flops else "fp32"


def peak_of(device: Device, dtype: str, *, tf32: bool = False) -> float:
    """FLOP/s of products in a dtype by the data sheet; fp32, where it names half precision alone, at a part of that; an
    accelerator whose sheet names none has as many as others for what its memory gives."""
    flops = dict(device.flops)
    if not flops and device.backend == "cuda":
        return bandwidth_of(device) / (BALANCE if dtype in SHORT else BARE)
    known = flops.get(format_of(device, dtype, tf32=tf32))
    short = max(flops.get("bf16", 0.0), flops.get("fp16", 0.0))
    if known or not short:
        return known or max(flops.values(), default=PEAK)
    return short if dtype in SHORT else short / TENSOR


def bandwidth_of(device: Device) -> BytesPerSecond:
    """Bytes a second of a device's memory; where its sheet does not say, what cores draw, or as much for what it
    computes as other accelerators have, or as much as they have."""
    flops = dict(device.flops)
    if device.memory_bandwidth or device.backend != "cuda":
        return device.memory_bandwidth or BANDWIDTH
    if not flops:
        return UNSTATED
    short = max(flops.get("bf16", 0.0), flops.get("fp16", 0.0))
    return BALANCE * short if short else BARE * peak_of(device, "float32")


def rate_of(device: Device, dtype: str, *, tf32: bool = False) -> float:
    """FLOP/s that the inner loop of the best product reaches in a dtype: what it sustains, or a part of the peak."""
    name = format_of(device, dtype, tf32=tf32)
    return dict(device.sustained).get(name) or issue_of(device, name) * peak_of(device, dtype, tf32=tf32)


def issue_of(device: Device, name: str) -> float:
    """The part of the peak that the inner loop of the best product reaches in a format: on tensor cores by the device's
    power and its peak in half precision, in fp32 by its lanes. Parts that have bf16 and 128 of them have operands for
    fewer."""
    if name in CORES:
        short = peak_of(device, "float16") if name == "fp16" else peak_of(device, "bfloat16")
        return min(ISSUE, HALF * float((short / 1e12 / device.power) ** -SAG)) if device.power else ISSUE
    return WIDE if "bf16" in dict(device.flops) and lanes_of(device) == max(LANES) else ISSUE


def streaming(device: Device, moved: float, work: float = 0.0) -> Seconds:
    """Of a kernel that moves so many bytes and computes `work` on what passes by."""
    return max(moved / (MEMORY * bandwidth_of(device)), work / (ISSUE * peak_of(device, "float32")))


def exponentials(device: Device, count: float) -> Seconds:
    """Of so many exponentials, by units of their own that every multiprocessor has as many of."""
    return count * 2 * lanes_of(device) / (EXPONENTIALS * peak_of(device, "float32"))


def lanes_of(device: Device) -> int:
    """Lanes of fp32 of a multiprocessor, each a multiply-add at a tick: as many as leave it a clock that there is."""
    many, peak = device.multiprocessors or ASSUMED, peak_of(device, "float32")
    return LANES[0] if peak / (2 * LANES[0] * many) < CLOCK else LANES[1]


def multiplying(
    device: Device, product: Contraction, dtype: str, item: int, *, convolution: bool = False, tf32: bool = False
) -> Seconds:  # fmt: skip
    """Of the tiles of a product, of operands of `item` bytes that have come into the cache already. Where it may be in
    TF32 it is, if there is that; a convolution may as PyTorch has it."""
    many, tf32 = device.multiprocessors or ASSUMED, tf32 or convolution
    cores = format_of(device, dtype, tf32=tf32) in CORES
    peak = rate_of(device, dtype, tf32=tf32) * (LASTING if cores else 1.0)
    feed = CACHE * bandwidth_of(device)
    shape = product.parts, product.rows, product.columns, product.depth
    tiles = NARROW if convolution else TILES
    return product.times * _waves(tiles, peak / many, feed / many, many, item, *shape)


def recurring(device: Device, product: Contraction, dtype: str, item: int) -> Seconds:
    """Of a product in a recurrent layer: one of several `times` is a step, which waits for the one before and reads all
    weights anew. In DeepBench's tables layers of 256 features take 25 to 30 us a step on V100, P100 and 1080 Ti alike,
    those of 4,096 in half precision on V100 what reading their weights takes."""
    took = multiplying(device, product, dtype, item, tf32=True)
    if product.times == 1:
        return took
    weights = streaming(device, item * product.columns * product.depth)
    return product.times * (max(took / product.times, weights) + STEP)


@lru_cache(maxsize=4096)
def _waves(
    shapes: Tiles, peak: float, feed: float, many: int, item: int, parts: int, rows: int, columns: int, depth: int
) -> Seconds:  # fmt: skip
    """The fastest of all `shapes` of tiles and splits; `peak` and `feed` are of one of `many` multiprocessors."""
    least = float("inf")
    deep = -(-depth * item // LINE) * LINE // item
    for high, wide in shapes:
        tiles, split = parts * ceil(rows / high) * ceil(columns / wide), 1
        each = max(2 * high * wide / peak, (high + wide) * item / feed)
        while True:
            took = ceil(tiles * split / many) * (RAMP + each * max(ceil(deep / split), min(deep, DEEP)))
            added = (split + 1) * 4 * parts * rows * columns / (feed * many) if split > 1 else 0.0
            least = min(least, took + added)
            if (split >= TRIED and tiles * split >= many) or split * DEEP >= deep:
                break
            split *= 2
    return least
