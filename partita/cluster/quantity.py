"""Readers and writers of the values in a cluster file. Numbers have units, are read strictly, and written so that they
read back equal. A reader takes a value and the words for its place, and raises ClusterError, which names both."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final

from partita.errors import ClusterError, InputError
from partita.units import parse_bandwidth, parse_bytes, parse_flops, parse_seconds

Number = int | float
Reader = Callable[[Any, str], Any]

AMBIGUOUS: Final = re.compile(r"\s*([0-9.]+)\s*([kKMGTP]i?)b(ps|/s)?\s*")
DTYPES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4", "int8", "int4")
THOUSANDS: Final = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))
BINARY: Final = (("Ki", 2.0**10), ("Mi", 2.0**20), ("Gi", 2.0**30), ("Ti", 2.0**40))
FRACTIONS: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def quantity(parse: Callable[[str], Number], example: str, *, zero: bool = False) -> Reader:
    """A reader of texts such as `example`; refuses bare numbers, `Gb`, what is not finite, and zero unless allowed."""

    def read(value: Any, where: str) -> Number:
        if not isinstance(value, str):
            raise ClusterError(f"{where} is {value!r} without a unit; write it as text, such as {example!r}")
        if found := AMBIGUOUS.fullmatch(value):
            stem, rate = f"{found[1]} {found[2]}", "/s" if example.endswith("/s") else ""
            write = f"{stem}bit/s' or '{stem}B/s" if rate else f"{stem}B"
            raise ClusterError(f"{where} is {value!r}, bits or bytes; write '{write}'")
        if re.match(r"\s*(-|[+]?(nan|inf))", value, re.IGNORECASE):
            least = "zero or more" if zero else "above zero"
            raise ClusterError(f"{where} is {value!r}; give a finite number {least}, such as {example!r}")
        try:
            parsed = parse(value)
        except InputError as error:
            raise ClusterError(f"{where}: {error}") from None
        return checked(parsed, where, value, repr(example), zero=zero)

    return read


def checked(number: Number, where: str, given: Any, example: str, *, zero: bool) -> Number:
    """The number, if it is finite and above zero (or zero, if allowed). Raises ClusterError."""
    if not 0 <= number <= sys.float_info.max or (number == 0 and not zero):
        least = "zero or more" if zero else "above zero"
        raise ClusterError(f"{where} is {given!r}; give a finite number {least}, such as {example}")
    return number


def parse_watts(text: str) -> float:
    """`'700 W'` -> 700.0. Raises InputError for anything else."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(k?)W\s*", text)
    if not found:
        raise InputError(f"the power {text!r} is not understood; write a number and a unit, such as '700 W'")
    return float(found[1]) * (1e3 if found[2] else 1.0)


def number(example: str, *, zero: bool = False) -> Reader:
    """A reader of plain numbers (cores, a factor, money)."""

    def read(value: Any, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ClusterError(f"{where} is {value!r}; give a number, such as {example}")
        return float(checked(value, where, value, example, zero=zero))

    return read


def part(example: str) -> Reader:
    """A reader of fractions from 0 to 1."""

    def read(value: Any, where: str) -> float:
        found: float = number(example, zero=True)(value, where)
        if found > 1:
            raise ClusterError(f"{where} is {value!r}; give a part from 0 to 1, such as {example}")
        return found

    return read


def count(value: Any, where: str) -> int:
    """A reader of whole numbers from 1 to 1000000."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise ClusterError(f"{where} is {value!r}; give a whole number from 1 to 1000000")
    return value


def word(value: Any, where: str) -> str:
    """A reader of texts that are not empty."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ClusterError(f"{where} is {value!r}; give a name between quotes, on one line")
    return value


def text(value: Any, where: str) -> str:
    """A reader of texts."""
    if not isinstance(value, str):
        raise ClusterError(f"{where} is {value!r}; give a text between quotes, '' for none")
    return value


def truth(value: Any, where: str) -> bool:
    """A reader of true and false."""
    if not isinstance(value, bool):
        raise ClusterError(f"{where} is {value!r}; give true or false")
    return value


size: Final = quantity(parse_bytes, "16 GiB")
burst: Final = quantity(parse_bytes, "256 KiB", zero=True)
bandwidth: Final = quantity(parse_bandwidth, "10 Gbit/s")
latency: Final = quantity(parse_seconds, "50 us", zero=True)
speed: Final = quantity(parse_flops, "312 TFLOP/s")
power: Final = quantity(parse_watts, "700 W")


def written(value: Number, units: tuple[tuple[str, float], ...], parse: Callable[[str], Number]) -> str:
    """The shortest text among `units` (name, scale) that `parse` reads back as exactly `value`."""
    tries = [f"{value / scale:.{digits}g} {unit}" for digits in (6, 17) for unit, scale in units]
    exact = [each for each in tries if parse(each) == value]
    return min(exact, key=len) if exact else f"{value!r} {units[0][0]}"


def write_bytes(value: int) -> str:
    """2**34 -> '16 GiB'."""
    return written(value, tuple((p + "B", s) for p, s in (*THOUSANDS, *BINARY)), parse_bytes)


def write_bandwidth(value: float) -> str:
    """1.25e9 bytes a second -> '10 Gbit/s'."""
    bits = tuple((p + "bit/s", s / 8) for p, s in THOUSANDS)
    return written(value, (*bits, *((p + "B/s", s) for p, s in THOUSANDS)), parse_bandwidth)


def write_seconds(value: float) -> str:
    """5e-05 -> '50 us'."""
    return written(value, FRACTIONS, parse_seconds)


def write_flops(value: float) -> str:
    """3.12e14 -> '312 TFLOP/s'."""
    return written(value, tuple((p + "FLOP/s", s) for p, s in THOUSANDS), parse_flops)


def write_watts(value: float) -> str:
    """700.0 -> '700 W'."""
    return f"{value:.17g} W"
