"""Keeps freed memory within the process, and long-lived objects out of Python's garbage collection.

glibc returns freed blocks above 128 kB to the kernel, and the next allocation faults their pages in again. A training
step allocates the same sizes over and over: a 16 x 16 x 32 x 32 convolution takes 0.8 ms of computing and, depending on
the state of the heap, up to 2 ms of page faults. Kept memory makes steps faster and more uniform.

The kept heap lies in huge pages, where the kernel gives them to who asks (`/sys/kernel/mm/transparent_hugepage`). What
was not touched for a while takes a walk through page tables that no cache has any more, or on a busy host even a fault
of the virtual machine's, page by page: half a second after the last touch 16 MB of optimizer state took twelve times as
long. In huge pages steps of a 5-million-weight model take 0.9 of the core-seconds, and first microbatches, updates
and copies come closer to what they take by themselves. glibc asks for them only if its environment says so at the
start.

All threads share one heap. By themselves glibc's threads keep heaps of their own, so that a lane faults pages in where
another thread has just freed as many: steps of factors, made in a lane, took a tenth to a fifth longer.

A kept heap fragments: a process came to 1.2 to 1.6 times the bytes that are alive in it. Under a memory limit that
leaves no room for this, large blocks go back to the kernel when they are freed.

Python's garbage collector visits every live object, with all of torch and the graph among them: 6 ms in every step of a
small model. Objects that exist before the first step are set aside (`gc.freeze`).
"""

from __future__ import annotations

import ctypes
import gc
import os
from math import inf
from pathlib import Path
from typing import Final

import psutil

from partita.units import Bytes

KEPT: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**40), "MALLOC_ARENA_MAX": "1",
    "GLIBC_TUNABLES": ":".join((*filter(None, [os.environ.get("GLIBC_TUNABLES")]), "glibc.malloc.hugetlb=1")),
}  # fmt: skip
SMALL: Final = 2**17  # bytes below which a freed block stays in any case, as glibc has it by itself
HOLES: Final = 2  # times what lives that a kept heap may come to
UNLIMITED: Final = 2**60  # version 1 has a number for no limit
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
ARENA_MAX: Final = -8
PR_SET_THP_DISABLE: Final = 41


def keep_freed() -> None:
    """Keep freed memory, as if this process had been started with `KEPT` in the environment; no effect without
    glibc."""
    _set(2**31 - 1)


def make_room(live: Bytes) -> None:
    """Keep freed memory if the process may take what it has now plus a fragmented heap with `live` live bytes;
    otherwise return freed memory to the kernel, now and later, and take no more huge pages, of which a part may lie
    idle."""
    if psutil.Process().memory_info().rss + HOLES * live <= limit():
        keep_freed()
    elif _set(SMALL):
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
        libc.malloc_trim(0)


def limit(proc: Path = Path("/proc/self"), mount: Path = Path("/sys/fs/cgroup")) -> float:
    """The least memory limit in bytes of this process's control group and those around it, for both versions of the
    kernel's interface; inf if there is none."""
    table = proc / "cgroup"
    for line in table.read_text().splitlines() if table.exists() else ():
        _, kinds, path = line.split(":", 2)
        roots = {"memory": (mount / "memory", "memory.limit_in_bytes"), "": (mount, "memory.max")}
        kind = "memory" if "memory" in kinds.split(",") else kinds
        if kind not in roots:
            continue
        (root, name), stated = roots[kind], list[float]()
        here = root / f".{path}"  # a container may see its own group as the root
        for group in (here, *here.parents):
            if group.is_relative_to(root) and (group / name).is_file():
                stated.append(float((group / name).read_text().replace("max", "inf")))
        if stated:
            return min(stated) if min(stated) < UNLIMITED else inf
    return inf


def _set(threshold: Bytes) -> bool:
    """Set the size from which freed blocks of the one heap go back to the kernel; False without glibc."""
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    chosen = (TRIM_THRESHOLD, threshold), (MMAP_THRESHOLD, threshold), (ARENA_MAX, 1)
    return change is not None and all(change(*each) for each in chosen)


def fault_in(size: Bytes) -> None:
    """Map `size` bytes of the kept heap now. A page fault takes 0.2 us, or 13 us if a host has to find the page for
    a virtual machine first: 2,000 of them made a pass of 10 ms one of 40."""
    import torch  # not above: whoever has workers begun before it loads torch needs `KEPT`

    torch.ones(size, dtype=torch.uint8)


def set_aside() -> None:
    """Collect garbage, and exclude what is alive now from all later collections."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
