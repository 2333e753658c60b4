"""Quantities are read as they are written, and what is printed reads as what it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partita.errors import InputError
from partita.units import (
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_seconds,
    show_bandwidth,
    show_bytes,
    show_duration,
    show_flops,
    show_rate,
    show_seconds,
)

READ: list[tuple[Callable[[str], float], str, float]] = [
    (parse_seconds, "3 ns", 3e-9), (parse_seconds, "50 us", 5e-5), (parse_seconds, "50 µs", 5e-5),
    (parse_seconds, "2.5ms", 2.5e-3), (parse_seconds, " .5 s ", 0.5), (parse_seconds, "3 min", 180.0),
    (parse_seconds, "2 h", 7200.0), (parse_seconds, "1e-3 s", 1e-3),
    (parse_bytes, "7 B", 7), (parse_bytes, "7 kB", 7_000), (parse_bytes, "7 KB", 7_000), (parse_bytes, "7 MB", 7e6),
    (parse_bytes, "7 GB", 7e9), (parse_bytes, "7 TB", 7e12), (parse_bytes, "7 PB", 7e15), (parse_bytes, "7 KiB", 7168),
    (parse_bytes, "7 MiB", 7 << 20), (parse_bytes, "7 GiB", 7 << 30), (parse_bytes, "7 TiB", 7 << 40),
    (parse_bytes, "0.5 KiB", 512),
    (parse_bandwidth, "8 bit/s", 1.0), (parse_bandwidth, "10 Gbit/s", 1.25e9), (parse_bandwidth, "10 GB/s", 1e10),
    (parse_bandwidth, "1 Mbit/s", 125e3), (parse_bandwidth, "2 KiB/s", 2048.0), (parse_bandwidth, "3 B/s", 3.0),
    (parse_flops, "312 TFLOP/s", 3.12e14), (parse_flops, "2 PFLOP/s", 2e15), (parse_flops, "5 FLOP/s", 5.0),
]  # fmt: skip
SHOWN: list[tuple[Callable[[float], str], float, str]] = [
    (show_seconds, 7200.0, "2 h"), (show_seconds, 90.0, "1.5 min"), (show_seconds, 60.0, "1 min"),
    (show_seconds, 59.0, "59 s"), (show_seconds, 1.0, "1 s"), (show_seconds, 0.0123, "12.3 ms"),
    (show_seconds, 4.56e-5, "45.6 us"), (show_seconds, 2e-9, "2 ns"), (show_seconds, 0.0, "0 ns"),
    (show_seconds, -0.5, "-500 ms"), (show_seconds, 7.2e6, "2000 h"), (show_seconds, float("inf"), "inf h"),
    (show_duration, 0.2, "1 s"), (show_duration, 59.6, "1 min 0 s"), (show_duration, 3999.7, "1 h 6 min"),
    (show_duration, 90000.0, "1 d 1 h"),
    (show_bytes, 17179869184, "16 GiB"), (show_bytes, 2.0**40, "1 TiB"), (show_bytes, 1.5 * 2**20, "1.5 MiB"),
    (show_bytes, 1024, "1 KiB"), (show_bytes, 1023, "1023 B"), (show_bytes, 1000 * 2**10, "1000 KiB"),
    (show_bandwidth, 1.25e8, "1 Gbit/s"), (show_bandwidth, 1.25e11, "1 Tbit/s"), (show_bandwidth, 125e3, "1 Mbit/s"),
    (show_bandwidth, 125, "1 kbit/s"), (show_bandwidth, 1, "8 bit/s"),
    (show_flops, 3.12e14, "312 TFLOP"), (show_flops, 2e15, "2 PFLOP"), (show_flops, 5e9, "5 GFLOP"),
    (show_flops, 5e6, "5 MFLOP"), (show_flops, 5, "5 FLOP"),
    (show_rate, 228571.4, "228,571"), (show_rate, 6.4321, "6.43"), (show_rate, 100.0, "100"),
    (show_rate, 99.94, "99.9"),
]  # fmt: skip


@pytest.mark.parametrize(("parse", "text", "value"), READ, ids=[text for _, text, _ in READ])
def test_a_quantity_is_read_in_si(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-15)
    assert type(parse(text)) is (int if parse is parse_bytes else float)


@pytest.mark.parametrize(("show", "value", "text"), SHOWN, ids=[text for *_, text in SHOWN])
def test_a_quantity_is_printed_in_three_digits(show: Callable[[float], str], value: float, text: str) -> None:
    assert show(value) == text


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_seconds, "50"), (parse_seconds, "50 m"), (parse_seconds, "-1 s"), (parse_seconds, "1 s 2"),
        (parse_bytes, "10 Gb"), (parse_bytes, "10 GiBit"), (parse_bytes, "B"), (parse_bytes, "1 PiB"),
        (parse_bandwidth, "10 Gb/s"), (parse_bandwidth, "10 GB"), (parse_bandwidth, "10 Gbit"),
        (parse_flops, "3 FLOPS"), (parse_flops, "3 TFLOP"),
    ],
)  # fmt: skip
def test_what_is_no_quantity_of_the_kind_is_refused(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(InputError, match=r"is not understood; write a number and a unit, such as '\d"):
        parse(text)


@pytest.mark.parametrize("parse", [parse_seconds, parse_bytes, parse_bandwidth, parse_flops])
def test_what_no_number_holds_is_refused(parse: Callable[[str], float]) -> None:
    unit = {parse_seconds: "h", parse_bytes: "PB", parse_bandwidth: "PB/s", parse_flops: "PFLOP/s"}[parse]
    with pytest.raises(InputError, match="beyond any number; give less"):
        parse(f"1e308 {unit}")
