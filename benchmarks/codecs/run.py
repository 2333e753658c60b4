"""How fast codecs are on one core: GB/s of gradients encoded and decoded, beside a plain copy of the same numbers.

python benchmarks/codecs/run.py [MILLIONS OF NUMBERS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from math import isqrt
from statistics import median
from typing import Any

import torch

from partita.probes.codecs import trial_of
from partita.wire.codec import SPECS, read_codecs

TURNS = 9


def rate(run: Callable[[], Any], size: int) -> float:
    """GB/s of `size` bytes a call by the thread's own clock: the median of some turns after two warm ones."""
    seconds = []
    for _ in range(TURNS + 2):
        before = time.thread_time()
        run()
        seconds.append(time.thread_time() - before)
    return size / median(seconds[2:]) / 1e9


def main() -> None:
    torch.set_num_threads(1)
    count = isqrt(int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 8_600_000) ** 2
    values, other = torch.randn(count) * 0.01, torch.empty(count)
    copy = rate(lambda: other.copy_(values), 4 * count)
    print(f"{count:,} fp32 numbers, one thread\n")
    print("| codec | size | encode GB/s | decode GB/s | encode / copy | decode / copy |\n|---|---|---|---|---|---|")
    print(f"| plain copy | 1 | {copy:.2f} | {copy:.2f} | 1 | 1 |")
    for name in SPECS:
        coder = trial_of(read_codecs(name)[0], values)
        ahead, back = (rate(run, 4 * count) for run in (coder.encode, coder.decode))
        size = coder.bytes / (4 * count)
        print(
            f"| {name} | {size:.4f} | {ahead:.2f} | {back:.2f} | {ahead / copy:.2f} | {back / copy:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
