"""How fast codecs are on one core: GB/s of gradients encoded and decoded, beside a plain copy of the same numbers.

python benchmarks/codecs/run.py [MILLIONS OF NUMBERS]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from partita.kernels.codecs import KERNELS, kernel_of
from partita.plan.wire import Codec
from partita.wire.codec import coded_size, message_dtype, spec_of

TURNS = 9


def rate(run: Callable[[], object], size: int) -> float:
    """GB/s of `size` bytes a call by the thread's own clock: the median of some turns after two warm ones."""
    seconds = []
    for _ in range(TURNS + 2):
        before = time.thread_time()
        run()
        seconds.append(time.thread_time() - before)
    return size / median(seconds[2:]) / 1e9


def rows(count: int) -> list[tuple[str, float, float, float]]:
    """(codec, bytes a byte, GB/s encoding with feedback, GB/s decoding) of `count` fp32 numbers, a plain copy first."""
    values, other = torch.randn(count) * 0.01, torch.empty(count)
    found = [
        ("plain copy", 1.0, rate(lambda: other.copy_(values), 4 * count), rate(lambda: other.copy_(values), 4 * count))
    ]
    for name in KERNELS:
        codec = Codec(name)
        kernel, varies, left = kernel_of(codec), spec_of(codec).varies, values.clone()
        room = 4 * count if varies else coded_size(codec, count, 4)
        message = torch.zeros(room, dtype=torch.uint8).view(getattr(torch, message_dtype(codec)))

        def encode(kernel=kernel, message=message, left=left) -> int:  # type: ignore[no-untyped-def]
            left.copy_(values)
            return kernel.encode(left, message, 1, back=True)

        used = encode()
        ahead = rate(encode, 4 * count)
        own = message.view(torch.uint8)[:used].view(message.dtype)
        found.append((name, used / (4 * count), ahead, rate(lambda k=kernel, m=own: k.decode(m, other), 4 * count)))
    return found


def main() -> None:
    torch.set_num_threads(1)
    count = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 8_600_000
    table = rows(count)
    copy = table[0][2]
    print(f"{count:,} fp32 numbers, one thread\n")
    print("| codec | size | encode GB/s | decode GB/s | encode / copy | decode / copy |\n|---|---|---|---|---|---|")
    for name, size, ahead, back in table:
        print(f"| {name} | {size:.4f} | {ahead:.2f} | {back:.2f} | {ahead / copy:.2f} | {back / copy:.2f} |")


if __name__ == "__main__":
    main()
