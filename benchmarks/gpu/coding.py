"""How fast codecs are on a card: GB/s of what each has to move, beside a copy's on the card.

A copy moves 8 bytes for a number, one read and one write. An encoding reads all numbers as often as it must (twice
where they have a scale or are counted first), writes the message and, with error feedback, adds the gradient to what
was held back (12 bytes) and writes what is left; a decoding reads the message, and reads and writes what it adds to: of
numbers here and there a sector of 32 bytes each, as long as these are fewer than all there are. Calls follow one
another as in a step, where the card has work while the next is launched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isqrt
from statistics import median
from typing import Any, Final

import torch

from partita.kernels.cards import ANYWHERE, pair_of
from partita.probes.codecs import trial_of
from partita.wire.codec import read_codecs, settings_of, spec_of

BAR: Final = 0.6
COUNT: Final = isqrt(2**26) ** 2
TURNS: Final = 9
CALLS: Final = 10  # of a turn
SECTOR: Final = 32  # bytes that a card reads or writes at least
READS: Final = {"fp16": 1, "bf16": 1, "truncate": 1, "powersgd": 3}  # else twice


@dataclass(frozen=True, slots=True)
class Speed:
    """GB/s of what has to be moved, a message's bytes, and whether it goes by way of the host."""

    encode: float
    decode: float
    bytes: int
    staged: bool


def rate(run: Callable[[], Any], size: float, turns: int = TURNS, calls: int = CALLS) -> float:
    """GB/s of `size` bytes a call on the current card: the median of some turns after two warm ones."""
    seconds: list[float] = []
    for _ in range(turns + 2):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begun.record()
        for _ in range(calls):
            run()
        ended.record()
        torch.cuda.synchronize()
        seconds.append(begun.elapsed_time(ended) / 1e3 / calls)
    return size / median(seconds[2:]) / 1e9


def copying() -> float:
    """A copy's GB/s, read and written."""
    values = torch.randn(COUNT, device="cuda")
    other = torch.empty_like(values)
    return rate(lambda: other.copy_(values), 8 * COUNT)


def speed_of(name: str) -> Speed:
    """A codec at work on one gradient, as a step has it."""
    (codec,) = read_codecs(name)
    values, spec = torch.randn(COUNT, device="cuda") * 0.01, spec_of(codec)
    coder = trial_of(codec, values)
    passes = READS.get(name, 2) + (3 + (not spec.sparse) if spec.feedback else 0)
    chosen = coder.bytes // (8 if "ratio" in settings_of(codec) else 4) if spec.sparse else COUNT
    touched = min(2 * SECTOR * chosen, 8 * COUNT)
    staged = name not in ANYWHERE and pair_of(name, values) is None
    often = {"turns": 1, "calls": 1} if staged else {}
    return Speed(
        rate(coder.encode, 4 * passes * COUNT + coder.bytes, **often),
        rate(coder.decode, touched + coder.bytes, **often),
        coder.bytes,
        staged,
    )
