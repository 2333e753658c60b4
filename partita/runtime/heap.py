"""Freed memory that stays with the process, and objects that the collector need not visit.

glibc gives memory above 128 kB back to the kernel when it is freed and faults its pages in anew at the next allocation.
A training step frees and allocates the same sizes over and over: a 16 x 16 x 32 x 32 convolution takes 0.8 ms of
computing and 2 ms of page faults, or none, as the heap happens to lie. Kept memory makes steps faster and all alike.
It also has holes: blocks of other sizes do not fill them, and a process came to 1.2 to 1.6 times what lived in it. So
where a limit that kills leaves no room for that, large blocks go back to the kernel when they are freed, and what a
process takes is what lives.

Python's collector visits every object that lives, the whole of torch and the graph among them: 6 ms in every step of a
small model. What is there before the first step stays, so it is set aside.
"""

from __future__ import annotations

import ctypes
import gc
from math import inf
from pathlib import Path
from typing import Final

import psutil
import torch

from partita.units import Bytes

KEPT: Final = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**40)}
SMALL: Final = 2**17  # bytes below which a freed block stays in any case, as glibc has it by itself
HOLES: Final = 2  # times what lives that a kept heap may come to
UNLIMITED: Final = 2**60  # version 1 has a number for no limit
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3


def keep_freed() -> None:
    """The same as starting with `KEPT` in the environment, for a process that somebody else started; nothing where the
    C library is not glibc."""
    _set(2**31 - 1)


def make_room(live: Bytes) -> None:
    """Keep what is freed if this process may take as much as it has now and a heap in which `live` bytes live at once,
    with holes; or else give it back, what is free now as well."""
    if psutil.Process().memory_info().rss + HOLES * live <= limit():
        keep_freed()
    elif _set(SMALL):
        ctypes.CDLL(None).malloc_trim(0)


def limit(proc: Path = Path("/proc/self"), mount: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that this process's control group may take, by either version of the kernel's interface; inf for any."""
    table = proc / "cgroup"
    for line in table.read_text().splitlines() if table.exists() else ():
        _, kinds, path = line.split(":", 2)
        groups = {"memory": mount / "memory" / f".{path}/memory.limit_in_bytes", "": mount / f".{path}/memory.max"}
        file = groups.get("memory" if "memory" in kinds.split(",") else kinds)
        if file is not None and file.is_file():
            found = float(file.read_text().replace("max", "inf"))
            return found if found < UNLIMITED else inf
    return inf


def _set(threshold: Bytes) -> bool:
    """From which size on freed blocks go back to the kernel; False where the C library is not glibc."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    return change is not None and bool(change(TRIM_THRESHOLD, threshold) and change(MMAP_THRESHOLD, threshold))


def fault_in(size: Bytes) -> None:
    """Have the kernel map `size` bytes of the kept heap now. A page fault takes 0.2 us, or 13 where a host has to find
    the page for a virtual machine first: 2,000 of them made a pass of 10 ms one of 40."""
    torch.ones(size, dtype=torch.uint8)


def set_aside() -> None:
    """Collect what is dead, and leave what lives now out of every later collection."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
