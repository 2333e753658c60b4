"""Units: seconds, bytes, bandwidths and FLOPs are parsed where they are given and printed at the end.

Inside, all are plain numbers in SI units. Bits are `bit`, bytes are `B`: `10 Gbit/s` is 1.25e9 bytes a second, `10
GB/s` is 1e10, `10 Gb` is refused as ambiguous. `k M G T P` are powers of 1000, `Ki Mi Gi Ti` of 1024.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

from partita.errors import InputError

Seconds: TypeAlias = float
Bytes: TypeAlias = int
Flops: TypeAlias = float
BytesPerSecond: TypeAlias = float
FlopsPerSecond: TypeAlias = float

SCALE: Final = {
    "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
TIME: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
NUMBER: Final = r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*"
PREFIX: Final = r"(Ki|Mi|Gi|Ti|[kKMGTP]?)"


def _match(text: str, unit: str, what: str, example: str) -> re.Match[str]:
    found = re.fullmatch(NUMBER + unit + r"\s*", text) if isinstance(text, str) else None
    if not found:
        raise InputError(f"{what} {text!r} is not understood; write a number and a unit, such as {example!r}")
    return found


def _finite(value: float, what: str, text: str) -> float:
    if not math.isfinite(value):
        raise InputError(f"{what} {text!r} is beyond any number; give less")
    return value


def parse_seconds(text: str) -> Seconds:
    """`'50 us'` -> 5e-05 s. Raises InputError for anything without a unit of time."""
    found = _match(text, r"(ns|us|µs|μs|ms|s|min|h)", "the time", "50 us")
    return _finite(float(found[1]) * TIME[found[2]], "the time", text)


def parse_bytes(text: str) -> Bytes:
    """`'16 GiB'` -> 17179869184 bytes."""
    found = _match(text, PREFIX + "B", "the size", "16 GiB")
    return round(_finite(float(found[1]) * SCALE[found[2]], "the size", text))


def parse_bandwidth(text: str) -> BytesPerSecond:
    """`'10 Gbit/s'` -> 1.25e9 bytes a second; `'900 GB/s'` -> 9e11."""
    found = _match(text, PREFIX + "(bit/s|B/s)", "the bandwidth", "10 Gbit/s")
    return _finite(float(found[1]) * SCALE[found[2]] / (8 if found[3] == "bit/s" else 1), "the bandwidth", text)


def parse_flops(text: str) -> FlopsPerSecond:
    """`'312 TFLOP/s'` -> 3.12e14 floating-point operations a second."""
    found = _match(text, PREFIX + "FLOP/s", "the speed", "312 TFLOP/s")
    return _finite(float(found[1]) * SCALE[found[2]], "the speed", text)


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    scale, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    shown = value / scale
    return f"{shown:{'.0f' if 999.5 <= abs(shown) < math.inf else '.3g'}} {unit}"


def show_seconds(value: Seconds) -> str:
    """0.0123 -> '12.3 ms'."""
    return _scaled(value, ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def show_duration(value: Seconds) -> str:
    """4000.0 -> '1 h 6 min', as people say how long something goes on; '1 s' at least."""
    seconds = max(round(value), 1)
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def show_bytes(value: float) -> str:
    """17179869184 -> '16 GiB'."""
    return _scaled(value, ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1, "B")))


def show_bandwidth(value: BytesPerSecond) -> str:
    """1.25e8 -> '1 Gbit/s'."""
    return _scaled(value * 8, ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1, "bit/s")))


def show_rate(value: float) -> str:
    """228571.4 samples a second -> '228,571'; 6.4321 -> '6.43'."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def show_flops(value: Flops) -> str:
    """3.12e14 -> '312 TFLOP'."""
    return _scaled(value, ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1, "FLOP")))
