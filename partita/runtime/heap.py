"""Freed memory that stays with the process, and objects that the collector need not visit.

glibc gives memory above 128 kB back to the kernel when it is freed and faults its pages in anew at the next allocation.
A training step frees and allocates the same sizes over and over: a 16 x 16 x 32 x 32 convolution takes 0.8 ms of
computing and 2 ms of page faults, or none, as the heap happens to lie. Kept memory makes steps faster and all alike.

Python's collector visits every object that lives, the whole of torch and the graph among them: 6 ms in every step of a
small model. What is there before the first step stays, so it is set aside.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Final

import torch

from partita.units import Bytes

KEPT: Final = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**40)}
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3


def keep_freed() -> None:
    """The same as starting with `KEPT` in the environment, for a process that somebody else started; nothing where the
    C library is not glibc."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(TRIM_THRESHOLD, 2**31 - 1)
        change(MMAP_THRESHOLD, 2**31 - 1)


def fault_in(size: Bytes) -> None:
    """Have the kernel map `size` bytes of the kept heap now. A page fault takes 0.2 us, or 13 where a host has to find
    the page for a virtual machine first: 2,000 of them made a pass of 10 ms one of 40."""
    torch.ones(size, dtype=torch.uint8)


def set_aside() -> None:
    """Collect what is dead, and leave what lives now out of every later collection."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
